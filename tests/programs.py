"""What programs are made of: the equations of a jaxpr, and the sizes of the tensors that torch's operators return."""

from collections.abc import Iterator
from importlib import import_module
from typing import Any


def equations(jaxpr: Any) -> Iterator[Any]:
    """All equations of a jaxpr and of those inside it."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in import_module("jax.extend.core").jaxprs_in_params(equation.params):
            yield from equations(inner)


def tensor_sizes() -> Any:
    """A context of torch, whose `sizes` become the most entries of a tensor that each operator returned inside it."""
    torch, modes = import_module("torch"), import_module("torch.utils._python_dispatch")

    class Sizes(modes.TorchDispatchMode):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.sizes: dict[str, int] = {}

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            for tensor in result if isinstance(result, tuple | list) else [result]:
                if isinstance(tensor, torch.Tensor):
                    self.sizes[str(function)] = max(self.sizes.get(str(function), 0), tensor.numel())
            return result

    return Sizes()
