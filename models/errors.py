"""The errors of data, checkpoints and runs. An error about a file names the file.

`Interrupted` is not an error: it reports that a signal stopped a run.
"""

import signal

from moespec.spec.errors import SpecError

__all__ = ["BusyError", "CheckpointError", "DataError", "Interrupted", "RunError"]


class DataError(SpecError):
    """A file or folder of a data set is missing, damaged, empty or of the wrong kind. The message is always one line."""

    def __init__(self, message: str) -> None:
        super().__init__(message.replace("\r", "\\r").replace("\n", "\\n"))


class CheckpointError(SpecError):
    """A checkpoint is missing or damaged, or belongs to a different model."""


class RunError(SpecError):
    """A run fails, or a folder, file or option of a run cannot be used as requested."""


class BusyError(RunError):
    """Another process is training in the folder of a run."""


class Interrupted(KeyboardInterrupt):
    """The signal `signal` stopped a run or an evaluation. A run saves its last step before it raises this exception."""

    def __init__(self, message: str, signal: signal.Signals) -> None:
        super().__init__(message)
        self.signal = signal
