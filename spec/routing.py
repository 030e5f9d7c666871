"""The vocabulary that all routers share: what a routing is, what a router is, and how one is configured.

Axis names: `tokens, experts, capacity, width, hidden, choices` (T, E, C, D, H, K in shape comments). In the
specification an array is one routing group; a backend adds a leading `groups` axis (G).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moespec.spec.capacity import expert_capacity
from moespec.spec.checks import check_at_least
from moespec.spec.errors import ConfigError, ContractError

__all__ = [
    "Noise",
    "Params",
    "Router",
    "RouterConfig",
    "RouterOutput",
    "Routing",
    "check_fixed_capacity",
    "no_noise",
    "slot_tokens",
]

Params = dict[str, Any]


class Routing(NamedTuple):
    """The pair of tensors that a router computes, each `(tokens, experts, capacity)`.

    `dispatch[t, e, c]` is the share of token `t` in slot `c` of expert `e`; `combine[t, e, c]` is the weight with
    which the output of that slot enters the output of token `t`. For sparse routers `dispatch` is 0 or 1 and
    `combine = dispatch * score`.
    """

    dispatch: NDArray[Any]
    combine: NDArray[Any]


def slot_tokens(routing: Routing) -> NDArray[np.intp]:
    """Which token sits in each slot of a sparse routing: (experts, capacity), `tokens` for an empty slot.

    >>> dispatch = np.array([[[1.0, 0.0]], [[0.0, 0.0]]])  # two tokens, one expert, two slots
    >>> slot_tokens(Routing(dispatch, dispatch)).tolist()
    [[0, 2]]
    """
    occupied = routing.dispatch.real > 0
    if (occupied.sum(axis=0) > 1).any():
        raise ContractError("routing: a slot holds several tokens, so the routing is not sparse")
    tokens = len(occupied)
    return np.where(occupied.any(axis=0), np.tensordot(np.arange(tokens), occupied, axes=1), tokens)


class RouterOutput(NamedTuple):
    """What a router returns: the routing, its auxiliary losses, and what to report about it.

    `losses` holds the *weighted* terms of the total loss (their sum is added to the main loss); `metrics` holds
    unweighted scalars and per-expert vectors for logs.
    """

    routing: Any
    losses: dict[str, Any]
    metrics: dict[str, Any]


@dataclass(frozen=True)
class RouterConfig:
    """The static arguments of every router; a router reads the fields that concern it.

    width, experts, tokens: model width D, number of experts E, tokens T of one routing group.
    choices: experts K that a token chooses (Token Choice).
    capacity_factor, rounding, multiple_of: see `expert_capacity`; an infinite factor is room for every token. For Soft
        MoE the capacity is the number of slots.
    slots_per_expert: the capacity as a number, in place of these; None for none.
    eval_capacity_factor: the factor at evaluation (`train=False`), if it is another than in training.
    jitter: epsilon of `router_jitter` (Switch).
    noise_multiplier: standard deviation of the gating noise is `noise_multiplier / experts`.
    batch_priority: "none", "max" or "sum" (order of the tokens in Token Choice).
    normalize_selected: divide the combine weights of a token by their sum over its choices (Token Choice).
    sinkhorn_iterations: fixed number of column-then-row updates.
    transport_steps: updates of the reference Adam solver.
    combine_with: "softmax", or "plan" for the ablation of the Sinkhorn routers that combines with the plan and
        differentiates it.
    combine_from_clean_logits: the combine softmax ignores the noise (Sinkhorn Token Choice of the vmoe code).
    drop_zero_plan: leave slots empty that Expert Choice would fill with tokens of score 0.
    drop: share of the tokens that importance-score routing removes.
    normalize, norm_form, dispatch, combine: see `soft_routing`.
    *_weight: weights of the auxiliary losses.
    selector_gate: "token" (codes of the selectors from each token) or "static" (trained numbers); see `dselect_k_gate`.
    selector_gamma: width of the smooth step of the selectors.
    ids: V, different token ids that a hash layer has an expert for; 0 for as many as tokens.
    hashes: N, hashes of a hash layer; with more than one it is MultiHash, which `multi_hash_mlp` computes.
    """

    width: int
    experts: int
    tokens: int
    choices: int = 1
    capacity_factor: float = 1.0
    rounding: str = "ceil"
    multiple_of: int = 1
    slots_per_expert: int | None = None
    eval_capacity_factor: float | None = None
    noise_multiplier: float = 1.0
    jitter: float = 0.01
    batch_priority: str = "none"
    normalize_selected: bool = False
    sinkhorn_iterations: int = 20
    transport_steps: int = 20
    combine_with: str = "softmax"
    combine_from_clean_logits: bool = False
    drop_zero_plan: bool = False
    drop: float = 0.1
    normalize: bool = True
    norm_form: str = "paper"
    dispatch: str = "soft"
    combine: str = "soft"
    importance_weight: float = 0.0
    load_weight: float = 0.0
    balance_weight: float = 0.0
    z_weight: float = 0.0
    selector_gate: str = "token"
    selector_gamma: float = 1.0
    selector_entropy_weight: float = 0.0
    reachability_weight: float = 0.0
    ids: int = 0
    hashes: int = 1

    def capacity(self, *, choices: int = 1, train: bool = True) -> int:
        """Slots per expert, from `expert_capacity` (pass `choices=self.choices` for Token Choice)."""
        factor = self.capacity_factor
        if not train and self.eval_capacity_factor is not None:
            factor = self.eval_capacity_factor
        elif self.slots_per_expert is not None:
            return check_at_least("slots_per_expert", self.slots_per_expert, 1)
        if factor == math.inf:
            return self.tokens
        return expert_capacity(
            self.tokens,
            self.experts,
            factor,
            choices=choices,
            rounding=self.rounding,
            multiple_of=self.multiple_of,
        )


@dataclass(frozen=True)
class Noise:
    """What noise a router takes in training.

    shape: of the array, for one routing group.
    interval: ends of the interval on which the entries are uniform; None for the standard normal.
    """

    shape: tuple[int, ...]
    interval: tuple[float, float] | None = None


def check_fixed_capacity(config: RouterConfig) -> None:
    """`ConfigError` if there is another capacity at evaluation, where the slots are parameters."""
    if config.eval_capacity_factor is not None:
        raise ConfigError(
            f"eval_capacity_factor: the slots of this router are parameters, as many at evaluation as in training; "
            f"expected None, got {config.eval_capacity_factor!r}"
        )


def gating_noise(config: RouterConfig) -> Noise | None:
    """Standard normal noise for the logits, unless its multiplier is 0."""
    return Noise((config.tokens, config.experts)) if config.noise_multiplier else None


def no_noise(config: RouterConfig) -> None:
    """The router takes no noise."""


@dataclass(frozen=True)
class Router:
    """One router: a name, its source, initial parameters and the routing function.

    `init(generator, config)` returns NumPy parameters (float32); `route(params, tokens, config, *, noise=None,
    train=False)` returns a `RouterOutput`. `defaults` are the config fields in which the router differs from
    `RouterConfig`'s own defaults. `noise(config)` says what noise the router takes in training, None for none. `needs`
    names what `route` takes beside the tokens: "ids", (tokens,) integers. `idle_experts`: whether experts may stay
    without any token for long, so that a layer should not run those. In words, with the symbols of `RouterConfig`:
    `balances`, what it keeps in balance and by what means; `cost`, of the routing of a group in multiply-adds unless it
    says otherwise; `drops`, which tokens may be left without an expert.
    """

    name: str
    source: str
    init: Callable[[np.random.Generator, RouterConfig], Params]
    route: Callable[..., RouterOutput]
    defaults: dict[str, Any] = field(default_factory=dict)
    noise: Callable[[RouterConfig], Noise | None] = gating_noise
    needs: str = ""
    idle_experts: bool = False
    balances: str = field(kw_only=True)
    cost: str = field(kw_only=True)
    drops: str = field(kw_only=True)

    def configure(self, **fields: Any) -> RouterConfig:
        """A `RouterConfig` with this router's defaults, overridden by `fields`."""
        return RouterConfig(**{**self.defaults, **fields})
