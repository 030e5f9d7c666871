"""Cases of the router `hash`."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from moespec.conformance.author.definition import Definition, tensor
from moespec.conformance.author.inputs import integers, tokens
from moespec.conformance.author.routers import evaluation, router_case
from moespec.conformance.cases.hash_layers import hashed

NAME = "hash"
G, T, E, D, V = 2, 6, 3, 4, 5


def arguments(
    name: str, *, ids: bool = True, groups: int = G, count: int = T, vocabulary: int = V, same: bool = False
) -> dict[str, Any]:
    """Draws the parameters and inputs of a case. The name of the case seeds the draw."""
    key = f"routers/{NAME}/{name}"
    table = integers(f"{key}/tables", (1, vocabulary), 0, 0 if same else E - 1)
    inputs = {"tokens": tokens(f"{key}/tokens", (groups, count, D))}
    if ids:
        inputs["ids"] = hashed(key, groups=groups, tokens=count, ids=vocabulary)["ids"]
    params = {"tables": tensor(table.astype(np.float32), "hashes ids")}
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
    yield evaluation(NAME, **arguments("evaluation_factor"))
