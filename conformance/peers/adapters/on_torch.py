"""What adapters of torch packages share, taken from the torch backend, which is loaded by name. None of it is compared."""

import importlib
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from moespec.spec import RouterOutput

__all__ = ["Recorded", "Routed", "SlotRouting", "SuiteExpert", "SuiteExperts", "shared", "soft_moe_router"]

_backend: Any = importlib.import_module("moespec.backends.torch")
SlotRouting = _backend.SlotRouting
SHARED = ("cast", "expert_mlp", "from_numpy", "moe_layer", "sum", "to_numpy", "value_and_grad")


def shared(name: str) -> Any:
    """The `__getattr__` of an adapter: what a target needs, and the adapter does not define."""
    if name not in SHARED:
        raise AttributeError(name)
    return getattr(_backend, name)


Experts = Callable[[Tensor], Tensor]


class Routed(NamedTuple):
    """A routing that a package computed, (groups, tokens, experts, capacity), and the layer that it belongs to.

    `layer(tokens, experts)`, if there is one, runs the package's whole layer with the experts of the suite.
    """

    dispatch: Tensor
    combine: Tensor
    layer: Callable[[Tensor, Experts], Tensor] | None = None


class SuiteExperts(nn.Module):
    """The experts of a case, in place of those of a package: (groups, experts, capacity, width) to the same."""

    def __init__(self, experts: Experts) -> None:
        super().__init__()
        self.experts = experts

    def forward(self, inputs: Tensor) -> Tensor:
        """All experts on their slots."""
        return self.experts(inputs)


class SuiteExpert(nn.Module):
    """One expert of a case, in place of one of a package: (groups, capacity, width) to the same, or without groups."""

    def __init__(self, experts: Experts, index: int, count: int) -> None:
        super().__init__()
        self.experts, self.index, self.count = experts, index, count

    def forward(self, inputs: Tensor) -> Tensor:
        """The expert on its slots. The experts of a case are a function of the slots of all, so all are computed."""
        grouped = inputs.reshape(-1, *inputs.shape[-2:])
        outputs = self.experts(grouped[:, None].expand(-1, self.count, -1, -1))[:, self.index]
        return outputs.reshape(*inputs.shape[:-1], -1)


class Recorded(TorchFunctionMode):
    """While it is active: the last operand of every `torch.einsum`, which is how the Soft MoE packages mix with weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: list[Tensor] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Note the operand, and make the call."""
        if func is torch.einsum:
            self.weights.append(args[-1])
        return func(*args, **(kwargs or {}))


def soft_moe_router(soft_routing: Callable[..., Routed], runs: str) -> SimpleNamespace:
    """The router `soft_moe` made of a package's soft routing; `runs` is the docstring of its `route`."""

    def route(params: Mapping[str, Tensor], tokens: Tensor, options: Any, *, train: bool = False) -> RouterOutput:
        forms = {name: getattr(options, name) for name in ("normalize", "norm_form", "dispatch", "combine")}
        return RouterOutput(soft_routing(tokens, params["slots"], scale=params["scale"], **forms), {}, {})

    route.__doc__ = runs
    return SimpleNamespace(route=route)
