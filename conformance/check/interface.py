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
    problem, _claimed[found, name] = _checked(found, name)
    if problem:
        raise ConfigError(f"{kind} {name!r}: {problem}")
    return found


_claimed: dict[tuple[type[Target], str], str] = {}


def claims(interface: type[Target], name: str) -> str:
    """The version of the specification that a target claimed to follow when it was first looked at, or an empty string."""
    if (interface, name) not in _claimed:
        _claimed[interface, name] = _checked(interface, name)[1]
    return _claimed[interface, name]


def _checked(interface: type[Target], name: str) -> tuple[str, str]:
    """What is wrong with it by what its process says, or by how that ended; and what it claims."""
    try:
        return process(interface, name).ask(pack({}, {}), LIMIT, ROOM, _read)
    except EndedError as error:
        return f"cannot be imported: {error}", ""


def _read(answer: Any, arrays: Any) -> tuple[str, str]:
    return str(answer["problem"]), str(answer["claims"])
