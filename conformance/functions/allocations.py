"""Assignment of tokens to expert slots: choices, masks, orders, capacities."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from moespec import spec
from moespec.backends.blocks import Array
from moespec.conformance.functions.describe import SLOTS, Choice, Function, Output
from moespec.conformance.functions.margins import (
    assignment_margin,
    best_experts,
    expert_choice_margin,
    order_margin,
    token_choice_margin,
)
from moespec.spec.numerics import stable_order

__all__ = ["FUNCTIONS"]

SCORES = "groups tokens experts"


CHOICE = Choice("scores", best_experts("choices"))


def _priorities(scores: Array, scale: Array, options: Mapping[str, Any]) -> float:
    """Return the margin of a token order. The scale of a priority is the token's largest score scale times the number of summed scores."""
    counted = options.get("choices", 1) if options.get("by") == "sum" else 1
    priority = np.sort(scores, axis=-1)[..., -counted:].sum(axis=-1)
    return order_margin(priority, counted * scale.max(axis=-1))


def _second(gates: Array, noise: Array) -> Any:
    """Return the two numbers that GShard compares: twice the second-largest gate, and the random draw."""
    return np.stack([2 * np.sort(gates.real, axis=1)[:, -2], noise], axis=1)


def _sampled_scale(logits: Array, noise: Array) -> Any:
    """Return `|logit| + |log(-log noise)| + 1`. For the expert with the largest logit, return the largest such value of the token."""
    size = np.abs(logits) + np.abs(np.log(-np.log(noise))) + 1
    largest = size.max(axis=-1, keepdims=True)
    return np.where(logits == logits.max(axis=-1, keepdims=True), largest, size)


def _largest(scores: Array, **shards: Any) -> Any:
    """Return the scale of the assignment gap: the sum over tokens of the largest absolute score."""
    return np.abs(scores).max(axis=1).sum()


def _by_shards(scores: Array, noise: Array | None = None, **shards: Any) -> Any:
    """Return the scores in shard order. Sorting the noise gives this order, which is exact, because the noise is an input."""
    return scores if noise is None else scores[stable_order(noise)]


def _margin_of_shards(scores: Array, scale: Array, options: Any) -> float:
    """Return the smallest assignment margin among the shards."""
    shards = options.get("shards", 1)
    return min(assignment_margin(*part) for part in zip(np.split(scores, shards), np.split(scale, shards), strict=True))


def _ordered(scores: Array, scale: Array, options: Mapping[str, Any]) -> float:
    return order_margin(scores.max(axis=-1), scale.max(axis=-1))


def _chosen(scores: Array, scale: Array, options: Mapping[str, Any]) -> float:
    """Return the smaller of the margins of choices and token order. The scale of a token is the largest scale of its scores."""
    return min(token_choice_margin(scores, scale, options["choices"]), _ordered(scores, scale, options))


def _compared(gates: Array, thresholds: Array) -> Any:
    """Pair each gate with its threshold for the comparison."""
    return np.stack(np.broadcast_arrays(gates, thresholds), axis=-1)


def _threshold_margin(ordered: Any, scales: Any, options: Any) -> float:
    """Return the smallest margin of the threshold comparisons and, if `largest`, of the order of the scores."""
    count = len(ordered["scores"]) if options.get("largest") else 0
    of_scores = expert_choice_margin(ordered["scores"], scales["scores"], count)
    return min(of_scores, token_choice_margin(ordered["predicted"], scales["predicted"], 1))


def _summed(scores: Array, controller: Array, *, p: float) -> Any:
    """Return the scores, and the sums over the best experts, each paired with p."""
    sums = np.cumsum(-np.sort(-scores, axis=-1), axis=-1)
    return {"sums": np.stack(np.broadcast_arrays(sums, p + controller[0]), axis=-1), "scores": scores}


def _top_p_margin(ordered: Any, scales: Any, options: Any) -> float:
    """Return the smallest margin of the order of a token's scores, and of the comparison of their sums with p."""
    return min(token_choice_margin(ordered[name], scales[name], ordered[name].shape[-1]) for name in ordered)


def _pooled_margin(scores: Array, scale: Array, options: Mapping[str, Any]) -> float:
    """Return the smallest margin among the best pairs of a group."""
    flat = (*scores.shape[:-2], -1)
    return token_choice_margin(scores.reshape(flat), scale.reshape(flat), options["choices"] * scores.shape[-2])


def _cutoff_margin(ordered: Any, scales: Any, options: Any) -> float:
    """Return the smallest margin of the comparisons with the cutoffs and, with a warm-up, of the order of the scores."""
    count = options.get("capacity", 1) if options.get("warmup_steps") else 0
    of_scores = expert_choice_margin(ordered["scores"], scales["scores"], count)
    return min(of_scores, token_choice_margin(ordered["compared"], scales["compared"], 1))


def _absolute(tokens: Array, ids: Array, tables: Array, params: Any, **options: Any) -> Any:
    """Compute MultiHash on absolute values, since `|relu(z)| <= |z|` and `|gelu(z)| <= |z|`."""
    return spec.multi_hash_mlp(np.abs(tokens), ids, tables, {name: np.abs(array) for name, array in params.items()})


FUNCTIONS = (
    *(Function(name, {"capacity": Output("", "int")}, traced=False) for name in ("expert_capacity", "CAPACITY_RULES")),
    Function("token_choice", SLOTS, CHOICE),
    Function("normalize_selected", {"normalized": Output(SCORES, follows=("combine_scores", "scores"))}, CHOICE),
    Function(
        "expert_choice",
        SLOTS,
        Choice("scores", lambda scores, scale, options: expert_choice_margin(scores, scale, options["capacity"])),
    ),
    Function("batch_priority", {"order": Output("groups tokens", "int")}, Choice("scores", _priorities)),
    Function("gshard_keep", {"keep": Output("groups tokens choices", "bool")}, Choice(_second, best_experts(1))),
    Function(
        "gshard_sample",
        {"scores": Output(SCORES, scale="written", written=_sampled_scale)},
        Choice("logits", best_experts(1)),
    ),
    Function(
        "base_assignment",
        {
            "expert": Output("groups tokens", "int"),
            "objective": Output("groups"),
            "gap": Output("groups", scale="written", written=_largest),
        },
        # The input scores are exact, but computing the optimal assignment adds rounding errors.
        Choice(_by_shards, _margin_of_shards, "magnitude"),
    ),
    Function(
        "replay_choices",
        {
            "scores": Output(SCORES, scale="magnitude", follows=("scores",)),
            "combine_scores": Output(SCORES, scale="magnitude", follows=("combine_scores", "scores")),
            "keep": Output("groups tokens choices", "bool"),
        },
    ),
    Function("base_greedy", {"greedy": Output("groups tokens", "int")}, Choice("scores", best_experts(1))),
    Function("base_routing", {"slots": SLOTS["slots"], "weights": Output("groups experts capacity")}),
    Function("importance_score_order", {"order": Output("groups survivors", "int")}, Choice("scores", _ordered)),
    Function("importance_score_choice", SLOTS, Choice("scores", _chosen)),
    Function(
        "batchwise_mask",
        {"mask": Output(SCORES, "bool")},
        Choice("gates", lambda gates, scale, options: expert_choice_margin(gates, scale, options["capacity"])),
    ),
    Function("threshold_mask", {"mask": Output(SCORES, "bool")}, Choice(_compared, best_experts(1))),
    Function("masked_gates", {"gates": Output(SCORES)}),
    Function("threshold_loss", {"loss": Output()}),
    Function("capacity_logits", {"logits": Output(SCORES)}),
    Function("capacity_loss", {"loss": Output()}),
    Function("capacity_thresholds", {"sums": Output("pair experts", scale="unit", summed=True)}),
    Function("moved_thresholds", {"thresholds": Output("experts")}),
    Function(
        "scores_above",
        {"scores": Output(SCORES)},
        Choice(
            lambda scores, predicted, thresholds, **options: {
                "predicted": np.stack(np.broadcast_arrays(predicted, thresholds), axis=-1),
                "scores": scores,
            },
            _threshold_margin,
        ),
    ),
    Function("top_p_mask", {"mask": Output(SCORES, "bool")}, Choice(_summed, _top_p_margin)),
    Function("pooled_mask", {"mask": Output(SCORES, "bool")}, Choice("scores", _pooled_margin)),
    Function(
        "cutoff_mask",
        {"mask": Output(SCORES, "bool")},
        Choice(
            lambda scores, cutoffs, **options: {"compared": _compared(scores, cutoffs[0]), "scores": scores},
            _cutoff_margin,
        ),
    ),
    Function("kept_scores", {"scores": Output(SCORES)}),
    Function("budget_excess", {"sums": Output("pair", scale="unit", summed=True)}),
    Function("pooled_cutoff", {"sums": Output("pair experts", scale="unit", summed=True)}),
    Function("renewed_cutoffs", {"cutoffs": Output("pair experts")}),
    Function("renewed_controller", {"controller": Output("pair")}),
    Function("hash_table_of", {"table": Output("ids", "int")}),
    Function("hash_routing", SLOTS),
    Function("hash_scores", {"scores": Output(SCORES)}),
    Function("multi_hash_mlp", {"output": Output("groups tokens width", written=_absolute, rounded=True)}),
)
