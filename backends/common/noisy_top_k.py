"""Noisy top-k gating: logits whose noise has a learned scale, gates that sum to 1 over the choices, and the load loss."""

import math

from moespec.backends.common.losses import squared_variation, upper_tail
from moespec.backends.common.namespace import Array, Namespace
from moespec.spec.checks import check_choices, check_same_shape, check_scores
from moespec.spec.numerics import FAR, SMALLEST_SCALE

__all__ = ["noisy_top_k_affinity", "noisy_top_k_load_loss", "noisy_top_k_logits"]

AXES = "groups tokens experts"


def noisy_top_k_logits(xp: Namespace[Array], logits: Array, noise_logits: Array, noise: Array | None) -> Array:
    """logits, noise_logits and noise (G, T, E) -> (G, T, E)."""
    _check(logits, noise_logits=noise_logits)
    if noise is None:
        return xp.promote(logits)
    _check(logits, noise=noise)
    logits, noise_logits, noise = xp.promote_all(logits, noise_logits, noise)
    return logits + noise * xp.softplus(noise_logits)


def noisy_top_k_affinity(xp: Namespace[Array], noisy_logits: Array, *, choices: int) -> Array:
    """noisy_logits (G, T, E) -> (G, T, E)."""
    check_scores("noisy_logits", noisy_logits, AXES)
    choices = check_choices(choices, noisy_logits.shape[2])
    logits = xp.promote(noisy_logits)
    chosen = xp.is_chosen(xp.top_indices(logits, choices), logits)
    return xp.softmax(xp.where(chosen, logits, -math.inf), 2)


def noisy_top_k_load_loss(
    xp: Namespace[Array], logits: Array, noise_logits: Array, noisy_logits: Array, *, choices: int
) -> Array:
    """Returns the loss, averaged over the groups: logits, noise_logits and noisy_logits (G, T, E) -> a scalar."""
    _check(logits, noise_logits=noise_logits, noisy_logits=noisy_logits)
    choices = check_choices(choices, logits.shape[2])
    arrays = xp.promote_all(logits, noise_logits, noisy_logits)
    if choices == logits.shape[2]:
        return 0.0 * xp.mean(arrays[0])  # equal loads, because every token chooses every expert
    return squared_variation(xp, xp.sum(choice_probability(xp, *arrays, choices=choices), 1))


def choice_probability(
    xp: Namespace[Array], logits: Array, noise_logits: Array, noisy_logits: Array, *, choices: int
) -> Array:
    """The probability P of the load loss: logits, noise_logits and noisy_logits (G, T, E) of one dtype -> (G, T, E)."""
    if choices == logits.shape[2]:
        return xp.full(logits.shape, 1.0, logits)
    top = xp.top_indices(noisy_logits, choices + 1)
    last, next_best = (xp.pick(noisy_logits, top[..., k : k + 1]) for k in (choices - 1, choices))
    threshold = xp.where(xp.is_chosen(top[..., :choices], logits), next_best, last)
    return upper_tail(xp, _z_score(xp, threshold - logits, xp.softplus(noise_logits)))


def _z_score(xp: Namespace[Array], deviation: Array, scale: Array) -> Array:
    """Computes the function `z_score` of the specification."""
    value, fixed = xp.stop_gradient(deviation), xp.stop_gradient(scale)
    is_far = xp.abs(value) >= FAR * fixed
    constant = xp.where(is_far, FAR * xp.sign(value), value / xp.where(is_far, 1.0, fixed))
    is_constant = is_far | (fixed < SMALLEST_SCALE)
    return xp.where(is_constant, constant, deviation / xp.where(is_constant, 1.0, scale))


def _check(logits: Array, **others: Array) -> None:
    """Raises ShapeError or DtypeError unless all arrays are (groups, tokens, experts) and have the shape of the logits."""
    check_scores("logits", logits, AXES)
    for name, array in others.items():
        check_scores(name, array, AXES)
        check_same_shape(name, array, "logits", logits)
