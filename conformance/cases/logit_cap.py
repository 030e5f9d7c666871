"""Cases of the soft cap of logits, with an optional bias that is added before the cap."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from moespec.conformance.author.definition import Definition, call, composed, single, tensor
from moespec.conformance.author.inputs import grid, kernel, logits, tokens

NAME = "logit_cap"
E = 3


def cases() -> Iterator[Definition]:
    case = partial(single, NAME, "cap_logits")
    yield case("values", "value", "Logits around the cap.", logits=logits(f"{NAME}/values"), cap=2.0)
    small = logits(f"{NAME}/small", reach=0.03125, step=2.0**-12)
    yield case("small", "value", "Small logits stay as they are, nearly.", "low_precision", logits=small, cap=30.0)
    large = logits(f"{NAME}/large", reach=240.0, step=4.0)
    yield case("large", "value", "Logits far beyond the cap.", "large_logits", logits=large, cap=30.0)
    yield case("gradient", "gradient", "By the logits.", logits=logits(f"{NAME}/gradient"), cap=2.0)
    bias = tensor(grid(f"{NAME}/bias", (E,)), "experts")
    inputs: dict[str, Any] = {"tokens": tokens(f"{NAME}/tokens"), "kernel": kernel(f"{NAME}/kernel"), "bias": bias}
    stages = (
        call("router_logits", {"tokens": "tokens", "kernel": "kernel", "bias": "bias"}),
        call("cap_logits", {"logits": "router_logits"}, cap=1.5),
    )
    yield composed(NAME, "bias", "value", "Logits with a bias, which is capped, too.", inputs=inputs, stages=stages)
    yield single(NAME, "router_logits", "gradient_bias", "gradient", "By tokens, kernel and bias.", **inputs)
