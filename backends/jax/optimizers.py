"""The optimisers as optax transformations of the trained parameters, a flat dict from path to array.

`moespec.backends.numpy.optimizers` defines the updates of these optimisers.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]

from moespec.backends.jax import namespace
from moespec.backends.optimizer import OptimizerConfig
from moespec.backends.optimizer_options import OWN_SLOTS, Optimizer
from moespec.backends.pytrees import Path
from moespec.spec.own import find_own, is_own

Leaves = dict[Path, jax.Array]

FIELDS = {"mu": "mu", "nu": "nu", "trace": "trace", "ema": "mu", "v_row": "row", "v_col": "column", "v": "nu"}
"""Maps each field of an optax state to a slot of an exported state."""


def transformation(optimizer: OptimizerConfig) -> Any:
    """The optax transformation from gradients to updates, which are not yet multiplied by the learning rate."""
    own: Any = optimizer.own
    decayed = optax.stateless(functools.partial(_decayed, optimizer))
    if optimizer.name == "sgd":
        return optax.chain(
            optax.trace(own.momentum, nesterov=own.nesterov) if own.momentum else optax.identity(), decayed
        )
    if is_own(optimizer.name):
        return optax.chain(_own(find_own("optimizer.name", optimizer.name, Optimizer)), decayed)
    if optimizer.name == "adafactor":
        scaled = optax.scale_by_factored_rms(
            min_dim_size_to_factor=own.factored_from,
            decay_rate=own.decay_rate,
            decay_rate_fn=lambda step, rate: jnp.minimum(own.decay_cap, 1 - (jnp.asarray(step, float) + 1) ** -rate),
            epsilon=own.epsilon,
        )
        averaged = _kept_in(own.momentum_dtype, "ema", optax.ema(own.momentum, debias=False))
        return optax.chain(scaled, averaged if own.momentum else optax.identity(), decayed)
    moments = _kept_in(own.momentum_dtype, "mu", optax.scale_by_adam(b1=own.b1, b2=own.b2, eps=own.epsilon))
    if optimizer.name == "adam":
        return optax.chain(decayed, moments)
    return optax.chain(moments, decayed, optax.scale_by_trust_ratio() if optimizer.name == "lamb" else optax.identity())


def exported(state: Any, optimizer: OptimizerConfig, params: Leaves) -> dict[str, Leaves]:
    """The arrays that `state` keeps for the trained `params`, by slot."""
    slots: dict[str, Leaves] = {}
    for part in _parts(state):
        for field in _kept(part):
            for path, leaf in getattr(part, field).items():
                if FIELDS[field] in optimizer.slots(path, params[path].shape):
                    slots.setdefault(FIELDS[field], {})[path] = leaf
    return slots


def imported(
    state: Any,
    slots: Mapping[str, Mapping[Path, Any]],
    step: int,
    array: Callable[[Any, jax.Array], jax.Array] = lambda value, like: jnp.array(value, like.dtype, copy=True),
) -> Any:
    """Returns `state` with the step number `step` and the arrays of `slots`. Arrays that are not in `slots` do not change.

    array: a function that converts a value to the dtype and sharding of another array.
    """

    def filled(part: Any) -> Any:
        new: dict[str, Any] = {}
        for field in _kept(part):
            values = slots.get(FIELDS[field], {})
            new[field] = {
                path: array(values[path], leaf) if path in values else leaf
                for path, leaf in getattr(part, field).items()
            }
        count = {"count": array(np.asarray(step, np.int32), part.count)} if "count" in part._fields else {}
        return part._replace(**new, **count)

    return tuple(map(filled, state))


def _parts(state: Any) -> list[Any]:
    return [part for part in state if hasattr(part, "_fields")]


def _kept(part: Any) -> list[str]:
    return [field for field in part._fields if field in FIELDS]


def by_leaf(state: Any, function: Callable[[str | None, Path | None, Any], Any]) -> Any:
    """Applies `function(slot, path, leaf)` to each array of a state. `slot` and `path` are None for arrays that belong to no parameter."""

    def of_part(part: Any) -> Any:
        if not hasattr(part, "_fields"):
            return part
        return part._replace(
            **{
                field: {path: function(FIELDS[field], path, leaf) for path, leaf in getattr(part, field).items()}
                if field in FIELDS
                else jax.tree.map(functools.partial(function, None, None), getattr(part, field))
                for field in part._fields
            }
        )

    return tuple(map(of_part, state))


def _own(own: Optimizer) -> Any:
    """The transformation of a user-defined optimiser. Its state is the state of optax's Adam, with empty dicts for unused slots."""
    adam, none = optax.scale_by_adam(), {slot: dict[Path, Any]() for slot in OWN_SLOTS if slot not in own.slots}

    def update(updates: Leaves, state: Any, params: Leaves) -> tuple[Leaves, Any]:
        made: dict[str, Leaves] = {"u": {}, **{slot: {} for slot in own.slots}}
        for path, g in updates.items():
            kept = {slot: getattr(state, slot)[path] for slot in own.slots}
            u, new = own.update(namespace, params[path], g, kept, state.count + 1)
            for name, value in {"u": u, **new}.items():
                made[name][path] = value.astype(g.dtype)
        return made.pop("u"), state._replace(count=state.count + 1, **made)

    return optax.GradientTransformation(lambda params: adam.init(params)._replace(**none), update)


def _kept_in(dtype: str, field: str, inner: Any) -> Any:
    """Wraps `inner` to store `field` in `dtype` and to compute in the dtype of the gradient."""
    if dtype != "bfloat16":
        return inner

    def narrow(state: Any) -> Any:
        return state._replace(**{field: {path: leaf.astype(dtype) for path, leaf in getattr(state, field).items()}})

    def update(updates: Leaves, state: Any, params: Leaves | None = None) -> Any:
        wide = {path: leaf.astype(updates[path].dtype) for path, leaf in getattr(state, field).items()}
        scaled, new = inner.update(updates, state._replace(**{field: wide}), params)
        return scaled, narrow(new)

    return optax.GradientTransformation(lambda params: narrow(inner.init(params)), update)


def _decayed(optimizer: OptimizerConfig, updates: Leaves, params: Leaves) -> Leaves:
    rates = {path: optimizer.decay_of(path) for path in updates}
    return {path: u + rates[path] * params[path] if rates[path] else u for path, u in updates.items()}
