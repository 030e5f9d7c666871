"""Helpers that routers share: initial parameters, noise, size checks, losses and the output record."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from moespec.spec.algorithms.balance_loss import balance_loss
from moespec.spec.algorithms.logit_cap import cap_logits
from moespec.spec.algorithms.loss_free import expert_load
from moespec.spec.algorithms.losses import importance_loss, load_loss
from moespec.spec.algorithms.metrics import routing_metrics
from moespec.spec.algorithms.replay import replay_choices
from moespec.spec.algorithms.router_jitter import router_jitter
from moespec.spec.algorithms.softmax import add_gating_noise, router_logits, softmax_affinity
from moespec.spec.algorithms.z_loss import z_loss
from moespec.spec.checks import check_size
from moespec.spec.initial import lecun_normal
from moespec.spec.routing import Array, Noise, Params, RouterOutput, Routing

__all__ = [
    "auxiliary_losses",
    "check_logits",
    "gating_noise",
    "init_bias",
    "init_kernel",
    "jitter_noise",
    "noisy_logits",
    "output",
    "replay",
    "scoped_balance_loss",
]


def init_kernel(generator: np.random.Generator, options: Any) -> Params:
    """Returns `kernel` (width, experts), and the parameters that `init_bias` returns."""
    return {"kernel": lecun_normal(generator, (options.width, options.experts), options.width), **init_bias(options)}


def init_bias(options: Any) -> Params:
    """Returns `bias` (experts,), all 0, if the option `bias` is True, and no parameters otherwise."""
    return {"bias": np.zeros(options.experts, np.float32)} if getattr(options, "bias", False) else {}


def jitter_noise(options: Any) -> Noise | None:
    """Describes the jitter noise, uniform on [-1, 1], with one number per entry of each token. Returns None without jitter."""
    return Noise((options.tokens, options.width), (-1.0, 1.0)) if options.jitter else None


def gating_noise(options: Any) -> Noise | None:
    """Describes the standard normal noise for the logits or, if `noise_multiplier` is 0, the noise for the jitter."""
    return Noise((options.tokens, options.experts)) if options.noise_multiplier else jitter_noise(options)


def check_logits(logits: Array, options: Any) -> None:
    """Raises ShapeError unless the logits match the numbers of tokens and experts in `options`."""
    check_size("tokens", logits, -2, options.tokens, "options.tokens")
    check_size("kernel", logits, -1, options.experts, "options.experts")


def noisy_logits(params: Params, tokens: Array, options: Any, noise: Array | None) -> tuple[Array, Array]:
    """Returns the logits without and with the gating noise. With the option `jitter`, the noise changes the tokens instead."""
    router_input = router_jitter(tokens, noise, epsilon=options.jitter) if options.jitter else tokens
    logits = router_logits(router_input, params["kernel"], params["bias"] if options.bias else None)
    check_logits(logits, options)
    if options.logit_cap:
        logits = cap_logits(logits, cap=options.logit_cap)
    noisy = add_gating_noise(logits, None if options.jitter else noise, multiplier=options.noise_multiplier)
    return logits, noisy


def scoped_balance_loss(scores: Array, *, scope: str, choices: int | None = None) -> Array:
    """Returns the balance loss. The load counts the first `choices` choices (default: 1) of each token in the groups of `scope`."""
    load = None if scope == "group" else expert_load(scores, choices=choices or 1, scope=scope)
    return balance_loss(scores, load) if choices is None else balance_loss(scores, load, choices=choices)


def auxiliary_losses(
    options: Any,
    logits: Array,
    noisy: Array | None = None,
    noise: Array | None = None,
    *,
    choices: int = 1,
    counted: int | None = None,
) -> dict[str, Array]:
    """Returns the auxiliary losses whose weights are not 0, before they are multiplied by the weights.

    `importance_loss` uses the softmax of the logits. `load_loss` uses the clean logits, the noisy logits and `choices`, and
    requires noise. `balance_loss` uses the softmax of the noisy or clean logits (option `balance_logits`) and counts the
    first `counted` choices of a token. `z_loss` uses the clean or noisy logits (option `z_logits`).
    """
    losses: dict[str, Array] = {}
    if options.importance_weight:
        losses["importance"] = importance_loss(softmax_affinity(logits))
    if noisy is not None and noise is not None and options.load_weight and options.noise_multiplier:
        std = options.noise_multiplier / options.experts
        losses["load"] = load_loss(logits, noisy, choices=choices, noise_std=std)
    if options.balance_weight:
        balanced = logits if noisy is None or options.balance_logits == "clean" else noisy
        scores = softmax_affinity(balanced)
        losses["balance"] = scoped_balance_loss(scores, scope=options.balance_scope, choices=counted)
    if options.z_weight:
        losses["z"] = z_loss(logits if noisy is None or options.z_logits == "clean" else noisy)
    return losses


def replay(
    options: Any, choices: Array | None, scores: Array, combine_scores: Array | None = None
) -> tuple[Array, Array | None, Array | None]:
    """Returns `replay_choices(scores, choices, combine_scores)` or, without recorded `choices`, the scores as they are, and None.

    Raises ShapeError unless `choices` (tokens, choices) has K choices for each token.
    """
    if choices is None:
        return scores, combine_scores, None
    check_size("choices", choices, -1, options.choices, "options.choices")
    return replay_choices(scores, choices, combine_scores)


def output(options: Any, routing: Routing, losses: Mapping[str, Any] | None = None) -> RouterOutput:
    """Returns the routing with its losses, each weighted by the option `<name>_weight`. The metrics include the unweighted losses."""
    losses = losses or {}
    weighted = {name: getattr(options, f"{name}_weight") * loss for name, loss in losses.items()}
    reported = {f"{name}_loss": loss for name, loss in losses.items()}
    return RouterOutput(routing, weighted, {**routing_metrics(routing), **reported})
