"""Expert Choice: each expert chooses its C best tokens.

| here | Routers (arXiv 2401.15969), Algorithm 2 | Zhou et al. 2022 (arXiv 2202.09368) |
|---|---|---|
| `scores` (T, E) | affinity matrix that selects | S |
| `combine_scores` (T, E) | softmax affinity A of the combine tensor | G, the gathered S |
| `capacity` | c, buffer slots of an expert | k |

Ambiguity ledger

EC-1: Which of two tokens with equal scores wins?
    Reading: the token with the lower index wins.
        By: google-research/vmoe, vmoe/moe.py, _get_top_items_per_expert_einsum_dispatcher (jax.lax.top_k);
        google/flaxformer, flaxformer/architectures/moe/routing.py, ExpertsChooseMaskedRouter and _top_k (jax.lax.top_k).
    Alternative b: the token with the higher index wins.
    Alternative c: the token that an unstable sort happens to return first.
EC-2: Does a slot stay empty if only tokens with score 0 are left to fill it?
    Reading: no, the remaining token with the lowest index fills the slot, and is dispatched and combined.
        By: google-research/vmoe, vmoe/moe.py, _get_top_items_per_expert_einsum_dispatcher; tensorflow/lingvo,
        lingvo/core/gshard_layers.py, TokenShufflingOnlogits; google/flaxformer,
        flaxformer/architectures/moe/routing.py, ExpertsChooseMaskedRouter.
    Alternative b: yes, a token with score 0 does not fill a slot (`drop_zero=True`).
EC-3: What happens if the capacity exceeds the number of tokens?
    Reading: an error is raised.
        By: google-research/vmoe, vmoe/moe.py, _get_top_items_per_expert_einsum_dispatcher
        (jax.lax.top_k fails).
    Alternative b: the capacity is reduced to the number of tokens.
EC-4: Along which axis are the scores normalised?
    Reading: the scores are normalised over the experts, although the experts choose among the tokens.
        By: google-research/vmoe, vmoe/nn/routing.py, NoisyTopItemsPerExpertRouter._compute_gates_softmax;
        tensorflow/lingvo, lingvo/core/gshard_layers.py, TokenShufflingOnlogits; google/flaxformer,
        flaxformer/architectures/moe/routing.py, Router._compute_router_probabilities.
    Alternative b: the scores are normalised over the tokens.
        By: tensorflow/mesh, mesh_tensorflow/transformer/moe.py, _expert_selection_gating.
"""

import numpy as np

from moespec.spec.algorithm import Algorithm
from moespec.spec.array_like import ArrayLike
from moespec.spec.checks import check_capacity, check_same_shape
from moespec.spec.numerics import stable_order
from moespec.spec.routing import Routing
from moespec.spec.values import as_array

__all__ = ["expert_choice"]

ALGORITHMS = (Algorithm("expert_choice", "Liu et al. 2024 (arXiv 2401.15969), Algorithm 2", 1, ("expert_choice",)),)


def expert_choice(
    scores: ArrayLike, *, capacity: int, combine_scores: ArrayLike | None = None, drop_zero: bool = False
) -> Routing:
    """Assigns to each expert its C best tokens (Algorithm 2).

    `dispatch[t, e, c]` is 1 if token t is the c-th best of expert e (c = 0 is the best), else 0;
    `combine[t, e, c] = combine_scores[t, e] * dispatch[t, e, c]`. Several experts, or none, can choose the same token.
    Gradients flow only through the `combine_scores` of chosen tokens.

    Args:
        scores: (tokens, experts), the selection scores.
        capacity: slots C per expert, from 1 to tokens.
        combine_scores: (tokens, experts), the combine weights, by default `scores`.
        drop_zero: whether to leave a slot empty if the score of its token is not positive.

    Returns:
        Routing of (tokens, experts, capacity).

    Source: Routers, Algorithm 2; Zhou et al. 2022.

    >>> from moespec.spec import softmax_affinity, slot_tokens
    >>> from moespec.spec.examples import LOGITS, TIED_SCORES
    >>> routing = expert_choice(softmax_affinity(LOGITS), capacity=2)
    >>> slot_tokens(routing).tolist(), round(float(routing.combine.sum()), 10)
    ([[4, 1], [5, 2], [3, 2]], 3.5213721945)
    >>> routing = expert_choice(softmax_affinity(LOGITS), capacity=4)
    >>> slot_tokens(routing).tolist(), round(float(routing.combine.sum()), 10)
    ([[4, 1, 0, 3], [5, 2, 0, 1], [3, 2, 4, 1]], 5.1409110569)
    >>> routing = expert_choice(TIED_SCORES, capacity=3)
    >>> slot_tokens(routing).tolist(), float(routing.combine.sum())
    ([[0, 3, 1], [1, 0, 2], [2, 4, 0]], 3.5)
    """
    # Scores.
    scores = as_array("scores", scores, "tokens experts")
    weights = scores if combine_scores is None else as_array("combine_scores", combine_scores, "tokens experts")
    check_same_shape("combine_scores", weights, "scores", scores)
    tokens, experts = scores.shape
    check_capacity(capacity, tokens)

    # Selection.
    chosen = stable_order(scores, axis=0)[:capacity]

    # Slots and dispatch: the slot of a token is its rank among the tokens of an expert.
    dispatch = np.zeros((tokens, experts, capacity))
    for expert in range(experts):
        for slot in range(capacity):
            dispatch[chosen[slot, expert], expert, slot] = 1.0
    if drop_zero:
        dispatch[scores.real <= 0] = 0.0

    # Combine.
    return Routing(dispatch, weights[:, :, None] * dispatch)
