"""megatron-core: functions of the mixture-of-experts layers that need no GPU.

The adapter multiplies the Sinkhorn plan by the number of tokens. Routers run without a capacity, and the bias update runs on one device.
"""

from typing import Any
from unittest import mock

import torch
from megatron.core.transformer.moe import moe_utils
from torch import Tensor

from moespec.conformance.peers.adapters.on_torch import SIGMOID, only, shared, top_k_router

__getattr__ = shared


def sinkhorn_affinity(logits: Tensor, *, iterations: int | None = None, tolerance: float | None = None) -> Tensor:
    """`moe_utils.sinkhorn`, whose plan has a total mass of 1."""
    if iterations is not None:
        raise NotImplementedError("sinkhorn stops on a tolerance only")
    options = {} if tolerance is None else {"tol": tolerance}
    return torch.stack([logits.shape[1] * moe_utils.sinkhorn(group, **options) for group in logits])


def balance_loss(scores: Tensor, *, choices: int = 1) -> Tensor:
    """`moe_utils.switch_load_balancing_loss_func`, with the routing map of `topk_routing_with_score_function`."""
    tokens, experts = scores.shape[1:]
    losses = []
    for group in scores:
        _, chosen = moe_utils.topk_routing_with_score_function(group, choices)
        losses.append(
            moe_utils.switch_load_balancing_loss_func(
                group, chosen.sum(dim=0), tokens, choices, experts, moe_aux_loss_coeff=1.0
            )
        )
    return torch.stack(losses).mean()


def z_loss(logits: Tensor) -> Tensor:
    """`moe_utils.z_loss_func`."""
    return torch.stack([moe_utils.z_loss_func(group, z_loss_coeff=1.0) for group in logits]).mean()


def _sigmoid(tokens: Tensor, kernel: Tensor, options: Any, bias: Tensor) -> Tensor:
    """`moe_utils.topk_routing_with_score_function` with `score_function="sigmoid"`."""
    shares = {"top_2": 2 * options.chosen_groups, "top_k_over_m": options.choices}.get(options.group_score)
    if options.expert_groups > 1 and shares != options.choices:
        raise NotImplementedError("the score of a group is the sum of its K / M best")
    only(options, **{**SIGMOID, "group_score": options.group_score})
    if options.choices > 1 and not options.normalize_selected:
        raise NotImplementedError("gates are divided by their sum")
    gates: Tensor
    gates, _ = moe_utils.topk_routing_with_score_function(
        tokens @ kernel.T, options.choices, num_groups=options.expert_groups,
        group_topk=options.chosen_groups if options.expert_groups > 1 else None, scaling_factor=options.scale,
        score_function="sigmoid", expert_bias=bias,
    )  # fmt: skip
    return gates


def _softmax(tokens: Tensor, kernel: Tensor, options: Any) -> Tensor:
    """`moe_utils.topk_routing_with_score_function` with `score_function="softmax"`."""
    gates: Tensor
    gates, _ = moe_utils.topk_routing_with_score_function(
        tokens @ kernel.T, options.choices, use_pre_softmax=not options.normalize_selected
    )
    return gates


def expert_load(scores: Tensor, *, choices: int) -> Tensor:
    """The sum over tokens of the routing map of `moe_utils.topk_routing_with_score_function`."""
    chosen: Tensor = moe_utils.topk_routing_with_score_function(scores.flatten(0, 1), choices)[1]
    return chosen.sum(dim=0).to(scores.dtype)


def balance_bias(bias: Tensor, load: Tensor, *, rate: float) -> Tensor:
    """`moe_utils.get_updated_expert_bias`, without the sum over devices."""
    with mock.patch.object(torch.distributed, "all_reduce"), mock.patch.object(moe_utils, "parallel_state"):
        moved: Tensor = moe_utils.get_updated_expert_bias(load, bias, rate)
    return moved


ROUTERS = {"sigmoid_token_choice": top_k_router(_sigmoid), "softmax_token_choice": top_k_router(_softmax)}
