"""Router logits, gating noise and the softmax affinity."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from moespec.conformance.author.definition import Definition, call, composed, single, tensor
from moespec.conformance.author.inputs import grid, groups_tokens, logits
from moespec.conformance.author.variant import variant
from moespec.spec.numerics import softmax

G, T, E, D = 2, 6, 3, 4


def cases() -> Iterator[Definition]:
    yield from _softmax()
    yield from _noise()


def _softmax() -> Iterator[Definition]:
    case = partial(single, "softmax_affinity", "softmax_affinity")
    product = partial(single, "softmax_affinity", "router_logits")
    axis, size = "softmax_axis", "degenerate_size"
    inputs: dict[str, Any] = {
        "tokens": tensor(grid("softmax/tokens", (G, T, D)), "groups tokens width"),
        "kernel": tensor(grid("softmax/kernel", (D, E), reach=1.0), "width experts"),
    }
    yield composed(
        "softmax_affinity",
        "from_tokens",
        "value",
        "Logits are a plain product with the kernel; the softmax runs over experts.",
        axis,
        inputs=inputs,
        stages=(
            call("router_logits", {"tokens": "tokens", "kernel": "kernel"}),
            call("softmax_affinity", {"logits": "router_logits"}),
        ),
    )
    fine: dict[str, Any] = {
        "tokens": tensor(grid("softmax/fine/tokens", (G, T, D), step=1 / 64), "groups tokens width"),
        "kernel": tensor(grid("softmax/fine/kernel", (D, E), reach=1.0, step=1 / 64), "width experts"),
    }
    purpose = "A product whose factors bfloat16 has, and whose sums it has not."
    yield product("many_bits", "value", purpose, "low_precision", **fine)
    yield product("gradient_product", "gradient", "Of the logits, by tokens and kernel.", **inputs)
    yield case("values", "value", "Moderate logits.", axis, logits=logits("softmax/values"))
    purpose = "As many tokens as experts: a softmax over the wrong axis keeps the shape."
    yield case("square", "value", purpose, axis, logits=logits("softmax/square", (G, E, E)))
    purpose = "Logits whose exponential overflows float32, in one group far beyond what a clamp would leave."
    large = groups_tokens(logits("softmax/large", reach=240.0, step=4.0).array * [[[1.0]], [[256.0]]])
    yield case("large", "value", purpose, "large_logits", logits=large)
    rows = grid("softmax/shifted", (G, 1, E)) + np.array([0.0, 1.0, -8.0, 16.0, 4.0, -1.0]).reshape(1, T, 1)
    yield case("shifted_rows", "value", "Rows that differ by a constant have equal scores.", logits=groups_tokens(rows))
    purpose = "A router that starts at 0: every expert gets 1/E."
    yield case("equal", "tie", purpose, logits=groups_tokens(np.zeros((G, T, E))))
    yield case("one_expert", "degenerate", "One expert gets 1.", size, logits=logits("softmax/one", (G, T, 1)))
    yield case("one_token", "degenerate", "One token.", size, logits=logits("softmax/token", (1, 1, E)))
    yield case("gradient", "gradient", "The derivative of a weighted sum of scores.", logits=logits("softmax/gradient"))


def _noise() -> Iterator[Definition]:
    def case(name: str, kind: str, purpose: str, multiplier: float, experts: int = E, noise: bool = True) -> Definition:
        drawn = logits(f"noise/{name}/noise", (G, T, experts), step=0.0625)
        return single(
            "gating_noise",
            "add_gating_noise",
            name,
            kind,
            purpose,
            "noise_scale",
            logits=logits(f"noise/{name}", (G, T, experts)),
            noise=drawn if noise else None,
            multiplier=multiplier,
        )

    yield case("values", "value", "A standard deviation of one over the number of experts, 1/3.", 1.0)
    yield case("four_experts", "value", "Another number of experts.", 1.0, 4)
    yield case("multiplier", "value", "Two and a half times the usual noise.", 2.5)
    yield case("zero", "degenerate", "A multiplier of 0 changes nothing.", 0.0)
    yield case("absent", "degenerate", "Without noise the logits are unchanged.", 1.0, noise=False)
    yield case("gradient", "gradient", "By logits and noise.", 2.5)


# Variants. Arrays are (groups, tokens, experts).

OVERFLOW = 88.7
"""Float32 overflows in the exponential of larger numbers."""


def softmax_over_tokens(B: Any, logits: Any) -> Any:
    """The softmax runs over the tokens, not over the experts."""
    return softmax(logits, axis=1)


def softmax_twice(B: Any, logits: Any) -> Any:
    """The scores are the softmax of the softmax."""
    return B.softmax_affinity(B.softmax_affinity(logits))


def sigmoid_for_softmax(B: Any, logits: Any) -> Any:
    """The scores are the sigmoid of the logits, not their softmax."""
    return B.sigmoid_affinity(logits)


def maximum_not_subtracted(B: Any, logits: Any) -> Any:
    """The softmax does not subtract the maximum, so that large logits overflow float32."""
    scores = B.softmax_affinity(logits)
    return np.where(np.max(logits.real, axis=2, keepdims=True) > OVERFLOW, np.nan, scores)


def noise_variance(B: Any, logits: Any, noise: Any, *, multiplier: float = 1.0) -> Any:
    """The multiplier over the number of experts is the variance of the noise."""
    return B.add_gating_noise(logits, noise, multiplier=np.sqrt(multiplier * logits.shape[2]))


VARIANTS = (
    variant(softmax_over_tokens, "softmax_affinity", ledger="EC-4b"),
    variant(softmax_twice, "softmax_affinity", who="huggingface/transformers (issue 45120)"),
    variant(sigmoid_for_softmax, "softmax_affinity", who="huggingface/transformers (Llama 4)"),
    variant(maximum_not_subtracted, "softmax_affinity"),
    variant(noise_variance, "add_gating_noise", ledger="SA-2b"),
)
