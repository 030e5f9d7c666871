"""When compiling pays.

JAX compiles whatever it runs, whole functions best. torch.compile takes 20 seconds or more of a CPU before the first
step of even a small model, which a short run on a CPU never earns back.
"""

from collections.abc import Callable
from typing import Any

from moespec.backends.contract import Backend

__all__ = ["TORCH_CPU_CALLS", "compile_if", "pays"]

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
