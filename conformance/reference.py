"""The reference: stages run on the specification, one group at a time, with scales, margins and gradients.

A model runs on the batched NumPy backend, which is the specification behind the names that models are written with.
"""

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec import spec
from moespec.conformance.draw import grid
from moespec.conformance.format import Gradients, Tensor, Value
from moespec.conformance.judge import CONSTANTS, LANES
from moespec.conformance.program import BATCH_AXES, Output, Stage, describe, finish, select
from moespec.conformance.scale import STEP, condition, pooled_spread, round_scale, spread, stability
from moespec.spec.numerics import softmax

__all__ = ["GoldenError", "decision", "gradients", "outputs"]

Arrays = dict[str, NDArray[Any]]
Tensors = Mapping[str, Tensor]

SPEC = SimpleNamespace(
    **{name: getattr(spec, name) for name in spec.__all__},
    einsum=np.einsum,
    concatenate=np.concatenate,
    broadcast_to=np.broadcast_to,
    transpose=np.transpose,
    mean=np.mean,
    sum=np.sum,
    tanh=np.tanh,
    softmax=softmax,
)
"""The specification, with NumPy's own array operations beside it. `np.einsum` does not reorder sums."""


class GoldenError(Exception):
    """A golden cannot be made: two ways to compute it disagree, or a random search found nothing."""


def backend(stage: Stage) -> Any:
    """What a stage runs on."""
    return importlib.import_module("moespec.backends.numpy") if stage.batched else SPEC


def run(stage: Stage, config: Mapping[str, Any], values: Arrays) -> Arrays:
    """The results of a stage on the values of one group (or of a batch, for a model)."""
    return finish(stage.run(backend(stage), stage.prepare(config), values))


def groups_of(stage: Stage, tensors: Tensors) -> list[Arrays]:
    """The values of a stage, group by group; one element for a stage without groups."""
    selected = select(tensors, stage.reads)
    arrays = {name: _wide(tensor.array) for name, tensor in selected.items()}
    batched = [] if stage.batched else [n for n, t in selected.items() if t.axes and t.axes[0] in BATCH_AXES]
    if not batched:
        return [arrays]
    return [{**arrays, **{n: arrays[n][g] for n in batched}} for g in range(len(arrays[batched[0]]))]


def join(stage: Stage, groups: list[Arrays]) -> Arrays:
    """Results of the groups together: stacked, or averaged where a result has no axis for them."""
    joined = {}
    for name, first in groups[0].items():
        axes = describe(stage, name).axes
        stacked = np.stack([group[name] for group in groups])
        if stage.batched or len(axes) == first.ndim:
            joined[name] = stacked.mean(axis=0) if len(groups) > 1 else first
        else:
            joined[name] = stacked
    return joined


def outputs(stage: Stage, config: Mapping[str, Any], tensors: Tensors) -> dict[str, Value]:
    """The expected results of a stage with their scales."""
    groups = groups_of(stage, tensors)
    each = [run(stage, config, group) for group in groups]
    results = join(stage, each)
    described = {name: describe(stage, name) for name in results}
    for name, value in results.items():
        if value.ndim != len(described[name].axes):
            raise GoldenError(f"{stage.name}: {name} has shape {value.shape}, its axes are {described[name].axes}")
    scales: dict[str, Arrays] = {}
    for rule, function in (("condition", condition), ("spread", pooled_spread if stage.pooled else spread)):
        if any(output.scale == rule and output.kind == "float" for output in described.values()):
            found = [
                function(lambda values: run(stage, config, values), group, computed)
                for group, computed in zip(groups, each, strict=True)
            ]
            scales[rule] = join(stage, found)
    values = {}
    for name, value in results.items():
        output = described[name]
        if value.dtype.kind in "iub":
            values[name] = Value(value.astype(np.int32), output.axes, "int")
        else:
            scale = _scale(stage, config, groups, name, value, output, scales)
            constant = output.constant if isinstance(output.constant, str) else output.constant(config)
            values[name] = Value(value.astype(np.float64), output.axes, "float", scale, constant)
    return values


def _scale(
    stage: Stage,
    config: Mapping[str, Any],
    groups: list[Arrays],
    name: str,
    value: NDArray[Any],
    output: Output,
    scales: dict[str, Arrays],
) -> NDArray[Any] | str:
    if output.scale == "magnitude":
        return "magnitude"
    if output.scale == "unit":
        return round_scale(1 + np.abs(value))
    if output.written is None:
        return round_scale(scales[output.scale][name])
    written = join(stage, [{name: np.asarray(output.written(config, group), np.float64)} for group in groups])[name]
    return round_scale(written if output.scale == "written" else np.maximum(written, scales[output.scale][name]))


def decision(stage: Stage, config: Mapping[str, Any], tensors: Tensors, inputs: Tensors) -> dict[str, Any] | None:
    """The margin of the choices of a stage and the margins needed; None if it makes none.

    The margin is None where the ordered values are inputs of the case: every dtype holds them exactly.
    """
    choice = stage.choice
    if choice is None:
        return None
    name = choice.scores
    if isinstance(name, str) and name not in tensors:
        return None
    if isinstance(name, str) and name in inputs:
        return {"margin": None}
    margins = []
    for group in groups_of(stage, tensors):
        if isinstance(name, str):
            scores = {"scores": group[name]}
            scales = {"scores": np.abs(group[name])}
        else:
            scored = choice.scores

            def ordered(values: Arrays, scored: Any = scored) -> Arrays:
                return dict(scored(backend(stage), stage.prepare(config), values))

            if choice.scale == "stability":
                margins.append(stability(ordered, group))
                continue
            scores = {key: value.real for key, value in ordered(group).items()}
            if choice.scale == "magnitude":
                scales = {key: np.abs(value) for key, value in scores.items()}
            else:
                scales = (condition if choice.scale == "condition" else spread)(ordered, group, scores)
        margins.append(choice.margin(config, scores, scales))
    constant = CONSTANTS[choice.constant][0]
    roundoffs = {lane.name: lane.roundoff for lane in LANES.values()}
    if choice.wide:
        roundoffs["bf16"] = roundoffs["f32"]
    return {
        "margin": float(f"{min(*margins, 1.0):.3g}"),
        "needed": {lane: float(f"{constant * roundoff:.3g}") for lane, roundoff in roundoffs.items()},
    }


def gradients(
    stage: Stage, config: Mapping[str, Any], tensors: Tensors, output: str, wrt: tuple[str, ...], key: str
) -> Gradients:
    """The gradient of `sum(probe * output)` with respect to the inputs `wrt`, by the complex step.

    Cross-checked along random directions with a central difference, which sees a dropped imaginary part. Raises
    GoldenError when they disagree.
    """
    groups = groups_of(stage, tensors)
    shape = join(stage, [run(stage, config, group) for group in groups])[output].shape
    axes = describe(stage, output).axes
    probe = Tensor(grid(f"{key}/probe", shape, reach=1.0, step=0.25) if shape else np.ones((), np.float32), axes)
    stacked = bool(axes) and not stage.batched and axes[0] in BATCH_AXES

    def scalar(values: Arrays, weights: Any) -> Any:
        return np.sum(weights * run(stage, config, values)[output])

    def weights_of(probe: NDArray[Any], groups: list[Arrays]) -> list[Any]:
        return list(probe) if stacked else [probe / len(groups)] * len(groups)

    def gradient(values: Mapping[str, Tensor], probe: NDArray[Any]) -> Arrays:
        groups = groups_of(stage, values)
        pairs = list(zip(groups, weights_of(probe, groups), strict=True))
        slopes = {n: [_slope(partial(scalar, weights=w), group, n) for group, w in pairs] for n in wrt}
        apart = {n: not stage.batched and tensors[n].axes[:1] in {(axis,) for axis in BATCH_AXES} for n in wrt}
        return {n: np.stack(found) if apart[n] else np.sum(found, axis=0) for n, found in slopes.items()}

    wide = np.asarray(probe.array, np.float64)
    exact = gradient(tensors, wide)
    for group, weights in zip(groups, weights_of(wide, groups), strict=True):
        _cross_check(stage, partial(scalar, weights=weights), group, wrt)

    def moved(values: Arrays) -> Arrays:
        inputs = {n: Tensor(array, tensors[n].axes) for n, array in values.items() if n != PROBE}
        return gradient(inputs, values[PROBE])

    constant = "gradient" if describe(stage, output).constant == "direct" else "iterated gradient"
    # Sums over the results cancel in a gradient, so the probe counts as an input that is rounded, too.
    flat = {n: _wide(tensor.array) for n, tensor in select(tensors, stage.reads).items()}
    scales = pooled_spread(moved, {**flat, PROBE: wide}, exact, probes=8)
    return Gradients(
        stage.name,
        output,
        probe,
        {name: Value(exact[name], tensors[name].axes, "float", round_scale(scales[name]), constant) for name in wrt},
    )


PROBE = "the probe"


def _slope(function: Any, values: Arrays, name: str) -> NDArray[np.float64]:
    """The derivative of a number with respect to every entry of one value."""
    moved = np.array(values[name], np.complex128)
    slope = np.zeros(moved.shape)
    for index in np.ndindex(moved.shape):
        moved[index] = values[name][index] + STEP * 1j
        slope[index] = np.imag(function({**values, name: moved})) / STEP
        moved[index] = values[name][index]
    return slope


def _cross_check(stage: Stage, scalar: Callable[[Arrays], Any], group: Arrays, wrt: tuple[str, ...]) -> None:
    """Steps get smaller, and rounding larger, until curvature is no longer seen (`1 / epsilon` at a token of norm 0)."""
    for name in wrt:
        direction = grid(f"direction/{name}", group[name].shape, reach=1.0)
        exact = np.imag(scalar({**group, name: group[name] + STEP * 1j * direction})) / STEP
        for step, allowed in ((1e-5, 1e-6), (1e-9, 1e-2)):
            ahead, behind = (scalar({**group, name: group[name] + s * direction}) for s in (step, -step))
            central = (ahead - behind) / (2 * step)
            if abs(exact - central) <= allowed * (1 + abs(exact)):
                break
        else:
            raise GoldenError(f"{stage.name}: d/d{name} is {exact} by the complex step, {central} by differences")


def _wide(array: NDArray[Any]) -> NDArray[Any]:
    return array.astype(np.float64) if array.dtype.kind == "f" else array
