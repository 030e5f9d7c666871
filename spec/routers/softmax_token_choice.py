"""Token Choice by the softmax: each token chooses the experts of its highest noisy probabilities (V-MoE).

| here | V-MoE (arXiv 2106.05974) |
|---|---|
| `kernel` (D, E) | W |
| noise of standard deviation `noise_multiplier / E` | epsilon, sigma = 1 / E |
| `choices` | k |
| `importance_weight`, `load_weight` | weights of the auxiliary losses |

Ambiguity ledger

RT-5: What are the capacity and its rounding in the study?
    Reading: the factor of the router, rounded up.
    Alternative b: unknown; the paper gives the factor only.
"""

from dataclasses import dataclass

from moespec.spec.algorithms.token_choice import check_slot_order
from moespec.spec.checks import check_tries
from moespec.spec.choice_options import BalanceCountOptions, LogitOptions, SeveralChoicesOptions
from moespec.spec.options import NoisyLossOptions
from moespec.spec.ranges import Count, Weight
from moespec.spec.routers.blocks import Array, Blocks
from moespec.spec.routers.composition import (
    gating_noise,
    init_kernel,
    noisy_logits,
    noisy_losses,
    output,
    token_choice,
    tried,
)
from moespec.spec.routers.record import Router
from moespec.spec.routing import Params, RouterOutput

__all__ = ["ROUTER", "Options", "route"]


@dataclass(frozen=True, kw_only=True)
class Options(NoisyLossOptions, BalanceCountOptions, SeveralChoicesOptions, LogitOptions):
    """Options of `softmax_token_choice`."""

    choices: Count = 1
    """experts K that a token chooses"""
    tries: Count | None = None
    """how many of its best experts a token tries in turn when some are full; by default only those that it chooses"""
    importance_weight: Weight = 0.005
    load_weight: Weight = 0.005

    def __post_init__(self) -> None:
        super().__post_init__()
        check_slot_order(self.slot_order, check_tries(self.tries, self.choices, self.experts), self.choices)


def route(
    B: Blocks, params: Params, tokens: Array, options: Options, *, noise: Array | None = None, train: bool = False
) -> RouterOutput:
    """Token Choice by the noisy softmax.

    noise: (tokens, experts), a draw of the standard normal, of which `noise_multiplier / E` is added to the logits.
    train: whether the capacity is that of training.
    """
    clean, noisy = noisy_logits(B, params, tokens, options, noise)
    routing = token_choice(B, options, B.softmax_affinity(noisy), train=train, **tried(options.tries))
    return output(B, options, routing, noisy_losses(B, options, clean, noisy, noise, choices=options.choices))


ROUTER = Router(
    __name__,
    "Riquelme et al. 2021 (arXiv 2106.05974)",
    Options,
    init_kernel,
    route,
    gating_noise,
    models=(
        *("V-MoE", "Mixtral", "OLMoE", "Qwen2-MoE", "Qwen3-MoE", "Qwen3-VL-MoE", "Qwen3-Next", "Qwen3.5-MoE"),
        *("gpt-oss", "Hunyuan V1 MoE"),
    ),
    balances="the load of the experts, by the importance and load losses",
    cost="T D E",
    drops="tokens beyond the capacity of the experts that they choose or, with `tries`, try",
    revision=5,
)
