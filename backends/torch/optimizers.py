"""The optimisers: classes of torch.optim where available, otherwise subclasses of `torch.optim.Optimizer`.

`moespec.backends.numpy.optimizers` defines the updates. Each parameter group has `rate`, a multiplier of the learning
rate, and `decoupled`, the weight decay that `step` subtracts from the parameters.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from moespec.backends.optimizer import OptimizerConfig
from moespec.backends.optimizer_options import Optimizer, factored_axes
from moespec.backends.pytrees import Path
from moespec.backends.torch import namespace, private
from moespec.spec.own import find_own


class Extent:
    """Computes norms and means over complete parameters. This class requires complete tensors; its subclass for meshes accepts parts."""

    def __init__(self, shape: Sequence[int]) -> None:
        self.shape = tuple(shape)

    def norms(self, *tensors: Tensor) -> Sequence[Tensor]:
        """The norm of each complete tensor. All tensors have the shape of the parameter."""
        return [torch.linalg.vector_norm(x) for x in tensors]

    def mean(self, x: Tensor, axis: int) -> Tensor:
        """The mean of `x` along an axis of the parameter. The axis is kept with length 1."""
        return x.mean(axis, keepdim=True)


def make(
    optimizer: OptimizerConfig, leaves: Mapping[Path, Tensor], extents: Mapping[Path, Extent] | None = None
) -> torch.optim.Optimizer:
    """Creates an optimiser for the trained parameters `leaves`. The optimiser has taken no step.

    extents: the `Extent` of each parameter, required if leaves are only parts of parameters.
    """
    own: Any = optimizer.own
    together: dict[tuple[float, float], list[Tensor]] = {}
    for path, leaf in leaves.items():
        together.setdefault((optimizer.rate_of(path), optimizer.decay_of(path)), []).append(leaf)
    # torch.optim stores the first moment in the dtype of the parameter.
    of_torch = optimizer.name in ("adamw", "adam") and own.momentum_dtype == "float32"
    coupled = optimizer.name == "adam"
    groups = [
        {
            "params": params,
            "rate": rate,
            "weight_decay": decay if of_torch or coupled else 0.0,
            "decoupled": 0.0 if of_torch or coupled else decay,
        }
        for (rate, decay), params in together.items()
    ]
    if of_torch:
        kind = torch.optim.Adam if coupled else torch.optim.AdamW
        return kind(groups, betas=(own.b1, own.b2), eps=own.epsilon, fused=True)
    if optimizer.name == "sgd":
        return _Sgd(groups, momentum=own.momentum, nesterov=own.nesterov, fused=True)
    own_kind = {"adamw": _Adam, "adam": _Adam, "lamb": _Lamb, "adafactor": _Adafactor}.get(optimizer.name, _Own)
    own = find_own("optimizer.name", optimizer.name, Optimizer) if own_kind is _Own else own
    whole = {leaf: extents[path] if extents else Extent(leaf.shape) for path, leaf in leaves.items()}
    return own_kind(groups, own, whole)


def keep(
    optimizer: OptimizerConfig, made: torch.optim.Optimizer, leaf: Tensor, kept: dict[str, Tensor], step: int
) -> None:
    """Stores the state of a parameter in the optimiser `made`: the arrays in `kept`, by slot, and the number of past steps."""
    names = KEPT.get(type(made), {})
    made.state[leaf] = {names.get(slot, slot): value for slot, value in kept.items()}
    if isinstance(made, _Own):
        made.state[leaf]["step"] = step
    elif not isinstance(made, _Sgd):
        made.state[leaf]["step"] = torch.tensor(float(step), dtype=torch.float32, device=leaf.device)
    if getattr(optimizer.own, "momentum_dtype", "") == "bfloat16" and "mu" in kept:
        made.state[leaf]["mu"] = kept["mu"].bfloat16()


def kept(made: torch.optim.Optimizer, leaf: Tensor, slot: str) -> Tensor:
    """Returns the array that the optimiser `made` stores in a slot of a parameter."""
    value: Tensor = made.state[leaf][KEPT.get(type(made), {}).get(slot, slot)]
    return value


class _Sgd(torch.optim.SGD):
    """torch.optim.SGD with decoupled decay."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            if group["decoupled"]:
                private.foreach_mul(group["params"], 1 - group["lr"] * group["decoupled"])
        super().step()


class _Own(torch.optim.Optimizer):
    """An optimiser that computes the update of each tensor with `_update`."""

    def __init__(self, groups: Iterable[dict[str, Any]], options: Any, extents: Mapping[Tensor, Extent]) -> None:
        super().__init__(groups, {"lr": 0.0})
        self.options, self.extents = options, extents

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state["step"] += 1
                g = p.grad + group["weight_decay"] * p if group["weight_decay"] else p.grad
                update = self._update(p, g, state, state["step"]) + group["decoupled"] * p
                p.sub_(self._scaled(p, update), alpha=group["lr"])

    def _update(self, p: Tensor, g: Tensor, kept: dict[str, Tensor], n: int) -> Tensor:
        """Returns the update without decay at step n = 1, 2, ..., and updates `kept`. This version calls a user-defined optimiser."""
        own: Optimizer = self.options
        update, new = own.update(namespace, p, g, {slot: kept[slot] for slot in own.slots}, n)
        kept.update({slot: value.clone() for slot, value in new.items()})  # the value may alias another slot or `p`
        return update  # type: ignore[no-any-return]

    def _scaled(self, p: Tensor, update: Tensor) -> Tensor:
        return update


class _Adam(_Own):
    def _update(self, p: Tensor, g: Tensor, kept: dict[str, Tensor], n: int) -> Tensor:
        o, nu = self.options, kept["nu"]
        mu = kept["mu"].to(p.dtype).mul(o.b1).add_(g, alpha=1 - o.b1)
        kept["mu"].copy_(mu)  # rounds `mu` to the dtype of the slot
        nu.mul_(o.b2).addcmul_(g, g, value=1 - o.b2)
        update: Tensor = mu / (1 - o.b1**n) / ((nu / (1 - o.b2**n)).sqrt() + o.epsilon)
        return update


class _Lamb(_Adam):
    def _scaled(self, p: Tensor, update: Tensor) -> Tensor:
        size, length = self.extents[p].norms(p, update)
        return update * torch.where((size > 0) & (length > 0), size / length, 1.0)


class _Adafactor(_Own):
    def _update(self, p: Tensor, g: Tensor, kept: dict[str, Tensor], n: int) -> Tensor:
        o = self.options
        c = min(o.decay_cap, 1 - n**-o.decay_rate)
        s = g * g + o.epsilon
        whole = self.extents[p]
        axes = factored_axes(whole.shape, o.factored_from)
        if axes is None:
            kept["nu"].mul_(c).add_(s, alpha=1 - c)
            u = g * kept["nu"].rsqrt()
        else:
            lesser, largest = axes
            row = kept["row"].unsqueeze(largest).mul_(c).add_(whole.mean(s, largest), alpha=1 - c)
            column = kept["column"].unsqueeze(lesser).mul_(c).add_(whole.mean(s, lesser), alpha=1 - c)
            u = g * (row / whole.mean(row, lesser)).rsqrt() * column.rsqrt()
        if o.momentum:
            u = o.momentum * kept["mu"].to(p.dtype) + (1 - o.momentum) * u
            kept["mu"].copy_(u)
        return u


ADAM = {"mu": "exp_avg", "nu": "exp_avg_sq"}
KEPT: Mapping[type[torch.optim.Optimizer], Mapping[str, str]] = {
    torch.optim.AdamW: ADAM,
    torch.optim.Adam: ADAM,
    _Sgd: {"trace": "momentum_buffer"},
}
"""Maps slots of an exported state to names in the state of a torch.optim optimiser. moespec's optimisers use the names of the slots."""
