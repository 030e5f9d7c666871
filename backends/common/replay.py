"""Replay of recorded choices."""

from moespec.backends.common.namespace import Array, Namespace
from moespec.spec.algorithms.replay import Replay, check_recorded
from moespec.spec.checks import check_same_shape, check_scores

__all__ = ["replay_choices"]


def replay_choices(xp: Namespace[Array], scores: Array, choices: Array, combine_scores: Array | None = None) -> Replay:
    """scores and combine_scores (G, T, E), choices (G, T, K) integers -> a Replay of (G, T, E), (G, T, E) and (G, T, K).

    A number that is not an expert, or that repeats an expert of the token, is a choice not made.
    """
    combine_scores = scores if combine_scores is None else combine_scores
    for name, array in (("scores", scores), ("combine_scores", combine_scores)):
        check_scores(name, array, "groups tokens experts")
    check_same_shape("combine_scores", combine_scores, "scores", scores)
    check_recorded("choices", choices, "groups tokens choices", tuple(scores.shape))
    experts, K = scores.shape[2], choices.shape[2]
    scores, weights = xp.promote_all(xp.stop_gradient(scores), combine_scores)
    choices = xp.cast(choices, "int32")
    index = xp.where((choices < 0) | (choices >= experts), experts, choices).reshape(-1, K)
    position = xp.invert_index(index, experts).reshape(scores.shape)
    chosen = position < K
    made = xp.sum(xp.cast(chosen, "int32"), 2, keepdims=True)
    unrecorded = made < 1
    ranks = xp.cast(xp.where(chosen, K - position, -1 - xp.indices(experts, position)), scores.dtype)
    keep = unrecorded | (xp.indices(K, choices) < made)
    return Replay(xp.where(unrecorded, scores, ranks), xp.where(chosen | unrecorded, weights, 0.0), keep)
