"""Stages of hash layers: token ids, tables, the routing by a table, MultiHash, and the router as a whole.

Tables are made outside compiled code. The inputs of the router are `tokens`, `ids` (or none), `router/tables` and
`experts/*`; `config["router"]` has the fields of `RouterConfig`.
"""

from typing import Any

import numpy as np

from moespec import spec
from moespec.conformance.margins import token_choice_margin
from moespec.conformance.program import Choice, Config, Output, Stage, Values, nested, routing_arrays
from moespec.conformance.programs.layers import absolute_layer, experts_of
from moespec.spec import ROUTERS
from moespec.spec.token_ids import normalized_patches

__all__ = ["STAGES", "nearness"]

IDS = Output(("groups", "tokens"), "int")
TABLE = {"table": Output(("ids",), "int")}
WEIGHTS = {"weights": Output(("groups", "experts", "capacity"), scale="magnitude")}


def nearness(patches: Any, codebook: Any) -> Any:
    """What `patch_codes` orders: (tokens, codes) for patches (tokens, pixels)."""
    return normalized_patches(patches) @ codebook.T - 0.5 * np.sum(codebook * codebook, axis=1)


def _nearness(B: Any, config: Config, v: Values) -> Values:
    return {"scores": nearness(v["patches"], v["codebook"])}


def _nearest_margin(config: Config, scores: Values, scales: Values) -> float:
    return token_choice_margin(scores["scores"], scales["scores"], min(1, scores["scores"].shape[-1] - 1))


def _plain(B: Any, v: Values) -> Values:
    """Values as NumPy arrays: the tables are made of them."""
    return dict(B.to_numpy(v)) if hasattr(B, "to_numpy") else v


def _options(config: Config) -> dict[str, Any]:
    """The arguments of a table; a stage that is not traced is told how to compile, too."""
    return {name: value for name, value in config.items() if name != "compile"}


def _random(B: Any, config: Config, v: Values) -> Values:
    return {"table": B.hash_table_random(_plain(B, v)["draws"], **_options(config))}


def _balanced(B: Any, config: Config, v: Values) -> Values:
    return {"table": B.hash_table_balanced(_plain(B, v)["frequencies"], **_options(config))}


def _clustered(B: Any, config: Config, v: Values) -> Values:
    plain = _plain(B, v)
    return {"table": B.hash_table_clustered(plain["embeddings"], plain["centroids"], **_options(config))}


def _dispersed(B: Any, config: Config, v: Values) -> Values:
    return {"table": B.hash_table_dispersed(_plain(B, v)["clusters"], **_options(config))}


def _k_means(B: Any, config: Config, v: Values) -> Values:
    plain = _plain(B, v)
    centroids, clusters = B.k_means(plain["points"], plain["centroids"], **_options(config))
    return {"found": centroids, "clusters": clusters}


def _clusters(B: Any, config: Config, v: Values) -> Values:
    """What k-means decides, for the stability of its steps."""
    return {"clusters": B.k_means(v.get("points", v.get("embeddings")), v["centroids"], **_options(config)).clusters}


def _routing(B: Any, config: Config, v: Values) -> Values:
    return routing_arrays(B.hash_routing(v["ids"], v["table"], **config))


def _multi_hash(B: Any, config: Config, v: Values) -> Values:
    return {"output": B.multi_hash_mlp(v["tokens"], v["ids"], v["tables"], nested(v, "experts"), **config)}


def _absolute_multi_hash(config: Config, v: Values) -> Any:
    """MultiHash on absolute values, since `|relu(z)| <= |z|` and `|gelu(z)| <= |z|`."""
    params = {name: np.abs(array) for name, array in nested(v, "experts").items()}
    return spec.multi_hash_mlp(np.abs(v["tokens"]), v["ids"], v["tables"], params)


def _routed(B: Any, config: Config, v: Values) -> Any:
    settings = ROUTERS["hash"].configure(**config["router"])
    ids = {"ids": v["ids"]} if "ids" in v else {}
    return B.ROUTERS["hash"].route(nested(v, "router"), v["tokens"], settings, **ids)


def _route(B: Any, config: Config, v: Values) -> Values:
    found = _routed(B, config, v)
    return {
        **routing_arrays(found.routing),
        **{f"metrics/{key}": value for key, value in found.metrics.items()},
        "output": B.moe_layer(v["tokens"], found.routing, experts_of(B, config, v)),
    }


STAGES: dict[str, tuple[Stage, ...]] = {
    "token_ids": (
        Stage(
            "codes",
            ("patch_codes",),
            ("patches", "codebook"),
            lambda B, config, v: {"codes": B.patch_codes(v["patches"], v["codebook"])},
            {"codes": IDS},
            Choice(_nearness, _nearest_margin),
        ),
        Stage(
            "position",
            ("position_ids",),
            ("tokens",),
            lambda B, config, v: {"position": B.position_ids(v["tokens"])},
            {"position": IDS},
        ),
        Stage(
            "previous",
            ("previous_ids",),
            ("ids",),
            lambda B, config, v: {"previous": B.previous_ids(v["ids"])},
            {"previous": IDS},
        ),
        Stage(
            "pair",
            ("pair_ids",),
            ("first", "second"),
            lambda B, config, v: {"pairs": B.pair_ids(v["first"], v["second"], **config)},
            {"pairs": IDS},
        ),
    ),
    "hash_tables": (
        Stage("random", ("hash_table_random",), ("draws",), _random, TABLE, traced=False),
        Stage("balanced", ("hash_table_balanced",), ("frequencies",), _balanced, TABLE, traced=False),
        Stage(
            "clustered",
            ("hash_table_clustered",),
            ("embeddings", "centroids"),
            _clustered,
            TABLE,
            Choice(_clusters, scale="stability"),
            traced=False,
        ),
        Stage("dispersed", ("hash_table_dispersed",), ("clusters",), _dispersed, TABLE, traced=False),
        Stage(
            "k_means",
            ("k_means",),
            ("points", "centroids"),
            _k_means,
            {"found": Output(("clusters", "width")), "clusters": Output(("points",), "int")},
            Choice(_clusters, scale="stability"),
            traced=False,
        ),
    ),
    "hash_routing": (Stage("routing", ("hash_routing",), ("ids", "table"), _routing, WEIGHTS),),
    "multi_hash": (
        Stage(
            "mlp",
            ("multi_hash_mlp",),
            ("tokens", "ids", "tables", "experts"),
            _multi_hash,
            {"output": Output(("groups", "tokens", "width"), written=_absolute_multi_hash)},
        ),
    ),
    "hash": (
        Stage(
            "route",
            ("ROUTERS", "moe_layer"),
            ("tokens", "ids", "router", "experts"),
            _route,
            {
                **WEIGHTS,
                "output": Output(
                    ("groups", "tokens", "width"),
                    written=lambda config, v: absolute_layer(_routed(spec, config, v).routing, v),
                ),
            },
            whole=True,
        ),
    ),
}
