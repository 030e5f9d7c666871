"""Hierarchical noisy top-k gating: a token chooses branches, then experts in each chosen branch.

| here | Shazeer et al. 2017 (arXiv 1701.06538), appendix B |
|---|---|
| `branches` | a |
| the first a columns of `kernel`, `noise_kernel` (D, a + E) | W_g, W_noise of the primary gating network |
| the remaining columns, b = E / a per branch in turn | W_g, W_noise of the secondary gating networks |
| `choices_per_level` | k, 2 in appendix C.1 |
| `importance_weight`, `load_weight` | w_importance, w_load |
"""

import math
from dataclasses import dataclass

import numpy as np

from moespec.spec.algorithms.hierarchical_gating import hierarchical_affinity, hierarchical_load_loss
from moespec.spec.algorithms.losses import importance_loss
from moespec.spec.algorithms.noisy_top_k import noisy_top_k_logits
from moespec.spec.algorithms.softmax import router_logits
from moespec.spec.algorithms.token_choice import token_choice
from moespec.spec.checks import check_size
from moespec.spec.errors import ConfigError
from moespec.spec.option_groups import CapacityOptions
from moespec.spec.ranges import Count, Factor, Weight
from moespec.spec.routers.common import output
from moespec.spec.routers.record import Router
from moespec.spec.routing import Array, Noise, Params, RouterOutput

__all__ = ["ROUTER", "Options", "init", "route"]


@dataclass(frozen=True, kw_only=True)
class Options(CapacityOptions):
    """Options of `hierarchical_top_k`."""

    capacity_factor: Factor = math.inf
    branches: Count | None = None
    """number of groups of experts of equal size; None for the largest divisor of experts up to its square root"""
    choices_per_level: Count = 2
    """number of branches that a token chooses, and of experts that it chooses in each branch; at most all of them"""
    importance_weight: Weight = 0.1
    load_weight: Weight = 0.1

    @property
    def levels(self) -> tuple[int, int]:
        """The number of branches and the number of experts per branch. Raises ConfigError unless `branches` divides `experts`."""
        branches = self.branches
        if branches is None:
            branches = max([n for n in range(1, math.isqrt(self.experts) + 1) if self.experts % n == 0])
        if self.experts % branches:
            raise ConfigError(f"branches={branches!r} does not divide experts={self.experts!r}")
        return branches, self.experts // branches

    @property
    def columns(self) -> int:
        """The number of logits per token: one for each branch and one for each expert."""
        return self.levels[0] + self.experts

    @property
    def requests(self) -> tuple[int, int]:
        """The number of tokens, and the number of slots that each token requests: one for each chosen expert in each chosen branch."""
        branches, experts = self.levels
        return self.tokens, min(self.choices_per_level, branches) * min(self.choices_per_level, experts)


def init(generator: np.random.Generator, options: Options) -> Params:
    """Returns `kernel` and `noise_kernel` (width, branches + experts), all 0 as in `noisy_top_k`."""
    return {name: np.zeros((options.width, options.columns), np.float32) for name in ("kernel", "noise_kernel")}


def route(
    params: Params, tokens: Array, options: Options, *, noise: Array | None = None, train: bool = False
) -> RouterOutput:
    """Token Choice based on the gates, which are also the combine weights. A gate is the product of the gates of both levels.

    If gates underflow to 0, a token may choose an expert with a gate of 0. The combine weight is then 0.

    params: `kernel` and `noise_kernel`, (width, branches + experts) each. noise: (tokens, branches + experts), standard
    normal, or None (evaluation) for no noise and no load loss. train: whether to use the training capacity.

    Source: Shazeer et al. 2017, appendix B.

    >>> from moespec.spec import ROUTERS, slot_tokens
    >>> from moespec.spec.examples import LOGITS
    >>> router = ROUTERS["hierarchical_top_k"]
    >>> options = router.options(width=3, experts=4, tokens=6, choices_per_level=1)
    >>> kernel = np.array([[1, 0, 1, 0, 0, 1], [0, 1, 0, 1, 0, 0], [0, 0, 0, 0, 1, 0.0]])  # columns of 2 branches, then of 2 + 2 experts
    >>> routing = router.route({"kernel": kernel, "noise_kernel": 0 * kernel}, LOGITS, options).routing
    >>> slot_tokens(routing).tolist(), routing.combine.sum(axis=(0, 2)).tolist()
    ([[0, 1, 3, 4, 6, 6], [6, 6, 6, 6, 6, 6], [6, 6, 6, 6, 6, 6], [2, 5, 6, 6, 6, 6]], [4.0, 0.0, 0.0, 2.0])
    """

    # Logits of branches and experts, and logits of the noise scales.
    logits = router_logits(tokens, params["kernel"])
    check_size("tokens", logits, -2, options.tokens, "options.tokens")
    check_size("kernel", logits, -1, options.columns, "options.branches and options.experts")
    scales = router_logits(tokens, params["noise_kernel"])
    noisy = noisy_top_k_logits(logits, scales, noise)

    # Gates and slots.
    branches, choices = options.levels[0], options.choices_per_level
    gates = hierarchical_affinity(noisy, branches=branches, choices=choices)
    routing = token_choice(gates, choices=options.requests[1], capacity=options.capacity(train=train))

    # Losses.
    losses: dict[str, Array] = {}
    if options.importance_weight:
        losses["importance"] = importance_loss(gates)
    if options.load_weight and noise is not None:
        losses["load"] = hierarchical_load_loss(logits, scales, noisy, branches=branches, choices=choices)
    return output(options, routing, losses)


ROUTER = Router(
    __name__,
    "Shazeer et al. 2017 (arXiv 1701.06538)",
    Options,
    init,
    route,
    lambda options: Noise((options.tokens, options.columns)),
    decays=("kernel", "noise_kernel"),
    balances="the load of the experts, by the hierarchy's importance and load losses",
    cost="2 T D (a + E)",
    drops="none, unless a capacity is set",
    revision=3,
)
