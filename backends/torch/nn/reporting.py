"""Modules that store the losses and metrics of the last forward pass."""

import contextlib
import re
from collections import deque
from typing import Any

import torch
from torch import Tensor, nn

from moespec.backends.optimizer import is_decayed
from moespec.spec.errors import ConfigError

PASSES = 256
"""With reentrant checkpoints, the maximum number of forward passes of a layer that can wait for their backward pass."""
TORCHSCRIPT = "TorchScript (torch.jit.script, torch.jit.trace) does not support routers: use torch.export or export_pt2"
KERNELS = re.compile(r"(^|\.)(experts|shared)\.fc[123]\.weight$")


class Reporting(nn.Module):
    """A module with `losses` and `metrics` of its last forward pass. The losses hold an autograd graph, so copies omit both attributes."""

    losses: dict[str, Tensor]
    _metrics: Any
    _without_graph: deque[dict[str, Tensor]]

    def forget(self) -> None:
        """Clears the values of the last forward pass."""
        self.losses, self._metrics = {}, None
        self._without_graph = deque(maxlen=PASSES)

    @property
    def metrics(self) -> Any:
        """The metrics of the last forward pass. Outside compiled code, they are computed when they are first read."""
        if callable(self._metrics):
            self._metrics = self._metrics()
        return self._metrics

    def report(self, y: Tensor, losses: dict[str, Tensor], metrics: Any) -> Tensor:
        """Stores the losses and metrics (or a function that computes them) of a forward pass, and returns its output `y`.

        A reentrant checkpoint runs the layer first without gradients, then again with gradients in the backward pass. The losses of the
        first pass are leaves, which accumulate the gradient of the user's loss. The second pass's `y` sends this gradient to the losses.
        """
        if losses and not torch.compiler.is_compiling() and not torch.is_inference_mode_enabled():
            if not torch.is_grad_enabled():
                losses = {name: value.detach() for name, value in losses.items()}
                with contextlib.suppress(RuntimeError):  # inside `torch.func`, tensors cannot become leaves
                    self._without_graph.append({name: value.requires_grad_() for name, value in losses.items()})
            elif (first := self._first_pass(losses)) is not None:
                with_losses: Any = _WithLosses
                y = with_losses.apply(y, [leaf.grad for leaf in first.values()], *losses.values())
        self.losses, self._metrics = losses, metrics
        return y

    def _first_pass(self, losses: dict[str, Tensor]) -> dict[str, Tensor] | None:
        """Finds the latest pass without gradients whose losses equal `losses` and have received a gradient. Returns that pass's losses."""
        for first in reversed(self._without_graph):
            wanted = all(leaf.grad is not None for leaf in first.values())
            if wanted and all(
                torch.allclose(first[name], losses[name], atol=0) for name in first.keys() & losses.keys()
            ):
                self._without_graph = deque((each for each in self._without_graph if each is not first), PASSES)
                return first
        return None

    def no_weight_decay(self) -> set[str]:
        """Names of the parameters without weight decay: all except kernels and the scale of Soft MoE's router. timm's
        optimisers request the names through this method."""
        names = [name for name, _ in self.named_parameters()]
        return {name for name in names if not is_decayed(name.split(".")) and not KERNELS.search(name)}

    def __prepare_scriptable__(self) -> None:
        raise ConfigError(TORCHSCRIPT)

    def __getstate__(self) -> dict[str, Any]:
        kept: dict[str, Any] = super().__getstate__()  # type: ignore[no-untyped-call]
        return {**kept, "losses": {}, "_metrics": None, "_without_graph": deque(maxlen=PASSES)}


class _WithLosses(torch.autograd.Function):
    """Returns the output unchanged. The backward pass also sends the gradients `slopes` to the losses."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, slopes: list[Tensor], *losses: Tensor) -> Tensor:
        ctx.slopes = slopes
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return gradient, None, *ctx.slopes


def auxiliary_loss(module: nn.Module) -> Tensor:
    """The sum of the auxiliary losses of all `MoE` and `Model` modules in `module`, from their last forward pass.

    The losses are already weighted. The result is a scalar, which is 0 if there are no losses.
    """
    values = [value for child in module.modules() if isinstance(child, Reporting) for value in child.losses.values()]
    return torch.stack(values).sum() if values else torch.zeros(())
