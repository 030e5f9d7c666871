"""The routers: the six of the study, each the composition of an affinity and an allocation, and others.

| router | selects by | combines with | allocation | capacity from |
|---|---|---|---|---|
| `softmax_token_choice` | softmax | softmax | Token Choice | K T |
| `sinkhorn_token_choice` | Sinkhorn plan | softmax | Token Choice | K T |
| `softmax_expert_choice` | softmax | softmax | Expert Choice | T |
| `sinkhorn_expert_choice` | Sinkhorn plan | softmax | Expert Choice | T |
| `sparsity_constrained_expert_choice` | sparse plan of the softmax | softmax | Expert Choice | T |
| `soft_moe` | | | soft | T |
| `hash` (see `hash_router`) | table of token ids | 1 | Token Choice | none |

`route(params, tokens, config, *, noise=None, train=False)` takes tokens (T, D) and returns a `RouterOutput`. `noise`, a
draw of the standard normal (T, E), is added to the logits when given; `train` changes nothing here. A router
raises ConfigError for an option that it does not know, ShapeError if the tokens do not fit the configuration.

The worked example, with a kernel that makes the tokens the logits:

>>> from moespec.spec import slot_tokens
>>> from moespec.spec.examples import LOGITS
>>> def slots(name, **options):
...     router = ROUTERS[name]
...     config = router.configure(width=3, experts=3, tokens=6, **options)
...     routing = router.route({"kernel": np.eye(3)}, LOGITS, config).routing
...     return slot_tokens(routing).tolist(), round(float(routing.combine.sum()), 10)
>>> slots("softmax_token_choice", batch_priority="max")
([[4, 1], [5, 2], [3, 6]], 3.2670969819)
>>> slots("sinkhorn_token_choice")
([[0, 1], [5, 6], [2, 3]], 2.9235894642)
>>> slots("softmax_expert_choice")
([[4, 1], [5, 2], [3, 2]], 3.5213721945)
>>> slots("sinkhorn_expert_choice")
([[4, 1], [5, 2], [3, 2]], 3.5213721945)
>>> slots("sparsity_constrained_expert_choice")
([[4, 1], [5, 2], [3, 2]], 3.5213721945)

Ambiguity ledger

RT-1: Is the combine softmax of the Sinkhorn routers that of the noisy logits?
    Reading: yes, the logits that made the plan.
    Alternatives: of the clean logits (`combine_from_clean_logits`; the Token Choice class in the code of V-MoE).
RT-2: Which weights do the plan routers combine with?
    Reading: the softmax; the plan selects and carries no gradient.
    Alternatives: the Sinkhorn plan, differentiated through its iterations (`combine_with="plan"`).
RT-3: What is the fan-in of the initial slots of Soft MoE?
    Reading: width times experts, which the initialiser of the public code counts for an array (D, E, C).
    Alternatives: the width, over which the logits sum. It matters for the learning rate, not for the first routing.
RT-4: Is the sparsity-constrained router noisy in training?
    Reading: if it is given noise.
    Alternatives: never (code of V-MoE).
RT-5: What are the capacity and its rounding in the study?
    Reading: those of `RouterConfig`, rounded up.
    Alternatives: unknown; the paper gives the factor only.
"""

import numpy as np
from numpy.typing import ArrayLike

from moespec.spec.batch_priority import batch_priority
from moespec.spec.checks import check_option, check_size
from moespec.spec.expert_choice import expert_choice
from moespec.spec.hash_router import HASH
from moespec.spec.losses import balance_loss, importance_loss, load_loss, z_loss
from moespec.spec.metrics import routing_metrics
from moespec.spec.numerics import Array, stop_gradient
from moespec.spec.routing import Params, Router, RouterConfig, RouterOutput, Routing
from moespec.spec.sinkhorn import sinkhorn_affinity
from moespec.spec.soft_moe import soft_routing
from moespec.spec.softmax import add_gating_noise, router_logits, softmax_affinity
from moespec.spec.sparse_transport import sparse_transport_affinity
from moespec.spec.token_choice import token_choice

__all__ = ["ROUTERS", "lecun_normal"]


def softmax_token_choice(
    params: Params, tokens: ArrayLike, config: RouterConfig, *, noise: ArrayLike | None = None, train: bool = False
) -> RouterOutput:
    """Token Choice by the noisy softmax (V-MoE). Sections 2.2, 3 and 4."""
    clean, noisy = _logits(params, tokens, config, noise)
    return _output(config, clean, noisy, noise, _token_choice(config, softmax_affinity(noisy), None))


def sinkhorn_token_choice(
    params: Params, tokens: ArrayLike, config: RouterConfig, *, noise: ArrayLike | None = None, train: bool = False
) -> RouterOutput:
    """Token Choice by the Sinkhorn plan. Section 7.1."""
    clean, noisy = _logits(params, tokens, config, noise)
    plan = sinkhorn_affinity(noisy, iterations=config.sinkhorn_iterations)
    routing = _token_choice(config, stop_gradient(plan), _combine_scores(config, clean, noisy, plan))
    return _output(config, clean, noisy, noise, routing)


def softmax_expert_choice(
    params: Params, tokens: ArrayLike, config: RouterConfig, *, noise: ArrayLike | None = None, train: bool = False
) -> RouterOutput:
    """Expert Choice by the noisy softmax. Section 5."""
    clean, noisy = _logits(params, tokens, config, noise)
    return _output(config, clean, noisy, noise, _expert_choice(config, softmax_affinity(noisy), None))


def sinkhorn_expert_choice(
    params: Params, tokens: ArrayLike, config: RouterConfig, *, noise: ArrayLike | None = None, train: bool = False
) -> RouterOutput:
    """Expert Choice by the Sinkhorn plan. Section 7.2."""
    clean, noisy = _logits(params, tokens, config, noise)
    plan = sinkhorn_affinity(noisy, iterations=config.sinkhorn_iterations)
    routing = _expert_choice(config, stop_gradient(plan), _combine_scores(config, clean, noisy, plan))
    return _output(config, clean, noisy, noise, routing)


def sparsity_constrained_expert_choice(
    params: Params, tokens: ArrayLike, config: RouterConfig, *, noise: ArrayLike | None = None, train: bool = False
) -> RouterOutput:
    """Expert Choice by the sparsity-constrained plan of the softmax, which carries no gradient. Section 8.7."""
    check_option("combine_with", config.combine_with, ("softmax",))
    clean, noisy = _logits(params, tokens, config, noise)
    plan = sparse_transport_affinity(softmax_affinity(noisy), capacity=config.capacity(), steps=config.transport_steps)
    routing = _expert_choice(config, plan, _combine_scores(config, clean, noisy, plan))
    return _output(config, clean, noisy, noise, routing)


def soft_moe(
    params: Params, tokens: ArrayLike, config: RouterConfig, *, noise: ArrayLike | None = None, train: bool = False
) -> RouterOutput:
    """Soft MoE and its ablations, without noise and without auxiliary losses. Section 9."""
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


def _logits(params: Params, tokens: ArrayLike, config: RouterConfig, noise: ArrayLike | None) -> tuple[Array, Array]:
    """Clean and noisy logits of as many tokens and experts as the configuration says."""
    clean = router_logits(tokens, params["kernel"])
    check_size("tokens", np.asarray(tokens), 0, config.tokens, "config.tokens")
    check_size("kernel", np.asarray(params["kernel"]), 1, config.experts, "config.experts")
    return clean, add_gating_noise(clean, noise, multiplier=config.noise_multiplier)


def _combine_scores(config: RouterConfig, clean: Array, noisy: Array, plan: Array) -> Array:
    check_option("combine_with", config.combine_with, ("softmax", "plan"))
    if config.combine_with == "plan":
        return plan
    return softmax_affinity(clean if config.combine_from_clean_logits else noisy)


def _token_choice(config: RouterConfig, scores: Array, combine_scores: Array | None) -> Routing:
    check_option("batch_priority", config.batch_priority, ("none", "max", "sum"))
    order = None
    if config.batch_priority != "none":
        order = batch_priority(scores, by=config.batch_priority, choices=config.choices)
    capacity = config.capacity(choices=config.choices)
    return token_choice(scores, choices=config.choices, capacity=capacity, combine_scores=combine_scores, order=order)


def _expert_choice(config: RouterConfig, scores: Array, combine_scores: Array | None) -> Routing:
    return expert_choice(
        scores, capacity=config.capacity(), combine_scores=combine_scores, drop_zero=config.drop_zero_plan
    )


def _output(
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


TRUNCATED_STD = 0.8796256610342398
"""Standard deviation of the standard normal truncated to [-2, 2]."""


def lecun_normal(generator: np.random.Generator, shape: tuple[int, ...], fan_in: int) -> Array:
    """Float32 draws of the normal truncated at two standard deviations, scaled to variance `1 / fan_in`."""
    draws = generator.standard_normal(shape)
    outside = (draws < -2) | (draws > 2)
    while outside.any():
        draws[outside] = generator.standard_normal(int(outside.sum()))
        outside = (draws < -2) | (draws > 2)
    return (draws / (TRUNCATED_STD * np.sqrt(fan_in))).astype(np.float32)


def _init_kernel(generator: np.random.Generator, config: RouterConfig) -> Params:
    """`kernel` (width, experts)."""
    return {"kernel": lecun_normal(generator, (config.width, config.experts), config.width)}


def _init_slots(generator: np.random.Generator, config: RouterConfig) -> Params:
    """`slots` (width, experts, capacity) and `scale`, 1."""
    shape = (config.width, config.experts, config.capacity())
    return {"slots": lecun_normal(generator, shape, config.width * config.experts), "scale": np.ones((), np.float32)}


_STUDY = "Liu et al. 2024 (arXiv 2401.15969)"
_V_MOE = "Riquelme et al. 2021 (arXiv 2106.05974)"
_V_MOE_WEIGHTS = {"importance_weight": 0.005, "load_weight": 0.005}

ROUTERS: dict[str, Router] = {
    router.name: router
    for router in (
        Router("softmax_token_choice", _V_MOE, _init_kernel, softmax_token_choice, _V_MOE_WEIGHTS),
        Router("sinkhorn_token_choice", f"{_STUDY}, section 2.2", _init_kernel, sinkhorn_token_choice),
        Router("softmax_expert_choice", "Zhou et al. 2022 (arXiv 2202.09368)", _init_kernel, softmax_expert_choice),
        Router("sinkhorn_expert_choice", f"{_STUDY}, section 2.4", _init_kernel, sinkhorn_expert_choice),
        Router(
            "sparsity_constrained_expert_choice",
            f"{_STUDY}, section 2.5",
            _init_kernel,
            sparsity_constrained_expert_choice,
        ),
        Router("soft_moe", "Puigcerver et al. 2023 (arXiv 2308.00951)", _init_slots, soft_moe, {"rounding": "round"}),
        HASH,
    )
}
"""The routers by name."""
