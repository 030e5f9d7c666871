"""Batch Priority Routing: tokens are assigned in descending order of a priority that is computed from the router's scores.

| here | V-MoE (arXiv 2106.05974) |
|---|---|
| `scores` (T, E) | gates g(x) |
| priority | importance score s(x) of a token |
| `by="max"` | s(x) = max_i g(x)_i |
| `by="sum"` | s(x) = sum of the top-k g(x)_i |

Ambiguity ledger

BP-1: What is the priority of a token that makes several choices?
    Reading: the priority is the highest score of the token.
        By: the paper, section 4 (one of its two scores); google-research/vmoe, vmoe/moe.py,
        _get_top_experts_per_item_common; facebookresearch/fairseq, fairseq/modules/moe/top2gate.py, top2gating
        (batch_prioritized_routing=True); google/flaxformer, flaxformer/architectures/moe/routing.py,
        TokensChooseMaskedRouter; microsoft/Tutel, tutel/impls/fast_dispatch.py, extract_critical.
    Alternative b: the priority is the sum of the scores of the token's choices (`by="sum"`).
        By: the paper, section 4 (the other of its two scores).
BP-2: Does a token have one priority, or does each choice of the token have a separate priority?
    Reading: each token has one priority. All first choices are still assigned before any second choice.
        By: google-research/vmoe, vmoe/moe.py, _get_top_experts_per_item_common.
    Alternative b: each choice has a separate priority, so a strong second choice outranks a weak first choice.
        By: deepspeedai/DeepSpeed, deepspeed/moe/sharded_moe.py, topkgating (drop_policy="probs"); NVIDIA/Megatron-LM,
        megatron/core/transformer/moe/moe_utils.py, apply_router_token_dropping (drop_policy="probs").
BP-3: Which of two tokens with equal priority comes first?
    Reading: the token with the lower index comes first.
        By: google-research/vmoe, vmoe/moe.py, _get_top_experts_per_item_common (jnp.argsort).
    Alternative b: the token that an unstable sort happens to return first.
        By: microsoft/Tutel, tutel/impls/fast_dispatch.py, compute_sorted_location.
BP-4: From which values is the priority computed if the selection scores are not probabilities (a transport plan, noisy logits)?
    Reading: from the selection scores. In noisy top-k, the priority is the largest noisy logit of the token, even if all gates are 1.
    Alternative b: the priority is computed from the combine weights.
"""

import numpy as np
from numpy.typing import NDArray

from moespec.spec.algorithm import Algorithm
from moespec.spec.array_like import ArrayLike
from moespec.spec.checks import check_choices, check_option
from moespec.spec.numerics import stable_order, stop_gradient
from moespec.spec.values import as_array

__all__ = ["batch_priority"]

ALGORITHMS = (
    Algorithm("batch_priority", "Riquelme et al. 2021 (arXiv 2106.05974), section 4", 1, ("batch_priority",)),
)


def batch_priority(scores: ArrayLike, *, by: str = "max", choices: int = 1) -> NDArray[np.intp]:
    """Sorts the tokens by descending priority, with ties broken by lower index. `token_choice` accepts the result as `order`.

    Routers pass their selection scores: the noisy softmax, a Sinkhorn plan or, in noisy top-k, the noisy logits.

    Args:
        scores: (tokens, experts), the selection scores (noisy in training).
        by: "max" for the priority `max_e scores[t, e]` of token t; "sum" for the sum of the `choices` best scores of token t.
        choices: K, the experts per token, from 1 to experts.

    Returns:
        (tokens,) integers: the token indices in the order of assignment.

    Source: V-MoE, section 4.

    >>> from moespec.spec import slot_tokens, softmax_affinity, token_choice
    >>> from moespec.spec.examples import LOGITS
    >>> scores = softmax_affinity(LOGITS)
    >>> batch_priority(scores).tolist()
    [4, 1, 5, 0, 3, 2]
    >>> routing = token_choice(scores, choices=1, capacity=2, order=batch_priority(scores))
    >>> slot_tokens(routing).tolist(), round(float(routing.combine.sum()), 10)
    ([[4, 1], [5, 2], [3, 6]], 3.2670969819)
    >>> routing = token_choice(scores, choices=2, capacity=3, order=batch_priority(scores))
    >>> slot_tokens(routing).tolist(), round(float(routing.combine.sum()), 10)
    ([[4, 1, 0], [5, 2, 1], [3, 4, 6]], 4.2107847647)
    """
    scores = stop_gradient(as_array("scores", scores, "tokens experts"))
    check_option("by", by, ("max", "sum"))
    check_choices(choices, scores.shape[1])
    best = np.take_along_axis(scores, stable_order(scores), axis=1)
    priority = best[:, 0] if by == "max" else best[:, :choices].sum(axis=1)
    return stable_order(priority)
