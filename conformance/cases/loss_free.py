"""Cases of loss-free balancing: biased scores, the load, and the bias update."""

from collections.abc import Iterator
from functools import partial

import numpy as np

from moespec.backends.blocks import Array
from moespec.conformance.author.definition import Definition, call, single, tensor
from moespec.conformance.author.inputs import TIED, both, grid, groups_tokens, integers, of_experts, scores
from moespec.conformance.author.near_ties import near_ties
from moespec.conformance.author.variant import Spec, Variant, fixed, variant

BIASED, LOAD, BIAS = "biased_scores", "expert_load", "balance_bias"
FLAG = "selection_bias"


def cases() -> Iterator[Definition]:
    case = partial(single, BIASED, BIASED)
    bias = of_experts([-0.5, 0.0, 0.25])
    yield case("values", "value", "A bias of each expert.", FLAG, scores=scores("lf/a"), bias=bias)
    far = of_experts([-256.0, 128.0, 0.125])
    yield case("large", "value", "Biases far from the scores.", FLAG, scores=scores("lf/b"), bias=far)
    yield case("one_token", "degenerate", "One token.", FLAG, scores=scores("lf/c", (1, 1, 3)), bias=bias)
    yield from _load()
    yield from _bias()


def _load() -> Iterator[Definition]:
    case, order = partial(single, BIAS, LOAD), "tie_order"
    yield case("load", "value", "Two choices of three, in two groups.", FLAG, scores=scores("lf/d"), choices=2)
    keep = tensor(integers("lf/keep", (2, 6, 3), 0, 1) > 0, "groups tokens choices")
    yield case("load_kept", "value", "Choices that are not made.", FLAG, scores=scores("lf/d"), keep=keep, choices=3)
    purpose = "Among equals the lower expert is chosen."
    yield case("load_tied", "tie", purpose, FLAG, order, scores=both(TIED), choices=2)
    purpose = "More tokens of one expert than int8 and bfloat16 can count."
    alike = groups_tokens(np.tile([0.75, 0.25], (301, 1)))
    yield case("load_many", "value", purpose, FLAG, "real_size", scores=alike, choices=1)
    purpose = "On one device a load over all devices is that of the batch."
    yield case("load_global", "value", purpose, FLAG, scores=scores("lf/g"), choices=2, scope="global")
    yield from near_ties(BIAS, call(LOAD, {"scores": "router_logits"}, choices=2))


def _bias() -> Iterator[Definition]:
    case = partial(single, BIAS, BIAS)
    bias = of_experts(grid("lf/f", (4,), reach=1.0, step=0.0625))
    load = of_experts([5, 1, 2, 0])
    purpose = "A load above the mean, two below, and one at the mean."
    yield case("values", "value", purpose, FLAG, bias=bias, load=load, rate=0.25)
    yield case("recentred", "value", purpose, FLAG, bias=bias, load=load, rate=0.25, recentre=True)
    purpose = "Equal loads move nothing."
    yield case("balanced", "degenerate", purpose, FLAG, bias=bias, load=of_experts([3] * 4), rate=0.5)
    purpose = "Loads at a mean that is no binary fraction, whose reciprocal is none."
    thirds = of_experts([7, 7, 7, 14, 0, 7, 7])
    yield case("at_the_mean", "value", purpose, FLAG, bias=of_experts([0.0] * 7), load=thirds, rate=0.125)
    yield case("rate_zero", "degenerate", "A rate of 0 keeps the bias.", FLAG, bias=bias, load=load, rate=0.0)


def bias_multiplied(B: Spec, scores: Array, bias: Array) -> Array:
    """The biased score is s (1 + b) instead of s + b."""
    return (scores * (1 + bias)).real


def bias_moves_by_the_violation(B: Spec, bias: Array, load: Array, *, rate: float, recentre: bool = False) -> Array:
    """The bias moves in proportion to the load violation (mean load minus load)."""
    return bias + rate * (np.mean(load) - load)


def variants() -> Iterator[Variant]:
    yield variant(bias_multiplied, BIASED, ledger="LF-6b")
    yield variant(bias_moves_by_the_violation, BIAS, ledger="LF-4b")
    computes = "The update of the bias is recentred, whatever is requested."
    yield fixed("bias_always_recentred", computes, BIAS, "LF-1b", "pytorch/torchtitan", recentre=True)
    computes = "The update of the bias is never recentred."
    yield fixed("bias_never_recentred", computes, BIAS, "LF-1", recentre=False)
