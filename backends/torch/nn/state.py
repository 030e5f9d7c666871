"""Modules that hold the states of routers between steps."""

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn

import moespec.backends.torch as B
from moespec.backends.torch import private
from moespec.spec.errors import ConfigError
from moespec.spec.options import RouterOptions

__all__ = ["RouterState", "update_states"]

Arrays = dict[str, Tensor]


class RouterState(nn.Module):
    """The state of a router as buffers, and the sums of its statistics since the last update.

    Buffers keep their dtype when a module is cast: in bfloat16, bias updates of 0.001 would be lost to rounding. rule: the router's name
    and options. `update` looks up the router's function by name, because a stored function could be neither copied nor pickled.
    """

    def __init__(self, arrays: Mapping[str, Any], device: torch.device | str | None) -> None:
        super().__init__()
        for name, value in arrays.items():
            self.register_buffer(name, torch.from_numpy(value.copy()).to(device))
        self.rule: tuple[str, RouterOptions] | None = None
        self._sums: Arrays = {}

    def params(self) -> Arrays:
        """The buffers by name."""
        return {name: buffer for name, buffer in self.named_buffers() if buffer is not None}

    def add(self, statistics: Arrays) -> None:
        """Adds the statistics of a forward pass, unless a backward pass is recomputing the pass, as in `torch.utils.checkpoint`."""
        if torch.compiler.is_compiling() or not private.in_backward():
            try:
                for name, value in statistics.items():
                    self._sums[name] = self._sums[name] + value.detach() if name in self._sums else value.detach()
            except RuntimeError as error:
                self._lost(error)

    def update(self) -> None:
        """Updates the state from the sums over all processes, and resets the sums. Does nothing if no statistics were added."""
        if self.rule is None or not self._sums:
            return
        router, options = self.rule
        if dist.is_available() and dist.is_initialized():
            for value in self._sums.values():
                dist.all_reduce(value)
        try:
            with torch.no_grad():
                for name, value in B.ROUTERS[router].update(options, self.params(), self._sums).items():
                    getattr(self, name).copy_(value)
        except RuntimeError as error:
            self._lost(error)
        self._sums = {}

    def _lost(self, error: RuntimeError) -> NoReturn:
        """Raises ConfigError if `vmap` caused the error: statistics from inside `vmap` do not exist outside. Re-raises other errors."""
        if "vmap" not in str(error):
            raise error
        self._sums = {}
        message = "the load cannot be counted inside torch.func.vmap: call module.eval() first"
        raise ConfigError(message) from error

    def _apply(self, function: Callable[[Tensor], Tensor], recurse: bool = True) -> "RouterState":
        def of_same_dtype(tensor: Tensor) -> Tensor:
            applied = function(tensor)
            return applied if applied.dtype == tensor.dtype else tensor.to(applied.device)

        super()._apply(of_same_dtype, recurse)  # type: ignore[no-untyped-call]
        return self


def update_states(module: nn.Module) -> None:
    """Updates the router states of all `MoE` and `Model` modules in `module`. Call this function once per step, after the optimiser.

    The update uses the statistics of all training forward passes since the last call, over all parts of an accumulated
    batch and all processes.
    """
    for child in module.modules():
        if isinstance(child, RouterState):
            child.update()
