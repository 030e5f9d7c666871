"""The definitions of the cases: inputs, configuration and purpose; the specification computes the rest."""

from collections.abc import Callable, Iterator

from moespec.conformance.cases import (
    affinities,
    allocations,
    base_layers,
    dselect_k,
    gates,
    hashing,
    importance_score,
    layers,
    losses,
    mlps,
    models,
    network,
    noisy_top_k,
    routers,
    soft,
    transport,
)
from moespec.conformance.cases.definition import Definition

__all__ = ["definitions"]

_MODULES: tuple[Callable[[], Iterator[Definition]], ...] = (
    affinities.cases,
    transport.cases,
    allocations.cases,
    soft.cases,
    losses.cases,
    layers.cases,
    network.cases,
    routers.cases,
    models.cases,
    importance_score.cases,
    mlps.cases,
    dselect_k.cases,
    base_layers.cases,
    hashing.cases,
    noisy_top_k.cases,
    gates.cases,
)


def definitions() -> dict[str, Definition]:
    """Every case by id, in the order of the registry."""
    found: dict[str, Definition] = {}
    for cases in _MODULES:
        for definition in cases():
            if definition.id in found:
                raise ValueError(f"two cases are called {definition.id}")
            found[definition.id] = definition
    return found
