"""Cases of quantile balancing: histograms of the biases that experts require to be chosen, and the quantiles of the histograms."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from moespec.backends.blocks import Array
from moespec.conformance.author.definition import Definition, single, tensor
from moespec.conformance.author.inputs import TIED, both, logits, of_experts, scores
from moespec.conformance.author.variant import Spec, Variant, fixed, variant

ROW, REQUIRED, BIAS = "quantile_balancing", "required_biases", "quantile_bias"
FLAG = "quantile_bias"


def cases() -> Iterator[Definition]:
    case = partial(single, ROW, REQUIRED)
    bias: dict[str, Any] = {"bias": of_experts([-0.5, 0.0, 0.25])}
    yield case("required", "value", "Two groups.", FLAG, scores=scores("qb/a"), **bias, choices=1, bins=7)
    purpose = "No bias: the expert at the cutoff requires none, amid an odd number of bins."
    zero = of_experts([0.0] * 3)
    yield case("required_tied", "tie", purpose, FLAG, scores=both(TIED), bias=zero, choices=1, bins=9)
    purpose = "Scores that are not from 0 to 1 count in the first bin and the last."
    far = logits("qb/c", reach=6.0)
    yield case("required_far", "degenerate", purpose, FLAG, scores=far, bias=zero, choices=1, bins=3)
    yield from _quantiles()


def _quantiles() -> Iterator[Definition]:
    def case(name: str, kind: str, purpose: str, counts: Any, choices: int = 1) -> Definition:
        experts = len(counts)
        bias = of_experts(np.linspace(-0.5, 0.25, experts))
        tokens = tensor(np.asarray(counts, np.float32), "experts bins")
        return single(ROW, BIAS, name, kind, purpose, FLAG, bias=bias, counts=tokens, choices=choices)

    purpose = "A rank within a bin, at the end of one before an empty bin, and in the last."
    yield case("values", "value", purpose, [[2, 1, 5, 0], [3, 0, 4, 1], [0, 0, 0, 8], [1, 1, 0, 6]])
    purpose = "More tokens than bfloat16 can count, at ranks near the ends of bins."
    yield case("many", "value", purpose, [[300, 4, 596], [298, 600, 2], [302, 2, 596]])
    yield case("none", "degenerate", "No token: no bias.", [[0, 0], [0, 0]])


def quantile_not_interpolated(B: Spec, bias: Array, counts: Array, *, choices: int) -> Array:
    """The bias is the upper edge of the bin that contains the rank K T / E, without interpolation."""
    experts, bins = counts.shape
    at = (experts * np.cumsum(counts, axis=1) < choices * counts.sum(axis=1, keepdims=True)).sum(axis=1)
    found = (at + 1) * (np.max(bias) - np.min(bias) + 2) / bins
    return found - np.mean(found)


def quantile_of_the_next_rank(B: Spec, bias: Array, counts: Array, *, choices: int) -> Array:
    """The bias is the value at rank K T / E + 1, interpolated within the bin of the rank."""
    experts, bins = counts.shape
    edges, ends = np.cumsum(counts, axis=1), np.arange(1.0, bins + 1)
    ranks = np.minimum(choices * edges[:, -1] / experts + 1, edges[:, -1])
    found = np.array([np.interp(rank, [0, *row], [0, *ends]) for rank, row in zip(ranks, edges, strict=True)])
    return (found - np.mean(found)) * (np.max(bias) - np.min(bias) + 2) / bins


def quantile_keeps_the_mean(B: Spec, bias: Array, counts: Array, *, choices: int) -> Array:
    """The bias update keeps the mean of the biases."""
    return B.quantile_bias(bias, counts, choices=choices) + np.mean(bias)


def variants() -> Iterator[Variant]:
    yield fixed("cutoff_without_bias", "The bias of the step is left out.", REQUIRED, bias=np.zeros_like)
    yield variant(quantile_not_interpolated, BIAS, ledger="QB-2")
    yield variant(quantile_of_the_next_rank, BIAS, ledger="QB-2")
    yield variant(quantile_keeps_the_mean, BIAS, ledger="QB-4")
