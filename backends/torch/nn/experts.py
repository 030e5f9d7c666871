"""The experts of a layer: perceptrons whose parameters have the experts as their first axis."""

from typing import Any

import torch
from torch import Tensor, nn

import moespec.backends.torch as B
from moespec.backends.torch.collectives import Group
from moespec.backends.torch.split_experts import SplitOverGroup, mean_gradient


class Linear(nn.Module):
    """`x @ weight[e] + bias[e]` of expert e: weight (experts, in, out), bias (experts, out)."""

    def __init__(self, experts: int, inputs: int, outputs: int, **factory: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, inputs, outputs, **factory))
        self.bias = nn.Parameter(torch.empty(experts, outputs, **factory))


class Experts(nn.Module):
    """`fc2(gelu(fc1(x)))` of each expert, for tokens that a routing sends to them.

    The parameters of all experts, or, after `ExpertParallel`, tensors split along their first axis over `group`.
    """

    def __init__(self, width: int, hidden: int, experts: int, gelu: str, **factory: Any) -> None:
        super().__init__()
        self.gelu = gelu
        self.fc1, self.fc2 = Linear(experts, width, hidden, **factory), Linear(experts, hidden, width, **factory)
        self.group: Group | None = None

    def forward(self, tokens: Tensor, routing: Any) -> Tensor:
        """tokens (groups, tokens, width) -> the same shape and dtype."""
        if self.group is None:
            y: Tensor = B.moe_mlp(tokens, routing, self.params(), gelu=self.gelu)
            return y
        local = {name: mean_gradient(value, self.group) for name, value in self.params().items()}
        y = SplitOverGroup(self.group).moe_mlp(tokens, routing, local, gelu=self.gelu)
        return y

    def params(self) -> dict[str, Tensor]:
        """The parameters by the names that they have in the specification."""
        return {"w1": self.fc1.weight, "b1": self.fc1.bias, "w2": self.fc2.weight, "b2": self.fc2.bias}
