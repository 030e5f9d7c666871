"""Turns a peer into a target. The suite runs the cases of the peer's functions, except error cases."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

from moespec.conformance import call
from moespec.conformance.check.target import Facts, Job, Target, Values
from moespec.conformance.compare import Dtype
from moespec.conformance.failure import NotOfferedError
from moespec.conformance.format import Case, Stage
from moespec.spec import ROUTERS

__all__ = ["PeerTarget", "checked_function", "checked_stages", "router_of", "routing_only"]

ERRORS = "a peer has errors of its own"
SHARED = "not the peer's code"
NOT_PASSED = ("bias", "jitter", "logit_cap", "normalize_when", "normalize_norm", "slot_order")
"""Router options that an adapter passes to its peer only if `PASSED` in the adapter names them."""


def router_of(case: Case) -> str:
    """Return the router that a case runs, or an empty string."""
    return next((stage.router for stage in case.stages if stage.router), "")


def checked_function(module: Any, stage: Stage, case: Case) -> str:
    """Return the peer's function that a stage checks: a router, or the first called function that the adapter defines.

    Return an empty string if the adapter lacks the router or function, or imports the function from a module that adapters share.
    """
    router = router_of(case)
    if router and stage.name in case.whole:
        return router if router in getattr(module, "ROUTERS", {}) else ""
    functions = [each["call"] for each in stage.arguments.values() if isinstance(each, Mapping) and "call" in each]
    for name in (stage.call, *functions):
        if getattr(getattr(module, name, None), "__module__", "") == module.__name__:
            return str(name)
    return ""


def checked_stages(case: Case, function: str) -> list[str]:
    """Return the stages of a case that check a function: the calls of the function or, in a case of a router, the router's main stages."""
    router = router_of(case)
    if router:
        return list(case.whole) if router == function else []
    return [stage.name for stage in case.stages if stage.call == function]


def routing_only(case: Case) -> Case:
    """Remove losses, metrics and the state update from a case of a router. Cases without a router are returned unchanged."""
    if not router_of(case):
        return case
    stages = []
    for stage in case.stages:
        left_out = [name for name in stage.outputs if name.startswith(("losses/", "metrics/", "statistics/"))]
        if not stage.call.endswith(".update"):
            outputs = {name: value for name, value in stage.outputs.items() if name not in left_out}
            stages.append(replace(stage, outputs=outputs))
    gradients = None if case.gradients and case.gradients.losses else case.gradients
    return replace(case, stages=tuple(stages), gradients=gradients)


def _lacking(module: Any, stage: Stage) -> str:
    """Return the first argument or non-default option of a call that the adapter does not accept, or an empty string."""
    function = module.ROUTERS[stage.router].route if stage.router else getattr(module, stage.call, None)
    if stage.router:
        defaults = {field.name: field.default for field in fields(ROUTERS[stage.router].Options)}
        given = stage.options["options"]
        unknown = [name for name in NOT_PASSED if name not in getattr(module, "PASSED", ())]
        if different := [name for name in unknown if name in given and given[name] != defaults[name]]:
            return different[0]
    if not inspect.isfunction(function):
        return ""
    known = inspect.signature(function).parameters
    if any(parameter.kind == parameter.VAR_KEYWORD for parameter in known.values()):
        return ""
    return next((name for name in (*stage.arguments, *stage.options) if name not in known), "")


class PeerTarget(Target):
    """Runs an adapter in one dtype. Calls that raise NotImplementedError count as not implemented."""

    declines = True

    @staticmethod
    def wanted(case: Case) -> Case:
        """Return the case without the losses, metrics and state update of its router."""
        return routing_only(case)

    @staticmethod
    def lacks(job: Job, facts: Facts, dtype: Dtype) -> str:
        """Return the reason why a job does not run, or an empty string."""
        return ERRORS if job.case.expect is not None else Target.lacks(job, facts, dtype)

    def result(self, job: Job, compile: Any = None) -> Callable[[Values], Any]:
        """Return a function that runs a job with the peer's code. Raises NotOfferedError if the peer does not offer the function."""
        router = router_of(job.case)  # if the peer lacks the router, skip the router's steps too
        own = not router or router in getattr(self.module, "ROUTERS", {})
        if not own or not checked_function(self.module, job.stage, job.case):
            raise NotOfferedError(SHARED)
        for stage in (job.stage, *call.earlier(job.stage, job.stages, job.values)):
            if lacking := _lacking(self.module, stage):
                raise NotOfferedError(f"{stage.call}: the peer has no {lacking}")
        run = super().result(job, compile)

        def offered(values: Values) -> Any:
            try:
                return run(values)
            except NotImplementedError as error:
                raise NotOfferedError(str(error)) from error

        return offered
