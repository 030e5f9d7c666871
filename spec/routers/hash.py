"""The hash layer as a router: fixed tables map token ids to experts.

| here | Hash (arXiv 2106.04426) |
|---|---|
| `ids` (T,) | the token x_t; see `token_ids` |
| `tables` (N, V) | hash(.), N of them for MultiHash |

The tables hold integers in a floating dtype, so backends and checkpoints treat the tables as parameters. The tables get
no gradient, and no optimiser changes the tables.

>>> from moespec.spec import ROUTERS, slot_tokens
>>> router = ROUTERS["hash"]
>>> options = router.options(width=1, experts=2, tokens=4, ids=3)
>>> tables = {"tables": np.array([[0.0, 1.0, 1.0]])}
>>> output = router.route(tables, np.ones((4, 1)), options, ids=np.array([2, 0, 2, 1]))
>>> slot_tokens(output.routing).tolist()
[[1, 4, 4, 4], [0, 2, 3, 4]]
"""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from moespec.spec.algorithms.hash_layers import hash_routing, hash_table_of
from moespec.spec.algorithms.hash_tables import hash_table_random
from moespec.spec.algorithms.token_ids import position_ids
from moespec.spec.checks import check_integers, check_size
from moespec.spec.errors import ConfigError
from moespec.spec.options import RouterOptions
from moespec.spec.ranges import Count, Factor, Range
from moespec.spec.routers.common import output
from moespec.spec.routers.record import Router
from moespec.spec.routing import Array, Params, RouterOutput

__all__ = ["ROUTER", "Options", "init", "route"]


@dataclass(frozen=True, kw_only=True)
class Options(RouterOptions):
    """Options of `hash`. By default, the capacity is unlimited, so the router drops no token."""

    capacity_factor: Factor = math.inf
    rounding: Literal["ceil", "round"] = "ceil"
    multiple_of: Count = 1
    slots_per_expert: Count | None = None
    eval_capacity_factor: Factor | None = None
    ids: Annotated[int, Range(0)] = 0
    """number V of different token ids; 0 for the number of tokens"""
    hashes: Count = 1
    """number N of hashes; for 2 or more, an MLP combines parts of N experts (MultiHash, see `multi_hash_mlp`)"""


def init(generator: np.random.Generator, options: Options) -> Params:
    """Returns random `tables` (hashes, ids)."""
    draws = generator.random((options.hashes, options.ids or options.tokens))
    return {"tables": np.stack([hash_table_random(row, experts=options.experts) for row in draws]).astype(np.float32)}


def route(
    params: Params,
    tokens: Array,
    options: Options,
    *,
    noise: Array | None = None,
    train: bool = False,
    ids: Array | None = None,
) -> RouterOutput:
    """Sends each token to the expert that the table assigns to the token id. Without ids, a token's position is its id.

    params: `tables` (hashes, ids), integers. ids: (tokens,) integers below V. This router uses no noise. Training and
    evaluation have the same routing unless `eval_capacity_factor` is set.

    Raises ConfigError for MultiHash, which has no routing.
    """
    if options.hashes != 1:
        raise ConfigError(
            f"hashes: expected 1, got {options.hashes}; several hashes mix experts inside the MLP (see multi_hash_mlp)"
        )
    check_size("tokens", tokens, -2, options.tokens, "options.tokens")
    ids = position_ids(tokens) if ids is None else ids
    check_integers("ids", ids, "... tokens")
    check_size("ids", ids, -1, options.tokens, "options.tokens")
    table, capacity = hash_table_of(params["tables"]), options.capacity(train=train)
    return output(options, hash_routing(ids, table, experts=options.experts, capacity=capacity, like=tokens))


ROUTER = Router(
    __name__,
    "Roller et al. 2021 (arXiv 2106.04426), section 3",
    Options,
    init,
    route,
    requires="ids",
    decays=(),
    frozen=("tables", "codebook"),  # models that compute ids from patches have a codebook
    balances="the id frequencies, if the table balances them",
    cost="a table lookup",
    drops="none, unless a capacity is set",
    revision=2,
)
