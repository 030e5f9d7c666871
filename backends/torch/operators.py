"""Defines custom operators, which are opaque to torch.compile, and checks whether an operator can run a GPU kernel."""

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.library import CustomOpDef, custom_op  # type: ignore[attr-defined]  # public, not exported

from moespec.backends.torch.private import is_observed
from moespec.spec.errors import ConfigError

# In a process, torch keeps only the last operator of each name. Each copy of this package therefore has a separate namespace.
NAMESPACE = __name__.replace(".", "_")


FUNCTIONS: dict[str, Callable[..., object]] = {}
"""Maps the name of each operator to the function that the operator runs."""
SIGNED: dict[CustomOpDef, Callable[..., object]] = {}


def operator(function: Callable[..., object], *, tags: tuple[torch.Tag, ...] = ()) -> CustomOpDef:
    """Turns the decorated function into a torch operator that changes none of its arguments."""
    name = function.__name__.lstrip("_")
    FUNCTIONS[name] = function
    result = custom_op(f"{NAMESPACE}::{name}", mutates_args=(), tags=tags)(function)
    SIGNED[result] = function
    return result


def save_inputs(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs)


def differentiable(
    operator: "CustomOpDef", backward: Callable[..., Any], setup: Callable[..., None] = save_inputs
) -> Any:
    """Returns the operator with a gradient that also works in `torch.func`. `register_autograd` alone gives `torch.func.grad`
    no gradient, and silently drops the tangents of forward mode."""
    operator.register_autograd(backward, setup_context=setup)

    def forward(*arguments: Any) -> Any:
        return operator(*arguments)

    forward.__signature__ = inspect.signature(SIGNED[operator])  # type: ignore[attr-defined]  # gives arguments their defaults
    functions = {"forward": forward, "backward": backward, "setup_context": setup, "jvp": _no_tangents}
    members: dict[str, Any] = {name: staticmethod(value) for name, value in functions.items()}
    function: Any = type(backward.__name__, (torch.autograd.Function,), {**members, "generate_vmap_rule": True})

    run, defaults = SIGNED[operator], [each.default for each in forward.__signature__.parameters.values()]  # type: ignore[attr-defined]

    def run_directly(ctx: Any, *arguments: Any) -> Any:
        output = run(*arguments)
        setup(ctx, arguments, output)
        return output

    direct_members = {
        "forward": staticmethod(run_directly),
        "backward": staticmethod(backward),
        "jvp": staticmethod(_no_tangents),
    }
    direct: Any = type(backward.__name__, (torch.autograd.Function,), direct_members)

    def call(*arguments: Any) -> Any:
        if torch.compiler.is_compiling():
            return operator(*arguments)
        if is_observed(arguments[0]):
            return function.apply(*arguments)
        # Without the overhead of torch's operators and, in a backward pass, of autograd.
        unobserved = direct.apply if torch.is_grad_enabled() else run
        return unobserved(*arguments, *defaults[len(arguments) :])

    call.operator = operator  # type: ignore[attr-defined]  # torch.library accepts only the operator
    return call


def direct(operator: CustomOpDef) -> Any:
    """Returns a function that calls torch's operator, which is slow, only if a compiler, a transform or a mode must see it."""
    run = SIGNED[operator]

    def call(first: Tensor, *others: Any) -> Any:
        observed = torch.compiler.is_compiling() or is_observed(first)
        return operator(first, *others) if observed else run(first, *others)

    call.operator = operator  # type: ignore[attr-defined]  # torch.library accepts only the operator
    return call


def _no_tangents(*_: Any) -> None:
    raise ConfigError(
        "routers with discrete choices have no forward-mode derivatives (torch.func.jvp, jacfwd): use grad or jacrev"
    )


def mapped(operator: CustomOpDef) -> CustomOpDef:
    """Adds a `torch.func.vmap` rule to an operator that uses its first argument's last axis. The mapped axis moves to the front."""

    def rule(info: Any, axes: tuple[Any, ...], first: Tensor, *others: Any) -> tuple[Any, int]:
        return operator(first.movedim(axes[0], 0), *others), 0

    operator.register_vmap(rule)
    return operator


def on_gpu(x: Tensor) -> bool:
    """True if `x`, even a traced tensor, is on a device that runs `kernels`. Tests that interpret kernels replace this function."""
    return x.is_cuda


def uses_kernel(x: Tensor) -> bool:
    """True if an operator runs a kernel of `kernels` on `x`. Traced code must not call this function."""
    return on_gpu(x) and _kernels_run(x.device)


@functools.cache
def _kernels_run(device: torch.device) -> bool:
    """True if Triton is installed and compiles for the device, which requires a C compiler. The check runs the most demanding kernel."""
    try:
        from moespec.backends.torch import kernels

        tokens = torch.ones(16, 16, dtype=torch.bfloat16, device=device)
        kernels.split_product(tokens, tokens[:, None].expand(16, 5, 16).contiguous(), 16)
    except Exception as error:
        warnings.warn(f"Triton kernels cannot run on {device}; using slower operations: {error}", stacklevel=2)
        return False
    return True
