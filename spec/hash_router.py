"""The hash layer as a router: it takes token ids, and its tables are parameters that training leaves as they are.

The tables are whole numbers in a floating array, so that they travel with the parameters through every backend and
checkpoint; no gradient reaches them, and AdamW without decay moves nothing whose gradient is 0.

>>> from moespec.spec.routing import slot_tokens
>>> config = HASH.configure(width=1, experts=2, tokens=4, ids=3)
>>> output = HASH.route({"tables": np.array([[0.0, 1.0, 1.0]])}, np.ones((4, 1)), config, ids=[2, 0, 2, 1])
>>> slot_tokens(output.routing).tolist()
[[1, 4, 4, 4], [0, 2, 3, 4]]
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from moespec.spec.checks import as_ids, check_rank, check_size
from moespec.spec.errors import ConfigError
from moespec.spec.hash_layers import hash_routing
from moespec.spec.hash_tables import hash_table_random
from moespec.spec.metrics import routing_metrics
from moespec.spec.routing import Params, Router, RouterConfig, RouterOutput, no_noise
from moespec.spec.token_ids import position_ids

__all__ = ["HASH", "check_one_hash"]


def hash_layer(
    params: Params,
    tokens: ArrayLike,
    config: RouterConfig,
    *,
    noise: ArrayLike | None = None,
    train: bool = False,
    ids: ArrayLike | None = None,
) -> RouterOutput:
    """The expert that the table has for the id of each token; for its place where no ids are given. Section 12."""
    check_one_hash(config.hashes)
    tables = np.asarray(params["tables"]).real
    check_rank("tables", tables, "hashes ids")
    ids = position_ids(tokens) if ids is None else as_ids("ids", ids, "tokens")
    check_size("tokens", np.asarray(tokens), 0, config.tokens, "config.tokens")
    check_size("ids", ids, 0, config.tokens, "config.tokens")
    capacity = config.capacity(train=train)
    routing = hash_routing(ids, tables[0].astype(np.int64), experts=config.experts, capacity=capacity)
    return RouterOutput(routing, {}, dict(routing_metrics(routing)))


def check_one_hash(hashes: int) -> None:
    """`ConfigError` for MultiHash, which is not a routing."""
    if hashes != 1:
        raise ConfigError(
            f"hashes: {hashes} hashes mix experts inside their MLP and have no routing; see multi_hash_mlp"
        )


def _init_tables(generator: np.random.Generator, config: RouterConfig) -> Params:
    """`tables` (hashes, ids), random."""
    draws = generator.random((config.hashes, config.ids or config.tokens))
    return {"tables": np.stack([hash_table_random(row, experts=config.experts) for row in draws]).astype(np.float32)}


HASH = Router(
    "hash",
    "Roller et al. 2021 (arXiv 2106.04426)",
    _init_tables,
    hash_layer,
    {"capacity_factor": math.inf, "noise_multiplier": 0.0},
    no_noise,
    needs="ids",
    balances="what its table balances: the frequencies of the ids",
    cost="a look into a table",
    drops="none, unless a capacity is given",
)
"""The router; without a capacity factor it drops no token."""
