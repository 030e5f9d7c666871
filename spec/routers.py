"""The six routers of the study, each the composition of an affinity and an allocation.

Ambiguity ledger

RT-1: Is the combine softmax of the Sinkhorn routers that of the noisy logits?
    Reading: yes, as the plan.
    Alternatives: of the clean logits (`combine_from_clean_logits`; the Token Choice class in the code of V-MoE).
RT-2: Which weights do the plan routers combine with?
    Reading: the softmax; the plan selects and carries no gradient.
    Alternatives: the Sinkhorn plan, differentiated through its iterations (`combine_with="plan"`).
RT-3: What is the fan-in of the initial slots of Soft MoE?
    Reading: width times experts, which is what the initialiser of the public code counts.
    Alternatives: the width, over which the logits sum.
"""

import numpy as np
from numpy.typing import ArrayLike

from moespec.spec.batch_priority import batch_priority
from moespec.spec.checks import check_option
from moespec.spec.expert_choice import expert_choice
from moespec.spec.losses import balance_loss, importance_loss, load_loss, z_loss
from moespec.spec.metrics import routing_metrics
from moespec.spec.numerics import Array, stop_gradient
from moespec.spec.routing import Params, Router, RouterConfig, RouterOutput
from moespec.spec.sinkhorn import sinkhorn_affinity
from moespec.spec.soft_moe import soft_routing
from moespec.spec.softmax import add_gating_noise, router_logits, softmax_affinity
from moespec.spec.sparse_transport import sparse_transport_affinity
from moespec.spec.token_choice import token_choice

__all__ = ["ROUTERS", "lecun_normal"]


def lecun_normal(generator: np.random.Generator, shape: tuple[int, ...], fan_in: int) -> Array:
    """Float32 draws of the normal truncated at two standard deviations, rescaled to variance `1 / fan_in`."""
    draws = generator.standard_normal(shape)
    outside = np.flatnonzero((draws < -2) | (draws > 2))
    while len(outside):
        fresh = generator.standard_normal(len(outside))
        draws.flat[outside] = fresh
        outside = outside[(fresh < -2) | (fresh > 2)]
    return (draws / (TRUNCATED_STD * np.sqrt(fan_in))).astype(np.float32)


TRUNCATED_STD = 0.87962566103423978
"""Standard deviation of the standard normal truncated to [-2, 2]."""


def _init_kernel(generator: np.random.Generator, config: RouterConfig) -> Params:
    return {"kernel": lecun_normal(generator, (config.width, config.experts), config.width)}


def _init_slots(generator: np.random.Generator, config: RouterConfig) -> Params:
    shape = (config.width, config.experts, config.capacity())
    return {"slots": lecun_normal(generator, shape, config.width * config.experts), "scale": np.ones((), np.float32)}


def _logits(params: Params, tokens: ArrayLike, config: RouterConfig, noise: ArrayLike | None) -> tuple[Array, Array]:
    """Clean and noisy logits."""
    clean = router_logits(tokens, params["kernel"])
    return clean, add_gating_noise(clean, noise, multiplier=config.noise_multiplier)


def softmax_token_choice(
    params: Params, tokens: ArrayLike, config: RouterConfig, *, noise: ArrayLike | None = None, train: bool = False
) -> RouterOutput:
    """Token Choice on the noisy softmax (V-MoE)."""
    clean, noisy = _logits(params, tokens, config, noise)
    return _token_choice(config, clean, noisy, softmax_affinity(noisy), None, noise)


def sinkhorn_token_choice(
    params: Params, tokens: ArrayLike, config: RouterConfig, *, noise: ArrayLike | None = None, train: bool = False
) -> RouterOutput:
    """Token Choice on the Sinkhorn plan, combined with the softmax. Section 7.1."""
    clean, noisy = _logits(params, tokens, config, noise)
    plan = sinkhorn_affinity(noisy, iterations=config.sinkhorn_iterations)
    combine_scores = _combine_scores(config, clean, noisy, plan)
    return _token_choice(config, clean, noisy, stop_gradient(plan), combine_scores, noise)


def softmax_expert_choice(
    params: Params, tokens: ArrayLike, config: RouterConfig, *, noise: ArrayLike | None = None, train: bool = False
) -> RouterOutput:
    """Expert Choice on the noisy softmax."""
    clean, noisy = _logits(params, tokens, config, noise)
    return _expert_choice(config, clean, noisy, softmax_affinity(noisy), None, noise)


def sinkhorn_expert_choice(
    params: Params, tokens: ArrayLike, config: RouterConfig, *, noise: ArrayLike | None = None, train: bool = False
) -> RouterOutput:
    """Expert Choice on the Sinkhorn plan, combined with the softmax. Section 7.2."""
    clean, noisy = _logits(params, tokens, config, noise)
    plan = sinkhorn_affinity(noisy, iterations=config.sinkhorn_iterations)
    combine_scores = _combine_scores(config, clean, noisy, plan)
    return _expert_choice(config, clean, noisy, stop_gradient(plan), combine_scores, noise)


def sparsity_constrained_expert_choice(
    params: Params, tokens: ArrayLike, config: RouterConfig, *, noise: ArrayLike | None = None, train: bool = False
) -> RouterOutput:
    """Expert Choice on the sparsity-constrained plan of the softmax, combined with the softmax. Section 8.7."""
    clean, noisy = _logits(params, tokens, config, noise)
    plan = sparse_transport_affinity(softmax_affinity(noisy), capacity=config.capacity(), steps=config.transport_steps)
    combine_scores = _combine_scores(config, clean, noisy, plan)
    return _expert_choice(config, clean, noisy, plan, combine_scores, noise)


def soft_moe(
    params: Params, tokens: ArrayLike, config: RouterConfig, *, noise: ArrayLike | None = None, train: bool = False
) -> RouterOutput:
    """Soft MoE and its ablations; without noise and auxiliary losses. Section 9."""
    routing = soft_routing(
        tokens,
        params["slots"],
        scale=params["scale"],
        normalize=config.normalize,
        norm_form=config.norm_form,
        dispatch=config.dispatch,
        combine=config.combine,
    )
    return RouterOutput(routing, {}, dict(routing_metrics(routing)))


def _combine_scores(config: RouterConfig, clean: Array, noisy: Array, plan: Array) -> Array:
    check_option("combine_with", config.combine_with, ("softmax", "plan"))
    if config.combine_with == "plan":
        return plan
    return softmax_affinity(clean if config.combine_from_clean_logits else noisy)


def _token_choice(
    config: RouterConfig,
    clean: Array,
    noisy: Array,
    scores: Array,
    combine_scores: Array | None,
    noise: ArrayLike | None,
) -> RouterOutput:
    check_option("batch_priority", config.batch_priority, ("none", "max", "sum"))
    order = None
    if config.batch_priority != "none":
        order = batch_priority(scores, by=config.batch_priority, choices=config.choices)
    routing = token_choice(
        scores,
        choices=config.choices,
        capacity=config.capacity(choices=config.choices),
        combine_scores=combine_scores,
        order=order,
    )
    losses, reported = _losses(config, clean, noisy, noise)
    return RouterOutput(routing, losses, {**routing_metrics(routing), **reported})


def _expert_choice(
    config: RouterConfig,
    clean: Array,
    noisy: Array,
    scores: Array,
    combine_scores: Array | None,
    noise: ArrayLike | None,
) -> RouterOutput:
    routing = expert_choice(
        scores, capacity=config.capacity(), combine_scores=combine_scores, drop_zero=config.drop_zero_plan
    )
    losses, reported = _losses(config, clean, noisy, noise)
    return RouterOutput(routing, losses, {**routing_metrics(routing), **reported})


def _losses(
    config: RouterConfig, clean: Array, noisy: Array, noise: ArrayLike | None
) -> tuple[dict[str, Array], dict[str, Array]]:
    """The weighted losses (those with a weight), and the same unweighted for the log."""
    values: dict[str, tuple[float, Array]] = {}
    if config.importance_weight:
        values["importance"] = config.importance_weight, importance_loss(softmax_affinity(clean))
    if config.load_weight and noise is not None:
        noise_std = config.noise_multiplier / config.experts
        values["load"] = config.load_weight, load_loss(clean, noisy, choices=config.choices, noise_std=noise_std)
    if config.balance_weight:
        values["balance"] = config.balance_weight, balance_loss(softmax_affinity(noisy))
    if config.z_weight:
        values["z"] = config.z_weight, z_loss(clean)
    weighted = {name: weight * value for name, (weight, value) in values.items()}
    return weighted, {f"{name}_loss": value for name, (_, value) in values.items()}


_V_MOE_LOSSES = {"importance_weight": 0.005, "load_weight": 0.005}
_STUDY = "Liu et al. 2024, Routers in Vision MoE (arXiv 2401.15969)"

ROUTERS: dict[str, Router] = {
    router.name: router
    for router in (
        Router(
            "softmax_token_choice",
            "Riquelme et al. 2021, V-MoE (arXiv 2106.05974)",
            _init_kernel,
            softmax_token_choice,
            _V_MOE_LOSSES,
        ),
        Router("sinkhorn_token_choice", f"{_STUDY}, section 2.2", _init_kernel, sinkhorn_token_choice),
        Router("softmax_expert_choice", "Zhou et al. 2022 (arXiv 2202.09368)", _init_kernel, softmax_expert_choice),
        Router("sinkhorn_expert_choice", f"{_STUDY}, section 2.4", _init_kernel, sinkhorn_expert_choice),
        Router(
            "sparsity_constrained_expert_choice",
            f"{_STUDY}, section 2.5",
            _init_kernel,
            sparsity_constrained_expert_choice,
        ),
        Router(
            "soft_moe",
            "Puigcerver et al. 2023 (arXiv 2308.00951)",
            _init_slots,
            soft_moe,
            {"rounding": "round"},
        ),
    )
}
"""The routers by name."""
