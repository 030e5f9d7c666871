"""Output streams that escape characters that they cannot show and drop text that they cannot write."""

import io
import os
import sys
import warnings
from typing import Any

__all__ = ["Output", "open_streams"]


class Output(io.FileIO):
    """A descriptor that stores its first write error, such as a full disk, in `failed`. Standard output raises when its reader is gone."""

    failed: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            if self.fileno() == 1:
                raise
        except OSError as error:
            self.failed = self.failed or error
        return memoryview(data).nbytes


def open_streams() -> Output:
    """Replaces the output streams of this process, even if they are closed, as in a service. Returns standard output.

    Warnings become one line that begins with `moespec:`.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # otherwise, the next opened file would get this descriptor
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    outputs = Output(1, "w", closefd=False), Output(2, "w", closefd=False)
    for name, output in zip(("stdout", "stderr"), outputs, strict=True):
        stream = getattr(sys, name)
        at_once = name == "stderr" or output.isatty() or getattr(stream, "write_through", False)
        how: Any = {"encoding": getattr(stream, "encoding", "utf-8"), "line_buffering": at_once}
        setattr(sys, name, io.TextIOWrapper(io.BufferedWriter(output), errors="backslashreplace", **how))
    warnings.showwarning = lambda message, *_, **__: print(f"moespec: {message}", file=sys.stderr)
    return outputs[0]
