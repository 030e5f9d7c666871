"""The errors of data, checkpoints and runs. Each error names the file that caused it.

`Interrupted` is no error: it reports that a signal stopped a run.
"""

import signal

from moespec.spec.errors import SpecError

__all__ = ["BusyError", "CheckpointError", "DataError", "Interrupted", "RunError"]


class DataError(SpecError):
    """A file or folder of a data set is missing, damaged, empty or of the wrong kind. The message is always one line."""

    def __init__(self, message: str) -> None:
        super().__init__(message.replace("\r", "\\r").replace("\n", "\\n"))


class CheckpointError(SpecError):
    """A checkpoint is missing, damaged, or belongs to a different model than the one that reads it."""


class RunError(SpecError):
    """The folder cannot be used as requested because it holds another run, or no run."""


class BusyError(RunError):
    """Another process is training in the folder of a run."""


class Interrupted(KeyboardInterrupt):
    """The signal `signal` stopped a run, which first saved its last step."""

    def __init__(self, message: str, signal: signal.Signals) -> None:
        super().__init__(message)
        self.signal = signal
