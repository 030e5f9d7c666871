"""Compute the gradient of a layer with many parameters: analytically for the experts, by the complex step for the router.

    y = combine @ (w2 gelu(w1 (dispatch^T @ x) + b1) + b2),   L = sum(probe * y)

A complex step for each expert parameter would take hours. Differentiating the experts gives the gradients of L with
respect to dispatch and combine. The complex step then differentiates only a scalar function of the router's few inputs.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec.backends.directions import STEP, derivatives, units
from moespec.conformance.author.reference import Arrays, Making
from moespec.conformance.format import Stage
from moespec.spec.algorithms.gelu import activation

__all__ = ["layer_gradients", "slope"]

Array = NDArray[Any]


def slope(function: Callable[[Arrays], Any], values: Arrays, name: str) -> NDArray[np.float64]:
    """Differentiate a scalar function with respect to every entry of one input array, by the complex step."""
    array = values[name]
    slopes = derivatives(lambda step: {"": function({**values, name: array + step})}, units(np.ones(array.shape)))
    return slopes[""].reshape(array.shape)


def layer_gradients(making: Making, stage: Stage, values: Arrays, probe: Array) -> Arrays:
    """Return the gradient of a layer's `sum(probe * output)` for one group, with respect to each input of the layer and the router.

    stage: a `moe_layer` whose experts are MLPs. values: the inputs of the layer. probe: (tokens, width).
    """
    route = making.stages[stage.arguments["routing"].partition("/")[0]]  # type: ignore[union-attr]
    own = {name: array for name, array in values.items() if not name.startswith("experts/")}
    dispatch, combine = _dense(making.run(route, own), len(values["tokens"]))
    slopes, slots, outputs = _experts(stage, values, dispatch, combine, probe)
    slopes["tokens"] = np.einsum("tec,ecd->td", dispatch, slots)
    by_combine = np.einsum("td,ecd->tec", probe, outputs)
    by_dispatch = np.einsum("td,ecd->tec", values["tokens"], slots)

    def routed(inputs: Arrays) -> Any:
        dispatch, combine = _dense(making.run(route, inputs), len(values["tokens"]))
        return np.sum(by_combine * combine) + np.sum(by_dispatch * dispatch)

    for name in own:
        if values[name].dtype.kind == "f":
            slopes[name] = slopes.get(name, 0) + slope(routed, own, name)
    return slopes


def _dense(results: Arrays, tokens: int) -> tuple[Array, Array]:
    """Return the dispatch and combine arrays (tokens, experts, capacity) from the results of `route`."""
    if "dispatch" in results:
        return results["dispatch"], results["combine"]
    dispatch = (results["slots"] == np.arange(tokens)[:, None, None]).astype(float)
    return dispatch, dispatch * results["weights"]


def _experts(
    stage: Stage, values: Arrays, dispatch: Array, combine: Array, probe: Array
) -> tuple[Arrays, Array, Array]:
    """Return the gradients of the experts' parameters, the gradient of the experts' inputs, and the experts' outputs."""
    reference: Any = stage.arguments["experts"]
    form = partial(activation, form=reference["options"]["gelu"])
    w1, b1, w2, b2 = (values[f"experts/{name}"] for name in ("w1", "b1", "w2", "b2"))
    inputs = np.einsum("tec,td->ecd", dispatch, values["tokens"])
    hidden = inputs @ w1 + b1[:, None]
    active = form(hidden)
    by_output = np.einsum("tec,td->ecd", combine, probe)
    by_hidden = by_output @ w2.swapaxes(1, 2) * np.imag(form(hidden + 1j * STEP)) / STEP
    slopes = {
        "experts/w1": inputs.swapaxes(1, 2) @ by_hidden,
        "experts/b1": by_hidden.sum(axis=1),
        "experts/w2": active.swapaxes(1, 2) @ by_output,
        "experts/b2": by_output.sum(axis=1),
    }
    return slopes, by_hidden @ w1.swapaxes(1, 2), active @ w2 + b2[:, None]
