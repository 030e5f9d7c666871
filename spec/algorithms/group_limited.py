"""Group-limited choice: a token chooses only among the experts of its best groups.

| here | DeepSeek-V3 (arXiv 2412.19437), section 2.1.2, Node-Limited Routing |
|---|---|
| `groups` of E / `groups` experts each | nodes |
| `limit` | M |
| `choices` of the `token_choice` that follows | K_r |
| `scores` (T, E) | s, or s + b |

Ambiguity ledger

GL-1: What is the score of a group of experts?
    Reading: the score of a group is the sum of its 2 best scores (`best`).
        By: deepseek-ai/DeepSeek-V3, inference/model.py, Gate (with a bias); AI-Hypercomputer/maxtext,
        src/maxtext/layers/moe.py, RoutedMoE.expert_group_mask; pytorch/torchtitan, torchtitan/models/common/moe.py,
        TokenChoiceTopKRouter._get_node_limited_routing_scores; huggingface/transformers,
        src/transformers/models/deepseek_v3/modeling_deepseek_v3.py, DeepseekV3TopkRouter.forward.
    Alternative b: the score of a group is the sum of its K / M best scores.
        By: the paper, section 2.1.2; NVIDIA/Megatron-LM, megatron/core/transformer/moe/moe_utils.py, group_limited_topk.
    Alternative c: the score of a group is its best score.
        By: DeepSeek-V2 (arXiv 2405.04434), section 2.2.2; deepseek-ai/DeepSeek-V3, inference/model.py, Gate (without a
        bias); huggingface/transformers, src/transformers/models/deepseek_v2/modeling_deepseek_v2.py,
        DeepseekV2TopkRouter.forward.
GL-2: Which score do experts outside the chosen groups receive?
    Reading: these experts receive minus infinity, so none of them is chosen.
        By: deepseek-ai/DeepSeek-V3, inference/model.py, Gate; NVIDIA/Megatron-LM,
        megatron/core/transformer/moe/moe_utils.py, group_limited_topk; AI-Hypercomputer/maxtext,
        src/maxtext/layers/moe.py, RoutedMoE.deepseek_routing; pytorch/torchtitan, torchtitan/models/common/moe.py,
        TokenChoiceTopKRouter._get_node_limited_routing_scores; huggingface/transformers,
        src/transformers/models/deepseek_v3/modeling_deepseek_v3.py, DeepseekV3TopkRouter.forward.
    Alternative b: these experts receive 0, so they rank above experts of chosen groups whose biased score is below 0.
        By: huggingface/transformers, src/transformers/models/deepseek_v2/modeling_deepseek_v2.py,
        DeepseekV2TopkRouter.forward; huggingface/transformers, src/transformers/models/mistral4/modeling_mistral4.py,
        Mistral4TopkRouter.forward.
GL-3: Does the score of a group of experts include the selection bias?
    Reading: yes, the score of a group is computed from biased scores.
        By: deepseek-ai/DeepSeek-V3, inference/model.py, Gate; NVIDIA/Megatron-LM,
        megatron/core/transformer/moe/moe_utils.py, topk_routing_with_score_function; AI-Hypercomputer/maxtext,
        src/maxtext/layers/moe.py, RoutedMoE.deepseek_routing; pytorch/torchtitan, torchtitan/models/common/moe.py,
        TokenChoiceTopKRouter.forward; huggingface/transformers,
        src/transformers/models/deepseek_v3/modeling_deepseek_v3.py, DeepseekV3TopkRouter.forward.
    Alternative b: no, the score of a group is computed from affinity scores without the bias.
        By: the paper, section 2.1.2.
"""

from typing import Any

import numpy as np

from moespec.spec.algorithm import Algorithm
from moespec.spec.array_like import ArrayLike
from moespec.spec.checks import check_at_least, check_option, check_same_shape, plural
from moespec.spec.errors import ConfigError
from moespec.spec.numerics import Array, stable_order, stop_gradient
from moespec.spec.values import as_array

__all__ = ["group_limited_scores"]

ALGORITHMS = (
    Algorithm(
        "group_limited_scores", "DeepSeek-AI 2024 (arXiv 2412.19437), section 2.1.2", 1, ("group_limited_scores",)
    ),
)


def group_limited_scores(
    scores: ArrayLike,
    group_by: ArrayLike | None = None,
    *,
    groups: int,
    limit: int,
    best: int = 2,
    outside: str = "excluded",
) -> Array:
    """Replaces the scores of experts outside a token's best groups with 0 or with a number below all scores of the token, where:

        score of group g = sum of the `best` largest group_by[t, e] over its experts e = g E / groups, ...

    Ties go to the group with the lower index. With `outside="excluded"`, a token prefers every expert in its best groups to any
    other expert, even if all scores are negative. The result carries no gradient.

    Args:
        scores: (tokens, experts), the selection scores.
        group_by: (tokens, experts), the scores that rank the groups, by default `scores`.
        groups: number of groups of equal size, a divisor of the number of experts.
        limit: M, the number of groups from which a token chooses experts, from 1 to `groups`.
        best: how many of a group's largest scores are added to compute the score of the group, from 1 to experts / groups.
        outside: the score of experts outside the best groups: "excluded" for `2 min(0, least) - 1`, a finite number
            below the token's smallest score `least`; "zero" for 0.

    Returns:
        (tokens, experts), for `token_choice`.

    Source: DeepSeek-V3, section 2.1.2.

    >>> scores = [[0.75, 0.0, 0.5, 0.375]]
    >>> group_limited_scores(scores, groups=2, limit=1).tolist()
    [[-1.0, -1.0, 0.5, 0.375]]
    >>> group_limited_scores(scores, groups=2, limit=1, best=1, outside="zero").tolist()
    [[0.75, 0.0, 0.0, 0.0]]
    """
    scores = stop_gradient(as_array("scores", scores, "tokens experts"))
    of_groups = scores if group_by is None else stop_gradient(as_array("group_by", group_by, "tokens experts"))
    check_same_shape("group_by", of_groups, "scores", scores)
    size = check_groups(groups, limit, best, scores.shape[1])
    check_option("outside", outside, ("excluded", "zero"))
    order = stable_order(group_scores(of_groups, groups, best))
    limited = np.zeros((len(scores), groups), bool)
    np.put_along_axis(limited, order[:, :limit], True, axis=1)
    lowest = scores.real.min(axis=1, keepdims=True)
    least = 2 * np.where(lowest < 0, lowest, 0) - 1
    return np.where(np.repeat(limited, size, axis=1), scores, 0.0 if outside == "zero" else least)


def group_scores(by: Array, groups: int, best: int) -> Array:
    """Returns the scores of the groups, (..., groups), from the scores of the experts, (..., experts)."""
    members = by.reshape(*by.shape[:-1], groups, -1)
    return np.take_along_axis(members, stable_order(members)[..., :best], axis=-1).sum(axis=-1)


def check_groups(
    groups: Any, limit: Any, best: Any, experts: int, names: tuple[str, str, str] = ("groups", "limit", "best")
) -> int:
    """Returns the number of experts per group. Raises `ConfigError` unless `groups` divides `experts` and is at least `limit`, and a group
    has at least `best` experts. names: the names of the three arguments in error messages."""
    number = check_at_least(names[0], groups, 1)
    if experts % number:
        raise ConfigError(f"{names[0]}: {plural(experts, 'experts')} cannot be divided into {number} equal groups")
    size = experts // number
    for name, value, most, things in (
        (names[1], limit, number, "groups"),
        (names[2], best, size, "experts in a group"),
    ):
        if check_at_least(name, value, 1) > most:
            raise ConfigError(f"{name}: {value} is more than the {most} {things}")
    return size
