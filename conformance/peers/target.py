"""A peer as a target: it is asked for what it has, and not for our errors."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from moespec.conformance.format import Case, Value
from moespec.conformance.program import Stage, Values
from moespec.conformance.programs import PROGRAMS
from moespec.conformance.results import NotOfferedError
from moespec.conformance.target import Target
from moespec.spec import ROUTERS

__all__ = ["PeerTarget", "judged_function"]

ERRORS = "a peer has errors of its own"
SHARED = "not the peer's code"


def judged_function(module: Any, stage: Stage, algorithm: str) -> str:
    """Which of the peer's functions a stage judges: the first that the adapter defines, or the name of a router.

    An empty string if what the stage calls is missing, or is what adapters share.
    """
    for name in stage.calls:
        if name == "ROUTERS":
            return algorithm if algorithm in getattr(module, name, {}) else ""
        if getattr(getattr(module, name, None), "__module__", "") == module.__name__:
            return name
    return ""


def _routing(outputs: Mapping[str, Value]) -> dict[str, Value]:
    return {name: value for name, value in outputs.items() if not name.startswith(("losses/", "metrics/"))}


class PeerTarget(Target):
    """An adapter in one lane. What it raises NotImplementedError for is not implemented."""

    def asked(self, case: Case) -> Case:
        """Of a router the routing and the output, without its losses and metrics; no steps of one that the peer lacks."""
        if case.algorithm not in ROUTERS:
            return case
        has = case.algorithm in getattr(self.module, "ROUTERS", {})
        stages = [record for record in case.stages if has or PROGRAMS[case.algorithm][record.name].whole]
        return replace(case, stages=tuple(replace(record, outputs=_routing(record.outputs)) for record in stages))

    def lacks(self, stage: Stage, case: Case) -> str:
        """Why a stage is not run, or an empty string."""
        if case.expect is not None:
            return ERRORS
        missing = super().lacks(stage, case)
        allocation = case.config.get("allocation")
        if not missing and allocation is not None and not hasattr(self.module, allocation):
            missing = f"{allocation} is missing"
        if not missing and not judged_function(self.module, stage, case.algorithm):
            missing = SHARED
        return missing

    def implementation(self, stage: Stage, case: Case) -> Callable[[Any, Mapping[str, Any], Values], Values]:
        """What runs a stage: as for any target, with NotImplementedError as what is not offered."""
        run = super().implementation(stage, case)

        def offered(module: Any, config: Mapping[str, Any], values: Values) -> Values:
            try:
                return run(module, config, values)
            except NotImplementedError as error:
                raise NotOfferedError(str(error)) from error

        return offered
