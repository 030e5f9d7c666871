"""The gradients of cases on a target, op by op or compiled: of all cases together, or one by one where that raises."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from moespec.conformance.check.target import (
    Job,
    Target,
    Values,
    check_unchanged,
    compilers,
    job_of,
)
from moespec.conformance.format import Gradients

__all__ = ["gradients"]


@dataclass(frozen=True)
class Gradient:
    """The gradient that a case expects, as a function of the inputs it is taken by."""

    job: Job

    @property
    def wanted(self) -> Gradients:
        """What the case expects."""
        return self.job.case.expected_gradients

    def params(self, target: Target) -> Values:
        """The inputs that the gradient is taken by."""
        return {name: array for name, array in self.job.arrays(target).items() if name in self.wanted.wrt}

    def rest(self, target: Target) -> Values:
        """Everything else, and the probe."""
        others = {name: a for name, a in self.job.arrays(target).items() if name not in self.wanted.wrt}
        probe = {"probe": self.wanted.probe}
        return {**others, **target.arrays(probe, target.wide)}

    def bind(self, target: Target) -> Callable[[Values, Values], Any]:
        """`sum(probe * output)`, and the losses, in float32 or better, as a function of `params` and `rest`."""
        function, name, B, wide = self.job.bind(target), self.wanted.output, target.array_operations(), target.wide
        route = job_of(self.job.case, "route") if self.wanted.losses else None
        routed = route.bind(target) if route else None

        def loss(params: Values, rest: Values) -> Any:
            values = {**rest, **params}
            probe = values.pop("probe")
            results = function(values)
            # Weights by slot, from the dense tensor: a slot has at most one token.
            output = results[name] if name in results else B.sum(results["routing.combine"], 1)
            losses = {} if routed is None else routed(values)
            added = sum(loss for name, loss in losses.items() if name.startswith("losses/"))
            return B.sum(B.cast(output, wide) * probe) + added

        return loss


def gradients(target: Target, jobs: Sequence[Job], mode: str) -> list[Values | Exception]:
    """The gradients of the case of each job by name, or the exception. In the compiled mode all are one function.

    jobs: of the stages whose results are differentiated.
    """
    wanted = [Gradient(job) for job in jobs]
    results: dict[str, Values | Exception] = {}
    by = compilers(target, jobs, mode)
    for compiler in filter(None, dict.fromkeys(by)):
        together = [gradient for gradient, its in zip(wanted, by, strict=True) if its == compiler]
        if len(together) > 1 and not target.differentiates:
            with suppress(Exception):
                results |= _differentiate(target, together, compiler)
    for gradient, its in zip(wanted, by, strict=True):
        case = gradient.job.case
        if case.id not in results:
            try:
                if target.differentiates:
                    results[case.id] = _derived(target, gradient, its)
                else:
                    results |= _differentiate(target, [gradient], its)
            except Exception as error:
                results[case.id] = error
    return [results[job.case.id] for job in jobs]


def _derived(target: Target, gradient: Gradient, compiler: str | None) -> Values:
    """The gradient by the target's own derivative of the layer."""
    function = target.derivative(gradient.job)
    if compiler:
        function = target.compile(function, compiler)
    arrays = gradient.job.arrays(target)
    cotangent = target.arrays({"probe": gradient.wanted.probe})["probe"]
    before = target.copies(arrays)
    slopes = function(arrays, cotangent)
    on_numpy = target.module.to_numpy({name: array for name, array in slopes.items() if name in gradient.wanted.wrt})
    target.check_dtypes(on_numpy)
    check_unchanged(before, target.copies(arrays))
    return {name: np.asarray(array) for name, array in on_numpy.items()}


def _differentiate(target: Target, wanted: Sequence[Gradient], compiler: str | None) -> dict[str, Values | Exception]:
    losses = [gradient.bind(target) for gradient in wanted]

    def total(params: dict[str, Values], rest: dict[str, Values]) -> tuple[Any, dict[str, Any]]:
        return sum(loss(params[str(i)], rest[str(i)]) for i, loss in enumerate(losses)), {}

    params = {str(i): gradient.params(target) for i, gradient in enumerate(wanted)}
    rest = {str(i): gradient.rest(target) for i, gradient in enumerate(wanted)}
    _, slopes = target.differentiated(total, compiler)(params, rest)
    on_numpy = {key: target.module.to_numpy(part) for key, part in slopes.items()}
    for own in on_numpy.values():
        target.check_dtypes(own)
    return {
        gradient.job.case.id: {name: np.asarray(array) for name, array in on_numpy[str(i)].items()}
        for i, gradient in enumerate(wanted)
    }
