"""ReLU routing: gates, the sparsity loss, the number of excess gates, and the penalty update."""

from moespec.backends.common.namespace import Array, Namespace
from moespec.spec.checks import check_choices, check_positive, check_scores

__all__ = ["excess_gates", "relu_affinity", "relu_loss", "renewed_penalty"]

AXES = "groups tokens experts"


def relu_affinity(xp: Namespace[Array], logits: Array) -> Array:
    """logits (G, T, E) -> (G, T, E)."""
    check_scores("logits", logits, AXES)
    logits = xp.promote(logits)
    return xp.where(logits > 0, logits, 0.0)


def relu_loss(xp: Namespace[Array], gates: Array, penalty: Array, *, choices: int) -> Array:
    """Returns the loss, averaged over the groups: gates (G, T, E), scalar penalty -> a scalar."""
    check_scores("gates", gates, AXES)
    check_scores("penalty", penalty, "")
    gates, penalty = xp.promote_all(gates, penalty)
    experts = gates.shape[2]
    choices = check_choices(choices, experts)
    active = xp.mean(xp.cast(gates > 0, gates.dtype), 1)
    return penalty * (experts / choices) * xp.mean(xp.sum(active * xp.mean(gates, 1), 1))


def excess_gates(xp: Namespace[Array], gates: Array, *, choices: int) -> Array:
    """Returns the number of gates above 0 in all groups, minus `choices` per token: gates (G, T, E) -> a scalar."""
    check_scores("gates", gates, AXES)
    choices = check_choices(choices, gates.shape[2])
    # Subtracts `choices` for each token before the sum over tokens, because float32 integers are inexact above 2^24.
    return xp.sum(xp.sum(xp.cast(gates > 0, xp.promote(gates).dtype), 2) - choices)


def renewed_penalty(xp: Namespace[Array], penalty: Array, excess: Array, *, multiplier: float = 1.2) -> Array:
    """scalars penalty and excess -> a scalar."""
    check_scores("penalty", penalty, "")
    check_scores("excess", excess, "")
    multiplier = check_positive("multiplier", multiplier)
    penalty, excess = xp.promote_all(penalty, excess)
    return xp.where(excess > 0, penalty * multiplier, xp.where(excess < 0, penalty / multiplier, penalty))
