"""DSelect-k: K selectors choose experts by codes, which are computed from each token or learned as values that all tokens share.

| here | DSelect-k (arXiv 2106.03760) |
|---|---|
| `choices` | k, the selectors |
| `selector_gate` | per-example ("token") or static gating |
| `selector_gamma` | gamma |
| `selector_entropy_weight` | lambda, of the entropy |
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from moespec.spec.algorithms.dselect_k import dselect_k_gate, dselect_k_routing, dselect_k_selectors
from moespec.spec.algorithms.dselect_k_codes import code_bits, dselect_k_codes
from moespec.spec.algorithms.dselect_k_losses import dselect_k_entropy, dselect_k_reachability
from moespec.spec.checks import check_size
from moespec.spec.initial import uniform
from moespec.spec.options import RouterOptions
from moespec.spec.ranges import Count, Range, Weight
from moespec.spec.routers.common import output
from moespec.spec.routers.record import Router
from moespec.spec.routing import Array, Params, RouterOutput

__all__ = ["ROUTER", "Options", "init", "route"]


@dataclass(frozen=True, kw_only=True)
class Options(RouterOptions):
    """Options of `dselect_k`."""

    choices: Count = 2
    """number of selectors K; each converges to one expert"""
    selector_gate: Literal["token", "static"] = "token"
    """source of the selectors' codes: each token, or learned values shared by all tokens"""
    selector_gamma: Annotated[float, Range(1e-9, 1e9)] = 1.0
    """width of the selectors' smooth step"""
    selector_entropy_weight: Weight = 1e-6
    """weight of the entropy loss of the selectors"""
    reachability_weight: Weight = 1e-4
    """weight of the loss for selectors on codes without an expert; no loss if every code has an expert"""


def init(generator: np.random.Generator, options: Options) -> Params:
    """Returns `bias` (choices * (bits + 1),) and, for a per-token gate, `kernel` (width, choices * (bits + 1))."""
    bits = code_bits(options.experts)

    def columns(*rows: int) -> Array:
        codes = uniform(generator, (*rows, options.choices * bits), options.selector_gamma / 100)
        return np.concatenate([codes, uniform(generator, (*rows, options.choices), 0.05)], axis=-1)

    if options.selector_gate == "static":
        return {"bias": columns()}
    return {"kernel": columns(options.width), "bias": columns()}


def route(
    params: Params, tokens: Array, options: Options, *, noise: Array | None = None, train: bool = False
) -> RouterOutput:
    """Sends each token to the experts that its selectors choose. This router uses no noise.

    params: `bias`, (choices * (bits + 1),) with `bits = ceil(log2 experts)`, and, for a per-token gate, `kernel`,
    (width, choices * (bits + 1)). The router computes the losses in training and at evaluation.

    Source: DSelect-k. The ledgers of `dselect_k` and `dselect_k_losses` list the questions that the paper leaves open.

    >>> from moespec.spec import ROUTERS
    >>> from moespec.spec.examples import LOGITS
    >>> router = ROUTERS["dselect_k"]
    >>> options = router.options(width=3, experts=4, tokens=6, choices=1, selector_gamma=4.0)
    >>> output = router.route({"kernel": np.eye(3), "bias": np.zeros(3)}, LOGITS, options)
    >>> output.routing.combine.sum(axis=2).round(4).tolist()[:2]  # one selector: code bits (1, 0) and (2, 0.5)
    [[0.0781, 0.0781, 0.4219, 0.4219], [0.0, 0.0, 0.3164, 0.6836]]
    >>> output.routing.dispatch.sum(axis=(0, 2)).astype(int).tolist()  # tokens of each expert
    [3, 4, 5, 6]
    """
    check_size("tokens", tokens, -2, options.tokens, "options.tokens")
    kernel = params["kernel"] if options.selector_gate == "token" else None
    codes = dselect_k_codes(tokens, params["bias"], kernel, choices=options.choices, experts=options.experts)
    selectors = dselect_k_selectors(codes.codes, experts=options.experts, gamma=options.selector_gamma)
    gate = dselect_k_gate(selectors, codes.logits)
    routing = dselect_k_routing(gate, like=tokens)
    losses: dict[str, Array] = {}
    if options.selector_entropy_weight:
        losses["selector_entropy"] = dselect_k_entropy(selectors)
    if options.reachability_weight and options.experts != 2 ** code_bits(options.experts):
        losses["reachability"] = dselect_k_reachability(selectors)
    return output(options, routing, losses)


ROUTER = Router(
    __name__,
    "Hazimeh et al. 2021 (arXiv 2106.03760)",
    Options,
    init,
    route,
    revision=3,
    balances="nothing; a loss keeps selectors away from codes without an expert",
    cost="T D K (1 + log2 E), plus T K E; an expert may get every token",
    drops="none",
)
