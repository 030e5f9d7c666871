"""Soft MoE: every slot is a weighted mean of all tokens, and every output token is a weighted mean of all slot outputs."""

from moespec.backends.common.namespace import Array, BySlot, Dense, Namespace, RoutingNamespace
from moespec.spec.algorithms.soft_moe import check_forms, check_one_slot_each
from moespec.spec.checks import check_scores, check_size

__all__ = ["soft_routing"]

EPSILON = 1e-6


def soft_routing(
    xp: RoutingNamespace[Array, BySlot, Dense],
    tokens: Array,
    slots: Array,
    *,
    scale: Array | float = 1.0,
    normalize: bool = True,
    norm_form: str = "paper",
    dispatch: str = "soft",
    combine: str = "soft",
) -> Dense:
    """tokens (G, T, D), slots (D, E, C) -> SoftRouting, in float32 or better, even under autocast."""
    check_scores("tokens", tokens, "groups tokens width")
    check_scores("slots", slots, "width experts capacity")
    check_size("slots", slots, 0, tokens.shape[2], "the width of tokens")
    if not isinstance(scale, int | float):
        check_scores("scale", scale, "")
        scale = xp.promote(scale)
    check_forms(norm_form, dispatch, combine)
    x, phi = xp.promote_all(tokens, slots)
    _, count, experts, capacity = shape = (*x.shape[:2], *phi.shape[1:])
    if dispatch == "identity":
        check_one_slot_each(count, experts, capacity)
        dealt = xp.eye(count, x).reshape(count, capacity, experts)
        identity = xp.broadcast_to(xp.swapaxes(dealt, 1, 2), shape)
        return xp.SoftRouting(identity, identity)

    rows = inverse_norm(xp, x, 2, norm_form) if normalize else None
    columns = scale * inverse_norm(xp, phi, 0, norm_form) if normalize else None
    logits = xp.scaled_product(tokens, x, phi, rows, columns)
    return xp.SoftRouting(
        xp.softmax(logits, 1) if dispatch == "soft" else xp.full(shape, 1 / count, logits),
        xp.softmax(logits, (2, 3)) if combine == "soft" else xp.full(shape, 1 / (experts * capacity), logits),
    )


def inverse_norm(xp: Namespace[Array], x: Array, axis: int, form: str, epsilon: float = EPSILON) -> Array:
    """The factor that normalises `x` along `axis`. `form` is one of the forms of the specification's `normalize_l2`."""
    squares = xp.sum(x * x, axis, keepdims=True)
    if form == "rsqrt":
        return xp.rsqrt(squares + epsilon)
    is_zero = squares == 0  # type: ignore[comparison-overlap]
    norm = xp.where(is_zero, 0.0, xp.sqrt(xp.where(is_zero, 1.0, squares)))
    return 1 / (xp.maximum(norm, epsilon) if form == "clamped" else norm + epsilon)
