"""The experts of a layer: MLPs whose parameters have a leading experts axis."""

from typing import Any

import torch
from torch import Tensor, nn

import moespec.backends.torch as B
from moespec.backends.torch.collectives import Group
from moespec.backends.torch.expert_parallel import SplitOverGroup, mean_gradient


class Linear(nn.Module):
    """`x @ weight[e] + bias[e]` for expert e: weight (experts, in, out), bias (experts, out) or None. A single MLP has no experts axis."""

    def __init__(self, *shape: int, bias: bool, **factory: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape, **factory))
        of_output = (*shape[:-2], shape[-1])
        self.register_parameter("bias", nn.Parameter(torch.empty(of_output, **factory)) if bias else None)


class Perceptrons(nn.Module):
    """The linear maps `fc1`, `fc2` and, if gated, `fc3`, of a single MLP or of several experts."""

    def __init__(self, width: int, hidden: int, *experts: int, gated: bool, **options: Any) -> None:
        super().__init__()
        self.fc1, self.fc2 = Linear(*experts, width, hidden, **options), Linear(*experts, hidden, width, **options)
        if gated:
            self.fc3 = Linear(*experts, width, hidden, **options)

    def params(self) -> dict[str, Tensor]:
        """Returns the parameters by their names in the specification."""
        params = {
            f"{parameter[0]}{linear[2:]}": getattr(module, parameter)
            for linear, module in self.named_children()
            for parameter in ("weight", "bias")
            if getattr(module, parameter) is not None  # finds computed parameters too, as in `weight_norm`
        }
        gate: Any = getattr(self, "gate", None)
        return params if gate is None else {**params, "gate": gate}


class Experts(Perceptrons):
    """Computes `fc2(gelu(fc1(x)))` or `fc2(f(fc1(x)) * fc3(x))` in each expert, for the tokens that a routing sends to the expert.

    Holds the parameters of all experts or, after `ExpertParallel`, tensors that are split along the first axis over `group`.
    """

    def __init__(self, width: int, hidden: int, experts: int, *, form: dict[str, Any], **options: Any) -> None:
        super().__init__(width, hidden, experts, **options)
        self.form, self.gelu, self.activation = form, form["gelu"], form["activation"]
        self.group: Group | None = None

    def forward(self, tokens: Tensor, routing: Any, **around: dict[str, Tensor] | None) -> Tensor:
        """tokens (groups, tokens, width) -> the same shape and dtype. around: `shared`, `latent` and `constants` of `moe_mlp`."""
        options: Any = {**self.form, **around}
        if self.group is None:
            y: Tensor = B.moe_mlp(tokens, routing, self.params(), **options)
            return y
        local = {name: mean_gradient(value, self.group) for name, value in self.params().items()}
        y = SplitOverGroup(self.group).moe_mlp(tokens, routing, local, **options)
        return y
