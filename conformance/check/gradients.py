"""Compute gradients of cases on a target, op by op or compiled. If a function of several gradients fails, compute each gradient alone."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from moespec.conformance.check.target import Job, Target, Values, check_unchanged, compilers, job_of

__all__ = ["gradients"]


def gradients(target: Target, jobs: Sequence[Job], mode: str) -> list[Values | Exception]:
    """Returns each job's gradients by name, or the exception of the job. Jobs with the same compiler are compiled as one function.

    jobs: the stages to differentiate.
    """
    results: dict[str, Values | Exception] = {}
    by, own = compilers(target, jobs, mode), [target.derivative(job) for job in jobs]
    for compiler in filter(None, dict.fromkeys(by)):
        together = [job for job, its in zip(jobs, by, strict=True) if its == compiler]
        if len(together) > 1 and not any(own):
            with suppress(Exception):
                results |= _differentiated(target, together, compiler)
    for job, derivative, its in zip(jobs, own, by, strict=True):
        if job.case.id not in results:
            try:
                if derivative is None:
                    results |= _differentiated(target, [job], its)
                else:
                    results[job.case.id] = _derived(target, job, derivative, its)
            except Exception as error:
                results[job.case.id] = error
    return [results[job.case.id] for job in jobs]


def _derived(target: Target, job: Job, derivative: Callable[[Values, Any], Values], compiler: str | None) -> Values:
    """Computes the gradients of a case with the adapter's `vjp`."""
    function = target.compile(derivative, compiler) if compiler else derivative
    wanted, arrays = job.case.expected_gradients, job.arrays(target)
    cotangent = target.arrays({"probe": wanted.probe})["probe"]
    before = target.copies(arrays)
    slopes = function(arrays, cotangent)
    gradient = _on_numpy(target, {name: array for name, array in slopes.items() if name in wanted.wrt})
    check_unchanged(before, target.copies(arrays))
    return gradient


def _differentiated(target: Target, jobs: Sequence[Job], compiler: str | None) -> dict[str, Values | Exception]:
    """Differentiates the sum of the losses of all jobs, and returns the gradients by case id."""
    losses = {job.case.id: _loss(target, job) for job in jobs}
    params, rest = {}, {}
    for job in jobs:
        params[job.case.id], rest[job.case.id] = _arrays(target, job)

    def total(params: dict[str, Values], rest: dict[str, Values]) -> tuple[Any, dict[str, Any]]:
        return sum(loss(params[id], rest[id]) for id, loss in losses.items()), {}

    _, slopes = target.differentiated(total, compiler)(params, rest)
    return {id: _on_numpy(target, own) for id, own in slopes.items()}


def _on_numpy(target: Target, slopes: Values) -> Values:
    on_numpy = target.module.to_numpy(slopes)
    target.check_dtypes(on_numpy)
    return {name: np.asarray(array) for name, array in on_numpy.items()}


def _arrays(target: Target, job: Job) -> tuple[Values, Values]:
    """Returns the inputs with respect to which a case is differentiated, and the other arrays including the probe."""
    wanted, arrays = job.case.expected_gradients, job.arrays(target)
    params = {name: arrays.pop(name) for name in [*arrays] if name in wanted.wrt}
    return params, {**arrays, **target.arrays({"probe": wanted.probe}, target.wide)}


def _loss(target: Target, job: Job) -> Callable[[Values, Values], Any]:
    """Returns a function that takes the arrays from `_arrays` and computes `sum(probe * output)` plus the losses, in float32 or float64."""
    wanted, function, B, wide = job.case.expected_gradients, job.bind(target), target.array_operations(), target.wide
    routed = job_of(job.case, "route").bind(target) if wanted.losses else None

    def loss(params: Values, rest: Values) -> Any:
        values = {**rest, **params}
        probe = values.pop("probe")
        results = function(values)
        # The sum over tokens of the combine tensor gives the weight of each slot, since a slot has at most one token.
        output = results[wanted.output] if wanted.output in results else B.sum(results["routing.combine"], 1)
        losses = {} if routed is None else routed(values)
        added = sum(loss for name, loss in losses.items() if name.startswith("losses/"))
        return B.sum(B.cast(output, wide) * probe) + added

    return loss
