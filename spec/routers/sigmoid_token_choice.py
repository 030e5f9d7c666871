"""Token Choice by sigmoid scores and a bias that balances the load: the router of DeepSeek-V3 and similar models.

| here | DeepSeek-V3 (arXiv 2412.19437), section 2.1.2 |
|---|---|
| `kernel` (D, E) | e, the centroids |
| `bias` (E,), a state | b |
| `choices` | K_r |
| `chosen_groups` of `expert_groups` | M of the nodes |
| `balance_weight` | alpha |
| `bias_update_rate` | gamma |

Ambiguity ledger

SG-1: What is added to the sum of the chosen experts' gates before each gate is divided by this sum?
    Reading: the constant 1e-20 is added (`epsilon`).
        By: NVIDIA/Megatron-LM, megatron/core/transformer/moe/moe_utils.py, topk_routing_with_score_function;
        AI-Hypercomputer/maxtext, src/maxtext/layers/moe.py, RoutedMoE.deepseek_scale_weights; pytorch/torchtitan,
        torchtitan/models/common/moe.py, TokenChoiceTopKRouter.forward; huggingface/transformers,
        src/transformers/models/deepseek_v3/modeling_deepseek_v3.py, DeepseekV3TopkRouter.forward.
    Alternative b: nothing is added to the sum.
        By: the paper, eq. (13); deepseek-ai/DeepSeek-V3, inference/model.py, Gate.
SG-2: If a token has only one choice, is the gate normalised to 1, so that the gate carries no gradient?
    Reading: yes, if gates are normalised at all (`normalize_selected`).
        By: the paper, eq. (13); AI-Hypercomputer/maxtext, src/maxtext/layers/moe.py, RoutedMoE.deepseek_scale_weights;
        pytorch/torchtitan, torchtitan/models/common/moe.py, TokenChoiceTopKRouter.forward.
    Alternative b: no, gates are normalised only if a token has several choices.
        By: NVIDIA/Megatron-LM, megatron/core/transformer/moe/moe_utils.py, topk_routing_with_score_function.
SG-3: Which scores does the balance loss use?
    Reading: the loss uses the scores without the bias, divided by their sum over all experts.
        By: the paper, eqs. (17)-(20); NVIDIA/Megatron-LM, megatron/core/transformer/moe/moe_utils.py,
        compute_routing_scores_for_aux_loss.
    Alternative b: the loss uses the softmax of the sigmoid scores with the bias.
        By: AI-Hypercomputer/maxtext, src/maxtext/layers/moe.py, RoutedMoE.permute.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

from moespec.spec.algorithms.batch_priority import batch_priority
from moespec.spec.algorithms.group_limited import check_groups, group_limited_scores
from moespec.spec.algorithms.loss_free import balance_bias, biased_scores, expert_load
from moespec.spec.algorithms.losses import importance_loss
from moespec.spec.algorithms.quantile_balancing import quantile_bias, required_biases
from moespec.spec.algorithms.selected_weights import normalize_selected, scaled_gates
from moespec.spec.algorithms.sigmoid_affinity import sigmoid_affinity, sqrt_softplus_affinity
from moespec.spec.algorithms.softmax import router_logits, softmax_affinity
from moespec.spec.algorithms.token_choice import token_choice
from moespec.spec.algorithms.z_loss import z_loss
from moespec.spec.checks import check_choices, check_rivals
from moespec.spec.errors import ConfigError
from moespec.spec.option_groups import CapacityOptions, CountOptions, LossOptions, OrderOptions
from moespec.spec.ranges import Count, Factor, Positive, Scalar
from moespec.spec.routers.common import check_logits, init_kernel, output, replay, scoped_balance_loss
from moespec.spec.routers.record import Router
from moespec.spec.routing import Array, Params, RouterOutput, State, StateSpec

__all__ = ["ROUTER", "Options", "route", "state", "update"]


@dataclass(frozen=True, kw_only=True)
class Options(LossOptions, CountOptions, OrderOptions, CapacityOptions):
    """Options of `sigmoid_token_choice`."""

    capacity_factor: Factor = math.inf
    normalize_selected: bool = True
    balance_counts: Literal["first", "all"] = "all"
    choices: Count = 2
    affinity: Literal["sigmoid", "sqrt_softplus", "softmax"] = "sigmoid"
    """function from logits to scores: sigmoid, square root of the softplus (DeepSeek-V4), or softmax"""
    epsilon: Scalar = 1e-20
    """constant added to the sum by which the gates are divided"""
    scale: Positive = 1.0
    """factor of the final gates"""
    expert_groups: Count = 1
    """number of groups of experts of equal size"""
    chosen_groups: Count = 1
    """number of best-scoring groups from which a token chooses experts"""
    group_score: Literal["top_2", "top_k_over_m", "max"] = "top_2"
    """score of a group: the sum of its 2 best scores, the sum of its K / M best scores with M chosen groups, or its best score"""
    group_bias: bool = True
    """include the bias in the score of a group"""
    outside: Literal["excluded", "zero"] = "excluded"
    """score of experts outside the chosen groups: minus infinity or 0"""
    bias_update_rate: Scalar = 0.001
    """step size of the bias updates, which counteract the load; 0 keeps the bias"""
    recentre_bias: bool = False
    """subtract the mean over all experts from the bias updates"""
    bias_update: Literal["sign", "quantile"] = "sign"
    """bias update: by the rate against the load, or to the quantiles of the biases that tokens require, shifted to mean 0"""
    bias_bins: Count = 1000
    """histogram bins for the quantiles of an expert's required biases"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bias_update == "quantile":
            check_rivals(self.choices, self.experts)
            if self.affinity == "sqrt_softplus" or self.expert_groups > 1:
                raise ConfigError("bias_update='quantile' needs scores from 0 to 1 and expert_groups=1")
        if self.expert_groups == 1:
            if self.chosen_groups != 1:
                raise ConfigError(f"chosen_groups={self.chosen_groups!r}: expected 1 when expert_groups=1")
            return
        if self.group_score == "top_k_over_m" and self.choices % self.chosen_groups:
            raise ConfigError(f"chosen_groups={self.chosen_groups!r} does not divide choices={self.choices!r}")
        names = ("expert_groups", "chosen_groups", "group_score")
        size = check_groups(self.expert_groups, self.chosen_groups, self.best_of_group, self.experts, names)
        check_choices(self.choices, size * self.chosen_groups)

    @property
    def best_of_group(self) -> int:
        """The number of a group's best experts whose scores are added to get the score of the group."""
        return {"top_2": 2, "top_k_over_m": self.choices // self.chosen_groups, "max": 1}[self.group_score]


def state(options: Options) -> dict[str, StateSpec]:
    """`bias` (experts,), initially 0."""
    return {"bias": StateSpec((options.experts,))}


def route(
    params: Params,
    tokens: Array,
    options: Options,
    *,
    state: State,
    noise: Array | None = None,
    train: bool = False,
    choices: Array | None = None,
) -> RouterOutput:
    """Token Choice based on the biased scores, among the experts of the best groups. The unbiased scores are the combine weights.

    `batch_priority` uses the biased scores. `statistics` holds the result of `expert_load` or `required_biases`.
    state: `bias` (experts,). This router uses no noise. train: whether to use the training capacity.

    Source: DeepSeek-V3, section 2.1.2.

    >>> import numpy as np
    >>> from moespec.spec import ROUTERS, examples, slot_tokens
    >>> router = ROUTERS["sigmoid_token_choice"]
    >>> options = router.options(width=3, experts=3, tokens=6, choices=1, normalize_selected=False, bias_update_rate=0.5)
    >>> state, params = router.initial_state(options), {"kernel": np.eye(3)}
    >>> for _ in range(2):
    ...     found = router.route(params, examples.LOGITS, options, state=state, train=True)
    ...     state = router.update(options, state, found.statistics)
    ...     print(slot_tokens(found.routing).tolist(), found.statistics["load"].tolist(), state["bias"].tolist())
    [[0, 1, 4, 6, 6, 6], [2, 5, 6, 6, 6, 6], [3, 6, 6, 6, 6, 6]] [3.0, 2.0, 1.0] [-0.5, 0.0, 0.5]
    [[6, 6, 6, 6, 6, 6], [5, 6, 6, 6, 6, 6], [0, 1, 2, 3, 4, 6]] [0.0, 1.0, 5.0] [0.0, 0.5, 0.0]
    """

    # Logits.
    logits = router_logits(tokens, params["kernel"])
    check_logits(logits, options)
    affinity = {"sigmoid": sigmoid_affinity, "sqrt_softplus": sqrt_softplus_affinity, "softmax": softmax_affinity}
    scores = affinity[options.affinity](logits)

    # Selection by biased scores, only among the experts of the chosen groups.
    selection = biased_scores(scores, state["bias"])
    if options.expert_groups > 1:
        by, outside = None if options.group_bias else scores, options.outside
        groups, limit, best = options.expert_groups, options.chosen_groups, options.best_of_group
        selection = group_limited_scores(selection, by, groups=groups, limit=limit, best=best, outside=outside)

    # Order and weights.
    order: Array | None = None
    if options.batch_priority != "none":
        order = batch_priority(selection, by=options.batch_priority, choices=options.choices)
    selection, weights, keep = replay(options, choices, selection, scores)
    if options.normalize_selected:
        weights = normalize_selected(selection, weights, choices=options.choices, epsilon=options.epsilon)
    if options.scale != 1 and weights is not None:
        weights = scaled_gates(weights, scale=options.scale)

    # Slots.
    K, capacity = options.choices, options.capacity(train=train)
    routing = token_choice(selection, choices=K, capacity=capacity, combine_scores=weights, order=order, keep=keep)

    # Statistics.
    if options.bias_update == "sign":
        statistics = {"load": expert_load(selection, keep, choices=K)}
    else:
        statistics = {"required": required_biases(scores, state["bias"], choices=K, bins=options.bias_bins)}

    # Losses. The importance and balance losses use scores that sum to 1 for each token.
    losses: dict[str, Array] = {}
    shares = scores
    if options.affinity != "softmax" and (options.importance_weight or options.balance_weight):
        shares = normalize_selected(scores, choices=options.experts, epsilon=options.epsilon)
    if options.importance_weight:
        losses["importance"] = importance_loss(shares)
    if options.balance_weight:
        counted = K if options.balance_counts == "all" else 1
        losses["balance"] = scoped_balance_loss(shares, scope=options.balance_scope, choices=counted)
    if options.z_weight:
        losses["z"] = z_loss(logits)
    return output(options, routing, losses)._replace(statistics=statistics)


def update(options: Options, state: State, statistics: Any) -> State:
    """Returns the state after a step, from the statistics of all tokens in the step (see `balance_bias`, `quantile_bias`)."""
    if options.bias_update == "quantile":
        return {"bias": quantile_bias(state["bias"], statistics["required"], choices=options.choices)}
    rate, recentre = options.bias_update_rate, options.recentre_bias
    return {"bias": balance_bias(state["bias"], statistics["load"], rate=rate, recentre=recentre)}


ROUTER = Router(
    __name__,
    "DeepSeek-AI 2024 (arXiv 2412.19437), section 2.1.2",
    Options,
    init_kernel,
    route,
    state=state,
    update=update,
    models=(
        *("DeepSeek-V3", "DeepSeek-V3.2", "DeepSeek-V4", "Kimi K2", "Kimi Linear", "GLM-4.5", "GLM-5", "MiniMax-M2"),
        *("MiniMax-M3", "dots3", "Nemotron-H", "Mistral 4", "ERNIE 4.5", "Llama 4"),
    ),
    balances="the load of the experts, by a bias that is updated after each step, and by an optional loss",
    cost="T D E",
    drops="none, unless a capacity is set",
    functions=("scaled_gates", "sqrt_softplus_affinity"),
    replays=True,
    revision=3,
)
