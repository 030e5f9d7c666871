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
| `dselect_k` (see `dselect_k`) | smooth codes of experts | gate | all experts with a gate | none |
| `base` (see `base_layers`) | best balanced assignment; logits at evaluation | sigmoid | one expert | T |
| `hash` (see `hash_router`) | table of token ids | 1 | Token Choice | none |
| `noisy_top_k` (see `noisy_top_k`) | noisy logits | gates of the chosen | Token Choice | none |
| `switch` (see `switch`) | softmax of jittered tokens | same | Token Choice, K = 1 | T |
| `s_base` (see `s_base`) | Sinkhorn plan; softmax at evaluation | softmax or sigmoid | Token Choice, K = 1 | none |
| `gshard` (see `gshard`) | softmax | its share of the two | Token Choice, K = 2 | K T |

`route(params, tokens, config, *, noise=None, train=False)` takes tokens (T, D) and returns a `RouterOutput`. `noise`, a
draw of the standard normal (T, E), is added to the logits when given (`Router.noise` says what a router takes); `train`
only chooses the capacity, and in S-BASE and BASE who is served. A router raises ConfigError for a value that an option
of its own cannot have (it does not look at those of others), ShapeError if the tokens do not fit the configuration. T' is
the number of tokens that importance-score routing leaves.

The worked example, with a kernel that makes the tokens the logits:

>>> import numpy as np
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

from numpy.typing import ArrayLike

from moespec.spec.base_router import BASE
from moespec.spec.checks import check_option
from moespec.spec.composition import init_kernel, noisy_logits, router_output, token_choice_routing
from moespec.spec.dselect_k_router import DSELECT_K
from moespec.spec.expert_choice import expert_choice
from moespec.spec.gshard import GSHARD
from moespec.spec.hash_router import HASH
from moespec.spec.importance_score import IMPORTANCE_SCORE
from moespec.spec.noisy_top_k import NOISY_TOP_K
from moespec.spec.numerics import Array, stop_gradient
from moespec.spec.routing import Params, Router, RouterConfig, RouterOutput, Routing
from moespec.spec.s_base import S_BASE
from moespec.spec.sinkhorn import sinkhorn_affinity
from moespec.spec.soft_moe_router import SOFT_MOE
from moespec.spec.softmax import softmax_affinity
from moespec.spec.sparse_transport import sparse_transport_affinity
from moespec.spec.switch import SWITCH

__all__ = ["ROUTERS"]


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


def _combine_scores(config: RouterConfig, clean: Array, noisy: Array, plan: Array) -> Array:
    check_option("combine_with", config.combine_with, ("softmax", "plan"))
    if config.combine_with == "plan":
        return plan
    return softmax_affinity(clean if config.combine_from_clean_logits else noisy)


def _expert_choice(config: RouterConfig, scores: Array, combine_scores: Array | None, train: bool) -> Routing:
    return expert_choice(
        scores, capacity=config.capacity(train=train), combine_scores=combine_scores, drop_zero=config.drop_zero_plan
    )


_STUDY = "Liu et al. 2024 (arXiv 2401.15969)"

ROUTERS: dict[str, Router] = {
    router.name: router
    for router in (
        Router(
            "softmax_token_choice",
            "Riquelme et al. 2021 (arXiv 2106.05974)",
            init_kernel,
            softmax_token_choice,
            {"importance_weight": 0.005, "load_weight": 0.005},
            balances="the load of the experts, by the importance and load losses",
            cost="T D E",
            drops="tokens beyond the capacity of the experts that they choose",
        ),
        Router(
            "sinkhorn_token_choice",
            f"{_STUDY}, section 2.2",
            init_kernel,
            sinkhorn_token_choice,
            balances="the load of the experts, nearly: by a balanced plan",
            cost="T D E, and 2 T E for each of the iterations",
            drops="tokens beyond the capacity of the experts that they choose",
        ),
        Router(
            "softmax_expert_choice",
            "Zhou et al. 2022 (arXiv 2202.09368)",
            init_kernel,
            softmax_expert_choice,
            balances="the load of the experts, exactly: each chooses C tokens",
            cost="T D E",
            drops="tokens that no expert chooses",
        ),
        Router(
            "sinkhorn_expert_choice",
            f"{_STUDY}, section 2.4",
            init_kernel,
            sinkhorn_expert_choice,
            balances="the load of the experts, exactly; how often tokens are chosen, nearly: by a balanced plan",
            cost="T D E, and 2 T E for each of the iterations",
            drops="tokens that no expert chooses",
        ),
        Router(
            "sparsity_constrained_expert_choice",
            f"{_STUDY}, section 2.5",
            init_kernel,
            sparsity_constrained_expert_choice,
            balances="the load of the experts, exactly; how often tokens are chosen, nearly: by a sparse plan",
            cost="T D E, and a choice of C tokens for each expert in each of the steps",
            drops="tokens that no expert chooses",
        ),
        SOFT_MOE,
        IMPORTANCE_SCORE,
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
