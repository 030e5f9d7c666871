"""The selected backend: `backends` selects one when a name is first read from it, and then behaves like that backend.

    from moespec import backends                 # selects nothing yet
    from moespec.backends import token_choice    # selects a backend and imports its `token_choice`

`MOESPEC_BACKEND` (`jax`, `torch` or `numpy`) sets the backend. Without `MOESPEC_BACKEND`, moespec selects the only framework already
imported, else the only one that is installed, else jax; the command line uses the same rule (`moespec.backends.choice`).
Importing a backend by its name (`import moespec.backends.jax`) selects nothing, so several can be used side by side.
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
    """The selected backend. The first call selects the backend; changing the variable afterwards is an error."""
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
    if name in _MODULES:  # `from moespec.backends import jax` imports the backend named jax
        return importlib.import_module(f"{__name__}.{name}")
    return getattr(_resolve(), name)


def __dir__() -> list[str]:
    return sorted(dir(_resolve()))
