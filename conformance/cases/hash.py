"""Cases of the router `hash`."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from moespec.conformance.author.definition import Definition, tensor
from moespec.conformance.author.inputs import integers, tokens
from moespec.conformance.author.routers import evaluation, kernel_of, router_case
from moespec.conformance.author.variant import Variant, fixed
from moespec.conformance.cases.hash_layers import hashed

NAME = "hash"
G, T, E, D, V = 2, 6, 3, 4, 5


def arguments(
    name: str,
    *,
    ids: bool = True,
    groups: int = G,
    count: int = T,
    vocabulary: int = V,
    same: bool = False,
    live: int = 0,
) -> dict[str, Any]:
    """Draws the parameters and inputs of a case. The name of the case seeds the draw."""
    key = f"routers/{NAME}/{name}"
    table = integers(f"{key}/tables", (1, vocabulary), 0, 0 if same else E - 1)
    inputs = {"tokens": tokens(f"{key}/tokens", (groups, count, D))}
    if ids:
        inputs["ids"] = hashed(key, groups=groups, tokens=count, ids=vocabulary)["ids"]
    if live:
        table = (table + np.arange(live)[:, None]) % E
    params = {
        "tables": tensor(table.astype(np.float32), "hashes ids"),
        **(kernel_of(f"{key}/kernel", D, E) if live else {}),
    }
    return {"params": params, "inputs": inputs, "sizes": (count, E, D), "ids": vocabulary, "exact_ties": False}


def case(name: str, kind: str, purpose: str, *flags: str, options: Mapping[str, Any] | None = None,
         **made: Any) -> Definition:  # fmt: skip
    """Returns a case with the router options `options`. made: keyword arguments for the function `arguments`."""
    return router_case(NAME, name, kind, purpose, *flags, **arguments(name, **made), **(options or {}))


def cases() -> Iterator[Definition]:
    yield case("values", "value", "No token is dropped.", "generated_code")
    yield case("position", "value", "Without ids a token is hashed by its place.", ids=False, vocabulary=T)
    purpose = "As many slots as tokens, up to a multiple of three, and some are dropped."
    some: dict[str, Any] = {"capacity_factor": 1.0, "multiple_of": 3}
    yield case("capacity", "overflow", purpose, "overflow_drop", options=some)
    purpose = "Every id has the same expert, with 7 slots."
    yield case("one_for_all", "tie", purpose, "tie_order", same=True, options={"slots_per_expert": 7})
    yield case("one_token", "degenerate", "One token.", "degenerate_size", groups=1, count=1)
    by = ("tokens", *(f"experts/{name}" for name in ("w1", "b1", "w2", "b2")))
    yield case("gradient", "gradient", "By tokens and experts.", options={"by": by})
    purpose = "Two experts of an id, weighted by live scores that are divided by their sum; some choices are dropped."
    weighted: dict[str, Any] = {"choices": 2, "affinity": "sqrt_softplus", "normalize_selected": True, "scale": 1.5}
    few = {"capacity_factor": 0.6, "rounding": "round", "multiple_of": 2}
    yield case("live", "overflow", purpose, "overflow_drop", live=2, options={**weighted, **few})
    by = ("tokens", "router/kernel", "experts/w1", "experts/b1", "experts/w2", "experts/b2")
    more = {"affinity": "sigmoid", "by": by}
    yield case("live_gradient", "gradient", "By tokens, kernel and experts, with live scores.", live=1, options=more)
    yield evaluation(NAME, **arguments("evaluation_factor"))


def variants() -> Iterator[Variant]:
    yield fixed(
        "live_weights_not_divided", "Live weights are not divided by their sum.", NAME, "HL-5", normalize_selected=False
    )
    yield fixed("live_weights_not_scaled", "Live weights are not scaled.", NAME, "HL-5", scale=1.0)
