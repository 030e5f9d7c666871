"""Functions that the network operations of all backends share: argument checks and cross-entropies."""

from collections.abc import Callable, Mapping
from typing import Any

from moespec.backends.common.namespace import Array, Namespace
from moespec.spec.algorithms.gated_experts import (
    ACTIVATIONS,
    AXES,
    CAPS,
    LIMITS,
    check_expert_widths,
    check_parameter_names,
)
from moespec.spec.checks import check_integers, check_option, check_same_shape, check_scores, check_segments, check_size
from moespec.spec.errors import ShapeError

__all__ = ["sigmoid_cross_entropy", "softmax_cross_entropy"]


def check_activation(gelu: str, activation: str) -> None:
    """Raises ConfigError for an unknown expert activation or form of GELU."""
    check_option("gelu", gelu, ("tanh", "erf"))
    check_option("activation", activation, ACTIVATIONS)


def bounded(xp: Namespace[Array], activation: str) -> dict[str, Callable[[Array], Array]]:
    """Returns the activations with bounds and the squared ReLU, by name. They round only their results."""

    def squared(x: Array) -> Array:
        return xp.square(xp.maximum(x, 0.0))

    def clamped(x: Array) -> Array:
        z = xp.promote(x)
        z = xp.where(z > LIMITS[activation], LIMITS[activation], z)
        return xp.cast(z * xp.sigmoid(z if activation == "clamped_silu" else 1.702 * z), x.dtype)

    def situ(x: Array) -> Array:
        z = xp.promote(x)
        return xp.cast(CAPS[0] * xp.tanh(z / CAPS[0]) * xp.sigmoid(z), x.dtype)

    return {"relu2": squared, "situ": situ, **dict.fromkeys(LIMITS, clamped)}


def second_factor(xp: Namespace[Array], activation: str) -> Callable[[Array], Array]:
    """Returns the function of the second factor of a gated expert."""

    def clamped(x: Array) -> Array:
        limit = LIMITS[activation]
        x = xp.where(x > limit, limit, xp.where(x < -limit, -limit, x))
        return x + 1 if activation == "clamped_quick_gelu" else x

    def situ(x: Array) -> Array:
        return xp.cast(CAPS[1] * xp.tanh(xp.promote(x) / CAPS[1]), x.dtype)

    return {"situ": situ, **dict.fromkeys(LIMITS, clamped)}.get(activation, lambda x: x)


Linear = Callable[[Array, Array, Array | None], Array]
"""Computes `x @ kernel + bias` for each expert, or `x @ kernel` if the bias is None."""


def expert_weights(
    xp: Namespace[Array],
    params: Mapping[str, Array],
    dtype: Any,
    *,
    width: int,
    experts: int | None = None,
    plain: bool = False,
) -> dict[str, Array]:
    """Checks and casts the parameters of `experts` perceptrons (None: any number). If `plain`, requires `w1`, `b1`, `w2`, `b2`."""
    check_parameter_names(params, plain=plain)
    for name in filter(params.__contains__, AXES):
        check_scores(name, params[name], AXES[name])
        count, of = (params["w1"].shape[0], "w1") if experts is None else (experts, "the inputs")
        check_size(name, params[name], 0, count, f"the experts of {of}")
    weights = {name: xp.cast(params[name], dtype) for name in AXES if name in params}
    check_expert_widths(weights, width)
    return weights


def multi_hash_weights(
    xp: Namespace[Array], tokens: Array, ids: Array, tables: Array, params: Mapping[str, Array], activation: str
) -> list[Array]:
    """Returns the checked `w1`, `b1`, `w2` and `b2` of `multi_hash_mlp`, in the dtype of the tokens."""
    check_option("activation", activation, ("relu", "tanh", "erf"))
    check_scores("tokens", tokens, "groups tokens width")
    check_integers("ids", ids, "groups tokens")
    check_integers("tables", tables, "hashes ids")
    check_size("ids", ids, 1, tokens.shape[1], "the number of tokens")
    weights = expert_weights(xp, params, tokens.dtype, width=tokens.shape[2], plain=True)
    check_segments(tables.shape[0], hidden=weights["w1"].shape[2], output=weights["w2"].shape[2])
    return [weights[name] for name in ("w1", "b1", "w2", "b2")]


def perceptron(
    x: Array,
    weights: Mapping[str, Array],
    linear: Linear[Array],
    active: Callable[[Array], Array],
    second: Callable[[Array], Array],
) -> Array:
    """Applies the perceptrons of `expert_mlp`, plain or gated. `linear(x, w, b)` multiplies each row by the matrix of its expert.

    active, second: the functions of the two factors of a gated perceptron.
    """
    hidden = active(linear(x, weights["w1"], weights.get("b1")))
    if "w3" in weights:
        hidden = hidden * second(linear(x, weights["w3"], weights.get("b3")))
    return linear(hidden, weights["w2"], weights.get("b2"))


def check_attention(query: Array, key: Array, value: Array, *, causal: bool) -> None:
    """Raises ShapeError or DtypeError unless query is (N, Q, heads, dim), key and value are (N, S, heads, dim), and Q = S if causal."""
    check_scores("query", query, "images queries heads dim")
    check_scores("key", key, "images keys heads dim")
    check_scores("value", value, "images keys heads dim")
    check_same_shape("value", value, "key", key)
    for axis in (0, 1, 2, 3) if causal else (0, 2, 3):
        check_size("key", key, axis, query.shape[axis], "the images, heads and dim of query, and if causal the queries")


def patch_grid(images: Array, kernel: Array, bias: Array | None) -> tuple[int, int]:
    """Counts the rows and columns of patches: images (N, height, width, channels), kernel (patch, patch, channels, D), bias (D,)."""
    check_scores("images", images, "images height width channels")
    check_scores("kernel", kernel, "patch patch channels features")
    patch = kernel.shape[0]
    check_size("kernel", kernel, 1, patch, "its first axis")
    check_size("kernel", kernel, 2, images.shape[3], "the channels of images")
    if bias is not None:
        check_scores("bias", bias, "features")
        check_size("bias", bias, 0, kernel.shape[3], "the features of kernel")
    height, width = images.shape[1:3]
    if height % patch or width % patch:
        raise ShapeError(f"images: {height} x {width} pixels cannot be split into patches of {patch} x {patch}")
    return height // patch, width // patch


def softmax_cross_entropy(xp: Namespace[Array], logits: Array, targets: Array) -> Array:
    """logits and targets (..., classes) -> (...,), in float32 or better."""
    logits, targets = _checked(xp, logits, targets)
    return -xp.sum(targets * xp.log_softmax(logits, -1), -1)


def sigmoid_cross_entropy(xp: Namespace[Array], logits: Array, targets: Array) -> Array:
    """logits and targets (..., classes) -> (...,), in float32 or better."""
    logits, targets = _checked(xp, logits, targets)
    return xp.sum(xp.softplus(logits) - targets * logits, -1)


def _checked(xp: Namespace[Array], logits: Array, targets: Array) -> Any:
    """Checks the logits and the class targets, and converts both to one dtype."""
    check_scores("logits", logits, "... classes")
    check_scores("targets", targets, "... classes")
    check_same_shape("targets", targets, "logits", logits)
    return xp.promote_all(logits, targets)
