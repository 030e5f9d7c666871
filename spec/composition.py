"""What routers that select are composed of beside an affinity: logits, Token Choice, losses and the initial kernel."""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from moespec.spec.batch_priority import batch_priority
from moespec.spec.checks import check_option, check_size
from moespec.spec.errors import ConfigError
from moespec.spec.initial import lecun_normal
from moespec.spec.losses import balance_loss, importance_loss, load_loss, z_loss
from moespec.spec.metrics import routing_metrics
from moespec.spec.numerics import Array
from moespec.spec.routing import Params, RouterConfig, RouterOutput, Routing
from moespec.spec.softmax import add_gating_noise, router_logits, softmax_affinity
from moespec.spec.token_choice import normalize_selected, token_choice

__all__ = [
    "LOSSES",
    "check_one_choice",
    "clean_logits",
    "init_kernel",
    "noisy_logits",
    "router_output",
    "token_choice_routing",
]


def clean_logits(params: Params, tokens: ArrayLike, config: RouterConfig) -> Array:
    """Logits of as many tokens and experts as the configuration says."""
    logits = router_logits(tokens, params["kernel"])
    check_size("tokens", np.asarray(tokens), 0, config.tokens, "config.tokens")
    check_size("kernel", np.asarray(params["kernel"]), 1, config.experts, "config.experts")
    return logits


def noisy_logits(
    params: Params, tokens: ArrayLike, config: RouterConfig, noise: ArrayLike | None
) -> tuple[Array, Array]:
    """Clean and noisy logits."""
    clean = clean_logits(params, tokens, config)
    return clean, add_gating_noise(clean, noise, multiplier=config.noise_multiplier)


def check_one_choice(config: RouterConfig) -> None:
    """`ConfigError` unless a token chooses one expert."""
    if config.choices != 1:
        raise ConfigError(f"choices: a token of this router chooses one expert, expected 1, got {config.choices!r}")


def token_choice_routing(
    config: RouterConfig,
    scores: Array,
    combine_scores: Array | None,
    *,
    train: bool,
    keep: Array | None = None,
) -> Routing:
    """Token Choice with the order, the capacity and the weights that the configuration says."""
    check_option("batch_priority", config.batch_priority, ("none", "max", "sum"))
    order = None
    if config.batch_priority != "none":
        order = batch_priority(scores, by=config.batch_priority, choices=config.choices)
    capacity = config.capacity(choices=config.choices, train=train)
    if config.normalize_selected:
        combine_scores = normalize_selected(scores, combine_scores, choices=config.choices)
    return token_choice(
        scores, choices=config.choices, capacity=capacity, combine_scores=combine_scores, order=order, keep=keep
    )


def router_output(
    config: RouterConfig,
    clean: Array,
    noisy: Array,
    noise: ArrayLike | None,
    routing: Routing,
    **own: Callable[[], Array],
) -> RouterOutput:
    """The routing with its weighted losses (those with a weight), and with the unweighted ones among the metrics.

    The load loss needs noise: without it, as in evaluation, it is left out. `own` are losses, by name, that the router
    computes another way.
    """
    terms: dict[str, Callable[[], Array]] = {
        "importance": lambda: importance_loss(softmax_affinity(clean)),
        "balance": lambda: balance_loss(softmax_affinity(noisy)),
        "z": lambda: z_loss(clean),
    }
    if noise is not None and config.noise_multiplier:
        noise_std = config.noise_multiplier / config.experts
        terms["load"] = lambda: load_loss(clean, noisy, choices=config.choices, noise_std=noise_std)
    weights = {name: getattr(config, f"{name}_weight") for name in LOSSES}
    terms |= own
    values = {name: terms[name]() for name in LOSSES if weights[name] and name in terms}
    losses = {name: weights[name] * value for name, value in values.items()}
    reported = {f"{name}_loss": value for name, value in values.items()}
    return RouterOutput(routing, losses, {**routing_metrics(routing), **reported})


LOSSES = ("importance", "load", "balance", "z")
"""Auxiliary losses; `<name>_weight` in the configuration is the weight of each."""


def init_kernel(generator: np.random.Generator, config: RouterConfig) -> Params:
    """`kernel` (width, experts)."""
    return {"kernel": lecun_normal(generator, (config.width, config.experts), config.width)}
