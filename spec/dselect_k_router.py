"""The router of DSelect-k: its parameters, and the gate and the losses of `dselect_k` put together."""

import numpy as np
from numpy.typing import ArrayLike

from moespec.spec.checks import as_array, check_at_least, check_option, check_size
from moespec.spec.dselect_k import (
    code_bits,
    dselect_k_entropy,
    dselect_k_gate,
    dselect_k_reachability,
    dselect_k_routing,
    dselect_k_selectors,
)
from moespec.spec.initial import uniform
from moespec.spec.metrics import routing_metrics
from moespec.spec.numerics import Array
from moespec.spec.routing import Params, Router, RouterConfig, RouterOutput, no_noise
from moespec.spec.softmax import router_logits

__all__ = ["DSELECT_K", "dselect_k"]


def dselect_k(
    params: Params, tokens: ArrayLike, config: RouterConfig, *, noise: ArrayLike | None = None, train: bool = False
) -> RouterOutput:
    """The router: `choices` selectors, their codes by token (`tokens @ kernel + bias`) or static (`bias`).

    The first K M columns are the codes, selector after selector, the last K the logits. Without noise. The reachability
    counts only where some code has no expert. Section 13.

    >>> from moespec.spec.examples import LOGITS
    >>> config = DSELECT_K.configure(width=3, experts=4, tokens=6, choices=1, selector_gamma=4.0)
    >>> output = dselect_k({"kernel": np.eye(3), "bias": np.zeros(3)}, LOGITS, config)
    >>> output.routing.combine.sum(axis=2).round(4).tolist()[:2]  # one selector: bits of the codes 1, 0 and 2, 0.5
    [[0.0781, 0.0781, 0.4219, 0.4219], [0.0, 0.0, 0.3164, 0.6836]]
    >>> output.routing.dispatch.sum(axis=(0, 2)).astype(int).tolist()  # tokens of each expert
    [3, 4, 5, 6]
    """
    check_option("selector_gate", config.selector_gate, ("token", "static"))
    check_at_least("choices", config.choices, 1)
    tokens, bias = as_array("tokens", tokens, "tokens width"), as_array("bias", params["bias"], "columns")
    check_size("tokens", tokens, 0, config.tokens, "config.tokens")
    bits = code_bits(config.experts)
    check_size("bias", bias, 0, config.choices * (bits + 1), "choices and their bits")
    scores = router_logits(tokens, params["kernel"]) + bias if config.selector_gate == "token" else bias
    codes = scores[..., : config.choices * bits].reshape(*scores.shape[:-1], config.choices, bits)
    selectors = dselect_k_selectors(codes, experts=config.experts, gamma=config.selector_gamma)
    gate = dselect_k_gate(selectors, scores[..., config.choices * bits :])
    routing = dselect_k_routing(np.broadcast_to(gate, (len(tokens), config.experts)))
    values: dict[str, tuple[float, Array]] = {}
    if config.selector_entropy_weight:
        values["selector_entropy"] = config.selector_entropy_weight, dselect_k_entropy(selectors)
    if config.reachability_weight and config.experts != 2**bits:
        values["reachability"] = config.reachability_weight, dselect_k_reachability(selectors)
    losses = {name: weight * value for name, (weight, value) in values.items()}
    return RouterOutput(
        routing, losses, {**routing_metrics(routing), **{f"{n}_loss": value for n, (_, value) in values.items()}}
    )


def _init(generator: np.random.Generator, config: RouterConfig) -> Params:
    """`bias` (choices * (bits + 1),) and, for a gate by token, `kernel` (width, choices * (bits + 1))."""
    bits = code_bits(config.experts)

    def columns(*rows: int) -> Array:
        codes = uniform(generator, (*rows, config.choices * bits), config.selector_gamma / 100)
        return np.concatenate([codes, uniform(generator, (*rows, config.choices), 0.05)], axis=-1)

    return (
        {"bias": columns()}
        if config.selector_gate == "static"
        else {"kernel": columns(config.width), "bias": columns()}
    )


DSELECT_K = Router(
    "dselect_k",
    "Hazimeh et al. 2021 (arXiv 2106.03760)",
    _init,
    dselect_k,
    {"choices": 2, "noise_multiplier": 0.0, "selector_entropy_weight": 1e-6, "reachability_weight": 1.0},
    no_noise,
    idle_experts=True,
    balances="nothing; a loss keeps the reachable codes of a selector whole",
    cost="T D K (1 + log2 E) and T K E; an expert may be given every token",
    drops="none",
)
"""The router of DSelect-k."""
