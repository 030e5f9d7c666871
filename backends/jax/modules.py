"""The computation that the layers for Flax and Equinox share."""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from moespec.backends import jax as B
from moespec.backends.jax.arrays import Array
from moespec.backends.layer import PARTS, Layer, check_tokens, regrouped
from moespec.spec.errors import ConfigError, DtypeError
from moespec.spec.routing import Noise, Params, State


class Routed(NamedTuple):
    """The result of a layer: `y` with the shape and dtype of the input, the weighted auxiliary losses by name,
    metrics for logging, and statistics that update the state of a router."""

    y: Array
    losses: dict[str, Array]
    metrics: dict[str, Array]
    statistics: dict[str, Array] = {}  # noqa: RUF012


def routed(
    layer: Layer,
    params: Params,
    x: Array,
    ids: Array | None,
    key: Array | None,
    *,
    train: bool,
    state: State | None = None,
    choices: Array | None = None,
) -> Routed:
    """Applies the layer to x (images, ..., width). A router that needs ids uses `ids` (images, ...) or, by default, token positions.

    params: a dict of arrays for each of `PARTS`, empty if the layer does not have this part. state: the state of a router that keeps
        a state. key: the random key of the gating noise in training. choices: (images, ..., choices) recorded choices, or None.

    Raises ConfigError if a key is missing, DtypeError if the state has a 16-bit dtype, and ShapeError if x has a different width or if
    the images do not split into groups.
    """
    groups, options = layer.options_of(x, train=train)
    router = B.ROUTERS[layer.router]
    of_image = x.reshape(x.shape[0], -1, x.shape[-1])
    tokens = regrouped(of_image, (groups, options.tokens, x.shape[-1]))
    needed = {}
    if router.requires == "ids":
        if ids is None:
            layer.check_places(of_image.shape[1])
            ids = jnp.broadcast_to(jnp.arange(of_image.shape[1], dtype=jnp.int32), of_image.shape[:2])
        else:
            check_tokens("ids", ids, x)
        needed["ids"] = regrouped(ids.reshape(of_image.shape[:2]), tokens.shape[:2])
    if choices is not None:
        check_tokens("choices", choices, x, "choices")
        needed["choices"] = regrouped(choices, (*tokens.shape[:2], choices.shape[-1]))
    for name, value in (state or {}).items():
        if jnp.result_type(value).itemsize < 4:
            expected = "expected float32 or float64; cast only the parameters, in Flax nnx.state(model, nnx.Param)"
            raise DtypeError(f"state: {name} is {jnp.result_type(value)}, {expected}")
    noise = router.noise(options) if train else None
    if noise is not None and key is None:
        raise ConfigError(f"key or rngs: {layer.router} needs one of them for its gating noise in training, got None")
    drawn = None if noise is None else _draw(replace(noise, shape=(groups, *noise.shape)), key)
    held = {k: jax.lax.stop_gradient(v) if k in router.frozen else v for k, v in params["router"].items()}
    output = router.route(held, tokens, options, state=state, noise=drawn, train=train, **needed)
    form: Any = layer.form
    around: Any = {part: params[part] or None for part in PARTS[2:]}
    y = B.moe_mlp(tokens, output.routing, params["experts"], **around, **form)
    y = regrouped(y, of_image.shape).reshape(x.shape)
    return Routed(y, output.losses, output.metrics, output.statistics)


def _draw(noise: Noise, key: Any) -> Array:
    if noise.interval is None:
        return jax.random.normal(key, noise.shape)
    low, high = noise.interval
    return jax.random.uniform(key, noise.shape, minval=low, maxval=high)
