"""What the name of a target or of an adapter stands for, and whether it has what it must have."""

import importlib

from moespec.conformance.check.adapter import Adapter, kernel
from moespec.conformance.check.target import Target
from moespec.spec.errors import ConfigError

__all__ = ["interface"]


def interface(target: str | None, adapter: str | None) -> type[Target]:
    """The interface of a target module, or else of an adapter.

    Raises ConfigError, naming it, for one that cannot be imported, or lacks what the suite calls.
    """
    if target is not None:
        _check_target(target)
        return Target
    _check_absolute("adapter", str(adapter))
    try:
        kernel(str(adapter))
    except (Exception, SystemExit) as error:  # a third party's module may do anything
        raise ConfigError(f"adapter {adapter!r}: {type(error).__name__}: {error}") from error
    return Adapter


def _check_absolute(kind: str, name: str) -> None:
    if not name or name.startswith("."):
        raise ConfigError(f"{kind} {name!r}: expected the name of a module, such as package.module")


def _check_target(name: str) -> None:
    _check_absolute("target", name)
    try:
        module = importlib.import_module(name)
    except (Exception, SystemExit) as error:  # a third party's module may do anything
        raise ConfigError(f"target {name!r}: cannot be imported: {type(error).__name__}: {error}") from error
    missing = [needed for needed in ("from_numpy", "to_numpy") if not hasattr(module, needed)]
    if missing:
        raise ConfigError(f"target {name!r}: has no {' and no '.join(missing)}; see docs/conformance.md")
    declared = getattr(module, "not_offered", {})
    right = isinstance(declared, dict) and all(
        isinstance(word, str) and word for pair in declared.items() for word in pair
    )
    if not right:
        raise ConfigError(f"target {name!r}: not_offered={declared!r}: expected patterns of ids with reasons")
