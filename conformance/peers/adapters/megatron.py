"""megatron-core: functions of its mixture-of-experts layers that need no GPU. The plan is multiplied by its tokens."""

import torch
from megatron.core.transformer.moe import moe_utils
from torch import Tensor

from moespec.conformance.peers.adapters.on_torch import shared

__all__ = ["balance_loss", "sinkhorn_affinity", "z_loss"]

__getattr__ = shared


def sinkhorn_affinity(logits: Tensor, *, iterations: int | None = None, tolerance: float | None = None) -> Tensor:
    """`moe_utils.sinkhorn`, whose plan has a total mass of 1."""
    if iterations is not None:
        raise NotImplementedError("sinkhorn stops on a tolerance only")
    options = {} if tolerance is None else {"tol": tolerance}
    return torch.stack([logits.shape[1] * moe_utils.sinkhorn(group, **options) for group in logits])


def balance_loss(scores: Tensor) -> Tensor:
    """`moe_utils.switch_load_balancing_loss_func`, on the map of `topk_routing_with_score_function`."""
    tokens, experts = scores.shape[1:]
    losses = []
    for group in scores:
        _, chosen = moe_utils.topk_routing_with_score_function(group, 1)
        losses.append(
            moe_utils.switch_load_balancing_loss_func(
                group, chosen.sum(dim=0), tokens, 1, experts, moe_aux_loss_coeff=1.0
            )
        )
    return torch.stack(losses).mean()


def z_loss(logits: Tensor) -> Tensor:
    """`moe_utils.z_loss_func`."""
    return torch.stack([moe_utils.z_loss_func(group, z_loss_coeff=1.0) for group in logits]).mean()
