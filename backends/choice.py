"""Selects the backend that `MOESPEC_BACKEND` names, else an imported or installed framework. The command line uses the same rule."""

import importlib.util
import os
import sys

from moespec.spec.errors import ConfigError

__all__ = ["NAMES", "VARIABLE", "check_installed", "choose"]

VARIABLE = "MOESPEC_BACKEND"
NAMES = ("jax", "torch", "numpy")
FRAMEWORKS = {"jax": ("jax", "optax"), "torch": ("torch",)}
"""Maps each framework to its required modules. The first framework is the fallback."""


def choose() -> tuple[str, str]:
    """Returns the name of the selected backend and the reason for the selection. The backend is `MOESPEC_BACKEND` if set, else the imported
    framework if there is exactly one, else the installed framework if there is exactly one, else jax.

    Raises ConfigError if the variable names an unknown backend or a backend that is not installed, or if no framework is installed. The
    message about a missing framework lists the installed frameworks.
    """
    requested = os.environ.get(VARIABLE)
    if requested:
        if requested not in NAMES:
            raise ConfigError(f"{VARIABLE}={requested!r}: expected one of {', '.join(NAMES)}")
        check_installed(requested, f"{VARIABLE}={requested!r}")
        return requested, VARIABLE
    installed = _installed()
    imported = [name for name in installed if sys.modules.get(name) is not None]
    if not installed:
        raise ConfigError(f"cannot choose a backend: neither jax nor torch is installed. {_advice()}")
    if len(installed) == 1:
        return installed[0], "the only framework installed"
    if len(imported) == 1:
        return imported[0], "the framework that is already imported"
    return installed[0], "the default when several are installed"


def check_installed(name: str, where: str) -> None:
    """Raises ConfigError, with a message that starts with `where`, if a module that the backend `name` requires is missing."""
    if name in FRAMEWORKS and name not in _installed():
        raise ConfigError(f"{where}: {name} is not installed. {_advice()}")


def _installed() -> list[str]:
    return [
        name
        for name, needed in FRAMEWORKS.items()
        if all(importlib.util.find_spec(module) is not None for module in needed)
    ]


def _advice() -> str:
    installed = _installed()
    lines = [f"Installed: {', '.join([*installed, 'numpy (the specification itself, far too slow to train)'])}."]
    lines += [f"To install {name}: pip install 'moespec[{name}]'." for name in FRAMEWORKS if name not in installed]
    return " ".join([*lines, f"To choose: set {VARIABLE}={' or '.join([*installed, 'numpy'])}."])
