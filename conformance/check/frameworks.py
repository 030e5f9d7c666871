"""What differentiates and compiles a third party's function of arrays: that of the framework whose arrays they are."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from moespec.conformance.failure import NotOfferedError

__all__ = ["Framework", "framework_of"]


@dataclass(frozen=True)
class Framework:
    """Operations on its arrays.

    value_and_grad: of `f(params, rest) -> (scalar, more)`, a function that returns what f does and the gradient by
    params, a dict of dicts. sum: of all numbers. cast: to a dtype by name. compile: of a function.
    """

    value_and_grad: Callable[..., Any]
    sum: Callable[..., Any]
    cast: Callable[..., Any]
    compile: Callable[..., Any]


def framework_of(array: Any) -> Framework | None:
    """That of torch's tensors and of JAX's arrays, None for all others. Neither is imported here."""
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if torch is not None and isinstance(array, torch.Tensor):
        return Framework(_torch_gradient, torch.sum, lambda x, dtype: x.to(getattr(torch, dtype)), torch.compile)
    if jax is not None and isinstance(array, jax.Array):

        def value_and_grad(function: Any) -> Any:
            return jax.value_and_grad(function, has_aux=True)

        return Framework(value_and_grad, jax.numpy.sum, lambda x, dtype: x.astype(dtype), jax.jit)
    return None


def _torch_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """By autograd; zeros by what the result does not depend on. Raises NotOfferedError for a result without a graph."""
    torch = sys.modules["torch"]

    def differentiated(params: dict[str, dict[str, Any]], rest: Any) -> Any:
        leaves = {
            key: {name: array.detach().requires_grad_(array.is_floating_point()) for name, array in part.items()}
            for key, part in params.items()
        }
        value, more = function(leaves, rest)
        if not value.requires_grad:
            raise NotOfferedError("autograd knows no derivative of the layer, and there is no vjp")
        flat = [array for part in leaves.values() for array in part.values()]
        slopes = iter(torch.autograd.grad(value, flat, materialize_grads=True))
        return (value, more), {key: {name: next(slopes) for name in part} for key, part in leaves.items()}

    return differentiated
