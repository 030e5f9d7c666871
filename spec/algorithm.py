"""The class `Algorithm`, which describes one row of the conformance matrix."""

from dataclasses import dataclass

__all__ = ["Algorithm"]


@dataclass(frozen=True)
class Algorithm:
    """One row of the conformance matrix.

    name: the name of the row.
    cites: the publications that define the algorithm.
    revision: an integer that is increased whenever computed values change on purpose.
    functions: the names of the functions in `moespec.spec` that the row covers; empty for a model.
    """

    name: str
    cites: str
    revision: int
    functions: tuple[str, ...] = ()
