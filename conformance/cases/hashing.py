"""Cases of hash layers: token ids, tables, the routing by a table, MultiHash and the router.

Patches and codewords are on a grid on which distances are exact, so that ties are meant.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from moespec.conformance.cases.definition import Definition, tensor
from moespec.conformance.cases.faults import (
    SMALL,
    array_faults,
    fault,
    integer_faults,
    option,
    router_config,
    size_faults,
    with_value,
)
from moespec.conformance.cases.inputs import experts
from moespec.conformance.draw import grid, integers, permutation
from moespec.conformance.format import Tensor

__all__ = ["cases"]

G, T, E, D, V = 2, 6, 3, 4, 5
GT, GTD = "groups tokens", "groups tokens width"
ORDER, SIZE = ("tie_order",), ("degenerate_size",)


def cases() -> Iterator[Definition]:
    """All cases of this module."""
    yield from _ids()
    yield from _tables()
    yield from _k_means()
    yield from _routing()
    yield from _multi_hash()
    yield from _router()
    yield from _id_faults()
    yield from _table_faults()
    yield from _routing_faults()
    yield from _multi_hash_faults()
    yield from _router_faults()


def _ids() -> Iterator[Definition]:
    def case(name: str, stage: str, kind: str, purpose: str, inputs: Mapping[str, Tensor], flags: tuple[str, ...] = (),
             **config: Any) -> Definition:  # fmt: skip
        exact = kind == "tie"
        return Definition("token_ids", name, kind, purpose, inputs, config, (stage,), flags, exact_ties=exact)

    def codes(patches: Any, codebook: Any) -> dict[str, Tensor]:
        return {"patches": tensor(patches, "groups tokens pixels"), "codebook": tensor(codebook, "codes pixels")}

    drawn = codes(grid("hash/patches", (G, T, 6)), grid("hash/codebook", (V, 6)))
    yield case("codes", "codes", "value", "The nearest codeword of each patch.", drawn, ("generated_code",))
    sizes = grid("hash/codebook/sizes", (V, 6)) * np.array([[0.25], [1], [3], [0.5], [2]])
    yield case("codes_of_all_lengths", "codes", "value", "The nearest codeword, not the one with the largest product.",
               codes(grid("hash/patches/b", (G, T, 6)), sizes))  # fmt: skip
    one, other = np.array([1.0, -1, 1, -1]), np.array([1.0, 1, -1, -1])
    scaled = np.stack([[8 + one, one / 4, other - 3], [2 * other, 5 - one, 4 + 4 * one]])
    words = np.array([one / 4, one, other * 3 / 4, -other])
    yield case("codes_normalised", "codes", "value", "Brightness and contrast of a patch do not count.",
               codes(scaled, words))  # fmt: skip
    faint = np.stack([[one / 4096, one / 256, other * 0], [other / 4096, one * 0 + 1, other / 4]])
    words = np.array([one * 0, one, other, -one])
    yield case("codes_faint", "codes", "value", "A patch of nearly one colour is nearer to 0 than to its contrast.",
               codes(faint, words))  # fmt: skip
    flat = np.stack([[one * 0 + 3, one * 0], [one * 0 - 1, one * 0 + 0.5]])
    yield case(
        "codes_flat", "codes", "degenerate", "A patch of one colour is 0.", codes(flat, words[[1, 0, 2, 3]]), SIZE
    )
    tied = np.stack([[one * 0, one * 0 + 2], [one * 0 - 1, one * 0 + 4]])
    yield case("codes_tied", "codes", "tie", "The lower of codewords at equal distance.",
               codes(tied, [[2.0, 0, 0, 0], [0, 1, 0, 0], [0, 0, -1, 0], [0, 0, 0, 1]]), ORDER)  # fmt: skip
    states = {"tokens": tensor(grid("hash/states", (G, T, D)), GTD)}
    yield case("position", "position", "value", "The place of a token.", states)
    single = {"tokens": tensor(grid("hash/state", (1, 1, D)), GTD)}
    yield case("position_one", "position", "degenerate", "One token.", single, SIZE)
    ids = tensor(integers("hash/ids", (G, T), 1, 4), GT)
    yield case("previous", "previous", "value", "The id before, 0 for the first.", {"ids": ids})
    yield case("previous_one", "previous", "degenerate", "One token.", {"ids": tensor([[3]], GT)}, SIZE)
    pair = {"first": tensor(integers("hash/first", (G, T), 0, 6), GT), "second": ids}
    yield case("pair", "pair", "value", "The first id counts as many as there are second ones.", pair, vocabulary=V)


def _table(name: str, stage: str, kind: str, purpose: str, inputs: Mapping[str, Tensor], flags: tuple[str, ...] = (),
           **config: Any) -> Definition:  # fmt: skip
    exact = kind == "tie"
    return Definition("hash_tables", name, kind, purpose, inputs, config, (stage,), flags, exact_ties=exact)


def _tables() -> Iterator[Definition]:
    case = _table
    draws = tensor(integers("hash/draws", (12,), 0, 127) / 128, "ids")
    yield case("random", "random", "value", "Each expert has an equal part of [0, 1).", {"draws": draws}, experts=E)
    edges = tensor([0.0, 0.25, 0.5, 0.75, 0.99609375], "ids")
    yield case("random_edges", "random", "tie", "A draw at the edge of two parts belongs to the upper.",
               {"draws": edges}, experts=4)  # fmt: skip
    counts = tensor([50.0, 20, 10, 8, 5, 4, 2, 1], "ids")
    yield case("balanced", "balanced", "value", "The worked example: the most frequent id has an expert of its own.",
               {"frequencies": counts}, experts=E)  # fmt: skip
    mixed = tensor(np.array([50.0, 20, 10, 8, 5, 4, 2, 1])[permutation("hash/mixed", 8)], "ids")
    yield case("balanced_mixed", "balanced", "value", "Ids that do not come by frequency.", {"frequencies": mixed},
               experts=E)  # fmt: skip
    equal = tensor([2.0, 4, 2, 4, 2, 2, 4, 0, 0], "ids")
    yield case("balanced_tied", "balanced", "tie", "The lower id first, the lower expert at equal loads.",
               {"frequencies": equal}, ORDER, experts=E)  # fmt: skip
    yield case(
        "balanced_one", "balanced", "degenerate", "One id.", {"frequencies": tensor([3.0], "ids")}, SIZE, experts=E
    )
    spread = tensor([1, 0, 2, 1, 0, 1, 2, 2, 0, 1, 1], "ids")
    yield case("dispersed", "dispersed", "value", "Each cluster is dealt out, each where the last one ended.",
               {"clusters": spread}, experts=E)  # fmt: skip
    yield case("dispersed_gap", "dispersed", "degenerate", "A cluster without ids.",
               {"clusters": tensor([4, 1, 4, 1, 1], "ids")}, SIZE, experts=2)  # fmt: skip
    rows, start = grid("hash/rows", (9, 3)), grid("hash/rows/start", (E, 3))
    near = {"embeddings": tensor(rows, "ids width"), "centroids": tensor(start, "experts width")}
    yield case("clustered", "clustered", "value", "Ids that are alike share an expert.", near)


def _k_means() -> Iterator[Definition]:
    def case(name: str, kind: str, purpose: str, points: Any, start: Any, flags: tuple[str, ...] = (),
             **config: Any) -> Definition:  # fmt: skip
        inputs = {"points": tensor(points, "points width"), "centroids": tensor(start, "clusters width")}
        return _table(name, "k_means", kind, purpose, inputs, flags, **config)

    points, start = grid("hash/points", (12, 2)), grid("hash/start", (3, 2))
    yield case("k_means", "value", "Until nothing changes.", points, start)
    line = np.array([[0.0], [1.125], [2], [3], [8], [9], [16], [17]])
    yield case("k_means_one_update", "value", "One update, and the clusters of the new centroids.", line,
               [[0.0], [1.5], [4.25]], iterations=1)  # fmt: skip
    yield case("k_means_two_updates", "value", "Two updates.", line, [[0.0], [1.5], [4.25]], iterations=2)
    yield case("k_means_empty", "degenerate", "A cluster without points keeps its centroid.", line,
               [[1.25], [64.0], [12.25]], SIZE)  # fmt: skip
    yield case("k_means_tied", "tie", "A point halfway between two centroids belongs to the lower.",
               [[0.0], [2], [4], [4], [8]], [[0.0], [4], [8]], ORDER, iterations=1)  # fmt: skip
    yield case("k_means_one", "degenerate", "One cluster: the mean.", points, start[:1], SIZE)


def given(key: str, *, groups: int = G, tokens: int = T, ids: int = V) -> dict[str, Tensor]:
    """Ids and a table, as `hash_routing` takes them."""
    return {
        "ids": tensor(integers(f"{key}/ids", (groups, tokens), 0, ids - 1), GT),
        "table": tensor(integers(f"{key}/table", (ids,), 0, E - 1), "ids"),
    }


def _routing() -> Iterator[Definition]:
    def case(name: str, kind: str, purpose: str, inputs: Mapping[str, Tensor], flags: tuple[str, ...] = (),
             **config: Any) -> Definition:  # fmt: skip
        config = {"experts": E, **config}
        return Definition("hash_routing", name, kind, purpose, inputs, config, ("routing",), flags)

    drop = ("overflow_drop",)
    yield case("values", "value", "Room for every token.", given("hash/a"), ("empty_slot", "generated_code"))
    yield case("unused", "value", "An expert that no id has.",
               {**given("hash/b"), "table": tensor([0, 2, 2, 0, 2], "ids")}, ("empty_slot",))  # fmt: skip
    crowd = {"ids": tensor([[0, 1, 2, 0, 1, 2], [3, 0, 3, 0, 3, 0]], GT), "table": tensor([1, 1, 1, 0, 0], "ids")}
    yield case("crowd", "overflow", "The first tokens get in.", crowd, drop, capacity=2)
    yield case("random", "overflow", "Two slots for each expert.", given("hash/c"), drop, capacity=2)
    same = {"ids": tensor(np.full((G, T), 3), GT), "table": given("hash/d")["table"]}
    yield case("same", "tie", "Tokens of one id share an expert, in their order.", same, ORDER, capacity=4)
    yield case("spare_room", "degenerate", "More slots than tokens.", given("hash/e"), ("empty_slot",), capacity=T + 2)
    yield case("one_token", "degenerate", "One token.", given("hash/f", groups=1, tokens=1), SIZE)
    one = {"ids": given("hash/g")["ids"], "table": tensor(np.zeros(V, int), "ids")}
    yield case("one_expert", "degenerate", "One expert.", one, SIZE, experts=1)
    large = {
        "ids": tensor(integers("hash/h", (1, 196), 0, 63), GT),
        "table": tensor(integers("hash/t", (64,), 0, 39), "ids"),
    }
    yield case("real_size", "overflow", "196 tokens, 64 ids, 40 experts.", large, ("real_size", *drop), experts=40,
               capacity=5)  # fmt: skip


def _multi_hash() -> Iterator[Definition]:
    def case(name: str, kind: str, purpose: str, flags: tuple[str, ...] = (), *, hashes: int = 2, groups: int = G,
             tokens: int = T, tables: Any = None, hidden: int = 4, **config: Any) -> Definition:  # fmt: skip
        key = f"multi_hash/{name}"
        table = integers(f"{key}/tables", (hashes, V), 0, E - 1) if tables is None else np.array(tables)
        inputs = {
            "tokens": tensor(grid(f"{key}/tokens", (groups, tokens, D)), GTD),
            "ids": given(key, groups=groups, tokens=tokens)["ids"],
            "tables": tensor(table, "hashes ids"),
            **experts(key, E, D, hidden, D),
        }
        gradient = None
        if kind == "gradient":
            gradient = ("output", ("tokens", *(name for name in inputs if name.startswith("experts/"))))
        return Definition("multi_hash", name, kind, purpose, inputs, config, ("mlp",), flags, gradient)

    yield case("two_hashes", "value", "Two halves, each of the expert of its hash.", ("generated_code",))
    yield case("four_hashes", "value", "Four segments.", hashes=4)
    yield case("equal_hashes", "value", "Hashes that agree make the plain expert.",
               tables=[[0, 1, 2, 1, 0], [0, 1, 2, 1, 0]])  # fmt: skip
    yield case("one_hash", "value", "One hash makes the plain expert.", hashes=1)
    for form in ("tanh", "erf"):
        yield case(f"gelu_{form}", "value", f"With GELU, form {form}.", ("gelu_form",), activation=form)
    yield case("wide", "value", "Segments of three hidden units.", hidden=6)
    yield case("same_expert", "tie", "All ids have one expert.", ORDER, tables=[[1] * V, [2] * V])
    yield case("one_token", "degenerate", "One token.", SIZE, groups=1, tokens=1)
    yield case("gradient", "gradient", "By tokens and experts.")


def _router() -> Iterator[Definition]:
    def case(name: str, kind: str, purpose: str, flags: tuple[str, ...] = (), *, ids: bool = True, groups: int = G,
             tokens: int = T, vocabulary: int = V, same: bool = False, **fields: Any) -> Definition:  # fmt: skip
        key = f"routers/hash/{name}"
        table = integers(f"{key}/tables", (1, vocabulary), 0, 0 if same else E - 1)
        inputs = {
            "tokens": tensor(grid(f"{key}/tokens", (groups, tokens, D)), GTD),
            "router/tables": tensor(table.astype(np.float32), "hashes ids"),
            **experts(key, E, D, 3, D),
        }
        if ids:
            inputs["ids"] = given(key, groups=groups, tokens=tokens, ids=vocabulary)["ids"]
        config = {"router": {"tokens": tokens, "experts": E, "width": D, "ids": vocabulary, **fields}}
        gradient = None
        if kind == "gradient":
            gradient = ("output", ("tokens", *(n for n in inputs if n.startswith("experts/"))))
        return Definition("hash", name, kind, purpose, inputs, config, ("route",), flags, gradient)

    yield case("values", "value", "No token is dropped.", ("generated_code",))
    yield case("position", "value", "Without ids a token is hashed by its place.", ids=False, vocabulary=T)
    yield case("capacity", "overflow", "As many slots as tokens, and some are dropped.", ("overflow_drop",),
               capacity_factor=1.0)  # fmt: skip
    yield case("one_for_all", "tie", "Every id has the same expert.", ORDER, same=True)
    yield case("one_token", "degenerate", "One token.", SIZE, groups=1, tokens=1)
    yield case("gradient", "gradient", "By tokens and experts.")


def _states() -> dict[str, Tensor]:
    """Tokens for the negatives."""
    return {"tokens": tensor(grid("negative/tokens", (SMALL.groups, SMALL.tokens, SMALL.width)), GTD)}


def _hashed() -> dict[str, Tensor]:
    """Ids and a table for the negatives."""
    return given("negative/hash", groups=SMALL.groups, tokens=SMALL.tokens)


def _id_faults() -> Iterator[Definition]:
    name, (g, t, _, d) = "token_ids", SMALL
    patches = {
        "patches": tensor(grid("negative/patches", (g, t, d)), "groups tokens pixels"),
        "codebook": tensor(grid("negative/codebook", (3, d)), "codes pixels"),
    }
    yield from array_faults(name, "codes", "patches", patches, {})
    yield from array_faults(name, "codes", "codebook", patches, {}, "codebook_")
    narrow = {"codebook": tensor(grid("negative/codebook/narrow", (3, d - 1)), "codes pixels")}
    yield fault(name, "codes", "codebook_width", "ShapeError", "codebook", patches, {}, wrong_inputs=narrow)
    yield from array_faults(name, "position", "tokens", _states(), {}, "position_")
    ids = _hashed()["ids"]
    yield from integer_faults(name, "previous", "ids", {"ids": ids}, {}, "previous_")
    pair, config = {"first": ids, "second": ids}, {"vocabulary": V}
    yield from integer_faults(name, "pair", "first", pair, config, "first_")
    yield from integer_faults(name, "pair", "second", pair, config, "second_", V)
    yield option(name, "pair", "vocabulary", "vocabulary", pair, config, vocabulary=0)
    yield from size_faults(name, "pair", pair, config, second=1)


def _table_faults() -> Iterator[Definition]:
    name, config = "hash_tables", {"experts": E}
    draws = {"draws": tensor([0.25, 0.5, 0.75], "ids")}
    counts = {"frequencies": tensor([3.0, 1, 2], "ids")}
    for stage, argument, inputs in (("random", "draws", draws), ("balanced", "frequencies", counts)):
        yield from array_faults(name, stage, argument, inputs, config, f"{stage}_", "rank")
        value = inputs[argument]
        rows, one = Tensor(value.array[None], ("rows", "ids")), Tensor(value.array[0].copy(), ())
        for case, wrong in (("rank", rows), ("number", one)):
            yield fault(
                name, stage, f"{stage}_{case}", "ShapeError", argument, inputs, config, wrong_inputs={argument: wrong}
            )
        yield option(name, stage, f"{stage}_experts", "experts", inputs, config, experts=0)
    for case, stage, argument, inputs, number in (
        ("random_one", "random", "draws", draws, 1.0),
        ("random_below_zero", "random", "draws", draws, -0.25),
        ("balanced_below_zero", "balanced", "frequencies", counts, -1.0),
    ):
        yield fault(
            name, stage, case, "ContractError", argument, inputs, config,
            wrong_inputs={argument: with_value(inputs[argument], number)},
            purpose=f"The argument {argument} is out of range.",
        )  # fmt: skip
    clusters = {"clusters": tensor([0, 1, 0], "ids")}
    yield option(name, "dispersed", "dispersed_experts", "experts", clusters, config, experts=0)
    for case, error, array in (
        ("dtype", "DtypeError", clusters["clusters"].array.astype(np.float32)),
        ("below_zero", "ContractError", clusters["clusters"].array - 1),
    ):
        yield fault(
            name, "dispersed", f"dispersed_{case}", error, "clusters", clusters, config,
            wrong_inputs={"clusters": tensor(array, "ids")},
            purpose=f"The clusters have a wrong {case.replace('_', ' ')}.",
        )  # fmt: skip
    updates = {"iterations": 2}
    points = {
        "points": tensor(grid("negative/points", (5, 2)), "points width"),
        "centroids": tensor(grid("negative/centroids", (2, 2)), "clusters width"),
    }
    yield from array_faults(name, "k_means", "points", points, updates, "k_means_")
    yield from array_faults(name, "k_means", "centroids", points, updates, "centroids_")
    yield option(name, "k_means", "iterations", "iterations", points, updates, iterations=0)
    yield from size_faults(name, "k_means", points, updates, centroids=1)
    rows_of = {"embeddings": points["points"], "centroids": points["centroids"]}
    yield option(name, "clustered", "clustered_iterations", "iterations", rows_of, updates, iterations=0)


def _routing_faults() -> Iterator[Definition]:
    name, stage, hashed, config = "hash_routing", "routing", _hashed(), {"experts": E, "capacity": 2}
    yield from integer_faults(name, stage, "ids", hashed, config, below=V)
    yield from integer_faults(name, stage, "table", hashed, config, "table_", E)
    yield option(name, stage, "no_slot", "capacity", hashed, config, capacity=0)
    yield option(name, stage, "experts", "experts", hashed, {"experts": E}, experts=0)


def _multi_hash_faults() -> Iterator[Definition]:
    name, stage, hashed = "multi_hash", "mlp", _hashed()
    tables = {count: tensor(np.stack([hashed["table"].array] * count), "hashes ids") for count in (2, 3)}
    mlps = experts("negative/experts", E, SMALL.width, 4, out=4)
    mixed = {**_states(), "ids": hashed["ids"], "tables": tables[2], **mlps}
    config: dict[str, Any] = {"activation": "relu"}
    yield from array_faults(name, stage, "tokens", mixed, config)
    yield from integer_faults(name, stage, "ids", mixed, config, "ids_", V)
    yield from integer_faults(name, stage, "tables", mixed, config, "tables_", E)
    yield option(name, stage, "activation", "activation", mixed, config, activation="silu")
    yield from size_faults(name, stage, mixed, config, ids=1)
    yield fault(
        name, stage, "three_hashes", "ConfigError", "tables", mixed, config, wrong_inputs={"tables": tables[3]},
        purpose="Three hashes do not divide four hidden units.",
    )  # fmt: skip


def _router_faults() -> Iterator[Definition]:
    ids, table = _hashed().values()
    routed = {
        **_states(),
        "ids": ids,
        **experts("negative/experts", E, SMALL.width, 2, SMALL.width),
        "router/tables": tensor(table.array[None].astype(float), "hashes ids"),
    }
    config: dict[str, Any] = {"router": router_config(experts=E, hashes=1, capacity_factor=1.0)}
    for field, argument, wrong in (("hashes", "hashes", 2), ("capacity_factor", "factor", 0.0)):
        edited = {**config["router"], field: wrong}
        yield option("hash", "route", field, argument, routed, config, router=edited)
    yield from size_faults("hash", "route", routed, config, tokens=1, ids=1)
    flat = {"router/tables": Tensor(routed["router/tables"].array[0], ("ids",))}
    yield fault("hash", "route", "tables_rank", "ShapeError", "tables", routed, config, wrong_inputs=flat)
    floats = {"ids": Tensor(ids.array.astype(np.float32), ids.axes)}
    yield fault("hash", "route", "ids", "DtypeError", "ids", routed, config, wrong_inputs=floats)
