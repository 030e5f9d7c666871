"""What is used of torch that has no public name, tried with torch 2.11, 2.13 and 2.14. No other module uses such names.

What is missing in another version raises ConfigError: the names here when this module is imported, the functions when called.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from operator import attrgetter
from typing import Any

import torch

from moespec.spec.errors import ConfigError


def _named(name: str) -> Any:
    try:
        return attrgetter(name)(torch)
    except AttributeError:
        wanted = "install another: pip install 'torch>=2.11,<2.15'"
        raise ConfigError(f"torch {torch.__version__} has no torch.{name}, which moespec uses; {wanted}") from None


TracingMode: Any = _named("_subclasses.FakeTensorMode")
"""Tensors that have a shape and no numbers."""
collectives: Any = _named("ops._c10d_functional")
"""Exchanges that `torch.compile` traces."""
check: Callable[[Any], None] = _named("_check")
"""Tells a tracer what holds of a number that it does not know."""
foreach_add, foreach_mul, foreach_norm = map(_named, ("_foreach_add_", "_foreach_mul_", "_foreach_norm"))
"""Of lists of tensors, in one call; the first two in place."""
_task: Callable[[], int] = _named("_C._current_graph_task_id")


def in_backward() -> bool:
    """Whether a backward pass runs: what is computed is computed a second time."""
    return _task() != -1


def compiler_settings(**settings: Any) -> AbstractContextManager[None]:
    """In which Dynamo has these settings."""
    patched: AbstractContextManager[None] = _named("_dynamo.config.patch")(**settings)
    return patched


def unsupported_error() -> type[Exception]:
    """What Dynamo raises for a program that it cannot trace."""
    error: type[Exception] = _named("_dynamo.exc.Unsupported")
    return error


def cudagraph_skips() -> int:
    """How many programs torch has not recorded as a CUDA graph."""
    return int(_named("_dynamo.utils.counters")["inductor"]["cudagraph_skips"])


@contextmanager
def tracing() -> Iterator[None]:
    """In which `torch.compiler.is_compiling()` is true."""
    before = _named("compiler._is_compiling_flag")
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before
