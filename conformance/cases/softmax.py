"""Cases of router logits, gating noise and the softmax affinity."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from moespec.backends.blocks import Array
from moespec.conformance.author.definition import Definition, call, composed, single, tensor
from moespec.conformance.author.inputs import grid, groups_tokens, kernel, logits, tokens
from moespec.conformance.author.variant import Spec, Variant, fixed, variant
from moespec.spec.numerics import softmax

NAME = "softmax_affinity"
G, T, E, D = 2, 6, 3, 4


def cases() -> Iterator[Definition]:
    yield from _softmax()
    yield from _noise()


def _softmax() -> Iterator[Definition]:
    case = partial(single, NAME, NAME)
    product = partial(single, NAME, "router_logits")
    axis, size = "softmax_axis", "degenerate_size"
    inputs: dict[str, Any] = {"tokens": tokens("softmax/tokens"), "kernel": kernel("softmax/kernel")}
    stages = (call("router_logits", {name: name for name in inputs}), call(NAME, {"logits": "router_logits"}))
    purpose = "Logits are a plain product with the kernel; the softmax runs over experts."
    yield composed(NAME, "from_tokens", "value", purpose, axis, inputs=inputs, stages=stages)
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
    purpose = "A router that starts at 0: every expert gets 1/E."
    yield case("equal", "tie", purpose, logits=groups_tokens(np.zeros((G, T, E))))
    yield case("one_expert", "degenerate", "One expert gets 1.", size, logits=logits("softmax/one", (G, T, 1)))
    yield case("one_token", "degenerate", "One token.", size, logits=logits("softmax/token", (1, 1, E)))
    yield case("gradient", "gradient", "The derivative of a weighted sum of scores.", logits=logits("softmax/gradient"))


def _noise() -> Iterator[Definition]:
    make = partial(single, "gating_noise", "add_gating_noise")

    def case(name: str, kind: str, purpose: str, multiplier: float, noise: bool = True) -> Definition:
        drawn = logits(f"noise/{name}/noise", (G, T, E), step=0.0625)
        values: dict[str, Any] = {"logits": logits(f"noise/{name}", (G, T, E)), "noise": drawn if noise else None}
        return make(name, kind, purpose, "noise_scale", **values, multiplier=multiplier)

    yield case("values", "value", "A standard deviation of one over the number of experts, 1/3.", 1.0)
    yield case("zero", "degenerate", "A multiplier of 0 changes nothing.", 0.0)
    yield case("absent", "degenerate", "Without noise the logits are unchanged.", 1.0, noise=False)
    yield case("gradient", "gradient", "By logits and noise.", 2.5)


OVERFLOW = 88.7
"""The exponential of larger numbers overflows float32."""


def softmax_over_tokens(B: Spec, logits: Array) -> Array:
    """The softmax runs over the tokens, not the experts."""
    return softmax(logits, axis=1)


def sigmoid_for_softmax(B: Spec, logits: Array) -> Array:
    """The scores are the sigmoid of the logits, not their softmax."""
    return B.sigmoid_affinity(logits)


def maximum_not_subtracted(B: Spec, logits: Array) -> Array:
    """The softmax does not subtract the maximum, so large logits overflow float32."""
    scores = B.softmax_affinity(logits)
    return np.where(np.max(logits.real, axis=2, keepdims=True) > OVERFLOW, np.nan, scores)


def noise_variance(B: Spec, logits: Array, noise: Array, *, multiplier: float = 1.0) -> Array:
    """The multiplier divided by the number of experts is the variance of the noise, not its standard deviation."""
    return B.add_gating_noise(logits, noise, multiplier=np.sqrt(multiplier * logits.shape[2]))


def variants() -> Iterator[Variant]:
    yield variant(softmax_over_tokens, NAME, ledger="EC-4b")
    computes = "The scores are the softmax of the softmax."
    who = "huggingface/transformers (issue 45120)"
    yield fixed("softmax_twice", computes, NAME, who=who, logits=softmax)
    yield variant(sigmoid_for_softmax, NAME, who="huggingface/transformers (Llama 4)")
    yield variant(maximum_not_subtracted, NAME)
    yield variant(noise_variance, "add_gating_noise", ledger="SA-2b")
