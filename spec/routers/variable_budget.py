"""A variable number of experts per token: top-p, the K T best pairs of a group, or all tokens above the cutoff of an expert.

| here | DTop-p (arXiv 2512.13996) | SeqTopK (arXiv 2511.06494) | Expert Race (arXiv 2503.16057) | Expert Threshold (arXiv 2603.11535) |
|---|---|---|---|---|
| `budget`, `gate` | "top_p", "normalized_softmax" | "pooled", "softmax" | "pooled", "identity" | "threshold", "sigmoid" |
| `choices` | T | K | k | K T / E is k_target |
| state | `controller` | | `cutoffs`: tau | `cutoffs`: cutoff_ema |
| group | | a sequence | the batch | the batch |

`budget="top_p"` without gains is the router of Huang et al. 2024 (arXiv 2403.07652), and `entropy_weight` the weight of its dynamic loss.
DTop-p's normalisation of the logits and Expert Race's router similarity loss are not included. The papers set no capacity.
With a capacity, an expert keeps the tokens with the largest softmax or, for the gates "sigmoid" and "identity", the largest sigmoid.

Ambiguity ledger

VB-6: Do the layers of a model share one p?
    Reading: no, each layer has a separate p, which depends on the number of experts in this layer.
    Alternative b: yes, one p depends on the mean over all layers.
        By: DTop-p (arXiv 2512.13996).
VB-7: From which training step on do the cutoffs decide which tokens an expert takes?
    Reading: after `warmup_steps` steps, in which an expert takes its best K T / E tokens.
        By: MasterGodzilla/Expert-Threshold-Routing, src/config.py, TrainingConfig (threshold_warmup_steps).
    Alternative b: from the first step on (`warmup_steps=0`).
VB-8: Which scores does the pooled choice compare?
    Reading: the probabilities of all tokens are compared, and are the combine weights.
    Alternative b: the logits of all tokens are compared, and are the combine weights (`gate="identity"`).
VB-9: Does top-p divide a token's combine weights by their sum?
    Reading: no, the combine weights are the probabilities.
        By: ZhenweiAn/Dynamic_MoE, modeling/modeling_moe.py, SwitchMLP.forward.
    Alternative b: yes, the combine weights of a token sum to 1 (`gate="normalized_softmax"`).
        By: DTop-p (arXiv 2512.13996).
"""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from moespec.spec.algorithms.budget_control import budget_excess, pooled_cutoff, renewed_controller, renewed_cutoffs
from moespec.spec.algorithms.budget_masks import cutoff_mask, kept_scores, pooled_mask, top_p_mask
from moespec.spec.algorithms.capacity_predictor import capacity_thresholds
from moespec.spec.algorithms.expert_choice import expert_choice
from moespec.spec.algorithms.limoe import local_entropy_loss
from moespec.spec.algorithms.sigmoid_affinity import sigmoid_affinity
from moespec.spec.algorithms.softmax import router_logits, softmax_affinity
from moespec.spec.algorithms.strictly_balanced import masked_gates
from moespec.spec.errors import ConfigError
from moespec.spec.options import RouterOptions
from moespec.spec.ranges import Count, Factor, Range, Scalar, Weight
from moespec.spec.routers.common import check_logits, init_kernel, output
from moespec.spec.routers.record import Router
from moespec.spec.routing import Array, Params, RouterOutput, State, StateSpec

__all__ = ["ROUTER", "Options", "route", "state", "update"]


OF_BUDGET = {"p": ("top_p", 0.4), "gain": ("top_p", 0.0), "integral_gain": ("top_p", 0.0)}
OF_BUDGET |= {"eval_cutoff": ("pooled", False), "warmup_steps": ("threshold", 4000)}
"""The budget that reads an option, and the default of the option."""


@dataclass(frozen=True, kw_only=True)
class Options(RouterOptions):
    """Options of `variable_budget`. By default, the capacity is unlimited."""

    capacity_factor: Factor = math.inf
    choices: Count = 1
    """mean number K of experts per token: exact for pooled, a target of the controller (top_p) and of the cutoffs (threshold)"""
    budget: Literal["top_p", "pooled", "threshold"] = "top_p"
    """experts of a token: the best, up to a sum of probabilities; the K T best pairs of a group; those whose cutoff its logit exceeds"""
    gate: Literal["softmax", "normalized_softmax", "sigmoid", "identity"] | None = None
    """combine weights as a function of the logits; None for sigmoid with threshold, else softmax"""
    p: Annotated[float, Range(0, 1, above=True, below=False)] = 0.4
    """with top_p: initial sum of the probabilities of a token's experts"""
    gain: Scalar = 0.0
    """with top_p: proportional gain of the controller of p; if both gains are 0, p is constant"""
    integral_gain: Scalar = 0.0
    """with top_p: integral gain of the controller of p"""
    entropy_weight: Weight = 0.0
    """weight of the mean entropy of the tokens' probabilities"""
    cutoff_decay: Annotated[float, Range(0, 1)] = 0.99
    """decay of the cutoffs' moving average per step"""
    eval_cutoff: bool = False
    """with pooled: at evaluation, choose all pairs above the cutoff instead of the K T best of the group"""
    warmup_steps: Annotated[int, Range(0, 2**24)] = 4000
    """with threshold: number of steps at the start of training in which an expert takes its best K T / E tokens"""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, (budget, default) in OF_BUDGET.items():
            if self.budget != budget and getattr(self, name) != default:
                raise ConfigError(f"{name}={getattr(self, name)!r}: expected {default!r} with budget={self.budget!r}")

    def capacity(self, *, train: bool = True) -> int:
        """Returns the number of slots C of an expert, which is at most the number of tokens."""
        return min(super().capacity(train=train), self.tokens)

    @property
    def weights(self) -> str:
        """Returns the name of the function that computes the combine weights."""
        return self.gate or ("sigmoid" if self.budget == "threshold" else "softmax")

    @property
    def target(self) -> int:
        """Returns the number of tokens at which an expert's cutoff aims: K T / E, rounded down, but at least 1."""
        return max(1, self.choices * self.tokens // self.experts)


def state(options: Options) -> dict[str, StateSpec]:
    """`controller` (2,) for top_p, else `cutoffs` (2, experts), initially 0."""
    return (
        {"controller": StateSpec((2,))} if options.budget == "top_p" else {"cutoffs": StateSpec((2, options.experts))}
    )


def route(
    params: Params, tokens: Array, options: Options, *, state: State, noise: Array | None = None, train: bool = False
) -> RouterOutput:
    """An expert takes the tokens in its column of the mask, up to its capacity. This router uses no noise.

    `statistics["budget"]`: the result of `budget_excess`. `statistics["reached"]`: of `pooled_cutoff` or `capacity_thresholds`.

    >>> from moespec.spec import ROUTERS, slot_tokens
    >>> from moespec.spec.examples import LOGITS
    >>> import numpy as np
    >>> router = ROUTERS["variable_budget"]
    >>> options = router.options(width=3, experts=3, tokens=6, p=0.6, gain=0.5)
    >>> found = router.route({"kernel": np.eye(3)}, LOGITS, options, state=router.initial_state(options), train=True)
    >>> slot_tokens(found.routing).tolist(), found.statistics["budget"].tolist()
    ([[4, 1, 0, 3, 2, 6], [5, 2, 6, 6, 6, 6], [3, 6, 6, 6, 6, 6]], [2.0, 6.0])
    """

    # Logits and scores.
    logits = router_logits(tokens, params["kernel"])
    check_logits(logits, options)
    probabilities = softmax_affinity(logits)
    scores = probabilities if "softmax" in options.weights else sigmoid_affinity(logits)

    # The mask of each token's experts, and the statistics of its controller.
    if options.budget == "top_p":
        mask = top_p_mask(probabilities, state["controller"], p=options.p)
        statistics = {"budget": budget_excess(mask, choices=options.choices)}
    elif options.budget == "pooled":
        compared, cut = probabilities if "softmax" in options.weights else logits, options.eval_cutoff and not train
        mask = cutoff_mask(compared, state["cutoffs"]) if cut else pooled_mask(compared, choices=options.choices)
        statistics = {"reached": pooled_cutoff(compared, choices=options.choices)}
    else:
        warmup = options.warmup_steps if train else 0
        mask = cutoff_mask(logits, state["cutoffs"], capacity=options.target, warmup_steps=warmup)
        statistics = {"reached": capacity_thresholds(logits, capacity=options.target)}

    # Slots, combine weights and loss.
    weights = masked_gates(scores, mask) if options.weights == "normalized_softmax" else scores
    weights = logits if options.weights == "identity" else weights
    kept, capacity = kept_scores(scores, mask), options.capacity(train=train)
    routing = expert_choice(kept, capacity=capacity, combine_scores=weights, drop_zero=True)
    losses = {"entropy": local_entropy_loss(probabilities)} if options.entropy_weight else {}
    return output(options, routing, losses)._replace(statistics=statistics)


def update(options: Options, state: State, statistics: State) -> State:
    """Returns the state after a step (see `renewed_controller` and `renewed_cutoffs`)."""
    if options.budget != "top_p":
        return {"cutoffs": renewed_cutoffs(state["cutoffs"], statistics["reached"], decay=options.cutoff_decay)}
    experts, gains = options.experts, {"gain": options.gain, "integral_gain": options.integral_gain}
    return {"controller": renewed_controller(state["controller"], statistics["budget"], experts=experts, **gains)}


ROUTER = Router(
    __name__,
    "Huang et al. 2024 (arXiv 2403.07652); Jin et al. 2025 (arXiv 2512.13996); Wen et al. 2025 (arXiv 2511.06494); "
    "Yuan et al. 2025 (arXiv 2503.16057); Sun et al. 2026 (arXiv 2603.11535)",
    Options,
    init_kernel,
    route,
    state=state,
    update=update,
    models=("Dynamic MoE", "DTop-p", "SeqTopK", "Expert Race", "Expert Threshold"),
    balances="the mean number of experts per token (top_p: with gains); with cutoffs per expert, also the load",
    cost="T D E; an expert may get every token",
    drops="none with top_p; otherwise tokens with low scores; with a capacity, also tokens beyond it",
)
