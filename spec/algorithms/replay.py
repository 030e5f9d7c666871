"""Replay: a router sends the tokens to experts that were chosen before, with weights from its own current logits.

An inference engine and a trainer choose different experts for some tokens. With replay, the trainer uses the engine's choices.

| here | R3, Rollout Routing Replay (arXiv 2510.11370) |
|---|---|
| `choices` (T, K) | the experts that the inference engine chose |
| `scores`, `combine_scores` (T, E) | computed from the logits of the training pass |

Ambiguity ledger

RP-1: Which experts does a token without recorded choices use?
    Reading: the experts with the best current scores, without `tries` and without the random second expert of `gshard`.
    Alternative b: none.
RP-2: In which order do the recorded choices of a token get slots?
    Reading: in the recorded order.
    Alternative b: in the order of the current scores.
RP-3: Which choices does the load count from which the selection bias is updated?
    Reading: the recorded choices.
        By: NVIDIA/Megatron-LM, megatron/core/transformer/moe/router.py, TopKRouter._apply_expert_bias.
    Alternative b: the choices that the router would make now.
RP-4: Which choices does the balance loss count?
    Reading: the choices that the router would make now.
        By: NVIDIA/Megatron-LM, megatron/core/transformer/moe/moe_utils.py, compute_routing_scores_for_aux_loss.
    Alternative b: the recorded choices.
RP-5: Which weights do recorded choices have?
    Reading: the current scores of the recorded experts. This includes experts that the router would not choose now. The gradient
        flows to the current logits.
        By: NVIDIA/Megatron-LM, megatron/core/transformer/moe/router_replay.py, RouterReplay.get_replay_topk.
    Alternative b: the current scores after all experts that the router does not choose now were set to 0.
    Alternative c: the recorded weights, without gradient.
RP-6: By which sum are the weights of recorded choices divided?
    Reading: by the sum over the recorded experts.
        By: NVIDIA/Megatron-LM, megatron/core/transformer/moe/moe_utils.py, topk_routing_with_score_function.
    Alternative b: by the sum over the experts that the router would choose now.
"""

from typing import Any, NamedTuple

import numpy as np

from moespec.spec.algorithm import Algorithm
from moespec.spec.array_like import ArrayLike
from moespec.spec.checks import check_integers, check_same_shape, check_size
from moespec.spec.errors import ContractError
from moespec.spec.numerics import Array
from moespec.spec.values import as_array, even

__all__ = ["Replay", "replay_choices"]

ALGORITHMS = (
    Algorithm("replay", "Ma et al. 2025 (arXiv 2510.11370); NVIDIA/Megatron-LM, RouterReplay", 1, ("replay_choices",)),
)


class Replay(NamedTuple):
    """The arguments with which `token_choice` makes the recorded choices.

    scores: (tokens, experts), larger for an earlier choice. combine_scores: (tokens, experts), 0 for experts that were not recorded.
    keep: (tokens, choices) booleans, False for a choice that was not made.
    """

    scores: Any
    combine_scores: Any
    keep: Any


def replay_choices(scores: ArrayLike, choices: ArrayLike, combine_scores: ArrayLike | None = None) -> Replay:
    """Returns the arguments with which `token_choice` sends each token t to the recorded experts `choices[t]`:

        scores[t, e] = K - i     if e is choices[t, i], else -1 - e
        combine_scores[t, e]     unchanged if e is in choices[t], else 0
        keep[t, i]               whether i is below the number of choices that token t made

    A token whose choices are all -1 has no record. Its scores do not change, and it makes all K choices.

    Args:
        scores: (tokens, experts), the current selection scores.
        choices: (tokens, choices) integers, the recorded experts of each token, best first; -1 for a choice not made.
        combine_scores: (tokens, experts), the current combine scores, by default `scores`.

    Returns:
        A Replay. Only `combine_scores` carries a gradient.

    Raises:
        ContractError: a number in `choices` is below -1 or not below the number of experts, or a token chooses an expert twice.

    Source: R3; NVIDIA/Megatron-LM, megatron/core/transformer/moe/router_replay.py, RouterReplay.get_replay_topk.

    >>> from moespec.spec import token_choice, slot_tokens
    >>> scores = [[0.5, 0.3, 0.2], [0.5, 0.3, 0.2], [0.1, 0.2, 0.7]]
    >>> replay = replay_choices(scores, np.array([[2, 0], [1, -1], [-1, -1]]))
    >>> replay.combine_scores.tolist()
    [[0.5, 0.0, 0.2], [0.0, 0.3, 0.0], [0.1, 0.2, 0.7]]
    >>> slot_tokens(token_choice(replay.scores, choices=2, capacity=2, keep=replay.keep)).tolist()
    [[0, 3], [1, 2], [0, 2]]
    """
    scores = as_array("scores", scores, "tokens experts")
    weights = scores if combine_scores is None else as_array("combine_scores", combine_scores, "tokens experts")
    check_same_shape("combine_scores", weights, "scores", scores)
    experts, recorded = scores.shape[1], even("choices", choices)
    check_recorded("choices", recorded, "tokens choices", scores.shape)
    expert = np.arange(experts)
    chosen = recorded[:, :, None] == expert
    _check_values(recorded, chosen)

    K, made = recorded.shape[1], (recorded >= 0).sum(axis=1)
    rank = np.einsum("tie,i->te", chosen, K - np.arange(K))  # 0 for an expert that was not recorded
    ranks = np.where(rank > 0, rank, -1 - expert)
    has_record = made[:, None] > 0
    return Replay(
        np.where(has_record, ranks, scores.real),
        np.where(has_record & (rank == 0), 0, weights),
        ~has_record | (np.arange(K) < made[:, None]),
    )


def check_recorded(name: str, recorded: Any, axes: str, shape: tuple[int, ...]) -> None:
    """Raises `DtypeError` or `ShapeError` unless `recorded` has integers, these axes, and the shape of the scores up to the tokens.

    shape: the shape of the scores. A token has at most as many choices as there are experts.
    """
    check_integers(name, recorded, axes)
    for axis, size in enumerate(shape[:-1]):
        check_size(name, recorded, axis, size, f"the {axes.split()[axis]} of scores")
    experts = shape[-1]
    if recorded.shape[-1] > experts:
        check_size(name, recorded, -1, experts, "the number of experts")


def _check_values(recorded: Array, chosen: Array) -> None:
    """Raises `ContractError` for a number that is not an expert or -1, and for a token with an expert twice."""
    experts = chosen.shape[2]
    outside = (recorded < -1) | (recorded >= experts)
    if outside.any():
        raise ContractError(f"choices: expected integers from -1 to {experts - 1}, got {recorded[outside].flat[0]}")
    twice = np.argwhere(chosen.sum(axis=1) > 1)
    if len(twice):
        raise ContractError(
            f"choices: expected different experts, but token {twice[0][0]} has expert {twice[0][1]} twice"
        )
