"""Hierarchical noisy top-k gating: a token chooses branches, and experts in each of them.

| here | Shazeer et al. 2017 (arXiv 1701.06538), appendix B |
|---|---|
| `branches` | a |
| the first a columns of `kernel`, `noise_kernel` (D, a + E) | W_g, W_noise of the primary gating network |
| the others, b = E / a for each branch in turn | those of the secondary gating networks |
| `choices_per_level` | k, 2 in appendix C.1 |
| `importance_weight`, `load_weight` | w_importance, w_load |
"""

import math
from dataclasses import dataclass

import numpy as np

from moespec.spec.checks import check_size
from moespec.spec.errors import ConfigError
from moespec.spec.options import CapacityOptions
from moespec.spec.ranges import Count, Factor, Weight
from moespec.spec.routers.blocks import Array, Blocks
from moespec.spec.routers.composition import Losses, output
from moespec.spec.routers.record import Router
from moespec.spec.routing import Noise, Params, RouterOutput

__all__ = ["ROUTER", "Options", "init", "route"]


@dataclass(frozen=True, kw_only=True)
class Options(CapacityOptions):
    """Options of `hierarchical_top_k`."""

    branches: Count | None = None
    """groups of experts, as many in each; None for the largest divisor of experts up to its square root"""
    choices_per_level: Count = 2
    """branches that a token chooses, and experts in each of these; all, where there are fewer"""
    capacity_factor: Factor = math.inf
    importance_weight: Weight = 0.1
    """weight of the importance loss"""
    load_weight: Weight = 0.1
    """weight of the load loss, which there is only with noise"""

    @property
    def levels(self) -> tuple[int, int]:
        """Branches a, and experts b of each. Raises ConfigError unless all branches have as many."""
        branches = self.branches
        if branches is None:
            branches = max([n for n in range(1, math.isqrt(self.experts) + 1) if self.experts % n == 0])
        if self.experts % branches:
            raise ConfigError(f"branches={branches!r} does not divide experts={self.experts!r}")
        return branches, self.experts // branches

    @property
    def columns(self) -> int:
        """Logits of a token: those of the branches and those of all experts."""
        return self.levels[0] + self.experts

    @property
    def items(self) -> tuple[int, int]:
        """Every token asks, for each choice in each of its branches."""
        branches, experts = self.levels
        return self.tokens, min(self.choices_per_level, branches) * min(self.choices_per_level, experts)


def init(generator: np.random.Generator, options: Options) -> Params:
    """`kernel` and `noise_kernel` (width, branches + experts), 0 as in `noisy_top_k`."""
    return {name: np.zeros((options.width, options.columns), np.float32) for name in ("kernel", "noise_kernel")}


def route(
    B: Blocks, params: Params, tokens: Array, options: Options, *, noise: Array | None = None, train: bool = False
) -> RouterOutput:
    """Token Choice by the gates, the products of those of both levels, which also combine.

    A gate that underflows to 0 is that of any expert; its weight is 0 in any case.

    params: `kernel` and `noise_kernel`, (width, branches + experts) each. noise: (tokens, branches + experts), a draw
    of the standard normal; None (evaluation) for no noise and no load loss. train: whether the capacity is that of
    training.

    Source: Shazeer et al. 2017, appendix B.

    >>> from moespec.spec import ROUTERS, slot_tokens
    >>> from moespec.spec.examples import LOGITS
    >>> router = ROUTERS["hierarchical_top_k"]
    >>> options = router.options(width=3, experts=4, tokens=6, choices_per_level=1)
    >>> kernel = np.array([[1, 0, 1, 0, 0, 1], [0, 1, 0, 1, 0, 0], [0, 0, 0, 0, 1, 0.0]])  # of 2 branches and 2 + 2 experts
    >>> routing = router.route({"kernel": kernel, "noise_kernel": 0 * kernel}, LOGITS, options).routing
    >>> slot_tokens(routing).tolist(), routing.combine.sum(axis=(0, 2)).tolist()
    ([[0, 1, 3, 4, 6, 6], [6, 6, 6, 6, 6, 6], [6, 6, 6, 6, 6, 6], [2, 5, 6, 6, 6, 6]], [4.0, 0.0, 0.0, 2.0])
    """
    level = {"branches": options.levels[0], "choices": options.choices_per_level}
    clean = B.router_logits(tokens, params["kernel"])
    check_size("tokens", clean, -2, options.tokens, "options.tokens")
    check_size("kernel", clean, -1, options.columns, "options.branches and options.experts")
    scales = B.router_logits(tokens, params["noise_kernel"])
    noisy = B.noisy_top_k_logits(clean, scales, noise)
    gates = B.hierarchical_affinity(noisy, **level)
    routing = B.token_choice(gates, choices=options.items[1], capacity=options.capacity(train=train))
    load = {"load": lambda: B.hierarchical_load_loss(clean, scales, noisy, **level)}
    losses: Losses = {"importance": lambda: B.importance_loss(gates), **({} if noise is None else load)}
    return output(B, options, routing, losses)


ROUTER = Router(
    __name__,
    "Shazeer et al. 2017 (arXiv 1701.06538)",
    Options,
    init,
    route,
    lambda options: Noise((options.tokens, options.columns)),
    decays=("kernel", "noise_kernel"),
    balances="the load of the experts, by the importance and load losses of the hierarchy",
    cost="2 T D (a + E)",
    drops="none, unless a capacity is given",
    revision=2,
)
