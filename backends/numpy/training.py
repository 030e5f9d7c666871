"""Gradients by complex-step differentiation, and the training step: the reference for compiled training.

If a parameter changes by `1e-30i`, the imaginary part of the loss is `1e-30` times the exact derivative. A full gradient
needs one direction per scalar parameter; one pass computes 64 directions (see `directions`). Use this backend for small models only.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec.backends.directions import derivatives, units
from moespec.backends.numpy.optimizers import UPDATES
from moespec.backends.optimizer import OptimizerConfig
from moespec.backends.optimizer_options import SLOTS, Optimizer
from moespec.backends.pytrees import Path, flatten, leaves, unflatten
from moespec.spec.errors import ConfigError, ShapeError
from moespec.spec.own import find_own
from moespec.spec.routing import Params

__all__ = [
    "compile",
    "export_state",
    "finite_state",
    "import_state",
    "init_state",
    "make_step",
    "recomputed",
    "state_average",
    "state_params",
    "value_and_grad",
]

State = dict[str, Any]
Array = NDArray[Any]


def compile(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `function` unchanged: NumPy has no compiler."""
    return function


def value_and_grad(function: Callable[..., Any]) -> Callable[..., Any]:
    """Turns `function(params, *args) -> (loss, aux)` into a function that returns `((loss, aux), gradient)`.

        gradient[i] = imag(loss(params + 1e-30i * unit(i))) / 1e-30

    The gradient has the shapes of `params` and is exact up to rounding where the loss is analytic (discrete selections use real parts).
    """

    def evaluate(params: Params, *args: Any) -> tuple[tuple[Any, Any], Params]:
        def loss(step: Array) -> dict[str, Any]:
            return {"": function(_at_places(params, lambda leaf, place: leaf + step[place]), *args)[0]}

        outputs, size = function(params, *args), sum(leaf.size for _, leaf in leaves(params))
        slopes: Any = derivatives(loss, units(np.ones(size))).get("")
        return outputs, _at_places(params, lambda leaf, place: slopes[place])

    return evaluate


def _at_places(tree: Params, function: Callable[[Array, Array], Array]) -> Params:
    """Applies `function(leaf, place)` to each leaf. `place` contains the position of each entry among the entries of all leaves."""
    flat: dict[Path, Array] = {}
    size = 0
    for path, leaf in leaves(tree):
        flat[path] = function(leaf, np.arange(size, size + leaf.size).reshape(leaf.shape))
        size += leaf.size
    return unflatten(flat)


def recomputed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `function` unchanged: the complex step stores no intermediate results."""
    return function


def init_state(params: Params, optimizer: OptimizerConfig) -> State:
    """Returns the training state at step 0: float64 copies of `params`, zeros for the moments of the optimiser, and
    another copy for the moving average."""
    owned = _copied(params)
    slots: dict[str, dict[Path, Array]] = {}
    for path, leaf in leaves(owned):
        for slot, shape in optimizer.slots(path, leaf.shape).items():
            slots.setdefault(slot, {})[path] = leaf.copy() if slot == "ema" else np.zeros(shape)
    return {"params": owned, **{slot: unflatten(flat) for slot, flat in slots.items()}, "step": 0}


def make_step(
    loss_function: Callable[..., Any],
    optimizer: OptimizerConfig,
    *,
    accumulate: int = 1,
    averaged: bool = False,
    update_states: Callable[[Params, Any], Params] | None = None,
) -> Callable[[State, Any, float], tuple[State, dict[str, Any]]]:
    """Returns `step(state, batch, learning_rate) -> (state, metrics)`, which makes one update; see `moespec.backends.contract.Backend`."""
    if accumulate < 1:
        raise ConfigError(f"accumulate={accumulate!r}: expected at least 1")

    def loss(*args: Any) -> tuple[Any, tuple[Any, Any]]:
        value, metrics, *sums = loss_function(*args)
        return value, (metrics, sums)

    evaluate = value_and_grad(loss)

    def step(state: State, batch: Any, learning_rate: float) -> tuple[State, dict[str, Any]]:
        average = (state_average(state),) if averaged else ()
        parts = [evaluate(state["params"], _part(batch, part, accumulate), *average) for part in range(accumulate)]
        gradient = _mean([part[1] for part in parts])
        metrics = _mean([{**metrics, "loss": loss} for (loss, (metrics, _)), _ in parts])
        trained = [g for path, g in leaves(gradient) if optimizer.rate_of(path)]
        metrics["grad_norm"] = np.sqrt(sum(np.sum(g * g) for g in trained))
        new = _update(state, gradient, metrics["grad_norm"], learning_rate, optimizer)
        if update_states is not None:
            total = _sum([sums for (_, (_, (sums,))), _ in parts])
            updated = {path: np.asarray(leaf) for path, leaf in leaves(update_states(state["params"], total))}
            new["params"] = unflatten({**flatten(new["params"]), **updated})
        return new, metrics

    return step


def _update(state: State, gradient: Params, norm: float, learning_rate: float, optimizer: OptimizerConfig) -> State:
    n = state["step"] + 1
    scale = 1.0 if optimizer.clip is None or norm <= optimizer.clip else optimizer.clip / norm
    old = {name: flatten(tree) for name, tree in state.items() if name != "step"}
    new: dict[str, dict[Path, Array]] = {"params": {}}
    update = UPDATES.get(optimizer.name) or find_own("optimizer.name", optimizer.name, Optimizer).in_numpy
    for path, g in leaves(gradient):
        p, rate = old["params"][path], optimizer.rate_of(path)
        if rate:
            moments = {slot: old[slot][path] for slot in optimizer.slots(path, p.shape)}
            u, now = update(p, scale * g, moments, n, optimizer.decay_of(path), optimizer.own)
            p = p - learning_rate * rate * u
            if optimizer.ema is not None:
                decay = optimizer.ema_after(n)
                now["ema"] = decay * moments["ema"] + (1 - decay) * p
            for slot, value in now.items():
                new.setdefault(slot, {})[path] = np.asarray(value)
        new["params"][path] = np.asarray(p)
    return {**{name: unflatten(flat) for name, flat in new.items()}, "step": n}


def export_state(state: State) -> dict[str, Any]:
    """The state as nested dicts of NumPy arrays, ready to save: `params`, the slots in use, and the integer `step`."""
    slots = [name for name in ("params", *SLOTS) if name in state]
    return {**{name: _copied(state[name]) for name in slots}, "step": int(state["step"])}


def finite_state(state: State) -> bool:
    """True if all numbers in the state are finite."""
    exported = export_state(state)
    del exported["step"]
    return all(np.isfinite(leaf).all() for _, leaf in leaves(exported))


def import_state(exported: dict[str, Any], optimizer: OptimizerConfig) -> State:
    """Restores a state that `export_state` of any backend exported. Converts float32 arrays exactly to float64."""
    return export_state(exported)


def state_params(state: State) -> Params:
    """Returns the parameters of the state, for a forward pass."""
    params: Params = state["params"]
    return params


def state_average(state: State) -> Params:
    """Returns the moving averages of the parameters. Parameters without an average are returned unchanged."""
    return unflatten({**flatten(_copied(state["params"])), **flatten(state.get("ema", {}))})


def _copied(tree: Params) -> Params:
    return unflatten(
        {path: np.array(leaf, np.float64, order="C") for path, leaf in leaves(tree)}
    )  # makes each array row-major, like arrays that are read from a file


def _sum(trees: list[Params]) -> Params:
    first, *others = map(flatten, trees)
    return unflatten({path: sum((other[path] for other in others), leaf) for path, leaf in first.items()})


def _mean(trees: list[Params]) -> Params:
    return unflatten({path: total / len(trees) for path, total in leaves(_sum(trees))})


def _part(batch: Any, part: int, parts: int) -> Any:
    """Returns part number `part` of every array in a nested batch, split into `parts` equal parts along the leading axis."""
    if batch is None:
        return None
    if isinstance(batch, dict):
        return {key: _part(value, part, parts) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        return type(batch)(_part(value, part, parts) for value in batch)
    size, rest = divmod(batch.shape[0], parts)
    if rest:
        raise ShapeError(f"batch: {batch.shape[0]} examples cannot be split into accumulate={parts} equal parts")
    return batch[part * size : (part + 1) * size]
