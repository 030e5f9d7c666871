"""The errors of data, checkpoints and runs, which are about files rather than arguments. Each names the file."""

from moespec.spec.errors import SpecError

__all__ = ["CheckpointError", "DataError", "RunError"]


class DataError(SpecError):
    """A data set's file or folder is missing, damaged, empty or of the wrong kind."""


class CheckpointError(SpecError):
    """A checkpoint is missing, damaged, or does not belong to the model that should read it."""


class RunError(SpecError):
    """A run's folder cannot be used as requested: it holds another run, or nothing."""
