"""Mixture-of-experts routing for vision: an executable specification, compiled backends and a conformance suite.

    moespec.spec          what each router computes, in NumPy: `help(moespec.spec)`, `moespec.spec.ROUTERS`
    moespec.backends      the same names, batched and compiled: `backends.jax`, `backends.torch`, or the selected backend
    moespec.models        vision models built from routers and backends
    moespec.training      the application: training, evaluation, weights, export and reports
    moespec.conformance   golden vectors, and the suite that checks any implementation against them

`moespec --help` and `python -m moespec --help` list the commands. Each of the five packages is imported on first use.
In the repository, the packages are folders at the root, and this folder contains links to them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moespec import backends, conformance, models, spec, training

    __version__: str
else:

    def __getattr__(name: str) -> Any:
        if name in __all__:
            return import_module(f"{__name__}.{name}")
        if name == "__version__":
            from moespec.version import version

            return version()
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["backends", "conformance", "models", "spec", "training"]


def __dir__() -> list[str]:
    return sorted({*globals(), "__version__", *__all__})
