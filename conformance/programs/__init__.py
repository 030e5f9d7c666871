"""The programs: for each algorithm of the registry, the stages that its cases are made of."""

from moespec.conformance.program import Stage
from moespec.conformance.programs import affinities, allocations, layers, losses, models, network, routers

__all__ = ["PROGRAMS"]

PROGRAMS: dict[str, dict[str, Stage]] = {
    algorithm: {stage.name: stage for stage in stages}
    for module in (affinities, allocations, losses, layers, network, routers, models)
    for algorithm, stages in module.STAGES.items()
}
"""Algorithm -> stage name -> stage."""
