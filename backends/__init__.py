"""The backend in use: `backends` chooses one, once, when something of it is first used, and then behaves like it.

    from moespec import backends                 # chooses nothing yet
    from moespec.backends import token_choice    # chooses: `token_choice` is that of a backend

The choice is `MOESPEC_BACKEND` (`jax`, `torch` or `numpy`), else the one framework that is already imported, else the
only one installed, else an error that lists what is installed. Importing a backend by its own name
(`import moespec.backends.jax`) chooses nothing, so several can be used side by side.
"""

import importlib
import importlib.util
import os
import pkgutil
import sys
from types import ModuleType
from typing import Any

from moespec.spec.errors import ConfigError

_VARIABLE = "MOESPEC_BACKEND"
_NAMES = ("jax", "torch", "numpy")
_FRAMEWORKS = {"jax": ("jax", "optax"), "torch": ("torch",)}  # backend -> the modules it needs
_MODULES = {module.name for module in pkgutil.iter_modules(__path__)}
_chosen: ModuleType | None = None


def _choose() -> str:
    requested = os.environ.get(_VARIABLE)
    if requested:
        if requested not in _NAMES:
            raise ConfigError(f"{_VARIABLE}={requested!r}: expected one of {', '.join(_NAMES)}")
        if requested in _FRAMEWORKS and requested not in _installed():
            raise ConfigError(f"{_VARIABLE}={requested!r}, but {requested} is not installed. {_advice()}")
        return requested
    installed = _installed()
    imported = [name for name in installed if sys.modules.get(name) is not None]
    if len(imported) == 1:
        return imported[0]
    if len(installed) == 1:
        return installed[0]
    raise ConfigError(f"cannot choose a backend: {_VARIABLE} is not set. {_advice()}")


def _installed() -> list[str]:
    return [
        name
        for name, needed in _FRAMEWORKS.items()
        if all(importlib.util.find_spec(module) is not None for module in needed)
    ]


def _advice() -> str:
    installed = _installed()
    missing = [name for name in _FRAMEWORKS if name not in installed]
    lines = [f"Installed: {', '.join([*installed, 'numpy (the specification itself, slow)'])}."]
    lines += [f"To install {name}: pip install 'moespec[{name}]'." for name in missing]
    lines += [f"To choose: set {_VARIABLE}={' or '.join([*installed, 'numpy'])}, or import a backend by its name"]
    lines += [f"(import {__name__}.{installed[0] if installed else 'numpy'})."]
    return " ".join(lines)


def _resolve() -> ModuleType:
    """The chosen backend. The first call chooses; a later change of the variable is an error."""
    global _chosen
    if _chosen is None:
        _chosen = importlib.import_module(f"{__name__}.{_choose()}")
    requested = os.environ.get(_VARIABLE)
    if requested and requested != _chosen.name:
        raise ConfigError(
            f"{_VARIABLE} was changed to {requested!r} after the backend {_chosen.name!r} was chosen. A process "
            "chooses once: start a new one, or import a backend by its name."
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
