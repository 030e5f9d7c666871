"""Computes the expected gradients of `sum(probe * result)`, with or without a router's losses, by the complex step.

Central differences check the gradients.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from moespec.backends.directions import STEP
from moespec.conformance.author.backward import layer_gradients, slope
from moespec.conformance.author.inputs import grid
from moespec.conformance.author.reference import SPEC, Arrays, Making
from moespec.conformance.author.scale import pooled_spread, round_scale
from moespec.conformance.compare import LARGE
from moespec.conformance.format import GoldenError, Gradients, Stage, Tensor, Value
from moespec.conformance.functions import function
from moespec.conformance.functions.describe import GROUPS
from moespec.spec.numerics import stop_gradient

__all__ = ["gradients"]

PROBE, TANH = "the probe", "a tanh"
TANHS = 512
"""Number of factors that perturb tanh results. If there are more results, the factors repeat."""


def gradients(
    making: Making, stage: Stage, output: str, by: tuple[str, ...], key: str, *, losses: bool = False
) -> Gradients:
    """Return the gradient of a stage's `sum(probe * output)` with respect to the inputs `by`. losses: add the weighted losses of `route`.

    Central differences along random directions check the gradient. A complex step is wrong if a function drops the imaginary part.
    Raises GoldenError if the gradient and the differences disagree.
    """
    groups = making.groups(stage)
    value = stage.outputs[output]
    probe_of = grid(f"{key}/probe", value.array.shape, reach=1.0, step=0.25) if value.axes else np.ones((), np.float32)
    probe = Tensor(probe_of, value.axes)
    stacked = not function(stage.call).batched and value.axes[:1] in {(axis,) for axis in GROUPS}
    rows = making.batched(stage)

    def scalar(values: Arrays, weights: Any) -> Any:
        added = {} if not losses else making.run(making.stages["route"], values)
        of_losses = sum(loss for name, loss in added.items() if name.startswith("losses/")) / len(groups)
        return np.sum(weights * making.run(stage, values)[output]) + of_losses

    def weights_of(probe: NDArray[Any], groups: list[Arrays]) -> list[Any]:
        return list(probe) if stacked else [probe / len(groups)] * len(groups)

    def of_group(making: Making, group: Arrays, weights: Any) -> Arrays:
        if making.sampled:
            return layer_gradients(making, stage, group, weights)
        return {n: slope(partial(scalar, weights=weights), group, n) for n in by}

    def gradient(making: Making, probe: NDArray[Any], check: bool = False) -> Arrays:
        groups = making.groups(stage)
        slopes = []
        for group, weights in zip(groups, weights_of(probe, groups), strict=True):
            slopes.append(of_group(making, group, weights))
            if check:
                _cross_check(stage, partial(scalar, weights=weights), group, {n: slopes[-1][n] for n in by})
        slopes_by_name = {n: [each[n] for each in slopes] for n in by}
        return {n: np.stack(each) if n in rows else np.sum(each, axis=0) for n, each in slopes_by_name.items()}

    wide = np.asarray(probe.array, np.float64)
    exact = gradient(making, wide, check=True)

    def moved(values: Arrays) -> Arrays:
        tensors = {n: Tensor(array, making.tensors[n].axes) for n, array in values.items() if n not in (PROBE, TANH)}
        with mock.patch.object(np, "tanh", partial(_rounded_tanh, np.tanh, values[TANH])):
            return gradient(replace(making, tensors={**making.tensors, **tensors}), values[PROBE])

    constant = "gradient" if value.constant.removeprefix(LARGE) == "direct" else "iterated gradient"
    constant = LARGE + constant if making.sampled else constant
    # Sums over the results cancel in a gradient, so the probe is treated as a rounded input. Results of tanh are also
    # treated as rounded inputs, since derivatives of GELU and cap contain `1 + tanh` and `1 - tanh^2`, which cancel for large arguments.
    flat = {n: np.asarray(making.tensors[n].array) for g in groups for n in g}
    flat = {n: array.astype(np.float64) if array.dtype.kind == "f" else array for n, array in flat.items()}
    inputs = {**flat, PROBE: wide, TANH: np.ones(TANHS)}
    scales = pooled_spread(moved, inputs, exact, probes=2 if making.sampled else 8)
    axes: Mapping[str, tuple[str, ...]] = {n: making.tensors[n].axes for n in by}
    wrt = {n: Value(exact[n], axes[n], "float", round_scale(scales[n]), constant) for n in by}
    return Gradients(stage.name, output, probe, wrt, losses)


def _rounded_tanh(tanh: Callable[[Any], Any], factors: NDArray[Any], x: Any) -> NDArray[Any]:
    """Return tanh(x) times `factors`, and compute the derivative `1 - tanh^2` from this result, as frameworks do."""
    t: NDArray[Any] = tanh(np.real(x)) * np.resize(factors, np.shape(x))
    return np.asarray(t + 1j * (1 - t * t) * np.imag(x)) if np.iscomplexobj(x) else t


def _cross_check(stage: Stage, scalar: Callable[[Arrays], Any], group: Arrays, slopes: Arrays) -> None:
    """Compare a gradient with central differences. If the curvature is too large (`1 / epsilon` at norm 0), retry with a smaller step.

    At neighbouring points, `stop_gradient` returns the values from the original point.
    """
    for name, computed in slopes.items():
        direction = grid(f"direction/{name}", group[name].shape, reach=1.0).astype(np.float64)
        exact = np.imag(scalar({**group, name: group[name] + STEP * 1j * direction})) / STEP
        along = np.sum(direction * computed)
        if abs(exact - along) > 1e-9 * (1 + np.sum(np.abs(direction * computed))):
            raise GoldenError(f"{stage.name}: d/d{name} is {exact} along a direction, but the gradient gives {along}")
        for step, allowed in ((1e-5, 1e-6), (1e-9, 1e-2)):
            with _constants() as again:
                scalar(group)
                beside = []
                for s in (step, -step):
                    again()
                    beside.append(scalar({**group, name: group[name] + s * direction}))
            central = (beside[0] - beside[1]) / (2 * step)
            if abs(exact - central) <= allowed * (1 + abs(exact)):
                break
        else:
            raise GoldenError(f"{stage.name}: d/d{name} is {exact} by complex step, but {central} by differences")


@contextmanager
def _constants() -> Iterator[Callable[[], None]]:
    """Record the results of `stop_gradient`. Yield a function that makes `stop_gradient` return these results again, in the same order."""
    returned: list[Any] = []
    turn: Iterator[Any] | None = None

    def again() -> None:
        nonlocal turn
        turn = iter(returned)

    def constant(x: Any) -> Any:
        if turn is not None:
            return next(turn)
        returned.append(stop_gradient(x))
        return returned[-1]

    owners = [vars(module) for name, module in sys.modules.items() if name.startswith("moespec.spec")]
    with ExitStack() as stack:
        for owner in owners:
            if owner.get("stop_gradient") is stop_gradient:
                stack.enter_context(mock.patch.dict(owner, stop_gradient=constant))
        stack.enter_context(mock.patch.object(SPEC, "stop_gradient", constant))
        yield again
