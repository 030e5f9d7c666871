"""Decides when compilation saves time.

The JAX backend always compiles complete functions, since this is fastest. On a CPU, torch.compile takes at least 20 seconds before the
first step, even for a small model. A short run on a CPU never recovers this time.
"""

from collections.abc import Callable
from typing import Any

from moespec.backends.contract import Backend
from moespec.spec.errors import ConfigError

__all__ = ["TORCH_CPU_CALLS", "check_cuda_graph", "compile_if", "pays"]

TORCH_CPU_CALLS = 2000
"""Number of calls from which torch.compile pays off on a CPU, measured with `vit_tiny`: compilation saves about 15 of 40 ms per step."""


def pays(B: Backend, calls: int, wish: str = "auto") -> bool:
    """Returns whether to compile a function that runs `calls` times; `wish` is "always", "never" (torch only) or "auto"."""
    if B.name != "torch":
        return True
    if wish == "auto":
        torch: Any = B  # only the torch backend has `default_device`
        return calls >= TORCH_CPU_CALLS or torch.default_device().type != "cpu"
    return wish == "always"


def compile_if(B: Backend, condition: bool, function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `function`, compiled by the backend if `condition` is true."""
    return B.compile(function) if condition else function


def check_cuda_graph(B: Backend, *, accumulate: int, wish: str) -> None:
    """Raises ConfigError if a training step with these settings cannot be recorded as a CUDA graph."""
    torch: Any = B
    if B.name != "torch" or torch.default_device().type != "cuda" or B.sizes.devices > 1:
        raise ConfigError("training.cuda_graph=True: expected the torch backend on one GPU")
    if accumulate > 1 or wish == "never":
        raise ConfigError(
            f"training.cuda_graph=True: expected training.accumulate=1, not {accumulate!r}, and training.compile='auto', not {wish!r}"
        )
