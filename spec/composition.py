"""What routers that select are composed of beside an affinity and an allocation: their logits, losses and kernel."""

import numpy as np
from numpy.typing import ArrayLike

from moespec.spec.checks import check_size
from moespec.spec.initial import lecun_normal
from moespec.spec.losses import balance_loss, importance_loss, load_loss, z_loss
from moespec.spec.metrics import routing_metrics
from moespec.spec.numerics import Array
from moespec.spec.routing import Params, RouterConfig, RouterOutput, Routing
from moespec.spec.softmax import add_gating_noise, router_logits, softmax_affinity

__all__ = ["init_kernel", "noisy_logits", "router_output"]


def noisy_logits(
    params: Params, tokens: ArrayLike, config: RouterConfig, noise: ArrayLike | None
) -> tuple[Array, Array]:
    """Clean and noisy logits of as many tokens and experts as the configuration says."""
    clean = router_logits(tokens, params["kernel"])
    check_size("tokens", np.asarray(tokens), 0, config.tokens, "config.tokens")
    check_size("kernel", np.asarray(params["kernel"]), 1, config.experts, "config.experts")
    return clean, add_gating_noise(clean, noise, multiplier=config.noise_multiplier)


def router_output(
    config: RouterConfig, clean: Array, noisy: Array, noise: ArrayLike | None, routing: Routing
) -> RouterOutput:
    """The routing with its weighted losses (those with a weight), and with the unweighted ones among the metrics.

    The load loss needs noise: without it, as in evaluation, it is left out.
    """
    values: dict[str, tuple[float, Array]] = {}
    if config.importance_weight:
        values["importance"] = config.importance_weight, importance_loss(softmax_affinity(clean))
    if config.load_weight and noise is not None and config.noise_multiplier:
        noise_std = config.noise_multiplier / config.experts
        values["load"] = config.load_weight, load_loss(clean, noisy, choices=config.choices, noise_std=noise_std)
    if config.balance_weight:
        values["balance"] = config.balance_weight, balance_loss(softmax_affinity(noisy))
    if config.z_weight:
        values["z"] = config.z_weight, z_loss(clean)
    losses = {name: weight * value for name, (weight, value) in values.items()}
    reported = {f"{name}_loss": value for name, (_, value) in values.items()}
    return RouterOutput(routing, losses, {**routing_metrics(routing), **reported})


def init_kernel(generator: np.random.Generator, config: RouterConfig) -> Params:
    """`kernel` (width, experts)."""
    return {"kernel": lecun_normal(generator, (config.width, config.experts), config.width)}
