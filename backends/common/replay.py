"""Replay of recorded choices."""

from moespec.backends.common.namespace import Array, Namespace
from moespec.spec.algorithms.replay import Replay, check_recorded
from moespec.spec.checks import check_same_shape, check_scores

__all__ = ["replay_choices"]


def replay_choices(xp: Namespace[Array], scores: Array, choices: Array, combine_scores: Array | None = None) -> Replay:
    """scores and combine_scores (G, T, E), choices (G, T, K) integers -> a Replay of (G, T, E), (G, T, E) and (G, T, K).

    The function does not check the numbers in `choices`.
    """
    combine_scores = scores if combine_scores is None else combine_scores
    for name, array in (("scores", scores), ("combine_scores", combine_scores)):
        check_scores(name, array, "groups tokens experts")
    check_same_shape("combine_scores", combine_scores, "scores", scores)
    (_, tokens, experts), K = scores.shape, choices.shape[-1] if choices.ndim else 0
    check_recorded("choices", choices, tokens, experts)
    scores, weights = xp.promote_all(xp.stop_gradient(scores), combine_scores)
    choices = xp.cast(choices, "int32")
    position = xp.invert_index(xp.where(choices < 0, experts, choices).reshape(-1, K), experts).reshape(scores.shape)
    made = xp.sum(xp.cast(choices >= 0, "int32"), 2, keepdims=True)
    chosen, unrecorded = position < K, made < 1
    ranks = xp.cast(xp.where(chosen, K - position, -1 - xp.indices(experts, position)), scores.dtype)
    keep = unrecorded | (xp.indices(K, choices) < made)
    return Replay(xp.where(unrecorded, scores, ranks), xp.where(chosen | unrecorded, weights, 0.0), keep)
