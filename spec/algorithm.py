"""A row of the conformance matrix."""

from dataclasses import dataclass

__all__ = ["Algorithm"]


@dataclass(frozen=True)
class Algorithm:
    """One row of the conformance matrix.

    name: of the row.
    cites: where the literature defines it.
    revision: raised on every intended change of a computed value.
    functions: the public names that it covers, attributes of `moespec.spec`; empty for a model.
    """

    name: str
    cites: str
    revision: int
    functions: tuple[str, ...] = ()
