"""The losses of pairs.

A cross-entropy near 0 is a difference of large numbers, so the scales are written down: each logit l has the error of the
same product on absolute values, and that of the exponential of s, which s magnifies.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from moespec.conformance.author.definition import Definition, single, tensor
from moespec.conformance.author.inputs import grid
from moespec.conformance.author.variant import Variant, variant

PAIRS = "pairs width"


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
    yield case("eight_pairs", "value", "More pairs.", pairs=8)
    yield case("warm", "value", "A temperature above 1.", log_scale=-0.75)
    purpose = "A scale above 100, and logits whose exponential overflows."
    yield case("large", "value", purpose, "large_logits", log_scale=6.0)
    if numbers:
        yield case("start", "value", "Where the training of the paper starts.", log_scale=2.296875, bias=-10.0)
        yield case("positive_bias", "value", "A bias above 0.", bias=1.5)
    faint = grid(f"{name}/faint", (4, 3)) * 2.0**-26
    yield case("faint", "degenerate", "Features so small that epsilon counts.", "norm_form", first=faint)
    absent = grid(f"{name}/absent", (4, 3))
    absent[1] = 0
    yield case("zero", "degenerate", "Features of 0.", "norm_form", first=absent)
    yield case("alike", "degenerate", "All alike.", second=np.full((4, 3), 0.5))
    yield case("one_pair", "degenerate", "One pair.", "degenerate_size", pairs=1)
    yield case("gradient", "gradient", "By both features and the scalars.")


# Variants.


def directions_summed(B: Any, **pairs: Any) -> Any:
    """The two directions of the softmax loss are summed."""
    return 2 * B.contrastive_loss(**pairs)


def negatives_of_half(B: Any, first: Any, second: Any, log_scale: Any) -> Any:
    """Each half of the batch, as on two devices, finds its pairs in that half; the loss is the mean."""
    halves = zip(np.array_split(first, 2), np.array_split(second, 2), strict=True)
    parts = [B.contrastive_loss(*half, log_scale) for half in halves if len(half[0])]
    return sum(parts) / len(parts)


def _of_both(name: str, computes: str, change: Callable[..., Any], ledger: str = "", who: str = "") -> Variant:
    """The variant of both losses whose arguments are changed."""

    def replacement(loss: str) -> Callable[..., Any]:
        return lambda B, **pairs: getattr(B, loss)(**{**pairs, **change(**pairs)})

    replaced = {loss: replacement(loss) for loss in ("contrastive_loss", "sigmoid_loss")}
    return Variant(name, computes, replaced, ledger, who)


def _without_epsilon(log_scale: Any, bias: Any = None, **rows: Any) -> dict[str, Any]:
    with np.errstate(invalid="ignore"):
        return {n: x / np.sqrt(np.sum(x * x, axis=1, keepdims=True)) for n, x in rows.items()}


def pairs_averaged(B: Any, **pairs: Any) -> Any:
    """The sigmoid loss is averaged over all pairs."""
    return B.sigmoid_loss(**pairs) / len(pairs["first"])


VARIANTS = (
    variant(directions_summed, "contrastive_loss", ledger="CO-4b"),
    variant(negatives_of_half, "contrastive_loss", ledger="CO-1c"),
    _of_both(
        "scale_limited",
        "The scale is at most 100.",
        lambda log_scale, **_: {"log_scale": np.where(log_scale.real > np.log(100), np.log(100), log_scale)},
        "CO-2b",
        "openai/CLIP",
    ),
    _of_both("norm_without_epsilon", "The norm has no epsilon.", _without_epsilon, "CO-3b", "openai/CLIP"),
    variant(pairs_averaged, "sigmoid_loss", ledger="CO-5b"),
)
