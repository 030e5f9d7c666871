"""Handles signals that stop a run: the first signal lets the current step or evaluation batch finish; a second ends the process."""

import contextlib
import os
import signal
import sys
import threading
from typing import Any, ClassVar, Self

from moespec.backends.contract import Backend
from moespec.models.errors import Interrupted
from moespec.training.progress_bar import in_notebook

__all__ = ["Interruption", "check"]

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Interruption:
    """Within this context, Ctrl-C, SIGTERM and SIGHUP set `signal` instead of ending the process. A second signal ends the process; in a
    notebook, the second signal ends only the call, so that the user keeps all variables.

    Python calls signal handlers only between bytecode instructions, and a compiler may spend minutes in one instruction. A thread
    therefore reads signal numbers from a wake-up descriptor, to which the interpreter writes them immediately.

    If the process ignores a signal, as under nohup, the signal stays ignored. Outside the main thread, where Python cannot set handlers,
    the context does nothing.
    """

    current: "ClassVar[Interruption | None]" = None

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        Interruption.current = self
        if threading.current_thread() is threading.main_thread():
            self._reader, self._writer = os.pipe()
            os.set_blocking(self._writer, False)
            self._descriptor = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
            again = signal.default_int_handler if in_notebook() else lambda *_: None
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._handlers[number] = signal.signal(number, lambda number, _: signal.signal(number, again))
            self._thread = threading.Thread(target=self._read, name="moespec-signals", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        Interruption.current = None
        if threading.current_thread() is threading.main_thread():
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(self._descriptor)
            os.close(self._writer)  # closing this end of the pipe ends the thread, which reads from the other end
            self._thread.join()
            os.close(self._reader)

    def agreed(self, B: Backend, here: bool) -> signal.Signals | None:
        """Returns the signal that stops all processes after this step, or None. Processes exchange signals only if `here` is true."""
        if B.processes == 1:
            return self.signal
        if not here:
            return None
        stopped = [number for number in B.exchanged(str(int(self.signal or 0))) if number != "0"]
        return signal.Signals(int(stopped[0])) if stopped else None

    def _read(self) -> None:
        while numbers := os.read(self._reader, 1):
            if numbers[0] not in self._handlers or (self.signal is not None and in_notebook()):
                continue
            if self.signal is not None:
                os._exit(128 + numbers[0])
            self.signal = signal.Signals(numbers[0])
            with contextlib.suppress(OSError):  # the terminal may have closed
                print(
                    f"\nmoespec: {self.signal.name}: finishing this step or batch; repeat to stop at once",
                    file=sys.stderr,
                )


def check(B: Backend) -> None:
    """Raises Interrupted in all processes if any process received a signal within an `Interruption`."""
    current = Interruption.current
    if current is not None and (stopped_by := current.agreed(B, True)) is not None:
        raise Interrupted(f"evaluation stopped by {stopped_by.name}", stopped_by)
