"""Cases of hash layers: the routing by a table, and MultiHash."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from moespec.backends.blocks import Array
from moespec.conformance.author.definition import Definition, call, composed, single, tensor
from moespec.conformance.author.inputs import experts, integers, prefixed, tokens
from moespec.conformance.author.variant import Spec, Variant, fixed, variant, without_biases
from moespec.conformance.format import Tensor

G, T, E, D, V = 2, 6, 3, 4, 5
GT = "groups tokens"


def cases() -> Iterator[Definition]:
    yield from _tables()
    yield from _routing()
    yield from _multi_hash()


def hashed(key: str, *, groups: int = G, tokens: int = T, ids: int = V) -> dict[str, Tensor]:
    """Draws token ids and a table in the form that `hash_routing` takes."""
    return {
        "ids": tensor(integers(f"{key}/ids", (groups, tokens), 0, ids - 1), GT),
        "table": tensor(integers(f"{key}/table", (ids,), 0, E - 1), "ids"),
    }


def _tables() -> Iterator[Definition]:
    case = partial(single, "hash_routing", "hash_table_of")
    tables = integers("hash/tables", (3, V), 0, E - 1)
    whole = tensor(tables, "hashes ids")
    purpose = "The last of three tables, of integers in a floating array."
    yield case("table_of", "value", purpose, tables=tensor(tables.astype(float), "hashes ids"), hash=2)
    pair: dict[str, Any] = {
        "ids": hashed("hash/scores")["ids"],
        "tables": tensor([[0, 2, 1, 0, 1], [2, 0, 0, 1, 2]], "hashes ids"),
    }
    yield single("hash_routing", "hash_scores", "scores", "value", "Two experts of each id.", **pair, experts=E)
    yield case("table_of_integers", "value", "The second of three tables.", tables=whole, hash=1)


def _routing() -> Iterator[Definition]:
    def case(
        name: str, kind: str, purpose: str, inputs: dict[str, Tensor], *flags: str, count: int = E, **options: Any
    ) -> Definition:
        values: dict[str, Any] = {**inputs, "experts": count, **options}
        return single("hash_routing", "hash_routing", name, kind, purpose, *flags, **values)

    drop, empty, size = "overflow_drop", "empty_slot", "degenerate_size"
    yield case("values", "value", "Room for every token.", hashed("hash/a"), empty, "generated_code")
    crowd = {"ids": tensor([[0, 1, 2, 0, 1, 2], [3, 0, 3, 0, 3, 0]], GT), "table": tensor([1, 1, 1, 0, 0], "ids")}
    yield case("crowd", "overflow", "The first tokens get in.", crowd, drop, capacity=2)
    same = {**hashed("hash/d"), "ids": tensor(np.full((G, T), 3), GT)}
    yield case("same", "tie", "Tokens of one id share an expert, in their order.", same, "tie_order", capacity=4)
    yield case("one_token", "degenerate", "One token.", hashed("hash/f", groups=1, tokens=1), size)
    one = {**hashed("hash/g"), "table": tensor(np.zeros(V, int), "ids")}
    yield case("one_expert", "degenerate", "One expert.", one, size, count=1)
    ids = tensor(integers("hash/h", (1, 196), 0, 63), GT)
    large = {"ids": ids, "table": tensor(integers("hash/t", (64,), 0, 39), "ids")}
    purpose = "196 tokens, 64 ids, 40 experts."
    yield case("real_size", "overflow", purpose, large, "real_size", drop, count=40, capacity=5)


def _multi_hash() -> Iterator[Definition]:
    def case(name: str, kind: str, purpose: str, *flags: str, hashes: int = 2, groups: int = G, count: int = T,
             table: Any = None, hidden: int = 4, **options: Any) -> Definition:  # fmt: skip
        key = f"multi_hash/{name}"
        inputs = {
            "tokens": tokens(f"{key}/tokens", (groups, count, D)),
            "ids": hashed(key, groups=groups, tokens=count)["ids"],
            "tables": tensor(table or integers(f"{key}/tables", (hashes, V), 0, E - 1), "hashes ids"),
        }
        params = experts(key, E, D, hidden, D)
        arguments = {**{name: name for name in inputs}, "params": {part: f"experts/{part}" for part in params}}
        inputs |= prefixed(params)
        stages = (call("multi_hash_mlp", arguments, **options),)
        return composed("multi_hash", name, kind, purpose, *flags, inputs=inputs, stages=stages)

    purpose = "Two halves, each of the expert of its hash."
    yield case("two_hashes", "value", purpose, "generated_code")
    equal = [[0, 1, 2, 1, 0], [0, 1, 2, 1, 0]]
    yield case("equal_hashes", "value", "Hashes that agree make the plain expert.", table=equal)
    for form in ("tanh", "erf"):
        yield case(f"gelu_{form}", "value", f"With GELU, form {form}.", "gelu_form", activation=form)
    yield case("same_expert", "tie", "All ids have one expert.", "tie_order", table=[[1] * V, [2] * V])
    yield case("one_token", "degenerate", "One token.", "degenerate_size", groups=1, count=1)
    yield case("gradient", "gradient", "By tokens and experts.")


# Variants. The shape of ids is (groups, tokens). A table maps each id to an expert.


def hash_with_a_capacity(
    B: Spec, ids: Array, table: Array, *, experts: int, capacity: int | None = None, **options: Any
) -> Any:
    """If no capacity is requested, an expert has slots only for an equal share of the tokens."""
    right = B.hash_routing(ids, table, experts=experts, capacity=capacity, **options)
    if capacity is not None:
        return right
    return B.hash_routing(ids, table, experts=experts, capacity=-(-ids.shape[1] // experts), **options)


def biases_of_the_first_hash(B: Spec, tokens: Array, ids: Array, tables: Array, params: Any, **options: Any) -> Array:
    """The output bias of MultiHash comes entirely from the expert of the first hash."""
    bare = {**params, "b2": np.zeros_like(params["b2"])}
    return B.multi_hash_mlp(tokens, ids, tables, bare, **options) + params["b2"][tables[0][ids]]


def variants() -> Iterator[Variant]:
    yield variant(hash_with_a_capacity, "hash_routing", ledger="HL-1b")
    computes = "The segments of MultiHash have no biases."
    yield fixed("segments_without_biases", computes, "multi_hash_mlp", "HL-2b", params=without_biases)
    yield variant(biases_of_the_first_hash, "multi_hash_mlp", ledger="HL-2b")
    computes = "MultiHash uses GELU if ReLU is requested."
    gelu: dict[str, Any] = {"activation": lambda form: "tanh" if form == "relu" else form}
    yield fixed("multi_hash_with_gelu", computes, "multi_hash_mlp", "HL-3b", **gelu)
    computes = "MultiHash always uses ReLU."
    yield fixed("multi_hash_with_relu", computes, "multi_hash_mlp", "HL-3b", activation="relu")
