"""Iterative solvers that compute affinities. Compilers do not trace these operators. The affinities carry no gradient."""

from typing import Any

import torch
from torch import Tensor

from moespec.backends.common import affinities, capped_affinity, transport
from moespec.backends.torch import namespace as xp
from moespec.backends.torch.operators import operator, uses_kernel


@operator
def dykstra(start: Tensor, capacity: int, cap: int, iterations: int) -> Tensor:
    """Computes `moespec.backends.common.capped_affinity.dykstra`."""
    affinity: Tensor = capped_affinity.dykstra(xp, start, capacity, cap, iterations)
    return affinity


@operator
def adam_plan(
    columns: Tensor,
    row_mass: float,
    column_mass: float,
    nonzeros: int,
    gamma: float,
    objective: str,
    steps: int,
    learning_rate: float,
    tolerance: float,
) -> Tensor:
    """Computes `moespec.backends.common.transport.adam_plan`."""
    problem = (row_mass, column_mass, nonzeros, gamma, objective)
    plan: Tensor = transport.adam_plan(xp, columns, *problem, steps, learning_rate, tolerance)
    return plan


@operator
def sinkhorn_plan(logits: Tensor, iterations: int) -> Tensor:
    """Computes `moespec.backends.common.affinities.sinkhorn_plan`, with a Triton kernel where available."""
    if uses_kernel(logits):
        from moespec.backends.torch import kernels

        return kernels.sinkhorn(logits, iterations)
    plan: Tensor = affinities.sinkhorn_plan(xp, logits, iterations)
    return plan


@dykstra.register_fake
@adam_plan.register_fake
@sinkhorn_plan.register_fake
def _(first: Tensor, *arguments: Any) -> Tensor:
    return torch.empty_like(first)
