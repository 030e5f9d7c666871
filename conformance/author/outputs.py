"""Computes a stage's expected results, and the scale and the constant that set the tolerance of each result."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec import spec
from moespec.backends.directions import derivatives, units
from moespec.conformance.author.inputs import signs
from moespec.conformance.author.reference import Arrays, Making
from moespec.conformance.author.scale import condition, pooled_spread, round_scale, spread
from moespec.conformance.author.trace import Recorder
from moespec.conformance.compare import CONSTANTS, LARGE
from moespec.conformance.format import GoldenError, Stage, Value
from moespec.conformance.functions import function

__all__ = ["PROBES", "along", "outputs"]

PROBES = 6
"""Number of probes in sampled cases, where the spread replaces other scales. A few suffice, because a result averages many numbers."""


def outputs(making: Making, stage: Stage) -> dict[str, Value]:
    """Return a stage's expected results and their scales."""
    groups = making.groups(stage)
    each = [making.run(stage, group) for group in groups]
    results = making.join(stage, each)
    described = {name: making.output(stage, name) for name in results}
    for name, value in results.items():
        if value.ndim > len(described[name].axes.split()):
            raise GoldenError(f"{stage.name}: {name} has shape {value.shape}, expected the axes {described[name].axes}")
    scales = _scales(
        making, stage, groups, each, {output.scale for output in described.values() if output.kind == "float"}
    )
    values = {}
    for name, value in results.items():
        output = described[name]
        axes = tuple(output.axes.split()[-value.ndim :] if value.ndim else ())
        if output.kind != "float":
            values[name] = Value(value.astype(np.int32 if output.kind == "int" else np.bool_), axes, output.kind)
            continue
        scale = _scale(making, stage, groups, name, value, scales)
        values[name] = Value(value.astype(np.float64), axes, "float", scale, _constant(making, stage, name))
    return values


def _scales(
    making: Making, stage: Stage, groups: list[Arrays], each: list[Arrays], rules: set[str]
) -> dict[str, Arrays]:
    """Return the scales of the results for each rule in `rules` that needs derivatives."""
    scales: dict[str, Arrays] = {}
    of_all: Callable[..., Arrays] = pooled_spread if function(stage.call).pooled else spread
    of_each: Callable[..., Arrays] = condition
    if making.sampled:
        of_all = of_each = partial(pooled_spread, probes=PROBES)
    for rule, of in (("condition", of_each), ("spread", of_all)):
        if rule in rules or (making.sampled and rule == "condition"):
            found = [
                of(lambda values: making.run(stage, values), group, computed)
                for group, computed in zip(groups, each, strict=True)
            ]
            scales[rule] = making.join(stage, found)
    if making.router_of(stage) and "condition" in scales:
        carried = [_carried(making, stage, *pair) for pair in zip(groups, each, strict=True)]
        scales["condition"] |= {
            name: np.maximum(scales["condition"][name], array) for name, array in making.join(stage, carried).items()
        }
    return scales


def _scale(
    making: Making, stage: Stage, groups: list[Arrays], name: str, value: NDArray[Any], scales: dict[str, Arrays]
) -> NDArray[Any] | str:
    output = making.output(stage, name)
    if output.scale == "magnitude":
        return "magnitude"
    if output.scale == "unit":
        return round_scale(1 + np.abs(value))
    if output.written is None:
        return round_scale(scales[output.scale][name])
    if making.sampled:  # sums of n absolute values grow like n, but errors grow like sqrt(n)
        return round_scale(scales["condition"][name])
    by_group = [{name: np.asarray(output.written(**making.given(stage, group)), np.float64)} for group in groups]
    written = making.join(stage, by_group)[name]
    return round_scale(written if output.scale == "written" else np.maximum(written, scales[output.scale][name]))


def _carried(making: Making, stage: Stage, values: Arrays, results: Arrays) -> Arrays:
    """Propagate errors from a router's calls to the results of the router or layer. Each error is the `written` scale of a
    call's result. A sampled case applies all errors together with random signs. Other cases apply one error at a time.
    """
    plain = Recorder(spec, values)
    making.run(stage, values, plain)
    found = {name: np.zeros(value.shape) for name, value in results.items() if value.dtype.kind == "f"}
    for inner in making.trace:
        for part, output in function(inner.call).outputs.items():
            if output.written is None:
                continue
            size = np.asarray(output.written(**plain.given[inner.name]), np.float64)

            def results_of(error: Any, inner: Stage = inner, part: str = part) -> Arrays:
                return making.run(stage, values, Recorder(spec, values, _adding(inner.name, part, error)))

            signed = (size * signs(f"carried/{probe}", size.shape) for probe in range(PROBES))
            errors = signed if making.sampled else units(size)
            for name, moved in derivatives(results_of, errors).items():
                if name in found:
                    total = np.sqrt(np.mean(moved**2, axis=-1)) if making.sampled else np.abs(moved).sum(axis=-1)
                    found[name] = np.maximum(found[name], total)
    return found


def _adding(name: str, part: str, error: Any) -> Callable[[Stage, Any], Any]:
    """Return a function that adds an error to one named array of one call's result."""

    def change(stage: Stage, made: Any) -> Any:
        if stage.name != name:
            return made
        if hasattr(made, "_replace"):
            return made._replace(**{part: getattr(made, part) + error})
        return {**made, part: made[part] + error} if isinstance(made, Mapping) else made + error

    return change


def _constant(making: Making, stage: Stage, name: str) -> str:
    """Return the name of a result's constant c: the largest constant of the result and of the routings that the result depends on."""
    constants = [making.output(stage, name).constant]
    if stage.router and name in ("weights", "combine"):
        constants.append(along(making, making.routing, name))
    for reference in stage.arguments.values():
        if isinstance(reference, str) and reference not in making.tensors:
            routing = making.stages[reference.partition("/")[0]]
            constants += [value.constant for part, value in routing.outputs.items() if part in ("weights", "combine")]
    return (LARGE if making.sampled else "") + largest([name.removeprefix(LARGE) for name in constants])


def along(making: Making, reference: str, name: str = "") -> str:
    """Return the name of the largest constant of a call's result and of the earlier results that the call depends on."""
    stage = making.stages.get(reference.partition("/")[0])
    if stage is None:
        return "direct"
    known = function(stage.call)
    output = known.outputs.get(name or reference.partition("/")[2]) or next(iter(known.outputs.values()))
    follows = [stage.arguments[argument] for argument in output.follows if argument in stage.arguments][:1]
    arguments = follows or list(stage.arguments.values())
    return largest([output.constant, *(along(making, each) for each in arguments if isinstance(each, str))])


def largest(constants: list[str]) -> str:
    """Return the name of the largest constant."""
    return max(constants, key=lambda name: CONSTANTS[name][0])
