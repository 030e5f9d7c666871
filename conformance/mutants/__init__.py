"""Named deviations from the specification: what the vectors must catch, and what a stranger's router may turn out to do.

Each choice of the ambiguity ledger that a vector can show is here as its other readings, each way in which a public
implementation is known to differ, and the mistakes that are easily made. A mutant is a whole target; see `definition`.
"""

from moespec.conformance.mutants import (
    affinities,
    allocations,
    base_layers,
    capacity,
    dselect_k,
    faults,
    gates,
    hashing,
    importance_score,
    layers,
    losses,
    mlps,
    network,
    packages,
    routers,
    soft,
    transport,
)
from moespec.conformance.mutants.definition import Mutant, build, recorded

__all__ = ["MUTANTS", "Mutant", "build", "recorded"]

MUTANTS: dict[str, Mutant] = {}
"""The mutants by name."""

for _module in (
    *(capacity, affinities, allocations, transport, soft, losses, layers, network, routers, faults, packages),
    *(importance_score, mlps, dselect_k, base_layers, hashing, gates),
):
    for _mutant in _module.MUTANTS:
        if _mutant.name in MUTANTS:
            raise ValueError(f"two mutants are called {_mutant.name}")
        MUTANTS[_mutant.name] = _mutant
