"""The shared functions of adapters for torch packages. Some come from the torch backend. The suite does not compare shared functions."""

import importlib
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from moespec.spec import RouterOutput
from moespec.spec.values import present

_backend: Any = importlib.import_module("moespec.backends.torch")
SlotRouting = _backend.SlotRouting
SHARED = ("cast", "expert_mlp", "from_numpy", "moe_layer", "sum", "to_numpy", "value_and_grad")


def shared(name: str) -> Any:
    """Return a function that a target needs and the adapter does not define. Adapters use `shared` as `__getattr__`."""
    if name not in SHARED:
        raise AttributeError(name)
    return getattr(_backend, name)


Experts = Callable[[Tensor], Tensor]


class Routed(NamedTuple):
    """A routing (groups, tokens, experts, capacity) that a package computed, and the package's layer.

    `layer(tokens, experts)`, if set, runs the package's complete layer with the experts of the suite.
    """

    dispatch: Tensor
    combine: Tensor
    layer: Callable[[Tensor, Experts], Tensor] | None = None

    def whole(self, tokens: Tensor, experts: Experts) -> Tensor:
        """Run the package's complete layer."""
        return present("layer", self.layer)(tokens, experts)


class SuiteExperts(nn.Module):
    """A module that replaces a package's experts with the experts of a case. Its inputs are (groups, experts, capacity, width)."""

    def __init__(self, experts: Experts) -> None:
        super().__init__()
        self.experts = experts

    def forward(self, inputs: Tensor) -> Tensor:
        """Apply all experts to their slots."""
        return self.experts(inputs)


class SuiteExpert(nn.Module):
    """A module that replaces a package's expert with an expert of a case. Its inputs are (groups, capacity, width) or (capacity, width)."""

    def __init__(self, experts: Experts, index: int, count: int) -> None:
        super().__init__()
        self.experts, self.index, self.count = experts, index, count

    def forward(self, inputs: Tensor) -> Tensor:
        """Apply the expert to its slots. The suite's experts only run together, so run all experts and return one expert's outputs."""
        grouped = inputs.reshape(-1, *inputs.shape[-2:])
        outputs = self.experts(grouped[:, None].expand(-1, self.count, -1, -1))[:, self.index]
        return outputs.reshape(*inputs.shape[:-1], -1)


class Recorded(TorchFunctionMode):
    """Record the last operand of every `torch.einsum`. In Soft MoE packages, these operands include the dispatch and combine weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: list[Tensor] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Record the operand, then make the call."""
        if func is torch.einsum:
            self.weights.append(args[-1])
        return func(*args, **(kwargs or {}))


def soft_moe_router(soft_routing: Callable[..., Routed], runs: str) -> SimpleNamespace:
    """Make a router `soft_moe` from a package's soft routing. `runs` becomes the docstring of `route`."""

    def route(params: Mapping[str, Tensor], tokens: Tensor, options: Any, *, train: bool = False) -> RouterOutput:
        forms = {name: getattr(options, name) for name in ("normalize", "norm_form", "dispatch", "combine")}
        return RouterOutput(soft_routing(tokens, params["slots"], scale=params["scale"], **forms), {}, {})

    route.__doc__ = runs
    return SimpleNamespace(route=route)


def float32_at_most(array: Tensor) -> None:
    """Reject float64 for routers that always compute in float32."""
    if array.dtype == torch.float64:
        raise NotImplementedError("the router computes in float32 at most")


def dense(experts: int, chosen: Tensor, gates: Tensor) -> Tensor:
    """Scatter the gates (n, K) of the chosen experts (n, K) into an array (n, E), which is 0 for all other experts."""
    return gates.new_zeros(len(gates), experts).scatter(1, chosen, gates)


def log_of(scores: Tensor) -> Tensor:
    """Return the logits whose softmax equals the scores."""
    if (scores <= 0).any() or (scores.sum(dim=-1) != 1).any():
        raise NotImplementedError("the package takes a softmax, so scores are positive and sum to 1")
    return scores.log()


SIGMOID = {"affinity": "sigmoid", "epsilon": 1e-20, "group_score": "top_2", "group_bias": True, "outside": "excluded"}
"""The values that options of `sigmoid_token_choice` must have because packages lack these options."""
PAPER = {"norm_form": "paper", "dispatch": "soft", "combine": "soft"}
"""The only option values of Soft MoE that packages implement."""
ONE_FACTOR = {"batch_priority": "none", "multiple_of": 1, "slots_per_expert": None, "eval_capacity_factor": None}
"""The option values of a router that has one capacity factor and takes tokens in order."""


def only(options: Any, **values: Any) -> None:
    """Reject options (a record or mapping) that differ from the values that the package supports."""
    for name, value in values.items():
        if (options[name] if isinstance(options, Mapping) else getattr(options, name)) != value:
            raise NotImplementedError(f"{name} is {value!r}, and cannot be chosen")


def transformers_gates(
    router: Callable[[Any], nn.Module],
    tokens: Tensor,
    kernel: Tensor,
    choices: int,
    *inputs: Tensor,
    parameters: Mapping[str, Tensor] | None = None,
    **settings: Any,
) -> Tensor:
    """Return the gates (n, E) of tokens (n, D) from a transformers router, which returns logits, gates and experts."""
    experts, width = kernel.shape
    sizes = {"num_experts_per_tok": choices, "num_local_experts": experts, "num_experts": experts, "hidden_size": width}
    peer = router(SimpleNamespace(**sizes, **settings))
    _, gates, chosen = functional_call(peer, {"weight": kernel, **(parameters or {})}, (tokens, *inputs))
    return dense(experts, chosen, gates.to(tokens.dtype))


def dropless(scores: Tensor, gates: Tensor, capacity: int) -> Any:
    """Return the routing of a package that drops no token, from gates (G, T, E) that are 0 for experts not chosen.

    The package assigns no slots, so the backend's `token_choice` assigns them. Cases that drop tokens raise NotImplementedError.
    """
    chosen = gates > 0
    if (chosen.sum(dim=1) > capacity).any():
        raise NotImplementedError("no token is dropped, whatever the capacity")
    choices, scores = int(chosen.sum(dim=2).max()), scores.masked_fill(~chosen, -torch.inf)
    return _backend.token_choice(scores, choices=choices, capacity=capacity, combine_scores=gates)


def sparse(scores: Tensor, gates: Tensor, choices: int, capacity: int, order: Tensor | None = None) -> Any:
    """Return the routing from gates (G, T, E) that are 0 if a token does not choose the expert or the expert has no free slot."""
    best = scores.argsort(dim=2, descending=True, stable=True)[..., :choices]
    keep = (gates > 0).gather(2, best)
    return _backend.token_choice(
        scores, choices=choices, capacity=capacity, combine_scores=gates, order=order, keep=keep
    )


def top_k_router(choose: Callable[..., Tensor], *, double: bool = False) -> SimpleNamespace:
    """Make a router from the gates of a package that has no capacity. `route` receives the docstring of `choose`.

    `choose(tokens, kernel, options, **state)` returns the gates (n, E) of tokens (n, D) for a kernel (E, D); the gate of an
    expert that a token does not choose is 0. double: whether `choose` computes in float64.
    """

    def route(
        params: Mapping[str, Tensor],
        tokens: Tensor,
        options: Any,
        *,
        train: bool = False,
        state: Mapping[str, Tensor] | None = None,
    ) -> RouterOutput:
        only(options, batch_priority="none")
        if not double:
            float32_at_most(tokens)
        gates = choose(tokens.flatten(0, 1), params["kernel"].T, options, **(state or {}))
        logits = tokens @ params["kernel"]
        scores = logits.sigmoid() + state["bias"] if state else logits
        return RouterOutput(dropless(scores, gates.reshape(scores.shape), options.capacity(train=train)), {}, {})

    route.__doc__ = choose.__doc__
    return SimpleNamespace(route=route)
