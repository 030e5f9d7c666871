"""DeepSpeed: the gating functions that `TopKGate` uses for one, two and more choices, without randomness.

Random token selection and the sampling of the second expert are off, and the minimum capacity is 0. The adapter does not run
DeepSpeed's expert layer, which needs process groups. Instead, the suite's layer computes the outputs from DeepSpeed's routing.
"""

from types import SimpleNamespace
from typing import Any

import torch
from deepspeed.moe.sharded_moe import top1gating, top2gating, topkgating
from torch import Tensor

from moespec.conformance.peers.adapters.on_torch import ONE_FACTOR, Routed, log_of, only, shared
from moespec.spec import RouterOutput

__getattr__ = shared


def _gating(logits: Tensor, choices: int, factor: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss, combine and dispatch of one group."""
    if choices > logits.shape[1]:
        raise NotImplementedError("there are more choices than experts")
    if choices == 2 and logits.dtype == torch.float64:
        raise NotImplementedError("top2gating computes in float32")
    if choices == 1:
        loss, combine, dispatch, *_ = top1gating(logits, factor, 0, use_rts=False)
    elif choices == 2:
        loss, combine, dispatch, *_ = top2gating(logits, factor, 0, top2_2nd_expert_sampling=False)
    else:
        loss, combine, dispatch, *_ = topkgating(logits, choices, factor, 0)
    return loss, combine, dispatch


def _routed(logits: Tensor, choices: int, factor: float) -> Routed:
    gatings = [_gating(group, choices, factor) for group in logits]
    dispatch = torch.stack([dispatch for _, _, dispatch in gatings])
    return Routed(dispatch.to(logits.dtype), torch.stack([combine for _, combine, _ in gatings]))


def token_choice(scores: Tensor, *, choices: int, capacity: int) -> Routed:
    """`top1gating`, `top2gating` or `topkgating` on the logarithm of the scores, because these functions apply a softmax."""
    if (scores <= 0).any() or (choices == 1 and (scores.sum(dim=-1) != 1).any()):
        raise NotImplementedError("the gates take a softmax, so scores are positive, and sum to 1 for one choice")
    _, tokens, experts = scores.shape
    return _routed(scores.log(), choices, (capacity - 0.5) * experts / tokens / choices)  # rounded up


def balance_loss(scores: Tensor) -> Tensor:
    """The loss of `top1gating` on the logarithm of the scores, because `top1gating` applies a softmax."""
    return torch.stack([_gating(logits, 1, 1.0)[0] for logits in log_of(scores)]).mean()


def _route(params: dict[str, Tensor], tokens: Tensor, options: Any, *, train: bool = False) -> RouterOutput:
    """`top1gating`, `top2gating` or `topkgating`, with the peer's capacity rule and a minimum capacity of 0."""
    only(options, rounding="ceil", **ONE_FACTOR)
    return RouterOutput(_routed(tokens @ params["kernel"], options.choices, options.capacity_factor), {}, {})


ROUTERS = {"softmax_token_choice": SimpleNamespace(route=_route)}
