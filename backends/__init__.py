"""Selects a backend at the first access to a function of this package. The package then behaves like the selected backend.

    from moespec import backends                 # selects no backend
    from moespec.backends import token_choice    # selects a backend and imports its `token_choice`

`MOESPEC_BACKEND` (`jax`, `torch` or `numpy`) sets the backend. By default, moespec selects the imported framework if there is exactly one,
else the installed framework if there is exactly one, else jax. The command line uses the same rule (`choice`). Importing a backend by name
(`import moespec.backends.jax`) does not select it, so a process can use several backends side by side.
"""

import importlib
import os
from types import ModuleType
from typing import Any

from moespec.backends.choice import VARIABLE, choose
from moespec.spec.errors import ConfigError

_MODULES = {
    *("jax", "numpy", "torch", "common", "binding", "blocks", "choice", "contract", "directions", "expert_parallel"),
    *("layer", "mesh", "optimizer", "optimizer_options", "patterns", "processes", "pytrees", "routers"),
    "single_device",
}
_chosen: ModuleType | None = None


def _resolve() -> ModuleType:
    """Selects a backend on the first call, and returns it. Raises ConfigError if `MOESPEC_BACKEND` has changed to another backend."""
    global _chosen
    if _chosen is None:
        _chosen = importlib.import_module(f"{__name__}.{choose()[0]}")
    requested = os.environ.get(VARIABLE)
    if requested and requested != _chosen.name:
        raise ConfigError(
            f"{VARIABLE} was changed to {requested!r} after the backend {_chosen.name!r} was chosen. A process "
            "chooses its backend once: start a new process, or import a backend by name."
        )
    return _chosen


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    if name in _MODULES:  # `from moespec.backends import jax` imports the JAX backend
        return importlib.import_module(f"{__name__}.{name}")
    return getattr(_resolve(), name)


def __dir__() -> list[str]:
    return sorted(dir(_resolve()))
