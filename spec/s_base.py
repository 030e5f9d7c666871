"""S-BASE: in training a Sinkhorn plan chooses one expert for each token, at evaluation the logits do.

| here | Clark et al. 2022 (arXiv 2202.01169) |
|---|---|
| plan (T, E) | Pi, the transport plan with E equal shares |
| selection in training | argmax of the plan |
| selection at evaluation | argmax of the logits |
| gate | softmax (or sigmoid) of the logits at the chosen expert |

Checked: training against the Sinkhorn Token Choice router with room for every token, evaluation against the argmax of the
logits, and both against Megatron-LM's rule (sigmoid gate, plan of total mass 1 iterated to convergence) written apart.

Ambiguity ledger

SB-1: Is the choice balanced at evaluation?
    Reading: no, each token takes the argmax of its logits.
    Alternatives: by the Sinkhorn plan, as in training.
SB-2: Is there a capacity?
    Reading: no, every token is processed, unless a factor is given.
    Alternatives: K T / E slots, as the Sinkhorn Token Choice of the study has.
SB-3: What is the gate?
    Reading: the softmax probability of the chosen expert.
    Alternatives: the sigmoid of its logit (`combine_with="sigmoid"`; Megatron-LM with one choice).
"""

from numpy.typing import ArrayLike

from moespec.spec.checks import as_array, check_option
from moespec.spec.composition import (
    check_one_choice,
    init_kernel,
    noisy_logits,
    router_output,
    token_choice_routing,
)
from moespec.spec.numerics import Array, sigmoid, stop_gradient
from moespec.spec.routing import Params, Router, RouterConfig, RouterOutput
from moespec.spec.sinkhorn import sinkhorn_affinity
from moespec.spec.softmax import softmax_affinity

__all__ = ["S_BASE", "sigmoid_affinity"]


def sigmoid_affinity(logits: ArrayLike) -> Array:
    """Each expert by itself, `1 / (1 + exp(-L[t, e]))`.

    Args:
        logits: L, (tokens, experts).

    Returns:
        (tokens, experts), from 0 to 1.

    Raises:
        ShapeError, DtypeError, ContractError: of `logits`.

    Source: the router of Megatron-LM with one choice. Section 7.3.

    >>> sigmoid_affinity([[0.0, 1.0]]).round(10).tolist()
    [[0.5, 0.7310585786]]
    """
    return sigmoid(as_array("logits", logits, "tokens experts"))


def s_base(
    params: Params, tokens: ArrayLike, config: RouterConfig, *, noise: ArrayLike | None = None, train: bool = False
) -> RouterOutput:
    """Token Choice of one expert, by the Sinkhorn plan if `train`, else by the softmax. Section 7.3.

    The plan carries no gradient. Options: `combine_with` is "softmax" or "sigmoid".

    >>> import numpy as np
    >>> from moespec.spec import slot_tokens
    >>> from moespec.spec.examples import LOGITS
    >>> config = S_BASE.configure(width=3, experts=3, tokens=6)
    >>> for train in (True, False):
    ...     routing = s_base({"kernel": np.eye(3)}, LOGITS, config, train=train).routing
    ...     print(slot_tokens(routing)[:, :3].tolist(), round(float(routing.combine.sum()), 10))
    [[0, 1, 4], [5, 6, 6], [2, 3, 6]] 3.7673841987
    [[0, 1, 4], [2, 5, 6], [3, 6, 6]] 3.9323379377
    """
    check_one_choice(config)
    check_option("combine_with", config.combine_with, ("softmax", "sigmoid"))
    clean, noisy = noisy_logits(params, tokens, config, noise)
    scores = softmax_affinity(noisy)
    gates = scores if config.combine_with == "softmax" else sigmoid_affinity(noisy)
    selection = scores
    if train:
        selection = stop_gradient(sinkhorn_affinity(noisy, iterations=config.sinkhorn_iterations))
    routing = token_choice_routing(config, selection, gates, train=train)
    return router_output(config, clean, noisy, noise, routing)


S_BASE = Router(
    "s_base",
    "Clark et al. 2022 (arXiv 2202.01169)",
    init_kernel,
    s_base,
    {"capacity_factor": float("inf"), "noise_multiplier": 0.0},
    balances="the load of the experts, nearly in training: by a balanced plan; nothing at evaluation",
    cost="T D E, and in training 2 T E for each of the iterations",
    drops="none, unless a capacity is given",
)
"""The router `s_base`."""
