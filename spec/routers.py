"""The six routers of the study and those of other papers, each the composition of an affinity and an allocation.

| router | selects by | combines with | allocation | capacity from |
|---|---|---|---|---|
| `softmax_token_choice` | softmax | softmax | Token Choice | K T |
| `sinkhorn_token_choice` | Sinkhorn plan | softmax | Token Choice | K T |
| `softmax_expert_choice` | softmax | softmax | Expert Choice | T |
| `sinkhorn_expert_choice` | Sinkhorn plan | softmax | Expert Choice | T |
| `sparsity_constrained_expert_choice` | sparse plan of the softmax | softmax | Expert Choice | T |
| `soft_moe` | | | soft | T |
| `importance_score` | softmax | softmax | Token Choice among the most important | K T' |
| `hash` (see `hash_router`) | table of token ids | 1 | Token Choice | none |
| `noisy_top_k` (see `noisy_top_k`) | noisy logits | gates of the chosen | Token Choice | none |
| `switch` (see `switch`) | softmax of jittered tokens | same | Token Choice, K = 1 | T |
| `s_base` (see `s_base`) | Sinkhorn plan; softmax at evaluation | softmax or sigmoid | Token Choice, K = 1 | none |
| `gshard` (see `gshard`) | softmax | its share of the two | Token Choice, K = 2 | K T |

`route(params, tokens, config, *, noise=None, train=False)` takes tokens (T, D) and returns a `RouterOutput`. `noise`, a
draw of the standard normal (T, E), is added to the logits when given (`Router.noise` says what a router takes); `train`
only chooses the capacity, and in S-BASE and BASE who is served. A router raises ConfigError for an option that it does
not know, ShapeError if the tokens do not fit the configuration. T' is the number of tokens that importance-score routing
leaves.

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
>>> slots("importance_score", drop=0.2)  # 5 tokens are left; 2 slots for each of 3 experts
([[4, 1], [5, 6], [3, 6]], 2.8478680303)

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

from moespec.spec.base_router import BASE
from moespec.spec.checks import check_option
from moespec.spec.composition import init_kernel, noisy_logits, router_output, token_choice_routing
from moespec.spec.dselect_k_router import DSELECT_K
from moespec.spec.expert_choice import expert_choice
from moespec.spec.gshard import GSHARD
from moespec.spec.hash_router import HASH
from moespec.spec.importance_score import importance_score
from moespec.spec.initial import lecun_normal
from moespec.spec.metrics import routing_metrics
from moespec.spec.noisy_top_k import NOISY_TOP_K
from moespec.spec.numerics import Array, stop_gradient
from moespec.spec.routing import Params, Router, RouterConfig, RouterOutput, Routing, check_fixed_capacity, no_noise
from moespec.spec.s_base import S_BASE
from moespec.spec.sinkhorn import sinkhorn_affinity
from moespec.spec.soft_moe import soft_routing
from moespec.spec.softmax import softmax_affinity
from moespec.spec.sparse_transport import sparse_transport_affinity
from moespec.spec.switch import SWITCH

__all__ = ["ROUTERS", "lecun_normal"]


def softmax_token_choice(
    params: Params, tokens: ArrayLike, config: RouterConfig, *, noise: ArrayLike | None = None, train: bool = False
) -> RouterOutput:
    """Token Choice by the noisy softmax (V-MoE). Sections 2.2, 3 and 4."""
    clean, noisy = noisy_logits(params, tokens, config, noise)
    return router_output(
        config, clean, noisy, noise, token_choice_routing(config, softmax_affinity(noisy), None, train=train)
    )


def sinkhorn_token_choice(
    params: Params, tokens: ArrayLike, config: RouterConfig, *, noise: ArrayLike | None = None, train: bool = False
) -> RouterOutput:
    """Token Choice by the Sinkhorn plan. Section 7.1."""
    clean, noisy = noisy_logits(params, tokens, config, noise)
    plan = sinkhorn_affinity(noisy, iterations=config.sinkhorn_iterations)
    routing = token_choice_routing(
        config, stop_gradient(plan), _combine_scores(config, clean, noisy, plan), train=train
    )
    return router_output(config, clean, noisy, noise, routing)


def softmax_expert_choice(
    params: Params, tokens: ArrayLike, config: RouterConfig, *, noise: ArrayLike | None = None, train: bool = False
) -> RouterOutput:
    """Expert Choice by the noisy softmax. Section 5."""
    clean, noisy = noisy_logits(params, tokens, config, noise)
    return router_output(config, clean, noisy, noise, _expert_choice(config, softmax_affinity(noisy), None, train))


def sinkhorn_expert_choice(
    params: Params, tokens: ArrayLike, config: RouterConfig, *, noise: ArrayLike | None = None, train: bool = False
) -> RouterOutput:
    """Expert Choice by the Sinkhorn plan. Section 7.2."""
    clean, noisy = noisy_logits(params, tokens, config, noise)
    plan = sinkhorn_affinity(noisy, iterations=config.sinkhorn_iterations)
    routing = _expert_choice(config, stop_gradient(plan), _combine_scores(config, clean, noisy, plan), train)
    return router_output(config, clean, noisy, noise, routing)


def sparsity_constrained_expert_choice(
    params: Params, tokens: ArrayLike, config: RouterConfig, *, noise: ArrayLike | None = None, train: bool = False
) -> RouterOutput:
    """Expert Choice by the sparsity-constrained plan of the softmax, which carries no gradient. Section 8.7."""
    check_option("combine_with", config.combine_with, ("softmax",))
    clean, noisy = noisy_logits(params, tokens, config, noise)
    plan = sparse_transport_affinity(
        softmax_affinity(noisy), capacity=config.capacity(train=train), steps=config.transport_steps
    )
    routing = _expert_choice(config, plan, _combine_scores(config, clean, noisy, plan), train)
    return router_output(config, clean, noisy, noise, routing)


def soft_moe(
    params: Params, tokens: ArrayLike, config: RouterConfig, *, noise: ArrayLike | None = None, train: bool = False
) -> RouterOutput:
    """Soft MoE and its ablations, without noise and without auxiliary losses. Section 9."""
    check_fixed_capacity(config)
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


def _expert_choice(config: RouterConfig, scores: Array, combine_scores: Array | None, train: bool) -> Routing:
    return expert_choice(
        scores, capacity=config.capacity(train=train), combine_scores=combine_scores, drop_zero=config.drop_zero_plan
    )


def _init_slots(generator: np.random.Generator, config: RouterConfig) -> Params:
    """`slots` (width, experts, capacity) and `scale`, 1."""
    shape = (config.width, config.experts, config.capacity())
    return {"slots": lecun_normal(generator, shape, config.width * config.experts), "scale": np.ones((), np.float32)}


_STUDY = "Liu et al. 2024 (arXiv 2401.15969)"
_V_MOE_WEIGHTS = {"importance_weight": 0.005, "load_weight": 0.005}

ROUTERS: dict[str, Router] = {
    router.name: router
    for router in (
        Router(
            "softmax_token_choice",
            "Riquelme et al. 2021 (arXiv 2106.05974)",
            init_kernel,
            softmax_token_choice,
            _V_MOE_WEIGHTS,
        ),
        Router("sinkhorn_token_choice", f"{_STUDY}, section 2.2", init_kernel, sinkhorn_token_choice),
        Router("softmax_expert_choice", "Zhou et al. 2022 (arXiv 2202.09368)", init_kernel, softmax_expert_choice),
        Router("sinkhorn_expert_choice", f"{_STUDY}, section 2.4", init_kernel, sinkhorn_expert_choice),
        Router(
            "sparsity_constrained_expert_choice",
            f"{_STUDY}, section 2.5",
            init_kernel,
            sparsity_constrained_expert_choice,
        ),
        Router(
            "soft_moe",
            "Puigcerver et al. 2023 (arXiv 2308.00951)",
            _init_slots,
            soft_moe,
            {"rounding": "round"},
            no_noise,
        ),
        Router(
            "importance_score",
            "Lou et al. 2021 (arXiv 2109.02008), section 2.2",
            init_kernel,
            importance_score,
            _V_MOE_WEIGHTS,
        ),
        DSELECT_K,
        BASE,
        HASH,
        NOISY_TOP_K,
        SWITCH,
        S_BASE,
        GSHARD,
    )
}
"""The routers by name."""
