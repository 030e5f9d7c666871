"""What the network operations of the backends have in common: what they check, and the cross-entropies."""

from collections.abc import Mapping
from typing import Any

from moespec.backends.once.namespace import Array, Namespace
from moespec.spec.checks import check_same_shape, check_scores, check_size
from moespec.spec.errors import ConfigError, ShapeError

__all__ = ["sigmoid_cross_entropy", "softmax_cross_entropy"]

EXPERT_AXES = {
    **{"w1": "experts width hidden", "b1": "experts hidden"},
    **{"w2": "experts hidden width", "b2": "experts width"},
}
"""The parameters of `expert_mlp` and their axes."""


def expert_weights(
    xp: Namespace, params: Mapping[str, Array], dtype: Any, *, width: int, experts: int | None = None
) -> tuple[Array, ...]:
    """The checked parameters of `experts` perceptrons (any number if None), w1, b1, w2 and b2, in a dtype."""
    for name, axes in EXPERT_AXES.items():
        if name not in params:
            raise ConfigError(f"params: {name} is missing, got {sorted(params)}")
        check_scores(name, params[name], axes)
        count, of = (params["w1"].shape[0], "w1") if experts is None else (experts, "the inputs")
        check_size(name, params[name], 0, count, f"the experts of {of}")
    w1, b1, w2, b2 = (xp.cast(params[name], dtype) for name in EXPERT_AXES)
    check_size("w1", w1, 1, width, "the width of the inputs")
    check_size("b1", b1, 1, w1.shape[2], "the hidden width of w1")
    check_size("w2", w2, 1, w1.shape[2], "the hidden width of w1")
    check_size("b2", b2, 1, w2.shape[2], "the output width of w2")
    return w1, b1, w2, b2


def check_attention(query: Array, key: Array, value: Array, *, causal: bool) -> None:
    """ShapeError or DtypeError unless query is (N, Q, heads, dim), key and value (N, S, heads, dim); if causal, Q = S."""
    check_scores("query", query, "images queries heads dim")
    check_scores("key", key, "images keys heads dim")
    check_scores("value", value, "images keys heads dim")
    check_same_shape("value", value, "key", key)
    for axis in (0, 1, 2, 3) if causal else (0, 2, 3):
        check_size("key", key, axis, query.shape[axis], "the images, heads and dim of query, and if causal the queries")


def patch_grid(images: Array, kernel: Array, bias: Array | None) -> tuple[int, int]:
    """Rows and columns of patches of images (N, height, width, channels), for kernel (patch, patch, channels, D), bias (D,)."""
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
        raise ShapeError(f"images: {height} x {width} pixels do not divide into patches of {patch}")
    return height // patch, width // patch


def softmax_cross_entropy(xp: Namespace, logits: Array, targets: Array) -> Array:
    """logits and targets (..., classes) -> (...,), in float32 or better."""
    logits, targets = _checked(xp, logits, targets)
    return -xp.sum(targets * xp.log_softmax(logits, -1), -1)


def sigmoid_cross_entropy(xp: Namespace, logits: Array, targets: Array) -> Array:
    """logits and targets (..., classes) -> (...,), in float32 or better."""
    logits, targets = _checked(xp, logits, targets)
    return xp.sum(xp.softplus(logits) - targets * logits, -1)


def _checked(xp: Namespace, logits: Array, targets: Array) -> Any:
    """Logits and targets of classes, in one dtype."""
    check_scores("logits", logits, "... classes")
    check_scores("targets", targets, "... classes")
    check_same_shape("targets", targets, "logits", logits)
    return xp.widest(logits, targets)
