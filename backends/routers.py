"""The routers of the study, composed once for all compiled backends from an affinity and an allocation.

`build(B)` returns the registry `name -> Router` of a backend module `B`. Arrays have a leading `groups` axis; the
compositions are those of `moespec.spec.routers`, and the conformance suite holds them to it. Initial parameters come
from the specification. Losses are means over groups.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from moespec.spec.routers import ROUTERS as SPEC_ROUTERS
from moespec.spec.routing import Params, Router, RouterConfig, RouterOutput

__all__ = ["build"]

Array = Any


def build(B: Any) -> dict[str, Router]:
    """The registry of backend `B`: the specification's routers with `route` replaced by the compiled composition."""

    def logits_of(params: Params, tokens: Array, config: RouterConfig, noise: Array | None) -> tuple[Array, Array]:
        clean = B.router_logits(tokens, params["kernel"])
        return clean, B.add_gating_noise(clean, noise, multiplier=config.noise_multiplier)

    def softmax_token_choice(params, tokens, config, *, noise=None, train=False):  # type: ignore[no-untyped-def]
        clean, noisy = logits_of(params, tokens, config, noise)
        scores = B.softmax_affinity(noisy)
        return _token_choice(B, config, clean, noisy, scores, combine_scores=None, noise=noise)

    def sinkhorn_token_choice(params, tokens, config, *, noise=None, train=False):  # type: ignore[no-untyped-def]
        clean, noisy = logits_of(params, tokens, config, noise)
        plan = B.sinkhorn_affinity(noisy, iterations=config.sinkhorn_iterations)
        combine = _combine_scores(B, config, clean, noisy, plan)
        return _token_choice(B, config, clean, noisy, B.stop_gradient(plan), combine_scores=combine, noise=noise)

    def softmax_expert_choice(params, tokens, config, *, noise=None, train=False):  # type: ignore[no-untyped-def]
        clean, noisy = logits_of(params, tokens, config, noise)
        scores = B.softmax_affinity(noisy)
        return _expert_choice(B, config, clean, noisy, scores, combine_scores=None, noise=noise)

    def sinkhorn_expert_choice(params, tokens, config, *, noise=None, train=False):  # type: ignore[no-untyped-def]
        clean, noisy = logits_of(params, tokens, config, noise)
        plan = B.sinkhorn_affinity(noisy, iterations=config.sinkhorn_iterations)
        combine = _combine_scores(B, config, clean, noisy, plan)
        return _expert_choice(B, config, clean, noisy, B.stop_gradient(plan), combine_scores=combine, noise=noise)

    def sparsity_constrained_expert_choice(params, tokens, config, *, noise=None, train=False):  # type: ignore[no-untyped-def]
        clean, noisy = logits_of(params, tokens, config, noise)
        utility = B.softmax_affinity(noisy)
        plan = B.sparse_transport_affinity(utility, capacity=config.capacity(), steps=config.transport_steps)
        combine = _combine_scores(B, config, clean, noisy, plan)
        return _expert_choice(B, config, clean, noisy, B.stop_gradient(plan), combine_scores=combine, noise=noise)

    def soft_moe(params, tokens, config, *, noise=None, train=False):  # type: ignore[no-untyped-def]
        routing = B.soft_routing(
            tokens,
            params["slots"],
            scale=params["scale"],
            normalize=config.normalize,
            norm_form=config.norm_form,
            dispatch=config.dispatch,
            combine=config.combine,
        )
        return RouterOutput(routing, {}, B.routing_metrics(routing))

    compositions: dict[str, Callable[..., RouterOutput]] = {
        "softmax_token_choice": softmax_token_choice,
        "sinkhorn_token_choice": sinkhorn_token_choice,
        "softmax_expert_choice": softmax_expert_choice,
        "sinkhorn_expert_choice": sinkhorn_expert_choice,
        "sparsity_constrained_expert_choice": sparsity_constrained_expert_choice,
        "soft_moe": soft_moe,
    }
    return {name: replace(SPEC_ROUTERS[name], route=route) for name, route in compositions.items()}


def _combine_scores(B: Any, config: RouterConfig, clean: Array, noisy: Array, plan: Array) -> Array:
    if config.combine_with == "plan":
        return plan
    return B.softmax_affinity(clean if config.combine_from_clean_logits else noisy)


def _token_choice(B, config, clean, noisy, scores, *, combine_scores, noise):  # type: ignore[no-untyped-def]
    order = None
    if config.batch_priority != "none":
        order = B.batch_priority(scores, by=config.batch_priority, choices=config.choices)
    capacity = config.capacity(choices=config.choices)
    routing = B.token_choice(
        scores, choices=config.choices, capacity=capacity, combine_scores=combine_scores, order=order
    )
    losses, reported = _losses(B, config, clean, noisy, noise)
    return RouterOutput(routing, losses, {**B.routing_metrics(routing), **reported})


def _expert_choice(B, config, clean, noisy, scores, *, combine_scores, noise):  # type: ignore[no-untyped-def]
    routing = B.expert_choice(
        scores, capacity=config.capacity(), combine_scores=combine_scores, drop_zero=config.drop_zero_plan
    )
    losses, reported = _losses(B, config, clean, noisy, noise)
    return RouterOutput(routing, losses, {**B.routing_metrics(routing), **reported})


def _losses(B: Any, config: RouterConfig, clean: Array, noisy: Array, noise: Array | None) -> tuple[dict, dict]:
    """The weighted losses (those with a weight) and the same unweighted, for the log."""
    values = {}
    if config.importance_weight:
        values["importance"] = (config.importance_weight, B.importance_loss(B.softmax_affinity(clean)))
    if config.load_weight and noise is not None:
        noise_std = config.noise_multiplier / config.experts
        values["load"] = (
            config.load_weight,
            B.load_loss(clean, noisy, choices=config.choices, noise_std=noise_std),
        )
    if config.balance_weight:
        values["balance"] = (config.balance_weight, B.balance_loss(B.softmax_affinity(noisy)))
    if config.z_weight:
        values["z"] = (config.z_weight, B.z_loss(clean))
    weighted = {name: weight * value for name, (weight, value) in values.items()}
    return weighted, {f"{name}_loss": value for name, (_, value) in values.items()}
