"""Switch routing: one expert per token, chosen and weighted by the softmax of jittered tokens.

| here | Switch (arXiv 2101.03961) |
|---|---|
| `kernel` (D, E) | W_r |
| `jitter` | jitter noise, 1e-2 |
| gate, the softmax of the chosen expert | p_i(x) |
| `balance_weight` | alpha, 1e-2 |
| `capacity_factor` | capacity factor, 1.25 |

Without jitter, this router equals V-MoE's Token Choice with one expert and without noise.

Ambiguity ledger

SW-2: From which tokens is the gate computed?
    Reading: the gate is computed from the jittered tokens, which also determine the choice and the losses.
        By: tensorflow/mesh, mesh_tensorflow/transformer/moe.py, _switch_gating; google/flaxformer,
        flaxformer/architectures/moe/routing.py, Router._compute_router_probabilities; databricks/megablocks,
        megablocks/layers/router.py, LearnedRouter.forward.
    Alternative b: the gate is computed from the original tokens.
SW-3: Is the standard deviation of the initial kernel defined before or after truncation?
    Reading: after truncation, so the truncated draws have variance 0.1 / fan-in.
    Alternative b: before truncation, which makes the standard deviation 0.88 times as large.
        By: tensorflow/mesh, mesh_tensorflow/layers.py, VarianceScalingInitializer.
SW-4: Which weights have the small initial scale of 0.1?
    Reading: only the router's weights have this scale. The model initialises the weights of the experts.
    Alternative b: all weight matrices of the model have this scale, if section 2.4 of the paper is read literally.
SW-5: What is the capacity factor at evaluation?
    Reading: the capacity factor is 1.25, as in training, unless `eval_capacity_factor` is set.
    Alternative b: the capacity factor at evaluation is 2.0.
        By: tensorflow/mesh, mesh_tensorflow/transformer/moe.py, MoE1D (capacity_factor_eval=2.0).
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from moespec.spec.algorithms.batch_priority import batch_priority
from moespec.spec.algorithms.logit_cap import cap_logits
from moespec.spec.algorithms.router_jitter import router_jitter
from moespec.spec.algorithms.selected_weights import normalize_selected
from moespec.spec.algorithms.softmax import router_logits, softmax_affinity
from moespec.spec.algorithms.token_choice import token_choice
from moespec.spec.checks import check_tries
from moespec.spec.initial import lecun_normal
from moespec.spec.option_groups import CapacityOptions, LogitOptions, LossOptions, OrderOptions
from moespec.spec.ranges import Count, Factor, Scalar, Weight
from moespec.spec.routers.common import auxiliary_losses, check_logits, init_bias, jitter_noise, output, replay
from moespec.spec.routers.record import Router
from moespec.spec.routing import Array, Params, RouterOutput

__all__ = ["ROUTER", "Options", "init", "route"]


@dataclass(frozen=True, kw_only=True)
class Options(LossOptions, OrderOptions, CapacityOptions, LogitOptions):
    """Options of `switch`. A token chooses one expert."""

    choices: ClassVar[int] = 1
    jitter: Scalar = 0.01
    """largest relative change of the router's input in training; 0 for none"""
    capacity_factor: Factor = 1.25
    balance_weight: Weight = 0.01
    tries: Count | None = None
    """number of best experts that a token tries in turn when some are full, as in no token left behind (default: 1)"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_tries(self.tries, self.choices, self.experts)


def init(generator: np.random.Generator, options: Options) -> Params:
    """Returns `kernel` (width, experts) with a tenth of the usual variance, and the parameters of `init_bias`."""
    kernel = lecun_normal(generator, (options.width, options.experts), options.width, scale=0.1)
    return {"kernel": kernel, **init_bias(options)}


def route(
    params: Params,
    tokens: Array,
    options: Options,
    *,
    noise: Array | None = None,
    train: bool = False,
    choices: Array | None = None,
) -> RouterOutput:
    """Token Choice of one expert, based on the softmax of the jittered tokens. The experts get the tokens without jitter.

    noise: (tokens, width), uniform on [-1, 1]; None for no jitter. train: whether to use the training capacity.

    Source: Switch, sections 2.1 and 2.2.

    >>> from moespec.spec import ROUTERS, slot_tokens
    >>> from moespec.spec.examples import LOGITS
    >>> router = ROUTERS["switch"]
    >>> output = router.route({"kernel": np.eye(3)}, LOGITS, router.options(width=3, experts=3, tokens=6))
    >>> slot_tokens(output.routing).tolist(), round(float(output.routing.combine.sum()), 10)
    ([[0, 1, 4], [2, 5, 6], [3, 6, 6]], 3.9323379377)
    >>> round(float(output.losses["balance"]), 12)
    0.011708880193
    """

    # Logits.
    router_input = router_jitter(tokens, noise, epsilon=options.jitter) if options.jitter else tokens
    logits = router_logits(router_input, params["kernel"], params["bias"] if options.bias else None)
    check_logits(logits, options)
    if options.logit_cap:
        logits = cap_logits(logits, cap=options.logit_cap)
    scores = softmax_affinity(logits)

    # Order and weights.
    order: Array | None = None
    if options.batch_priority != "none":
        order = batch_priority(scores, by=options.batch_priority, choices=options.choices)
    selection, weights, keep = replay(options, choices, scores)
    if options.normalize_selected:
        weights = normalize_selected(selection, weights, choices=options.choices)

    # Slots.
    routing = token_choice(
        selection,
        choices=options.choices,
        capacity=options.capacity(train=train),
        combine_scores=weights,
        order=order,
        keep=keep,
        tries=options.tries if choices is None else None,
    )
    return output(options, routing, auxiliary_losses(options, logits))


ROUTER = Router(
    __name__,
    "Fedus et al. 2021 (arXiv 2101.03961)",
    Options,
    init,
    route,
    jitter_noise,
    models=("Switch Transformer",),
    balances="the load of the experts, by the balance loss",
    cost="T D E",
    drops="tokens beyond the capacity of the expert that they choose (with `tries`, of all that they try)",
    replays=True,
    revision=5,
)
