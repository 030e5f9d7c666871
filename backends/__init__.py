"""The backend in use: `backends` chooses one, once, when something of it is first used, and then behaves like it.

    from moespec import backends                 # chooses nothing yet
    from moespec.backends import token_choice    # chooses: `token_choice` is that of a backend

The choice is `MOESPEC_BACKEND` (`jax`, `torch` or `numpy`), else the one framework that is already imported, else the
only one installed, else jax (`moespec.backends.choice`, as on the command line). Importing a backend by its own name
(`import moespec.backends.jax`) chooses nothing, so several can be used side by side.
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
    """The chosen backend. The first call chooses; a later change of the variable is an error."""
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
    if name in _MODULES:  # `from moespec.backends import jax` means the backend of that name
        return importlib.import_module(f"{__name__}.{name}")
    return getattr(_resolve(), name)


def __dir__() -> list[str]:
    return sorted(dir(_resolve()))
