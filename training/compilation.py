"""When compiling pays.

JAX compiles whatever it runs, whole functions best. torch.compile takes 20 seconds or more of a CPU before the first
step of even a small model, which a short run on a CPU never earns back.
"""

from collections.abc import Callable
from typing import Any

from moespec.backends.contract import Backend
from moespec.spec.errors import ConfigError

__all__ = ["TORCH_CPU_CALLS", "check_cuda_graph", "compile_if", "pays"]

TORCH_CPU_CALLS = 2000
"""Calls from which torch.compile pays on a CPU: measured with `vit_tiny`, where it saves about 15 ms of 40 a step."""


def pays(B: Backend, calls: int, wish: str = "auto") -> bool:
    """Whether to compile a function that runs `calls` times; `wish` is "always", "never" (torch only) or "auto"."""
    if B.name != "torch":
        return True
    if wish == "auto":
        torch: Any = B  # which alone has a device to choose
        return calls >= TORCH_CPU_CALLS or torch.default_device().type != "cpu"
    return wish == "always"


def compile_if(B: Backend, condition: bool, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, compiled by the backend or as it is."""
    return B.compile(function) if condition else function


def check_cuda_graph(B: Backend, *, accumulate: int, wish: str) -> None:
    """ConfigError where a step, in so many parts and compiled as wished, cannot be recorded as a CUDA graph."""
    torch: Any = B
    if B.name != "torch" or torch.default_device().type != "cuda" or B.sizes.devices > 1:
        raise ConfigError("training.cuda_graph=True: expected the torch backend on one GPU")
    if accumulate > 1 or wish == "never":
        raise ConfigError(
            f"training.cuda_graph=True: expected training.accumulate=1, not {accumulate!r}, and training.compile='auto', not {wish!r}"
        )
