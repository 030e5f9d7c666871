"""Token Choice: each token chooses its K best experts. Choices get an expert's slots in priority order until the expert is full.

| here | Routers (arXiv 2401.15969), Algorithm 1 |
|---|---|
| `scores` (T, E) | affinity matrix used for selection |
| `combine_scores` (T, E) | softmax affinity A of the combine tensor |
| `choices` | k |
| `capacity` | c, buffer slots of an expert |
| `order` (T,) | the order of the tokens in the batch |

Ambiguity ledger

TC-1: Which of several experts with equal scores wins?
    Reading: the expert with the lowest index wins.
        By: google-research/vmoe, vmoe/moe.py, _get_top_experts_per_item_common (jax.lax.top_k).
    Alternative b: the expert with the highest index wins.
    Alternative c: the expert that an unstable sort happens to return first.
TC-2: In which order are choices assigned to slots?
    Reading: slots go to all first choices before any second choice.
        By: google-research/vmoe, vmoe/moe.py, _get_top_experts_per_item_common; tensorflow/mesh,
        mesh_tensorflow/transformer/moe.py, _top_2_gating; facebookresearch/fairseq, fairseq/modules/moe/top2gate.py,
        top2gating; tensorflow/lingvo, lingvo/core/gshard_layers.py, Top2GatingOnLogits; google/flaxformer,
        flaxformer/architectures/moe/routing.py, TokensChooseMaskedRouter; microsoft/Tutel,
        tutel/impls/fast_dispatch.py, extract_critical.
    Alternative b: slots go to all choices of a token before any choice of the next token (`slot_order="token"`). This is
        a possible reading of "sequentially going through the rows" in Routers, section 2.1.
        By: AI-Hypercomputer/maxtext, src/maxtext/layers/moe.py, RoutedMoE.generate_masks.
TC-3: What happens to a choice of an expert that is already full?
    Reading: the choice is dropped, unless `tries` is greater than `choices`.
        By: the paper, section 2.1; google-research/vmoe, vmoe/moe.py, _get_top_experts_per_item_common;
        tensorflow/mesh, mesh_tensorflow/transformer/moe.py, _switch_gating and _top_2_gating.
    Alternative b: the token tries its next-best expert immediately, before the choices of later tokens are assigned.
    Alternative c: the token tries its next-best expert once all choices are assigned (`tries`; no token left behind).
        By: tensorflow/mesh, mesh_tensorflow/transformer/moe.py, _ntlb_gating; Switch (arXiv 2101.03961), appendix B.
TC-4: Are the combine weights of a token renormalised when one of its choices is dropped?
    Reading: no, the remaining weights do not change.
        By: google-research/vmoe, vmoe/moe.py, _get_top_experts_per_item_einsum_dispatcher; tensorflow/mesh,
        mesh_tensorflow/transformer/moe.py, _top_2_gating; google/flaxformer, flaxformer/architectures/moe/routing.py,
        TokensChooseMaskedRouter; NVIDIA/Megatron-LM, megatron/core/transformer/moe/moe_utils.py,
        apply_router_token_dropping.
    Alternative b: yes, the remaining weights are divided by their sum (`normalize="sum"`).
        By: facebookresearch/fairseq, fairseq/modules/moe/top2gate.py, top2gating
        (normalize_gate_prob_before_dropping=False); tensorflow/lingvo, lingvo/core/gshard_layers.py, Top2GatingOnLogits
        (legacy_mtf_behavior=False); google/praxis, praxis/gshard_utils.py, top2_gating_on_logits
        (legacy_mtf_behavior=False); huggingface/transformers, src/transformers/models/nllb_moe/modeling_nllb_moe.py,
        NllbMoeTop2Router.route_tokens (normalize_router_prob_before_dropping=False); deepspeedai/DeepSpeed,
        deepspeed/moe/sharded_moe.py, top2gating and topkgating.
"""

import numpy as np

from moespec.spec.algorithm import Algorithm
from moespec.spec.algorithms.selected_weights import divided_by_kept
from moespec.spec.array_like import ArrayLike
from moespec.spec.checks import (
    check_capacity,
    check_choices,
    check_mask,
    check_option,
    check_same_shape,
    check_tries,
    plural,
)
from moespec.spec.errors import ConfigError
from moespec.spec.numerics import Array, stable_order
from moespec.spec.routing import Routing
from moespec.spec.values import as_array, as_order

__all__ = ["token_choice"]

ALGORITHMS = (Algorithm("token_choice", "Liu et al. 2024 (arXiv 2401.15969), Algorithm 1", 2, ("token_choice",)),)


def check_slot_order(slot_order: str, tries: int, choices: int) -> None:
    """Raises `ConfigError` for an unknown `slot_order`, or for "token" with `tries` above `choices`."""
    check_option("slot_order", slot_order, ("choice", "token"))
    if slot_order == "token" and tries > choices:
        made = plural(choices, "choices")
        raise ConfigError(f"slot_order='token': a token with {made} cannot try {tries} experts in turn")


def token_choice(
    scores: ArrayLike,
    *,
    choices: int,
    capacity: int,
    combine_scores: ArrayLike | None = None,
    order: ArrayLike | None = None,
    keep: ArrayLike | None = None,
    hold: bool = False,
    tries: int | None = None,
    slot_order: str = "choice",
    normalize: str | None = None,
) -> Routing:
    """Assigns tokens to slots of their K best experts (Algorithm 1).

    `dispatch[t, e, c]` is 1 if token t chose expert e and got slot c, else 0; `combine[t, e, c] =
    combine_scores[t, e] * dispatch[t, e, c]`. Unless `hold` is set, the filled slots of an expert are 0, 1, ... without
    gaps. The gradient flows only through the `combine_scores` of choices that got a slot.

    With `tries` above `choices`, tokens are rerouted when experts are full. In stage i = 1, 2, ... every token with
    fewer than K slots so far requests a slot of its i-th best expert. With `tries = choices`, every token requests
    slots of its K best experts.

    Args:
        scores: (tokens, experts), the selection scores.
        choices: K, the number of experts that a token chooses, from 1 to experts.
        capacity: C, the number of slots per expert, at least 1.
        combine_scores: (tokens, experts), the combine weights, by default `scores`.
        order: (tokens,) integers, the order in which tokens are assigned, by default 0, 1, 2, ...
        keep: (tokens, tries) booleans: whether token t makes its i-th choice. By default, tokens make all choices.
        hold: whether a choice that is not made still takes up a slot, which stays empty. If False, such a choice requests no slot.
        tries: the maximum number of experts that a token tries, from `choices` to experts, by default `choices`.
        slot_order: With "choice", all first choices get slots before any second choice. With "token", all choices of a token
            get slots before any choice of the next token, and `tries` must equal `choices`.
        normalize: the norm by which a token's weights are divided, computed over the choices that got a slot: "sum",
            "euclidean" (the square root of the sum of squares), or None for no division.

    Returns:
        A Routing with tensors (tokens, experts, capacity).

    Raises:
        ConfigError: `slot_order="token"` with `tries` above `choices`.
        ContractError: `order` is not a permutation, or the sum of the weights to normalise is 0.

    Source: Routers, Algorithm 1. `hold`: GShard (arXiv 2006.16668), Algorithm 1. `tries`: Switch (arXiv 2101.03961),
    appendix B; tensorflow/mesh, mesh_tensorflow/transformer/moe.py, _ntlb_gating. `slot_order`: AI-Hypercomputer/maxtext,
    src/maxtext/layers/moe.py, RoutedMoE.generate_masks. `normalize`: facebookresearch/fairseq,
    fairseq/modules/moe/top2gate.py, top2gating.

    >>> from moespec.spec import softmax_affinity, slot_tokens
    >>> from moespec.spec.examples import LOGITS, TIED_SCORES
    >>> routing = token_choice(softmax_affinity(LOGITS), choices=1, capacity=2)
    >>> slot_tokens(routing).tolist()  # token 4 is dropped; 6 marks an empty slot
    [[0, 1], [2, 5], [3, 6]]
    >>> round(float(routing.combine.sum()), 10)
    3.0885432032
    >>> routing = token_choice(softmax_affinity(LOGITS), choices=2, capacity=3)
    >>> slot_tokens(routing).tolist(), round(float(routing.combine.sum()), 10)
    ([[0, 1, 4], [2, 5, 0], [3, 4, 6]], 4.2912616082)
    >>> routing = token_choice(TIED_SCORES, choices=2, capacity=2)
    >>> slot_tokens(routing).tolist(), float(routing.combine.sum())
    ([[0, 3], [1, 0], [2, 4]], 2.75)
    >>> slot_tokens(token_choice(softmax_affinity(LOGITS), choices=1, capacity=2, tries=2)).tolist()  # 4 goes to expert 2
    [[0, 1], [2, 5], [3, 4]]
    """
    # Scores.
    scores = as_array("scores", scores, "tokens experts")
    weights = scores if combine_scores is None else as_array("combine_scores", combine_scores, "tokens experts")
    check_same_shape("combine_scores", weights, "scores", scores)
    tokens, experts = scores.shape
    check_choices(choices, experts)
    check_capacity(capacity)
    ordered = np.arange(tokens) if order is None else as_order(order, tokens)
    stages = check_tries(tries, choices, experts)
    allowed = np.ones((tokens, stages), bool) if keep is None else np.asarray(keep)
    check_mask("keep", allowed, (tokens, stages), "choice")
    check_slot_order(slot_order, stages, choices)

    # Selection, slots and dispatch.
    best = stable_order(scores)
    if keep is None and stages == choices and slot_order == "choice":
        dispatch = algorithm_1(best, ordered, choices, capacity)
    else:
        dispatch = extended(best, ordered, choices, capacity, allowed, hold=hold, slot_order=slot_order)

    # Combine.
    weights = weights if normalize is None else divided_by_kept(weights, dispatch.sum(axis=2), normalize)
    return Routing(dispatch, weights[:, :, None] * dispatch)


def algorithm_1(best: Array, ordered: Array, choices: int, capacity: int) -> Array:
    """Computes the dispatch tensor of Algorithm 1. `best` ranks each token's experts; `ordered` is the order of the tokens."""
    dispatch, filled = np.zeros((*best.shape, capacity)), [0] * best.shape[1]
    for choice in range(choices):  # assign all first choices before any second choice
        for token in ordered:
            expert = best[token, choice]
            if filled[expert] < capacity:
                dispatch[token, expert, filled[expert]] = 1.0
                filled[expert] += 1
    return dispatch


def extended(
    best: Array, ordered: Array, choices: int, capacity: int, allowed: Array, *, hold: bool, slot_order: str
) -> Array:
    """Computes the dispatch tensor for `keep`, `hold`, `tries` and `slot_order`. `allowed` (tokens, tries) marks the choices made."""
    (tokens, experts), stages = best.shape, allowed.shape[1]
    dispatch, filled, assigned = np.zeros((tokens, experts, capacity)), [0] * experts, [0] * tokens
    requests = [(token, stage) for stage in range(stages) for token in ordered]
    if slot_order == "token":
        requests = [(token, stage) for token in ordered for stage in range(stages)]
    for token, stage in requests:
        expert, is_made = best[token, stage], allowed[token, stage]
        if assigned[token] < choices and filled[expert] < capacity and (is_made or hold):
            if is_made:
                dispatch[token, expert, filled[expert]] = 1.0
                assigned[token] += 1
            filled[expert] += 1
    return dispatch
