"""The programs: for each algorithm of the registry, the stages that its cases are made of."""

from moespec.conformance.program import Stage
from moespec.conformance.programs import (
    affinities,
    allocations,
    base_layers,
    dselect_k,
    gates,
    hashing,
    layers,
    losses,
    models,
    network,
    routers,
    training,
)

__all__ = ["PROGRAMS"]

PROGRAMS: dict[str, dict[str, Stage]] = {}
"""Algorithm -> stage name -> stage."""

for _module in (
    affinities,
    allocations,
    losses,
    layers,
    network,
    routers,
    models,
    training,
    dselect_k,
    base_layers,
    hashing,
    gates,
):
    for _algorithm, _stages in _module.STAGES.items():
        PROGRAMS.setdefault(_algorithm, {}).update({stage.name: stage for stage in _stages})
