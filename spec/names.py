"""Similar names for error messages, read-only tables whose errors suggest similar names, and the public names of a module."""

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from types import ModuleType
from typing import Any, NoReturn, TypeVar

Value = TypeVar("Value")


def near(name: object, known: Iterable[str]) -> list[str]:
    """Returns up to three known names that resemble `name`, contain it or begin similarly."""
    text, spelled = str(name).lower(), {each.lower(): each for each in known}
    begin = [each for each in spelled if get_close_matches(text, [each[: len(text) + 1]], cutoff=0.8)]
    found = [*get_close_matches(text, spelled), *(each for each in spelled if len(text) > 1 and text in each), *begin]
    return [spelled[each] for each in dict.fromkeys(found)][:3]


def near_it(name: object, known: Iterable[str]) -> str:
    """The end of an error message, such as `; did you mean soft_moe?`, or an empty string if no known name is similar."""
    return f"; did you mean {', '.join(found)}?" if (found := near(name, known)) else ""


class Names(dict[str, Value]):
    """A read-only dictionary whose keys are names. `table[name]` with an unknown name raises a KeyError that suggests similar names."""

    def __missing__(self, name: str) -> NoReturn:
        raise KeyError(f"{name!r} is not in this table{near_it(name, self)}")

    def _changed(self, *values: Any, **named: Any) -> NoReturn:
        raise TypeError("this table is read-only; select a custom object by name, 'package.module:object'")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _changed


def warn_renamed(old: str, new: str) -> None:
    """Warns the caller that a public name is deprecated."""
    warnings.warn(
        f"{old} is deprecated and will be removed in moespec 0.3; use {new}", DeprecationWarning, stacklevel=3
    )


def renamed(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Returns a `__getattr__` for a module. For a deprecated name, this function warns and returns the object with the new name."""

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warn_renamed(f"{module}.{name}", names[name])
        return getattr(sys.modules[module], names[name])

    return get


def public_names(module: Mapping[str, object]) -> list[str]:
    """The sorted public names in the `globals()` of a module, excluding modules and names with a leading underscore."""
    return sorted(name for name, value in module.items() if name[0] != "_" and not isinstance(value, ModuleType))
