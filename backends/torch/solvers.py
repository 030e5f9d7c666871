"""The solvers of affinities as operators, which a compiler takes whole. The affinities carry no gradient."""

from typing import Any

import torch
from torch import Tensor

from moespec.backends.once import capped_affinity, transport
from moespec.backends.torch import namespace as xp
from moespec.backends.torch.operators import operator


@operator
def dykstra(start: Tensor, capacity: int, cap: int, iterations: int) -> Tensor:
    """`moespec.backends.once.capped_affinity.dykstra`."""
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
    """`moespec.backends.once.transport.adam_plan`."""
    problem = (row_mass, column_mass, nonzeros, gamma, objective)
    plan: Tensor = transport.adam_plan(xp, columns, *problem, steps, learning_rate, tolerance)
    return plan


@dykstra.register_fake
@adam_plan.register_fake
def _(first: Tensor, *arguments: Any) -> Tensor:
    return torch.empty_like(first)
