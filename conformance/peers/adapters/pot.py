"""POT: entropic and sparsity-constrained optimal transport with the marginals 1 and tokens / experts.

The cost is the negative of the logits or of the utility. Masses are not scaled to 1. POT's solvers of
sparsity-constrained transport compute in float64 and are not differentiated.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import ot
import torch
from ot import smooth
from torch import Tensor

from moespec.conformance.peers.adapters.on_torch import shared
from moespec.spec import Dual, SemiDual

__getattr__ = shared


def sinkhorn_affinity(logits: Tensor, *, iterations: int | None = None, tolerance: float | None = None) -> Tensor:
    """`ot.sinkhorn` with a regularisation of 1."""
    options: dict[str, Any] = {"warn": False}
    if iterations is not None:
        options |= {"numItermax": iterations, "stopThr": 0.0}
    if tolerance is not None:
        options["stopThr"] = tolerance
    a, b = _marginals(logits)
    return torch.stack([ot.sinkhorn(a, b, -group, 1.0, **options) for group in logits])


def _marginals(scores: Tensor) -> tuple[Tensor, Tensor]:
    _, tokens, experts = scores.shape
    return torch.ones(tokens, dtype=scores.dtype), torch.full((experts,), tokens / experts, dtype=scores.dtype)


def sparse_transport_affinity(
    utility: Tensor,
    *,
    capacity: int,
    solver: str = "adam",
    sparsity: str = "expert",
    steps: int | None = None,
    learning_rate: float | None = None,
    tolerance: float | None = None,
    regularization: float = 1.0,
) -> Tensor:
    """`ot.smooth.smooth_ot_semi_dual` with `reg_type="sparsity_constrained"` (or `"l2"`), solved by L-BFGS."""
    if steps is not None or learning_rate is not None:
        raise NotImplementedError("POT has no Adam")
    if sparsity == "token":
        raise NotImplementedError("POT constrains columns")
    options: dict[str, Any] = {} if tolerance is None else {"stopThr": tolerance}
    options |= {"reg_type": "l2"} if sparsity == "none" else {"reg_type": "sparsity_constrained", "max_nz": capacity}
    a, b = (marginal.numpy() for marginal in _marginals(utility))
    plans = [smooth.smooth_ot_semi_dual(a, b, -group, regularization, **options) for group in utility.numpy()]
    return torch.as_tensor(np.stack(plans), dtype=utility.dtype)


def transport_semi_dual(potential: Tensor, utility: Tensor, *, capacity: int, regularization: float = 1.0) -> SemiDual:
    """`ot.smooth.semi_dual_obj_grad` and `get_plan_from_semi_dual` with `SparsityConstrained`."""
    regul = smooth.SparsityConstrained(max_nz=capacity, gamma=regularization)
    a, b = (marginal.numpy() for marginal in _marginals(utility))
    groups = []
    for alpha, cost in zip(potential.numpy(), -utility.numpy(), strict=True):
        value, gradient = smooth.semi_dual_obj_grad(alpha, a, b, cost, regul)
        groups.append((value, gradient, smooth.get_plan_from_semi_dual(alpha, b, cost, regul)))
    return SemiDual(*_stacked(groups, utility))


def transport_dual(
    token_potential: Tensor, expert_potential: Tensor, utility: Tensor, *, capacity: int, regularization: float = 1.0
) -> Dual:
    """`ot.smooth.dual_obj_grad` and `get_plan_from_dual` with `SparsityConstrained`."""
    regul = smooth.SparsityConstrained(max_nz=capacity, gamma=regularization)
    a, b = (marginal.numpy() for marginal in _marginals(utility))
    groups = []
    for alpha, beta, cost in zip(token_potential.numpy(), expert_potential.numpy(), -utility.numpy(), strict=True):
        values = smooth.dual_obj_grad(alpha, beta, a, b, cost, regul)
        groups.append((*values, smooth.get_plan_from_dual(alpha, beta, cost, regul)))
    return Dual(*_stacked(groups, utility))


def _stacked(found: list[tuple[Any, ...]], like: Tensor) -> list[Any]:
    return [torch.as_tensor(np.stack(arrays), dtype=like.dtype) for arrays in zip(*found, strict=True)]


def project_simplex(values: Tensor, *, mass: float = 1.0) -> Tensor:
    """`ot.utils.proj_simplex`, applied to each row."""
    return _rows(lambda rows: ot.utils.proj_simplex(rows.T, z=mass).T, values)


def project_sparse_simplex(values: Tensor, *, nonzeros: int, mass: float = 1.0) -> Tensor:
    """`ot.utils.projection_sparse_simplex`, applied to each row."""
    return _rows(lambda rows: ot.utils.projection_sparse_simplex(rows, nonzeros, z=mass, axis=1), values)


def _rows(function: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    return function(values.reshape(-1, values.shape[-1])).reshape(values.shape)
