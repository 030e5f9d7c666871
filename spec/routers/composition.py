"""What routers that choose by logits are composed of, besides an affinity: logits, allocations, losses, the kernel."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from moespec.spec.checks import check_size
from moespec.spec.choice_options import BalanceCountOptions, LogitOptions, SeveralChoicesOptions
from moespec.spec.initial import lecun_normal
from moespec.spec.options import BalanceLossOptions, NoiseOptions, NoisyLossOptions, RouterOptions, TokenChoiceOptions
from moespec.spec.routers.blocks import Array, Blocks
from moespec.spec.routing import Noise, Params, RouterOutput

__all__ = [
    "Losses",
    "balance",
    "clean_losses",
    "gating_noise",
    "init_bias",
    "init_kernel",
    "jitter_noise",
    "logits",
    "noisy_logits",
    "noisy_losses",
    "output",
    "token_choice",
    "tried",
]

Losses = Mapping[str, Callable[[], Array]]
"""Losses by name, in the order in which they are summed; the option `<name>_weight` weights each."""


def init_kernel(generator: np.random.Generator, options: RouterOptions) -> Params:
    """`kernel` (width, experts), and what `init_bias` has."""
    return {"kernel": lecun_normal(generator, (options.width, options.experts), options.width), **init_bias(options)}


def init_bias(options: RouterOptions) -> Params:
    """`bias` (experts,) of 0, if the logits have one."""
    has_bias = isinstance(options, LogitOptions) and options.bias
    return {"bias": np.zeros(options.experts, np.float32)} if has_bias else {}


def jitter_noise(options: RouterOptions) -> Noise | None:
    """Uniform on [-1, 1], for every entry of every token, unless there is no jitter."""
    return Noise((options.tokens, options.width), (-1.0, 1.0)) if _has_jitter(options) else None


def _has_jitter(options: RouterOptions) -> bool:
    return isinstance(options, LogitOptions) and options.jitter > 0


def gating_noise(options: NoiseOptions) -> Noise | None:
    """Standard normal noise for the logits, unless its multiplier is 0; then the jitter, if there is any."""
    return Noise((options.tokens, options.experts)) if options.noise_multiplier else jitter_noise(options)


def logits(B: Blocks, params: Params, tokens: Array, options: RouterOptions, noise: Array | None = None) -> Array:
    """Logits without gating noise, of tokens with jitter where the options have it, of which `noise` is the draw.

    Raises ShapeError unless they have the number of tokens and experts that the options say.
    """
    bias: Params = {}
    if isinstance(options, LogitOptions):
        tokens = B.router_jitter(tokens, noise, epsilon=options.jitter) if options.jitter else tokens
        bias = {"bias": params["bias"]} if options.bias else {}
    clean = B.router_logits(tokens, params["kernel"], **bias)
    check_size("tokens", clean, -2, options.tokens, "options.tokens")
    check_size("kernel", clean, -1, options.experts, "options.experts")
    if isinstance(options, LogitOptions) and options.logit_cap:
        return B.cap_logits(clean, cap=options.logit_cap)
    return clean


def noisy_logits(
    B: Blocks, params: Params, tokens: Array, options: NoiseOptions, noise: Array | None
) -> tuple[Array, Array]:
    """Logits without and with gating noise; with jitter there is no other noise, and both have it."""
    clean = logits(B, params, tokens, options, noise)
    return clean, B.add_gating_noise(
        clean, None if _has_jitter(options) else noise, multiplier=options.noise_multiplier
    )


def token_choice(
    B: Blocks,
    options: TokenChoiceOptions,
    scores: Array,
    combine_scores: Array | None = None,
    *,
    train: bool,
    priority: Array | None = None,
    epsilon: float = 0.0,
    scale: float = 1.0,
    **more: Any,
) -> object:
    """Token Choice by `scores`, with the order, the capacity and the weights of the options; `more` is passed on to it.

    priority: the scores of which tokens have their priority, `scores` if None. epsilon: of the sum by which weights are
    divided. scale: what they are multiplied with after that.
    """
    order = None
    if options.batch_priority != "none":
        by = scores if priority is None else priority
        order = B.batch_priority(by, by=options.batch_priority, choices=options.choices)
    norm: dict[str, Any] = {"epsilon": epsilon} if epsilon else {}
    if isinstance(options, SeveralChoicesOptions):
        norm |= {"norm": options.normalize_norm} if options.normalize_norm != "sum" else {}
        more |= {"slot_order": options.slot_order} if options.slot_order != "choice" else {}
        if options.normalize_selected and options.normalize_when == "after":
            more["normalize"] = options.normalize_norm
    if options.normalize_selected and "normalize" not in more:
        combine_scores = B.normalize_selected(scores, combine_scores, choices=options.choices, **norm)
    if scale != 1:
        combine_scores = B.scaled_gates(scores if combine_scores is None else combine_scores, scale=scale)
    return B.token_choice(
        scores,
        choices=options.choices,
        capacity=options.capacity(train=train),
        combine_scores=combine_scores,
        order=order,
        **more,
    )


def tried(tries: int | None) -> dict[str, int]:
    """The option `tries` as an argument of `token_choice`."""
    return {} if tries is None else {"tries": tries}


def balance(B: Blocks, options: BalanceLossOptions, scores: Array, **counted: int) -> Array:
    """The balance loss of scores in the scope of the options; `counted` is its argument `choices`, where it is not 1."""
    if options.balance_scope == "group":
        return B.balance_loss(scores, **counted)
    load = B.expert_load(scores, scope=options.balance_scope, **{"choices": 1, **counted})
    return B.balance_loss(scores, load=load, **counted)


def clean_losses(B: Blocks, options: BalanceLossOptions, logits: Array) -> Losses:
    """The losses of a router without gating noise."""
    return {
        "importance": lambda: B.importance_loss(B.softmax_affinity(logits)),
        "balance": lambda: balance(B, options, B.softmax_affinity(logits)),
        "z": lambda: B.z_loss(logits),
    }


def noisy_losses(
    B: Blocks, options: NoisyLossOptions, clean: Array, noisy: Array, noise: Array | None, *, choices: int = 1
) -> Losses:
    """The losses of a router with gating noise. The load loss exists only with noise, so not at evaluation."""
    std = options.noise_multiplier / options.experts
    load = {"load": lambda: B.load_loss(clean, noisy, choices=choices, noise_std=std)}
    counts_all = isinstance(options, BalanceCountOptions) and options.balance_counts == "all"
    counted = {"choices": choices} if counts_all else {}
    balanced = noisy if options.balance_logits == "noisy" else clean
    return {
        "importance": lambda: B.importance_loss(B.softmax_affinity(clean)),
        **(load if noise is not None and std else {}),
        "balance": lambda: balance(B, options, B.softmax_affinity(balanced), **counted),
        "z": lambda: B.z_loss(noisy if options.z_logits == "noisy" else clean),
    }


def output(B: Blocks, options: RouterOptions, routing: object, losses: Losses | None = None) -> RouterOutput:
    """The routing with its weighted losses (those with a weight), and with the unweighted ones among the metrics."""
    weights = {name: getattr(options, f"{name}_weight") for name in losses or {}}
    values = {name: loss() for name, loss in (losses or {}).items() if weights[name]}
    weighted = {name: weights[name] * value for name, value in values.items()}
    reported = {f"{name}_loss": value for name, value in values.items()}
    return RouterOutput(routing, weighted, {**B.routing_metrics(routing), **reported})
