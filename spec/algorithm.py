"""What the specification says of itself: the rows of the conformance matrix and the entries of the ambiguity ledger."""

from dataclasses import dataclass

__all__ = ["Algorithm", "LedgerEntry"]


@dataclass(frozen=True)
class Algorithm:
    """One row of the conformance matrix.

    name: of the row.
    cites: where the literature defines it.
    revision: raised whenever a value that it computes changes on purpose.
    functions: the public names it covers, attributes of `moespec.spec`; none for a model.
    """

    name: str
    cites: str
    revision: int
    functions: tuple[str, ...] = ()


@dataclass(frozen=True)
class LedgerEntry:
    """One place where a paper is silent or contradicts itself, the reading taken here, and those not taken."""

    id: str
    question: str
    reading: str
    alternatives: str
