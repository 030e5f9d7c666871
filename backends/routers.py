"""The routers of the study, composed once for all backends from an affinity and an allocation.

`build(B)` returns the registry `name -> Router` of a backend module `B`. Arrays have a leading `groups` axis; the
compositions are those of `moespec.spec.routers`, and the conformance suite holds them to it. Initial parameters come
from the specification. Losses and metrics are means over groups.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from moespec.spec.checks import check_option, check_size
from moespec.spec.composition import LOSSES, check_one_choice
from moespec.spec.gshard import check_two_choices
from moespec.spec.routers import ROUTERS as SPEC_ROUTERS
from moespec.spec.routing import Params, Router, RouterConfig, RouterOutput, check_fixed_capacity

__all__ = ["build"]

Array = Any
Backend = Any


def build(B: Backend) -> dict[str, Router]:
    """The registry of backend `B`: the specification's routers with `route` replaced by the backend's composition."""
    compositions: dict[str, Callable[..., RouterOutput]] = {
        "softmax_token_choice": softmax_token_choice,
        "sinkhorn_token_choice": sinkhorn_token_choice,
        "softmax_expert_choice": softmax_expert_choice,
        "sinkhorn_expert_choice": sinkhorn_expert_choice,
        "sparsity_constrained_expert_choice": sparsity_constrained_expert_choice,
        "soft_moe": soft_moe,
        "noisy_top_k": noisy_top_k,
        "switch": switch,
        "s_base": s_base,
        "gshard": gshard,
    }
    return {name: replace(SPEC_ROUTERS[name], route=partial(route, B)) for name, route in compositions.items()}


def softmax_token_choice(
    B: Backend, params: Params, tokens: Array, config: RouterConfig, *, noise: Array | None = None, train: bool = False
) -> RouterOutput:
    """Token Choice on the noisy softmax (V-MoE). tokens: (groups, tokens, width); noise: (groups, tokens, experts)."""
    clean, noisy = _logits(B, params, tokens, config, noise)
    return _token_choice(B, config, clean, noisy, B.softmax_affinity(noisy), None, noise, train)


def sinkhorn_token_choice(
    B: Backend, params: Params, tokens: Array, config: RouterConfig, *, noise: Array | None = None, train: bool = False
) -> RouterOutput:
    """Token Choice on the Sinkhorn plan, combined with the softmax. Section 7.1."""
    clean, noisy = _logits(B, params, tokens, config, noise)
    plan = _sinkhorn_plan(B, config, noisy)
    combine_scores = _combine_scores(B, config, clean, noisy, plan)
    return _token_choice(B, config, clean, noisy, B.stop_gradient(plan), combine_scores, noise, train)


def softmax_expert_choice(
    B: Backend, params: Params, tokens: Array, config: RouterConfig, *, noise: Array | None = None, train: bool = False
) -> RouterOutput:
    """Expert Choice on the noisy softmax."""
    clean, noisy = _logits(B, params, tokens, config, noise)
    return _expert_choice(B, config, clean, noisy, B.softmax_affinity(noisy), None, noise, train)


def sinkhorn_expert_choice(
    B: Backend, params: Params, tokens: Array, config: RouterConfig, *, noise: Array | None = None, train: bool = False
) -> RouterOutput:
    """Expert Choice on the Sinkhorn plan, combined with the softmax. Section 7.2."""
    clean, noisy = _logits(B, params, tokens, config, noise)
    plan = _sinkhorn_plan(B, config, noisy)
    combine_scores = _combine_scores(B, config, clean, noisy, plan)
    return _expert_choice(B, config, clean, noisy, B.stop_gradient(plan), combine_scores, noise, train)


def sparsity_constrained_expert_choice(
    B: Backend, params: Params, tokens: Array, config: RouterConfig, *, noise: Array | None = None, train: bool = False
) -> RouterOutput:
    """Expert Choice on the sparsity-constrained plan of the softmax, combined with the softmax. Section 8.7."""
    check_option("combine_with", config.combine_with, ("softmax",))
    clean, noisy = _logits(B, params, tokens, config, noise)
    utility = B.stop_gradient(B.softmax_affinity(noisy))
    plan = B.sparse_transport_affinity(utility, capacity=config.capacity(train=train), steps=config.transport_steps)
    combine_scores = _combine_scores(B, config, clean, noisy, plan)
    return _expert_choice(B, config, clean, noisy, plan, combine_scores, noise, train)


def soft_moe(
    B: Backend, params: Params, tokens: Array, config: RouterConfig, *, noise: Array | None = None, train: bool = False
) -> RouterOutput:
    """Soft MoE and its ablations; without noise and auxiliary losses. Section 9."""
    check_fixed_capacity(config)
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


def noisy_top_k(
    B: Backend, params: Params, tokens: Array, config: RouterConfig, *, noise: Array | None = None, train: bool = False
) -> RouterOutput:
    """Token Choice on the noisy logits, whose noise has a learned scale, combined with their gates. Section 2.4."""
    clean = _clean_logits(B, params, tokens, config)
    scales = B.router_logits(tokens, params["noise_kernel"])
    noisy = B.noisy_top_k_logits(clean, scales, noise)
    gates = B.noisy_top_k_affinity(noisy, choices=config.choices)
    own = {"importance": lambda: B.importance_loss(gates)}
    if noise is not None:
        own["load"] = lambda: B.noisy_top_k_load_loss(clean, scales, noisy, choices=config.choices)
    return _token_choice(B, config, clean, noisy, B.stop_gradient(noisy), gates, None, train, **own)


def switch(
    B: Backend, params: Params, tokens: Array, config: RouterConfig, *, noise: Array | None = None, train: bool = False
) -> RouterOutput:
    """Token Choice of one expert on the softmax of jittered tokens; noise: (groups, tokens, width). Section 11."""
    check_one_choice(config)
    logits = _clean_logits(B, params, B.router_jitter(tokens, noise, epsilon=config.jitter), config)
    return _token_choice(B, config, logits, logits, B.softmax_affinity(logits), None, None, train)


def s_base(
    B: Backend, params: Params, tokens: Array, config: RouterConfig, *, noise: Array | None = None, train: bool = False
) -> RouterOutput:
    """Token Choice of one expert, on the Sinkhorn plan if `train`, else on the softmax. Section 7.3."""
    check_one_choice(config)
    check_option("combine_with", config.combine_with, ("softmax", "sigmoid"))
    clean, noisy = _logits(B, params, tokens, config, noise)
    scores = B.softmax_affinity(noisy)
    gates = scores if config.combine_with == "softmax" else B.sigmoid_affinity(noisy)
    selection = B.stop_gradient(_sinkhorn_plan(B, config, noisy) if train else scores)
    return _token_choice(B, config, clean, noisy, selection, gates, noise, train)


def gshard(
    B: Backend, params: Params, tokens: Array, config: RouterConfig, *, noise: Array | None = None, train: bool = False
) -> RouterOutput:
    """Token Choice of two experts, the second kept at random by noise (groups, tokens). Section 20."""
    check_two_choices(config)
    logits = _clean_logits(B, params, tokens, config)
    scores = B.softmax_affinity(logits)
    keep = None if noise is None else B.gshard_keep(B.normalize_selected(scores, choices=2), noise)
    return _token_choice(B, config, logits, logits, scores, None, None, train, keep)


def _clean_logits(B: Backend, params: Params, tokens: Array, config: RouterConfig) -> Array:
    """Logits of as many tokens and experts as the configuration says."""
    logits = B.router_logits(tokens, params["kernel"])
    check_size("tokens", tokens, 1, config.tokens, "config.tokens")
    check_size("kernel", params["kernel"], 1, config.experts, "config.experts")
    return logits


def _logits(
    B: Backend, params: Params, tokens: Array, config: RouterConfig, noise: Array | None
) -> tuple[Array, Array]:
    """Clean and noisy logits."""
    clean = _clean_logits(B, params, tokens, config)
    return clean, B.add_gating_noise(clean, noise, multiplier=config.noise_multiplier)


def _sinkhorn_plan(B: Backend, config: RouterConfig, noisy: Array) -> Array:
    # A plan that only selects is cut off from the gradient before its iterations, so that none of them is recorded.
    logits = noisy if config.combine_with == "plan" else B.stop_gradient(noisy)
    return B.sinkhorn_affinity(logits, iterations=config.sinkhorn_iterations)


def _combine_scores(B: Backend, config: RouterConfig, clean: Array, noisy: Array, plan: Array) -> Array:
    check_option("combine_with", config.combine_with, ("softmax", "plan"))
    if config.combine_with == "plan":
        return plan
    return B.softmax_affinity(clean if config.combine_from_clean_logits else noisy)


def _token_choice(
    B: Backend,
    config: RouterConfig,
    clean: Array,
    noisy: Array,
    scores: Array,
    combine_scores: Array | None,
    noise: Array | None,
    train: bool,
    keep: Array | None = None,
    **own: Callable[[], Array],
) -> RouterOutput:
    check_option("batch_priority", config.batch_priority, ("none", "max", "sum"))
    order = None
    if config.batch_priority != "none":
        order = B.batch_priority(scores, by=config.batch_priority, choices=config.choices)
    if config.normalize_selected:
        combine_scores = B.normalize_selected(scores, combine_scores, choices=config.choices)
    kept = {} if keep is None else {"keep": keep}
    routing = B.token_choice(
        scores,
        choices=config.choices,
        capacity=config.capacity(choices=config.choices, train=train),
        combine_scores=combine_scores,
        order=order,
        **kept,
    )
    losses, reported = _losses(B, config, clean, noisy, noise, **own)
    return RouterOutput(routing, losses, {**B.routing_metrics(routing), **reported})


def _expert_choice(
    B: Backend,
    config: RouterConfig,
    clean: Array,
    noisy: Array,
    scores: Array,
    combine_scores: Array | None,
    noise: Array | None,
    train: bool,
) -> RouterOutput:
    routing = B.expert_choice(
        scores, capacity=config.capacity(train=train), combine_scores=combine_scores, drop_zero=config.drop_zero_plan
    )
    losses, reported = _losses(B, config, clean, noisy, noise)
    return RouterOutput(routing, losses, {**B.routing_metrics(routing), **reported})


def _losses(
    B: Backend,
    config: RouterConfig,
    clean: Array,
    noisy: Array,
    noise: Array | None,
    **own: Callable[[], Array],
) -> tuple[dict[str, Array], dict[str, Array]]:
    """The weighted losses (those with a weight), and the same unweighted for the log.

    `own` are losses, by name, that the router computes another way.
    """
    terms: dict[str, Callable[[], Array]] = {
        "importance": lambda: B.importance_loss(B.softmax_affinity(clean)),
        "balance": lambda: B.balance_loss(B.softmax_affinity(noisy)),
        "z": lambda: B.z_loss(clean),
    }
    if noise is not None and config.noise_multiplier:
        noise_std = config.noise_multiplier / config.experts
        terms["load"] = lambda: B.load_loss(clean, noisy, choices=config.choices, noise_std=noise_std)
    weights = {name: getattr(config, f"{name}_weight") for name in LOSSES}
    terms |= own
    values = {name: terms[name]() for name in LOSSES if weights[name] and name in terms}
    weighted = {name: weights[name] * value for name, value in values.items()}
    return weighted, {f"{name}_loss": value for name, value in values.items()}
