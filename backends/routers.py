"""The routers, composed once for all backends from an affinity and an allocation.

`build(B)` returns the registry `name -> Router` of a backend module `B`. Arrays have a leading `groups` axis; the
compositions are those of `moespec.spec.routers`, and the conformance suite holds them to it. Initial parameters come
from the specification. Losses and metrics are means over groups.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from moespec.spec.base_layers import even_slots
from moespec.spec.checks import check_at_least, check_integers, check_option, check_rank, check_scores, check_size
from moespec.spec.composition import LOSSES, check_one_choice
from moespec.spec.dselect_k import code_bits
from moespec.spec.gshard import check_two_choices
from moespec.spec.hash_router import check_one_hash
from moespec.spec.importance_score import surviving_tokens
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
        "importance_score": importance_score,
        "dselect_k": dselect_k,
        "base": base,
        "hash": hash_layer,
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


def importance_score(
    B: Backend, params: Params, tokens: Array, config: RouterConfig, *, noise: Array | None = None, train: bool = False
) -> RouterOutput:
    """Token Choice on the noisy softmax among the most important tokens. Section 15.5."""
    clean, noisy = _logits(B, params, tokens, config, noise)
    left = replace(config, tokens=surviving_tokens(config.tokens, config.drop))
    routing = B.importance_score_choice(
        B.softmax_affinity(noisy),
        choices=config.choices,
        capacity=left.capacity(choices=config.choices, train=train),
        drop=config.drop,
    )
    losses, reported = _losses(B, config, clean, noisy, noise)
    return RouterOutput(routing, losses, {**B.routing_metrics(routing), **reported})


def dselect_k(
    B: Backend, params: Params, tokens: Array, config: RouterConfig, *, noise: Array | None = None, train: bool = False
) -> RouterOutput:
    """DSelect-k, with a gate by token or a static one; without noise. Section 13."""
    check_option("selector_gate", config.selector_gate, ("token", "static"))
    check_at_least("choices", config.choices, 1)
    check_size("tokens", tokens, 1, config.tokens, "config.tokens")
    bits, bias = code_bits(config.experts), params["bias"]
    check_scores("bias", bias, "columns")
    check_size("bias", bias, 0, config.choices * (bits + 1), "choices and their bits")
    scores = B.router_logits(tokens, params["kernel"]) + bias if config.selector_gate == "token" else bias
    codes = scores[..., : config.choices * bits].reshape((*scores.shape[:-1], config.choices, bits))
    selectors = B.dselect_k_selectors(codes, experts=config.experts, gamma=config.selector_gamma)
    gate = B.dselect_k_gate(selectors, scores[..., config.choices * bits :])
    routing = B.dselect_k_routing(B.broadcast_to(gate, (*tokens.shape[:2], config.experts)))
    values: dict[str, tuple[float, Array]] = {}
    if config.selector_entropy_weight:
        values["selector_entropy"] = config.selector_entropy_weight, B.dselect_k_entropy(selectors)
    if config.reachability_weight and config.experts != 2**bits:
        values["reachability"] = config.reachability_weight, B.dselect_k_reachability(selectors)
    losses, reported = _weighted(values)
    return RouterOutput(routing, losses, {**B.routing_metrics(routing), **reported})


def base(
    B: Backend, params: Params, tokens: Array, config: RouterConfig, *, noise: Array | None = None, train: bool = False
) -> RouterOutput:
    """BASE: the best balanced assignment if `train`, else the greedy one; without noise. Section 14."""
    scores = _clean_logits(B, params, tokens, config)
    reported: dict[str, Array] = {}
    if train:
        assignment = B.base_assignment(scores)
        routing = B.base_routing(scores, assignment.expert, capacity=even_slots(scores))
        reported = {"gap": B.mean(assignment.gap, 0)}
    else:
        routing = B.base_routing(scores, B.base_greedy(scores), capacity=config.tokens)
    return RouterOutput(routing, {}, {**B.routing_metrics(routing), **reported})


def hash_layer(
    B: Backend,
    params: Params,
    tokens: Array,
    config: RouterConfig,
    *,
    noise: Array | None = None,
    train: bool = False,
    ids: Array | None = None,
) -> RouterOutput:
    """The expert that the table has for the id of each token; for its place where no ids are given. Section 12.

    ids: (groups, tokens).
    """
    check_one_hash(config.hashes)
    check_rank("tables", params["tables"], "hashes ids")
    ids = B.position_ids(tokens) if ids is None else ids
    check_size("tokens", tokens, 1, config.tokens, "config.tokens")
    check_integers("ids", ids, "groups tokens")
    check_size("ids", ids, 1, config.tokens, "config.tokens")
    table, capacity = B.cast(params["tables"], "int32")[0], config.capacity(train=train)
    routing = B.hash_routing(ids, table, experts=config.experts, capacity=capacity, like=tokens)
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
    return _weighted({name: (weights[name], terms[name]()) for name in LOSSES if weights[name] and name in terms})


def _weighted(values: dict[str, tuple[float, Array]]) -> tuple[dict[str, Array], dict[str, Array]]:
    """Weighted losses by name from weights and losses, and the losses as metrics."""
    weighted = {name: weight * value for name, (weight, value) in values.items()}
    return weighted, {f"{name}_loss": value for name, (_, value) in values.items()}
