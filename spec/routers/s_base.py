"""S-BASE: in training a Sinkhorn plan chooses one expert for each token, at evaluation the logits do.

| here | Clark et al. 2022 (arXiv 2202.01169) |
|---|---|
| plan (T, E) | Pi, the transport plan with E equal fractions |
| selection in training | argmax of the plan |
| selection at evaluation | argmax of the logits |
| gate | softmax (or sigmoid) of the logits at the chosen expert |

Training is Sinkhorn Token Choice with room for every token. A plan is balanced; its argmax need not be: where all tokens
are alike and prefer one expert, the plan is uniform, rounding decides, and all of them may go to the same expert.

Ambiguity ledger

SB-1: Is the choice balanced at evaluation?
    Reading: no, each token takes the argmax of its logits.
        By: NVIDIA/Megatron-LM, megatron/core/transformer/moe/router.py, TopKRouter.sinkhorn_load_balancing.
    Alternative b: by the Sinkhorn plan, as in training.
SB-2: Is there a capacity?
    Reading: no, every token is processed, unless a factor is given.
        By: NVIDIA/Megatron-LM, megatron/core/transformer/moe/router.py, TopKRouter.sinkhorn_load_balancing.
    Alternative b: K T / E slots, as the Sinkhorn Token Choice of the study has.
SB-3: What is the gate?
    Reading: the softmax probability of the chosen expert.
    Alternative b: the sigmoid of its logit (`combine_with="sigmoid"`).
        By: NVIDIA/Megatron-LM, megatron/core/transformer/moe/router.py, TopKRouter.sinkhorn_load_balancing
        (topk == 1).
"""

import math
from dataclasses import dataclass
from typing import Literal

from moespec.spec.choice_options import LogitOptions
from moespec.spec.options import NoisyLossOptions, TokenChoiceOptions
from moespec.spec.ranges import Count, Factor, Scalar
from moespec.spec.routers.blocks import Array, Blocks
from moespec.spec.routers.composition import (
    gating_noise,
    init_kernel,
    noisy_logits,
    noisy_losses,
    output,
    token_choice,
)
from moespec.spec.routers.record import Router
from moespec.spec.routing import Params, RouterOutput

__all__ = ["ROUTER", "Options", "route"]


@dataclass(frozen=True, kw_only=True)
class Options(NoisyLossOptions, TokenChoiceOptions, LogitOptions):
    """Options of `s_base`; a token chooses one expert."""

    capacity_factor: Factor = math.inf
    noise_multiplier: Scalar = 0.0
    sinkhorn_iterations: Count = 20
    """updates of the Sinkhorn plan"""
    combine_with: Literal["softmax", "sigmoid"] = "softmax"
    """what weights the experts' outputs"""


def route(
    B: Blocks, params: Params, tokens: Array, options: Options, *, noise: Array | None = None, train: bool = False
) -> RouterOutput:
    """Token Choice of one expert, by the Sinkhorn plan if `train`, else by the softmax. The plan carries no gradient.

    noise: (tokens, experts), a draw of the standard normal, of which `noise_multiplier / E` is added to the logits.
    train: whether the plan selects, and the capacity is that of training.

    Source: Clark et al. 2022; the readings that their text leaves open are in the ledger.

    >>> import numpy as np
    >>> from moespec.spec import ROUTERS, slot_tokens
    >>> from moespec.spec.examples import LOGITS
    >>> router = ROUTERS["s_base"]
    >>> for train in (True, False):
    ...     options = router.options(width=3, experts=3, tokens=6)
    ...     routing = router.route({"kernel": np.eye(3)}, LOGITS, options, train=train).routing
    ...     print(slot_tokens(routing)[:, :3].tolist(), round(float(routing.combine.sum()), 10))
    [[0, 1, 4], [5, 6, 6], [2, 3, 6]] 3.7673841987
    [[0, 1, 4], [2, 5, 6], [3, 6, 6]] 3.9323379377
    """
    clean, noisy = noisy_logits(B, params, tokens, options, noise)
    scores = B.softmax_affinity(noisy)
    gates = scores if options.combine_with == "softmax" else B.sigmoid_affinity(noisy)
    selection = scores
    if train:
        selection = B.sinkhorn_affinity(B.stop_gradient(noisy), iterations=options.sinkhorn_iterations)
    routing = token_choice(B, options, B.stop_gradient(selection), gates, train=train)
    return output(B, options, routing, noisy_losses(B, options, clean, noisy, noise))


ROUTER = Router(
    __name__,
    "Clark et al. 2022 (arXiv 2202.01169)",
    Options,
    init_kernel,
    route,
    gating_noise,
    balances="the load of the experts in training, by a balanced plan whose argmax is near to it unless tokens are alike; "
    "nothing at evaluation",
    cost="T D E, and in training 2 T E for each of the iterations",
    drops="none, unless a capacity is given",
    functions=("sigmoid_affinity",),
    revision=3,
)
