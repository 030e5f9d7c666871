"""The router of Soft MoE."""

import numpy as np
from numpy.typing import ArrayLike

from moespec.spec.initial import lecun_normal
from moespec.spec.metrics import routing_metrics
from moespec.spec.routing import Params, Router, RouterConfig, RouterOutput, check_fixed_capacity, no_noise
from moespec.spec.soft_moe import soft_routing

__all__ = ["SOFT_MOE"]


def soft_moe(
    params: Params, tokens: ArrayLike, config: RouterConfig, *, noise: ArrayLike | None = None, train: bool = False
) -> RouterOutput:
    """Soft MoE and its ablations, without noise and without auxiliary losses. Section 9."""
    check_fixed_capacity(config)
    routing = soft_routing(
        tokens,
        params["slots"],
        scale=params["scale"],
        normalize=config.normalize,
        norm_form=config.norm_form,
        dispatch=config.dispatch,
        combine=config.combine,
    )
    return RouterOutput(routing, {}, dict(routing_metrics(routing)))


def _init_slots(generator: np.random.Generator, config: RouterConfig) -> Params:
    """`slots` (width, experts, capacity) and `scale`, 1."""
    shape = (config.width, config.experts, config.capacity())
    return {"slots": lecun_normal(generator, shape, config.width * config.experts), "scale": np.ones((), np.float32)}


SOFT_MOE = Router(
    "soft_moe",
    "Puigcerver et al. 2023 (arXiv 2308.00951)",
    _init_slots,
    soft_moe,
    {"rounding": "round"},
    no_noise,
    balances="the load of the experts, exactly: a slot is a mean of all tokens",
    cost="3 T D E C: logits, dispatch and combine of E C slots",
    drops="none",
)
"""The router `soft_moe`."""
