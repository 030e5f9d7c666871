"""Soft MoE: a slot is a weighted mean of all tokens, and the output of a token is a weighted mean of all slot outputs.

| here | Soft MoE (arXiv 2308.00951) |
|---|---|
| `slots` (D, E, C) | Phi |
| `scale` | the learnable scale |
| capacity C, from `capacity_factor` | p, slots of an expert |

Ambiguity ledger

RT-3: What is the fan-in of the initial slots of Soft MoE?
    Reading: the width times the number of experts, as computed by flax's initialiser for an array (D, E, C). With
        normalised slots, the fan-in does not change the logits, but only how fast training rotates the slots. With
        `normalize=False`, the initial logits of unit-variance tokens have standard deviation 1 / sqrt(E).
        By: google-research/vmoe, vmoe/projects/soft_moe/router.py, SoftRouter.
    Alternative b: the fan-in is the width, because each logit is a sum over the width.
        By: bwconrad/soft-moe, soft_moe/soft_moe.py, SoftMoELayerWrapper.
"""

from dataclasses import dataclass
from typing import Literal, Self

import numpy as np

from moespec.spec.algorithms.soft_moe import soft_routing
from moespec.spec.checks import check_size
from moespec.spec.initial import lecun_normal
from moespec.spec.options import RouterOptions
from moespec.spec.ranges import Count, Factor
from moespec.spec.routers.common import output
from moespec.spec.routers.record import Router
from moespec.spec.routing import Array, Params, RouterOutput

__all__ = ["ROUTER", "Options", "init", "route"]


@dataclass(frozen=True, kw_only=True)
class Options(RouterOptions):
    """Options of `soft_moe`. Slots are parameters, so training and evaluation have the same number of slots."""

    capacity_factor: Factor = 1.0
    rounding: Literal["ceil", "round"] = "round"
    multiple_of: Count = 1
    slots_per_expert: Count | None = None
    normalize: bool = True
    """normalise tokens and slots before their product"""
    norm_form: Literal["paper", "rsqrt"] = "paper"
    """form of the normalisation"""
    dispatch: Literal["soft", "uniform", "identity"] = "soft"
    """ablation of the dispatch weights"""
    combine: Literal["soft", "uniform", "identity"] = "soft"
    """ablation of the combine weights"""

    def of_tokens(self, tokens: int, images: int | None = None) -> Self:
        """Copies these options for groups of a different size. The copy has the same number of slots."""
        options = super().of_tokens(tokens, images)
        object.__setattr__(options, "slots_per_expert", self.capacity())
        return options


def init(generator: np.random.Generator, options: Options) -> Params:
    """Returns `slots` (width, experts, capacity) and `scale`, initially 1."""
    shape = (options.width, options.experts, options.capacity())
    return {"slots": lecun_normal(generator, shape, options.width * options.experts), "scale": np.ones((), np.float32)}


def route(
    params: Params, tokens: Array, options: Options, *, noise: Array | None = None, train: bool = False
) -> RouterOutput:
    """Soft MoE and its ablations, without noise and without auxiliary losses.

    Raises ShapeError if tokens or slots do not match the options.
    """
    routing = soft_routing(
        tokens,
        params["slots"],
        scale=params["scale"],
        normalize=options.normalize,
        norm_form=options.norm_form,
        dispatch=options.dispatch,
        combine=options.combine,
    )
    check_size("tokens", routing.dispatch, -3, options.tokens, "options.tokens")
    check_size("slots", routing.dispatch, -2, options.experts, "options.experts")
    check_size("slots", routing.dispatch, -1, options.capacity(), "the capacity of options")
    return output(options, routing)


ROUTER = Router(
    __name__,
    "Puigcerver et al. 2023 (arXiv 2308.00951); Liu et al. 2024 (arXiv 2401.15969), section 2.6",
    Options,
    init,
    route,
    decays=("scale",),
    revision=4,
    balances="the load of the experts, exactly: a slot is a weighted mean of all tokens",
    cost="3 T D E C: logits, dispatch and combine of E C slots",
    drops="none",
)
