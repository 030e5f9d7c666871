"""Output streams that escape characters outside their encoding, and drop text that cannot be written, as on a full disk."""

import io
import os
import sys
import warnings
from typing import Any

__all__ = ["Output", "open_streams"]


class Output(io.FileIO):
    """A raw output file that stores its first write error in `failed`. If standard output is a closed pipe, a write raises an error."""

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
    """Replaces standard output and standard error, even if they are closed, as in a service. Returns the new standard output.

    Each warning is printed as one line that begins with `moespec:`.
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
