"""The private names of torch that moespec uses, tested with torch 2.13. No other module uses private names of torch.

If the installed torch lacks a name, importing this module raises ConfigError. A missing name of Dynamo raises ConfigError at its first use.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

import torch

from moespec.spec.errors import ConfigError


def _named(name: str) -> Any:
    try:
        return attrgetter(name)(torch)
    except AttributeError:
        wanted = "install a supported version: pip install 'torch>=2.11,<2.15'"
        raise ConfigError(f"torch {torch.__version__} has no torch.{name}, which moespec needs; {wanted}") from None


# Collectives that torch.compile can trace, a mode for tensors without values, and a check whose condition a tracer may assume.
collectives, TracingMode, check = map(_named, ("ops._c10d_functional", "_subclasses.FakeTensorMode", "_check"))
# Each function processes a list of tensors in one call. The first two functions work in place.
foreach_add, foreach_mul, foreach_norm = map(_named, ("_foreach_add_", "_foreach_mul_", "_foreach_norm"))
_task: Callable[[], int] = _named("_C._current_graph_task_id")
_transforms, _modes = map(_named, ("_C._are_functorch_transforms_active", "_C._len_torch_dispatch_stack"))


def in_backward() -> bool:
    """True during a backward pass. A forward pass that runs during a backward pass is a recomputation."""
    return _task() != -1


def is_observed(x: Any) -> bool:
    """True if a transform, such as `torch.func.vmap`, or a mode, such as a tracer, must see the operators that are applied to `x`."""
    return type(x) not in (torch.Tensor, torch.nn.Parameter) or x.is_meta or _transforms() or _modes() > 0


def of_dynamo(name: str) -> Any:
    """Returns the attribute `name` of `torch._dynamo`, which is slow to import."""
    return _named(f"_dynamo.{name}")


def traced_as_constant(function: Any) -> None:
    """Makes the compiler call `function` while tracing, like `torch.compiler.assume_constant_result`, but does not import Dynamo."""
    function._dynamo_marked_constant = True


@contextmanager
def tracing() -> Iterator[None]:
    """A context in which `torch.compiler.is_compiling()` is true."""
    before = _named("compiler._is_compiling_flag")
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before
