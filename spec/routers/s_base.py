"""S-BASE: one expert per token, chosen by a Sinkhorn plan in training and by the logits at evaluation.

| here | Clark et al. 2022 (arXiv 2202.01169) |
|---|---|
| plan (T, E) | Pi, the transport plan with the same total for each expert |
| selection in training | argmax of the plan |
| selection at evaluation | argmax of the logits |
| gate | softmax (or sigmoid) of the logits at the chosen expert |

In training, S-BASE is Sinkhorn Token Choice with a slot for every token. A plan is balanced, but the argmax of its rows may not be. If all
tokens are equal, for example, the plan is uniform. Rounding errors then determine the argmax, and all tokens may choose the same expert.

Ambiguity ledger

SB-1: Is the choice balanced at evaluation?
    Reading: no, each token chooses the expert with its largest logit.
        By: NVIDIA/Megatron-LM, megatron/core/transformer/moe/router.py, TopKRouter.sinkhorn_load_balancing.
    Alternative b: yes, the Sinkhorn plan balances the choice, as in training.
SB-2: Does an expert have a capacity?
    Reading: no, every token is processed, unless a capacity factor is set.
        By: NVIDIA/Megatron-LM, megatron/core/transformer/moe/router.py, TopKRouter.sinkhorn_load_balancing.
    Alternative b: yes, a capacity of K T / E slots, as in the Sinkhorn Token Choice of Routers (arXiv 2401.15969).
SB-3: What is the gate?
    Reading: the gate is the softmax probability of the chosen expert.
    Alternative b: the gate is the sigmoid of the chosen expert's logit (`combine_with="sigmoid"`).
        By: NVIDIA/Megatron-LM, megatron/core/transformer/moe/router.py, TopKRouter.sinkhorn_load_balancing
        (topk == 1).
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from moespec.spec.algorithms.batch_priority import batch_priority
from moespec.spec.algorithms.selected_weights import normalize_selected
from moespec.spec.algorithms.sigmoid_affinity import sigmoid_affinity
from moespec.spec.algorithms.sinkhorn import sinkhorn_affinity
from moespec.spec.algorithms.softmax import softmax_affinity
from moespec.spec.algorithms.token_choice import token_choice
from moespec.spec.numerics import stop_gradient
from moespec.spec.option_groups import CapacityOptions, LogitOptions, LossOptions, NoiseOptions, OrderOptions
from moespec.spec.ranges import Count, Factor, Scalar
from moespec.spec.routers.common import auxiliary_losses, gating_noise, init_kernel, noisy_logits, output, replay
from moespec.spec.routers.record import Router
from moespec.spec.routing import Array, Params, RouterOutput

__all__ = ["ROUTER", "Options", "route"]


@dataclass(frozen=True, kw_only=True)
class Options(NoiseOptions, LossOptions, OrderOptions, CapacityOptions, LogitOptions):
    """Options of `s_base`. A token chooses one expert."""

    choices: ClassVar[int] = 1
    capacity_factor: Factor = math.inf
    noise_multiplier: Scalar = 0.0
    sinkhorn_iterations: Count = 20
    combine_with: Literal["softmax", "sigmoid"] = "softmax"
    """weight of the experts' outputs"""


def route(
    params: Params,
    tokens: Array,
    options: Options,
    *,
    noise: Array | None = None,
    train: bool = False,
    choices: Array | None = None,
) -> RouterOutput:
    """Token Choice of one expert, based on the Sinkhorn plan if `train` is set and otherwise on the softmax. The plan carries no gradient.

    noise: (tokens, experts), standard normal. The router adds the noise times `noise_multiplier / E` to the logits. With
    `jitter`, noise is (tokens, width), uniform on [-1, 1], and is applied to the tokens, not to the logits.
    train: whether to select by the plan and use the training capacity.

    Source: Clark et al. 2022. The ledger lists the questions that the paper leaves open.

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

    # Logits.
    logits, noisy = noisy_logits(params, tokens, options, noise)

    # Selection and gates. The selection carries no gradient.
    scores = softmax_affinity(noisy)
    gates = scores if options.combine_with == "softmax" else sigmoid_affinity(noisy)
    selection = scores
    if train:
        selection = sinkhorn_affinity(stop_gradient(noisy), iterations=options.sinkhorn_iterations)
    selection = stop_gradient(selection)

    # Order and weights.
    order: Array | None = None
    if options.batch_priority != "none":
        order = batch_priority(selection, by=options.batch_priority, choices=options.choices)
    selection, weights, keep = replay(options, choices, selection, gates)
    if options.normalize_selected:
        weights = normalize_selected(selection, weights, choices=options.choices)

    # Slots.
    capacity = options.capacity(train=train)
    routing = token_choice(
        selection, choices=options.choices, capacity=capacity, combine_scores=weights, order=order, keep=keep
    )

    # Losses.
    losses = auxiliary_losses(options, logits, noisy, noise, choices=options.choices)
    return output(options, routing, losses)


ROUTER = Router(
    __name__,
    "Clark et al. 2022 (arXiv 2202.01169)",
    Options,
    init_kernel,
    route,
    gating_noise,
    balances="the load of the experts: approximately in training, by a balanced plan (not if all tokens are alike); "
    "nothing at evaluation",
    cost="T D E, plus 2 T E per iteration in training",
    drops="none, unless a capacity is set",
    functions=("sigmoid_affinity",),
    replays=True,
    revision=4,
)
