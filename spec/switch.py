"""Switch routing: one expert for each token, chosen and weighed by the softmax of jittered tokens.

| here | Switch (arXiv 2101.03961) |
|---|---|
| `tokens` X (T, D) | x |
| `noise` (T, D), uniform on [-1, 1] | |
| `epsilon` | jitter noise, 1e-2 |
| gate, the softmax of the chosen expert | p_i(x) |
| `balance_weight` | alpha, 1e-2 |
| `capacity_factor` | capacity factor, 1.25 |

Checked: the router against a loop over tokens, written apart from Token Choice, and against V-MoE's Token Choice without
noise, of which Switch without jitter is the case K = 1; the loss as `losses` says.

Ambiguity ledger

SW-1: What is jittered, and how?
    Reading: each number of a token is multiplied by a draw from [1 - epsilon, 1 + epsilon].
    Alternatives: a draw is added to the logits; one factor for a whole token.
SW-2: From which tokens is the gate computed?
    Reading: from the jittered ones that chose the expert, and so are the losses.
    Alternatives: from the tokens as they are.
SW-3: Is the standard deviation of the initial kernel that before or after the truncation?
    Reading: after it: the draws have the variance 0.1 / fan-in.
    Alternatives: before it, which makes it 0.88 of that.
"""

import numpy as np
from numpy.typing import ArrayLike

from moespec.spec.checks import as_array, check_non_negative, check_same_shape
from moespec.spec.composition import (
    check_one_choice,
    clean_logits,
    router_output,
    token_choice_routing,
)
from moespec.spec.initial import lecun_normal
from moespec.spec.numerics import Array
from moespec.spec.routing import Noise, Params, Router, RouterConfig, RouterOutput
from moespec.spec.softmax import softmax_affinity

__all__ = ["SWITCH", "router_jitter"]


def router_jitter(tokens: ArrayLike, noise: ArrayLike | None, *, epsilon: float = 0.01) -> Array:
    """The tokens as the router sees them in training, `X (1 + epsilon noise)`; with `noise=None` the tokens unchanged.

    Args:
        tokens: X, (tokens, width).
        noise: (tokens, width), uniform draws from [-1, 1], or None.
        epsilon: at least 0.

    Returns:
        (tokens, width).

    Raises:
        ConfigError: `epsilon` is negative.
        ShapeError, DtypeError, ContractError: of an array.

    Source: Switch, section 2.4 and the code of Mesh TensorFlow. Section 2.5.

    >>> router_jitter([[1.0, -2.0]], [[1.0, 0.5]]).tolist()
    [[1.01, -2.01]]
    """
    tokens = as_array("tokens", tokens, "tokens width")
    check_non_negative("epsilon", epsilon)
    if noise is None:
        return tokens
    noise = as_array("noise", noise, "tokens width")
    check_same_shape("noise", noise, "tokens", tokens)
    return tokens * (1.0 + epsilon * noise)


def switch(
    params: Params, tokens: ArrayLike, config: RouterConfig, *, noise: ArrayLike | None = None, train: bool = False
) -> RouterOutput:
    """Token Choice of one expert by the softmax of the jittered tokens. Only the router sees the jitter. Section 11.

    `params`: `kernel`, (width, experts). `noise`: (tokens, width), uniform draws from [-1, 1].

    >>> from moespec.spec import slot_tokens
    >>> from moespec.spec.examples import LOGITS
    >>> config = SWITCH.configure(width=3, experts=3, tokens=6)
    >>> output = switch({"kernel": np.eye(3)}, LOGITS, config)
    >>> slot_tokens(output.routing).tolist(), round(float(output.routing.combine.sum()), 10)
    ([[0, 1, 4], [2, 5, 6], [3, 6, 6]], 3.9323379377)
    >>> round(float(output.losses["balance"]), 12)
    0.011708880193
    """
    check_one_choice(config)
    logits = clean_logits(params, router_jitter(tokens, noise, epsilon=config.jitter), config)
    routing = token_choice_routing(config, softmax_affinity(logits), None, train=train)
    return router_output(config, logits, logits, None, routing)


def _init_kernel(generator: np.random.Generator, config: RouterConfig) -> Params:
    """`kernel` (width, experts) of a tenth of the usual variance."""
    return {"kernel": lecun_normal(generator, (config.width, config.experts), config.width, scale=0.1)}


SWITCH = Router(
    "switch",
    "Fedus et al. 2021 (arXiv 2101.03961)",
    _init_kernel,
    switch,
    {"capacity_factor": 1.25, "balance_weight": 0.01},
    lambda config: Noise((config.tokens, config.width), (-1.0, 1.0)) if config.jitter else None,
    balances="the load of the experts, by the balance loss",
    cost="T D E",
    drops="tokens beyond the capacity of the experts that they choose",
)
"""The router `switch`."""
