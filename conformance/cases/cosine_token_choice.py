"""Cases of a cosine router's logits and of the router `cosine_token_choice`."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from moespec.backends.blocks import Array
from moespec.conformance.author.definition import Definition, single, tensor
from moespec.conformance.author.inputs import grid, tokens
from moespec.conformance.author.routers import CHANGED, LOSSES, NORMAL, balance_scope, evaluation, replay, router_case
from moespec.conformance.author.variant import Spec, Variant, fixed, variant
from moespec.conformance.format import Tensor

LOGITS, NAME = "cosine_logits", "cosine_token_choice"

T, E, D, P = 6, 3, 4, 2
NORM = "unnormalised_tokens"


def _parameters(key: str, temperature: float = 0.5, *, bias: bool = True, experts: int = E) -> dict[str, Tensor]:
    made = {
        "projection": tensor(grid(f"{key}/projection", (D, P), reach=1.0), "width dimensions"),
        "embeddings": tensor(grid(f"{key}/embeddings", (P, experts), reach=1.0, centre=0.03125), "dimensions experts"),
        "temperature": tensor(np.float32(temperature), ""),
    }
    offset = {"projection_bias": tensor(grid(f"{key}/bias", (P,), reach=0.5, centre=0.03125), "dimensions")}
    return {**made, **(offset if bias else {})}


def cases() -> Iterator[Definition]:

    def logits(name: str, kind: str, purpose: str, *flags: str, temperature: float = 0.5, bias: bool = True,
               **more: Any) -> Definition:  # fmt: skip
        arrays: dict[str, Any] = _parameters(f"{LOGITS}/{name}", temperature, bias=bias)
        arrays = {"tokens": tokens(f"{LOGITS}/{name}"), **arrays}
        return single(LOGITS, LOGITS, name, kind, purpose, *flags, **arrays, **more)

    yield logits("log_scale", "value", "The logarithm of the inverse temperature, and a bias.", NORM)
    purpose = "An inverse temperature of at most 100."
    yield logits("clamped", "value", purpose, NORM, "large_logits", temperature=5.0)
    yield logits("gradient", "gradient", "By all arrays.", NORM)
    yield logits("gradient_clamped", "gradient", "None by a temperature at its bound.", NORM, temperature=5.0)
    yield logits("gradient_divide", "gradient", "By the temperature, too.", NORM, temperature=0.25, form="divide")
    zero: dict[str, Any] = {"tokens": tensor(np.zeros((1, 2, D)), "groups tokens width")}
    zero |= _parameters("cosine/zero", bias=False)
    purpose = "A projected token of 0 has logits of 0."
    yield single(LOGITS, LOGITS, "zero", "degenerate", purpose, NORM, **zero)
    yield from _router()


def _router() -> Iterator[Definition]:
    def case(name: str, kind: str, purpose: str, *flags: str, bias: bool = True, temperature: float = 0.75,
             sizes: tuple[int, int, int] = (T, E, D), **more: Any) -> Definition:  # fmt: skip
        params = _parameters(f"routers/{NAME}/{name}", temperature, bias=bias, experts=sizes[1])
        more = {"dimensions": P, **({} if bias else {"projection_bias": False}), **more}
        return router_case(NAME, name, kind, purpose, *flags, params=params, sizes=sizes, **more)

    yield case("values", "value", "Swin-MoE: one expert of three, with room for all.", NORM, "generated_code",
               slots_per_expert=6)  # fmt: skip
    purpose = "X-MoE: a temperature that divides, no bias, and the sigmoid as the gate."
    divided: dict[str, Any] = {"temperature_form": "divide", "temperature": 0.375, "affinity": "sigmoid"}
    yield case("divide", "overflow", purpose, NORM, "sigmoid_gate", bias=False, multiple_of=4, **divided)
    purpose = "Noise, at evaluation too, and all losses."
    more: dict[str, Any] = {"noise": NORMAL, "noise_multiplier": 2.0, "train": False, "choices": 2}
    yield case("noise", "value", purpose, "noise_inside", groups=1, **more, **LOSSES | CHANGED)
    purpose = "Two choices, divided by their sum, best tokens first, with half of the room."
    two: dict[str, Any] = {"choices": 2, "normalize_selected": True, "batch_priority": "max", "capacity_factor": 0.5}
    yield case("two_choices", "overflow", purpose, "priority_order", "renormalised", **two)
    wide: dict[str, Any] = {"params": _parameters(f"routers/{NAME}/evaluation"), "dimensions": P}
    yield evaluation(NAME, **wide)
    yield balance_scope(NAME, params=_parameters(f"routers/{NAME}/balance_scope"), dimensions=P)
    yield output_gradient_of(case)
    yield replay(case, recorded=3, choices=3)


def output_gradient_of(case: Any) -> Definition:
    """Returns a case that differentiates the output, without losses, with respect to tokens, router parameters and experts."""
    parts = ("projection", "embeddings", "temperature", "projection_bias")
    by = ("tokens", *(f"router/{part}" for part in parts), "experts/w1", "experts/w2")
    purpose = "Without noise, of the output alone."
    made: Definition = case("gradient_output", "gradient", purpose, "stop_gradient", by=by, losses=False)
    return made


def tokens_of_a_cosine_as_they_are(B: Spec, tokens: Array, projection: Array, embeddings: Array, temperature: Array,
                                   projection_bias: Array | None = None, **options: Any) -> Array:  # fmt: skip
    """The expert embeddings are normalised, but the projected tokens are not."""
    arrays: dict[str, Any] = {"projection": projection, "embeddings": embeddings, "temperature": temperature}
    logits = B.cosine_logits(tokens, **arrays, projection_bias=projection_bias, **options)
    projected = np.einsum("gtd,dp->gtp", tokens, projection) + (0 if projection_bias is None else projection_bias)
    return logits * np.sqrt((projected * projected).sum(axis=2, keepdims=True))


def embeddings_normalised_over_experts(B: Spec, tokens: Array, projection: Array, embeddings: Array, *arrays: Array,
                                       **options: Any) -> Array:  # fmt: skip
    """The embeddings are normalised over the experts, not over the dimensions."""
    units = embeddings / np.maximum(np.sqrt((embeddings**2).sum(axis=1, keepdims=True)), 1e-12)
    return B.cosine_logits(tokens, projection, units, *arrays, **options) * np.sqrt((units**2).sum(axis=0))


def bias_of_the_projection_after_the_norm(B: Spec, tokens: Array, projection: Array, embeddings: Array, temperature: Array,
                                          projection_bias: Array | None = None, **options: Any) -> Array:  # fmt: skip
    """The bias of the projection is added to the normalised tokens."""
    rows = tokens @ projection
    rows = rows / np.maximum(np.sqrt((rows**2).sum(axis=2, keepdims=True)), 1e-12)
    rows = rows if projection_bias is None else rows + projection_bias
    logits = B.cosine_logits(rows, np.eye(rows.shape[2]), embeddings, temperature, **options)
    return logits * np.sqrt((rows**2).sum(axis=2, keepdims=True))


def variants() -> Iterator[Variant]:
    yield variant(tokens_of_a_cosine_as_they_are, LOGITS, ledger="CR-4b", who="microsoft/torchscale")
    yield variant(embeddings_normalised_over_experts, LOGITS, ledger="CR-4")
    yield variant(bias_of_the_projection_after_the_norm, LOGITS, ledger="CR-2")
    computes = "The projection of a cosine router ignores its bias."
    yield fixed("bias_of_the_projection_ignored", computes, LOGITS, "CR-2", projection_bias=None)
