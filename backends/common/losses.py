"""Auxiliary losses. Each function returns the unweighted loss, averaged over the groups."""

import math

from moespec.backends.common.namespace import Array, Namespace
from moespec.spec.checks import check_choices, check_positive, check_same_shape, check_scores, check_size

__all__ = ["balance_loss", "global_entropy_loss", "importance_loss", "load_loss", "local_entropy_loss", "z_loss"]

AXES = "groups tokens experts"


def importance_loss(xp: Namespace[Array], scores: Array) -> Array:
    """Returns the loss, averaged over the groups: scores (G, T, E) -> a scalar."""
    check_scores("scores", scores, AXES)
    return squared_variation(xp, xp.sum(xp.promote(scores), 1))


def load_loss(xp: Namespace[Array], logits: Array, noisy_logits: Array, *, choices: int, noise_std: float) -> Array:
    """Returns the loss, averaged over the groups: logits and noisy_logits (G, T, E) -> a scalar."""
    check_scores("logits", logits, AXES)
    check_scores("noisy_logits", noisy_logits, AXES)
    check_same_shape("noisy_logits", noisy_logits, "logits", logits)
    choices = check_choices(choices, logits.shape[2])
    noise_std = check_positive("noise_std", noise_std)
    logits, noisy_logits = xp.promote_all(logits, noisy_logits)
    threshold = xp.pick(noisy_logits, xp.top_indices(noisy_logits, choices)[..., -1:])
    return squared_variation(xp, xp.sum(upper_tail(xp, threshold - logits, noise_std), 1))


def balance_loss(xp: Namespace[Array], scores: Array, load: Array | None = None, *, choices: int = 1) -> Array:
    """Returns the loss, averaged over the groups: scores (G, T, E), load (E,) -> a scalar."""
    check_scores("scores", scores, AXES)
    scores = xp.promote(scores)
    experts = scores.shape[2]
    if check_choices(choices, experts) == 1:
        counted = xp.argmax(scores) == xp.indices(experts, scores)
    else:
        counted = xp.is_chosen(xp.top_indices(scores, choices), scores)
    fraction = xp.mean(xp.cast(counted, scores.dtype), 1)
    if load is not None:
        check_scores("load", load, "experts")
        check_size("load", load, 0, experts, "the experts of scores")
        scores, load = xp.promote_all(scores, load)
        fraction = choices * load / xp.sum(load)
    return experts * xp.mean(xp.sum(xp.stop_gradient(fraction) * xp.mean(scores, 1), 1))


def z_loss(xp: Namespace[Array], logits: Array) -> Array:
    """Returns the loss, averaged over the groups: logits (G, T, E) -> a scalar."""
    check_scores("logits", logits, AXES)
    return xp.mean(xp.square(xp.logsumexp(xp.promote(logits), 2)))


def local_entropy_loss(xp: Namespace[Array], scores: Array) -> Array:
    """Returns the loss, averaged over the groups: scores (G, T, E) -> a scalar."""
    check_scores("scores", scores, AXES)
    return xp.mean(_entropy(xp, xp.promote(scores)))


def global_entropy_loss(xp: Namespace[Array], scores: Array, *, threshold: float | None = None) -> Array:
    """Returns the loss, averaged over the groups: scores (G, T, E) -> a scalar."""
    check_scores("scores", scores, AXES)
    entropy = _entropy(xp, xp.mean(xp.promote(scores), 1))
    if threshold is None:
        return -xp.mean(entropy)
    lacking = check_positive("threshold", threshold) - entropy
    return xp.mean(xp.where(lacking > 0, lacking, 0.0))


def _entropy(xp: Namespace[Array], p: Array) -> Array:
    """`-sum p log p` along the last axis. A term with p = 0 is 0 and has no gradient."""
    return -xp.sum(p * xp.log(xp.where(p > 0, p, 1.0)), -1)


def squared_variation(xp: Namespace[Array], values: Array) -> Array:
    """Computes variance / mean^2 over the experts, and returns the mean over the groups. The gradient is 0 for a group of equal values."""
    mean = xp.mean(values, 1, keepdims=True)
    return xp.mean(xp.square(values - mean) / xp.square(mean))


def upper_tail(xp: Namespace[Array], x: Array, std: float = 1.0) -> Array:
    """The probability that a normal variable with mean 0 and standard deviation `std` exceeds `x`."""
    return 0.5 * xp.erfc(x / (std * math.sqrt(2)))
