"""GShard's top-2: a token chooses two experts, whose gates sum to 1. A second expert with a higher gate is more likely to be kept.

| here | GShard (arXiv 2006.16668), Algorithm 1 |
|---|---|
| `scores` (T, E) | gates g_{s,E}, the softmax |
| `normalize_selected` (T, E) | g1 / (g1 + g2), g2 / (g1 + g2) |
| `noise` (T,), uniform on [0, 1) | rnd |
| `capacity` | C |

Ambiguity ledger

GS-4: Is the second expert kept at random at evaluation?
    Reading: no, the second expert is always kept at evaluation.
    Alternative b: yes, the second expert is kept at random at evaluation, as in training.
        By: tensorflow/mesh, mesh_tensorflow/transformer/moe.py, _top_2_gating (moe_second_policy_eval="random");
        tensorflow/lingvo, lingvo/core/gshard_layers.py, Top2GatingOnLogits (second_expert_policy="random");
        facebookresearch/fairseq, fairseq/modules/moe/top2gate.py, top2gating (second_expert_policy="random");
        lucidrains/st-moe-pytorch, st_moe_pytorch/st_moe_pytorch.py, TopNGating (threshold_eval=0.2).

Often done differently

GS-1: When are the gates of a token divided by their sum?
    Reading: the gates are divided by the sum over both experts before the random choice and before choices are dropped.
        By: the paper, Algorithm 1, lines 6 and 16; tensorflow/mesh, mesh_tensorflow/transformer/moe.py, _top_2_gating;
        tensorflow/lingvo, lingvo/core/gshard_layers.py, Top2GatingOnLogits (legacy_mtf_behavior=True);
        lucidrains/st-moe-pytorch, st_moe_pytorch/st_moe_pytorch.py, TopNGating.
    Alternative b: the gates are divided by the sum over the experts that remain after the random choice and dropping.
        By: tensorflow/lingvo, lingvo/core/gshard_layers.py, Top2GatingOnLogits (legacy_mtf_behavior=False);
        facebookresearch/fairseq, fairseq/modules/moe/top2gate.py, top2gating.
    Alternative c: the gates are never divided by their sum.
GS-2: Does the probability of keeping the second expert depend on its gate before or after division by the sum?
    Reading: the probability depends on the gate after the division.
        By: the paper, Algorithm 1, line 16 before line 19; tensorflow/mesh, mesh_tensorflow/transformer/moe.py,
        _top_2_gating; tensorflow/lingvo, lingvo/core/gshard_layers.py, Top2GatingOnLogits (legacy_mtf_behavior=True).
    Alternative b: the probability depends on the gate before the division.
        By: tensorflow/lingvo, lingvo/core/gshard_layers.py, Top2GatingOnLogits (legacy_mtf_behavior=False);
        facebookresearch/fairseq, fairseq/modules/moe/top2gate.py, top2gating.
GS-3: Does a second choice that is not kept occupy a slot of its expert?
    Reading: yes, the expert counts the second choice even if it is not kept, and the slot stays empty.
        By: the paper, Algorithm 1, line 22.
    Alternative b: no, a second choice that is not kept requests no slot, so a later token can get it (`hold_unkept=False`).
        By: tensorflow/mesh, mesh_tensorflow/transformer/moe.py, _top_2_gating; tensorflow/lingvo,
        lingvo/core/gshard_layers.py, Top2GatingOnLogits; facebookresearch/fairseq, fairseq/modules/moe/top2gate.py,
        top2gating (second_expert_policy="random"); lucidrains/st-moe-pytorch, st_moe_pytorch/st_moe_pytorch.py,
        TopNGating.
GS-6: Which expert is the second choice?
    Reading: the second choice is the expert with the second-highest gate, which is kept at random in training.
        By: the paper, Algorithm 1, lines 15 and 19; tensorflow/mesh, mesh_tensorflow/transformer/moe.py, _top_2_gating
        (moe_second_policy_train="random"); facebookresearch/fairseq, fairseq/modules/moe/top2gate.py, top2gating
        (second_expert_policy="random"); laekov/fastmoe, fmoe/gates/gshard_gate.py, GShardGate.forward
        (random_routing=True); lucidrains/mixture-of-experts, mixture_of_experts/mixture_of_experts.py, Top2Gating;
        lucidrains/st-moe-pytorch, st_moe_pytorch/st_moe_pytorch.py, TopNGating.
    Alternative b: one of the other experts is sampled in proportion to the gates (`second_expert="sampled"`).
        By: facebookresearch/fairseq, fairseq/modules/moe/top2gate.py, top2gating (second_expert_policy="sampling", the
        default); tensorflow/lingvo, lingvo/core/gshard_layers.py, Top2GatingOnLogits (second_expert_policy="sampling");
        google/praxis, praxis/gshard_utils.py, top2_gating_on_logits (second_expert_policy="sampling");
        deepspeedai/DeepSpeed, deepspeed/moe/sharded_moe.py, top2gating (top2_2nd_expert_sampling=True);
        huggingface/transformers, src/transformers/models/nllb_moe/modeling_nllb_moe.py, NllbMoeTop2Router.route_tokens
        (second_expert_policy="sampling").
    Alternative c: the expert with the second-highest gate is always kept (`second_expert="all"`).
        By: google/praxis, praxis/gshard_utils.py, top2_gating_on_logits (second_expert_policy="all"); microsoft/Tutel,
        tutel/impls/fast_dispatch.py, extract_critical; huggingface/transformers,
        src/transformers/models/nllb_moe/modeling_nllb_moe.py, NllbMoeTop2Router.route_tokens
        (second_expert_policy="all").
GS-5: With which probability is a second expert with gate g2 kept?
    Reading: the probability is min(1, 2 g2), which is 1 only if both gates are equal.
        By: the paper, Algorithm 1, line 19; facebookresearch/fairseq, fairseq/modules/moe/top2gate.py, top2gating
        (second_expert_policy="random").
    Alternative b: the probability is min(1, g2 / 0.2).
        By: tensorflow/mesh, mesh_tensorflow/transformer/moe.py, _top_2_gating (moe_second_threshold_train=0.2);
        lucidrains/st-moe-pytorch, st_moe_pytorch/st_moe_pytorch.py, TopNGating (threshold_train=0.2).
"""

import numpy as np

from moespec.spec.array_like import ArrayLike
from moespec.spec.checks import check_choices, check_same_shape, check_size
from moespec.spec.errors import ContractError
from moespec.spec.numerics import Array, stable_order, stop_gradient
from moespec.spec.values import as_array

__all__ = ["gshard_keep", "gshard_sample"]


def gshard_keep(gates: ArrayLike, noise: ArrayLike) -> Array:
    """Decides which of two choices each token keeps: always the first choice, and the second choice if `2 g2 > noise`.

    `g2` is the second-largest gate of a token. The token keeps the second choice with probability min(1, 2 g2).

    Args:
        gates: (tokens, experts), with at least 2 experts. The two largest gates of each token must sum to 1.
        noise: (tokens,), uniform draws from [0, 1). The function does not check this range.

    Returns:
        (tokens, 2) booleans.

    Source: GShard, Algorithm 1, lines 16-19.

    >>> gshard_keep([[0.75, 0.25], [0.25, 0.75], [0.5, 0.5]], [0.25, 0.625, 0.9]).tolist()
    [[True, True], [True, False], [True, True]]
    """
    gates = stop_gradient(as_array("gates", gates, "tokens experts"))
    noise = stop_gradient(as_array("noise", noise, "tokens"))
    check_choices(2, gates.shape[1])
    check_size("noise", noise, 0, len(gates), "the tokens of gates")
    second = np.take_along_axis(gates, stable_order(gates)[:, 1:2], axis=1)[:, 0]
    return np.stack([np.ones(len(gates), bool), 2 * second > noise], axis=1)


def gshard_sample(logits: ArrayLike, noise: ArrayLike) -> Array:
    """Returns scores for `token_choice`. Its first choice is then the expert with the token's largest logit. The second choice
    is drawn from the other experts with probabilities proportional to `exp(L[t, e])` (the Gumbel-max trick):

        S[t, e] = L[t, e] - log(-log noise[t, e]),    but 1 + max_e' S[t, e'] for the expert with the largest logit

    Args:
        logits: L, (tokens, experts).
        noise: (tokens, experts), uniform draws from the open interval (0, 1).

    Returns:
        (tokens, experts), for `token_choice(scores, choices=2, combine_scores=...)`. The scores carry no gradient.

    Source: facebookresearch/fairseq, fairseq/modules/moe/top2gate.py, top2gating (second_expert_policy="sampling").

    >>> gshard_sample([[0.0, 2.0, 1.0]], [[0.5, 0.5, 0.25]]).round(6).tolist()
    [[0.366513, 3.366513, 0.673366]]
    """
    logits = stop_gradient(as_array("logits", logits, "tokens experts"))
    noise = stop_gradient(as_array("noise", noise, "tokens experts"))
    check_same_shape("noise", noise, "logits", logits)
    if not ((noise > 0) & (noise < 1)).all():
        raise ContractError("noise: expected numbers between 0 and 1, exclusive")
    sampled = logits - np.log(-np.log(noise))
    largest = np.take_along_axis(sampled, stable_order(sampled)[:, :1], axis=1)
    np.put_along_axis(sampled, stable_order(logits)[:, :1], largest + 1.0, axis=1)
    return sampled
