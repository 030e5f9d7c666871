"""What the name of a target or of an adapter stands for, and whether it has what it must have."""

from typing import Any

from moespec.conformance.check.adapter import Adapter
from moespec.conformance.check.process import LIMIT, ROOM, EndedError, process
from moespec.conformance.check.target import Target
from moespec.conformance.check.worker import pack
from moespec.spec.errors import ConfigError

__all__ = ["claims", "interface"]


def interface(target: str | None, adapter: str | None) -> type[Target]:
    """The interface of a target module, or else of an adapter.

    Raises ConfigError, naming it, for one that cannot be imported, or lacks what the suite calls.
    """
    found, kind, name = (Adapter, "adapter", str(adapter)) if target is None else (Target, "target", target)
    if not name or name.startswith("."):
        raise ConfigError(f"{kind} {name!r}: expected the name of a module, such as package.module")
    if problem := _checked(found, name)["problem"]:
        raise ConfigError(f"{kind} {name!r}: {problem}")
    return found


def claims(interface: type[Target], name: str) -> str:
    """The version of the specification that a target claims to follow, or an empty string."""
    return _checked(interface, name)["claims"]


def _checked(interface: type[Target], name: str) -> dict[str, str]:
    """What its process says of it, or how it ended."""
    try:
        return process(interface, name).ask(pack({}, {}), LIMIT, ROOM, _read)
    except EndedError as error:
        return {"problem": f"cannot be imported: {error}", "claims": ""}


def _read(answer: Any, arrays: Any) -> dict[str, str]:
    return {key: str(answer[key]) for key in ("problem", "claims")}
