"""Cases of contrastive losses.

A cross-entropy near 0 is a difference of large numbers, so `functions/losses.py` computes its error scale explicitly. The error
scale of a logit is the logit computed on absolute values, times `1 + |s|`, where s is the log scale.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from moespec.backends.blocks import Array
from moespec.conformance.author.definition import Definition, single, tensor
from moespec.conformance.author.inputs import grid
from moespec.conformance.author.variant import Spec, Variant, fixed, scaled, variant

PAIRS = "pairs width"
LOSSES = ("contrastive_loss", "sigmoid_loss")


def cases() -> Iterator[Definition]:
    yield from _of("contrastive_loss")
    yield from _of("sigmoid_loss", bias=-2.0)


def _of(name: str, **numbers: float) -> Iterator[Definition]:
    def case(key: str, kind: str, purpose: str, *flags: str, pairs: int = 4, **changed: Any) -> Definition:
        rows = {n: grid(f"{name}/{key}/{n}", (pairs, 3)) for n in ("first", "second")}
        values = {**rows, "log_scale": 2.25, **numbers, **changed}
        inputs: dict[str, Any] = {
            n: tensor(value, PAIRS) if n in rows else tensor(np.float32(value), "") for n, value in values.items()
        }
        return single(name, name, key, kind, purpose, *flags, **inputs)

    yield case("values", "value", "Features that are not normalised.")
    purpose = "A scale above 100, and logits whose exponential overflows."
    yield case("large", "value", purpose, "large_logits", log_scale=6.0)
    if numbers:
        yield case("start", "value", "Where the training of the paper starts.", log_scale=2.296875, bias=-10.0)
    faint = grid(f"{name}/faint", (4, 3)) * 2.0**-26
    yield case("faint", "degenerate", "Features so small that epsilon counts.", "norm_form", first=faint)
    absent = grid(f"{name}/absent", (4, 3))
    absent[1] = 0
    yield case("zero", "degenerate", "Features of 0.", "norm_form", first=absent)
    yield case("one_pair", "degenerate", "One pair.", "degenerate_size", pairs=1)
    yield case("gradient", "gradient", "By both features and the scalars.")


def negatives_of_half(B: Spec, first: Array, second: Array, log_scale: Array) -> Array:
    """The loss is the mean of the losses of two halves of the batch, as on two devices. No pair spans both halves."""
    halves = zip(np.array_split(first, 2), np.array_split(second, 2), strict=True)
    parts = [B.contrastive_loss(*half, log_scale) for half in halves if len(half[0])]
    return sum(parts) / len(parts)


def bias_times_scale(B: Spec, first: Array, second: Array, log_scale: Array, bias: Array) -> Array:
    """The bias is added to the cosines before the scale multiplies them, so the scale also multiplies the bias."""
    return B.sigmoid_loss(first, second, log_scale, bias * np.exp(log_scale))


def _unit(rows: Array) -> Array:
    with np.errstate(invalid="ignore"):
        return rows / np.sqrt(np.sum(rows * rows, axis=1, keepdims=True))


def variants() -> Iterator[Variant]:
    computes = "The two directions of the softmax loss are summed."
    yield scaled("directions_summed", computes, "CO-4b", contrastive_loss=lambda **_: 2)
    yield variant(negatives_of_half, "contrastive_loss", ledger="CO-1c")
    computes = "The scale is at most 100."
    limited: dict[str, Any] = {"log_scale": lambda x: np.where(x.real > np.log(100), np.log(100), x)}
    yield fixed("scale_limited", computes, LOSSES, "CO-2b", "openai/CLIP", **limited)
    computes = "The scale is the parameter itself, not its exponential."
    itself: dict[str, Any] = {"log_scale": np.log}
    yield fixed("scale_without_exponential", computes, LOSSES, "CO-2", "BAAI-DCAI/M3D (issue 64)", **itself)
    yield variant(bias_times_scale, "sigmoid_loss")
    computes = "The norm has no epsilon."
    unit: dict[str, Any] = {"first": _unit, "second": _unit}
    yield fixed("norm_without_epsilon", computes, LOSSES, "CO-3b", "openai/CLIP", **unit)
    computes = "The sigmoid loss is averaged over all pairs."
    yield scaled("pairs_averaged", computes, "CO-5b", sigmoid_loss=lambda first, **_: 1 / len(first))
