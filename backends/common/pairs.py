"""Losses that compare pairs of rows, and batch normalisation. Arrays contain the rows of all devices and have no groups axis."""

from collections.abc import Sequence

from moespec.backends.common.namespace import Array, Namespace
from moespec.backends.common.soft_moe import inverse_norm
from moespec.spec.algorithms import contrastive, moco
from moespec.spec.checks import check_positive, check_same_shape, check_scores

__all__ = ["batch_norm", "contrastive_loss", "moco_loss", "momentum_update", "sigmoid_loss"]


def contrastive_loss(xp: Namespace[Array], first: Array, second: Array, log_scale: Array | float) -> Array:
    """first and second (pairs, width), log_scale a scalar -> a scalar, in float32 or better."""
    logits = _logits(xp, first, second, log_scale)
    both = xp.log_softmax(logits, 0) + xp.log_softmax(logits, 1)
    return -xp.sum(both * xp.eye(logits.shape[0], logits)) / (2 * logits.shape[0])


def sigmoid_loss(
    xp: Namespace[Array], first: Array, second: Array, log_scale: Array | float, bias: Array | float
) -> Array:
    """first and second (pairs, width), log_scale and bias scalars -> a scalar, in float32 or better."""
    logits = _logits(xp, first, second, log_scale)
    logits = logits + _scalar(xp, "bias", bias, logits)
    signs = 2 * xp.eye(logits.shape[0], logits) - 1
    return xp.sum(xp.softplus(-signs * logits)) / logits.shape[0]


def moco_loss(
    xp: Namespace[Array],
    first_query: Array,
    second_query: Array,
    first_key: Array,
    second_key: Array,
    *,
    temperature: float = 1.0,
) -> Array:
    """Queries and keys (batch, width) -> a scalar, in float32 or better."""
    rows = {"first_query": first_query, "second_query": second_query}
    rows |= {"first_key": first_key, "second_key": second_key}
    for name, array in rows.items():
        check_scores(name, array, "batch width")
        check_same_shape(name, array, "first_query", first_query)
    temperature = check_positive("temperature", temperature)
    queries = _units(xp, xp.promote_all(first_query, second_query), "clamped", moco.EPSILON)
    keys = _units(xp, [xp.stop_gradient(key) for key in xp.promote_all(second_key, first_key)], "clamped", moco.EPSILON)
    total = 0.0
    for query, key in zip(queries, keys, strict=True):
        logits = _product(xp, query, key) / temperature
        total = total - xp.sum(xp.log_softmax(logits, 1) * xp.eye(logits.shape[0], logits))
    return 2 * temperature / first_query.shape[0] * total


def momentum_update(xp: Namespace[Array], average: Array, current: Array, decay: Array | float) -> Array:
    """average and current of any shape, decay a scalar -> the shape of `average`, in float32 or better."""
    check_scores("average", average, "...")
    check_scores("current", current, "...")
    check_same_shape("current", current, "average", average)
    average, current = xp.promote_all(average, current)
    decay = _scalar(xp, "decay", decay, average)
    return decay * average + (1 - decay) * current


def batch_norm(xp: Namespace[Array], x: Array, *, epsilon: float = 1e-5) -> Array:
    """x (batch, width) -> (batch, width), computed in float32 or better and returned in the dtype of `x`."""
    check_scores("x", x, "batch width")
    moco.check_batch(x)
    check_positive("epsilon", epsilon)
    values = xp.promote(x)
    centred = values - xp.mean(values, 0, keepdims=True)
    return xp.cast(centred * xp.rsqrt(xp.mean(xp.square(centred), 0, keepdims=True) + epsilon), x.dtype)


def _logits(xp: Namespace[Array], first: Array, second: Array, log_scale: Array | float) -> Array:
    """Returns the scaled cosines (pairs, pairs) of all rows of `first` and all rows of `second`."""
    check_scores("first", first, "pairs width")
    check_scores("second", second, "pairs width")
    check_same_shape("second", second, "first", first)
    units = _units(xp, xp.promote_all(first, second), "paper", contrastive.EPSILON)
    return xp.exp(_scalar(xp, "log_scale", log_scale, units[0])) * _product(xp, *units)


def _units(xp: Namespace[Array], rows: Sequence[Array], form: str, epsilon: float) -> list[Array]:
    return [x * inverse_norm(xp, x, 1, form, epsilon) for x in rows]


def _product(xp: Namespace[Array], first: Array, second: Array) -> Array:
    """Multiplies `first` by the transpose of `second`: (n, D) and (m, D) -> (n, m), at the highest precision."""
    return xp.product(first[None], xp.swapaxes(second, 0, 1))[0]


def _scalar(xp: Namespace[Array], name: str, value: Array | float, like: Array) -> Array:
    """Converts a Python number or a scalar array to an array in float32 or better."""
    if isinstance(value, int | float):
        return xp.full((), value, like)
    check_scores(name, value, "")
    return xp.promote(value)
