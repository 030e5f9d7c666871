"""The torch backend on the CPU as it is on a GPU, its kernels run by Triton's interpreter: a target of the conformance suite.

With TRITON_INTERPRET=1, `nox -s cuda`.
"""

from typing import Any

import torch

import moespec.backends.torch as backend
from moespec.backends.torch import operators, products


def everywhere(x: torch.Tensor) -> bool:
    return True


operators.on_gpu = products.on_gpu = everywhere
assert operators.uses_kernel(torch.zeros(1)), "the kernels do not run: is TRITON_INTERPRET=1?"


def __getattr__(name: str) -> Any:
    return getattr(backend, name)
