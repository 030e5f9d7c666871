"""The errors of data, checkpoints and runs, which are about files rather than arguments. Each names the file.

`Interrupted` is not an error: it ends a run that a signal stopped.
"""

import signal

from moespec.spec.errors import SpecError

__all__ = ["BusyError", "CheckpointError", "DataError", "Interrupted", "RunError"]


class DataError(SpecError):
    """A data set's file or folder is missing, damaged, empty or of the wrong kind. It is one line, whatever names it has."""

    def __init__(self, message: str) -> None:
        super().__init__(message.replace("\r", "\\r").replace("\n", "\\n"))


class CheckpointError(SpecError):
    """A checkpoint is missing, damaged, or does not belong to the model that should read it."""


class RunError(SpecError):
    """A run's folder cannot be used as requested: it holds another run, or nothing."""


class BusyError(RunError):
    """Another process is training in a run's folder."""


class Interrupted(KeyboardInterrupt):
    """A run was stopped by `signal`, after it had saved its last step."""

    def __init__(self, message: str, signal: signal.Signals) -> None:
        super().__init__(message)
        self.signal = signal
