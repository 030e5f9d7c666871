"""The hash layer as a router: fixed tables map token ids to experts.

| here | Hash (arXiv 2106.04426) |
|---|---|
| `ids` (T,) | the token x_t; see `token_ids` |
| `tables` (N, V) | hash(.), N of them for MultiHash |

In DeepSeek-V4, `tables` is tid2eid, transposed, with K = `choices` experts of each id, and `affinity` is sqrt_softplus.

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
from numpy.typing import NDArray

from moespec.spec.algorithms.hash_layers import hash_routing, hash_table_of
from moespec.spec.algorithms.hash_tables import hash_scores, hash_table_random
from moespec.spec.algorithms.selected_weights import normalize_selected, scaled_gates
from moespec.spec.algorithms.sigmoid_affinity import sigmoid_affinity, sqrt_softplus_affinity
from moespec.spec.algorithms.softmax import router_logits, softmax_affinity
from moespec.spec.algorithms.token_choice import token_choice
from moespec.spec.algorithms.token_ids import position_ids
from moespec.spec.checks import check_integers, check_size
from moespec.spec.errors import ConfigError
from moespec.spec.numerics import stable_order
from moespec.spec.option_groups import CapacityOptions
from moespec.spec.ranges import Count, Factor, Positive, Range
from moespec.spec.routers.common import check_logits, init_kernel, output
from moespec.spec.routers.record import Router
from moespec.spec.routing import Array, Params, RouterOutput

__all__ = ["ROUTER", "Options", "init", "random_tables", "route"]

EPSILON = 1e-20
"""The number that `normalize_selected` adds to the sum of the weights (transformers, DeepseekV4HashRouter)."""


@dataclass(frozen=True, kw_only=True)
class Options(CapacityOptions):
    """Options of `hash`. By default, the capacity is unlimited, so the router drops no token."""

    capacity_factor: Factor = math.inf
    ids: Annotated[int, Range(0)] = 0
    """number V of different token ids; 0 for the number of tokens"""
    hashes: Count = 1
    """number N of hashes; for 2 or more, an MLP combines parts of N experts (MultiHash, see `multi_hash_mlp`)"""
    choices: Count = 1
    """number K of experts that the tables choose for an id; 2 or more need an affinity"""
    affinity: Literal["none", "sigmoid", "sqrt_softplus", "softmax"] = "none"
    """function from the logits of a learned kernel to the weights of the experts (DeepSeek-V4: sqrt_softplus); none: weight 1"""
    normalize_selected: bool = False
    scale: Positive = 1.0
    """factor of the weights"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.affinity != "none" and self.hashes != 1:
            raise ConfigError(f"affinity={self.affinity!r}: expected 'none' with hashes={self.hashes!r}")
        for name, value in {"choices": 1, "normalize_selected": False, "scale": 1.0}.items():
            if self.affinity == "none" and getattr(self, name) != value:
                raise ConfigError(f"{name}={getattr(self, name)!r}: expected {value!r} with affinity='none'")


def init(generator: np.random.Generator, options: Options) -> Params:
    """Returns random `tables` (hashes or choices, ids) and, with an affinity, `kernel` (width, experts)."""
    tables = {"tables": random_tables(generator, options).astype(np.float32)}
    return tables if options.affinity == "none" else {**tables, **init_kernel(generator, options)}


def random_tables(generator: np.random.Generator, options: Options) -> NDArray[np.int64]:
    """Returns random tables (hashes or choices, ids). With several choices, the experts of an id differ."""
    ids = options.ids or options.tokens
    if options.choices > 1:
        return stable_order(generator.random((ids, options.experts)))[:, : options.choices].T
    draws = generator.random((options.hashes, ids))
    return np.stack([hash_table_random(row, experts=options.experts) for row in draws])


def route(
    params: Params,
    tokens: Array,
    options: Options,
    *,
    noise: Array | None = None,
    train: bool = False,
    ids: Array | None = None,
) -> RouterOutput:
    """Sends each token to the experts that the tables assign to the token id. Without ids, a token's position is its id.

    params: `tables` (hashes or choices, ids), integers, and `kernel` (width, experts) with an affinity. ids: (tokens,) integers
    below V. This router uses no noise. Training and evaluation have the same routing unless `eval_capacity_factor` is set.

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
    capacity = options.capacity(train=train)
    if options.affinity == "none":
        table = hash_table_of(params["tables"])
        return output(options, hash_routing(ids, table, experts=options.experts, capacity=capacity, like=tokens))

    # Several experts, weighted by the scores of a kernel.
    logits = router_logits(tokens, params["kernel"])
    check_logits(logits, options)
    check_size("tables", params["tables"], 0, options.choices, "options.choices")
    affinity = {"sigmoid": sigmoid_affinity, "sqrt_softplus": sqrt_softplus_affinity, "softmax": softmax_affinity}
    weights: Array = affinity[options.affinity](logits)
    scores = hash_scores(ids, params["tables"], experts=options.experts)
    if options.normalize_selected:
        weights = normalize_selected(scores, weights, choices=options.choices, epsilon=EPSILON)
    if options.scale != 1:
        weights = scaled_gates(weights, scale=options.scale)
    return output(options, token_choice(scores, choices=options.choices, capacity=capacity, combine_scores=weights))


ROUTER = Router(
    __name__,
    "Roller et al. 2021 (arXiv 2106.04426), section 3",
    Options,
    init,
    route,
    requires="ids",
    frozen=("tables", "codebook"),  # models that compute ids from patches have a codebook
    balances="the id frequencies, if the table balances them",
    cost="a table lookup; T D E with an affinity",
    drops="none, unless a capacity is set",
    revision=2,
)
