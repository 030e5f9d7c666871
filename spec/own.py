"""Names of user-defined objects: `package.module:object`. Users can pass such a name wherever moespec expects the name of an object.

The name refers to an object in a module that is already imported. Only `load_own` imports modules, and the command line
calls `load_own` only with names that the user passes. A name in a third-party file therefore cannot make moespec import a module.
"""

import importlib
import re
import reprlib
import sys
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from moespec.spec.errors import ConfigError

Kind = TypeVar("Kind")
_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


class OwnName(str):
    """The type of a field that accepts the name `package.module:object` of a user-defined object. The value is a plain string."""


def is_own(name: object) -> bool:
    """Whether `name` has the form `package.module:object`."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def raised(error: BaseException) -> str:
    """Describes an exception from user code in one line, with the last three locations of the traceback."""
    frames = [one for one in traceback.extract_tb(error.__traceback__)[1:] if "importlib" not in one.filename]
    places = ", ".join(f"{one.filename}:{one.lineno} in {one.name}" for one in frames[-3:])
    return " ".join(f"{type(error).__name__}: {error}{places and f', at {places}'}".split())


def shown(value: object) -> str:
    """Describes a value from user code in one short line, even if the `repr` of the value raises an error."""
    kind = reprlib.Repr()
    kind.maxother = 120
    return " ".join(kind.repr(value).split())


def load_own(argument: str, name: str) -> Any:
    """Imports the module and returns the object `package.module:object`. Raises ConfigError if the import or the lookup fails."""
    module, _, attribute = name.rpartition(":")
    if not is_own(name):
        raise ConfigError(f"{argument}={name!r}: expected package.module:object")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # user code may raise any exception
        raise ConfigError(f"{argument}={name!r}: cannot be imported ({raised(error)})") from error


def find_own(argument: str, name: str, kind: type[Kind]) -> Kind:
    """Returns the object `package.module:object` from a module that is already imported.

    Raises ConfigError if the module is not imported, or if the module has no object of this name with the type `kind`.
    """
    module, _, attribute = name.rpartition(":")
    if (imported := sys.modules.get(module)) is None:
        raise ConfigError(
            f"{argument}={name!r}: {module} is not imported; import it first, or add --trust {name} if you trust it"
        )
    if module.split(".")[0] in sys.stdlib_module_names:
        raise ConfigError(f"{argument}={name!r}: expected your own module, not one of Python's standard library")
    if module == "__main__" and not hasattr(imported, attribute):
        raise ConfigError(f"{argument}={name!r}: is defined in another notebook or script; move it into a module")
    if not isinstance(found := getattr(imported, attribute, None), kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        raise ConfigError(f"{argument}={name!r}: expected the name of {article} {kind.__name__}, got {shown(found)}")
    return found


def own_function(argument: str, name: str, *, load: bool = False) -> Callable[..., Any]:
    """Returns the function `package.module:object` (see `find_own`). load: whether to import the module first."""
    if not callable(found := load_own(argument, name) if load else find_own(argument, name, object)):
        raise ConfigError(f"{argument}={name!r}: expected the name of a function, got {shown(found)}")
    return found


def own_name(argument: str, value: object) -> str:
    """Returns the name `package.module:object` of a module-level object.

    Raises ConfigError if the object has no name in an imported module.
    """
    # Search the module that defines the object before the modules and the script that import it.
    for module in [getattr(value, "__module__", ""), *(name for name in sys.modules if name[:2] != "__"), "__main__"]:
        for attribute, found in [*getattr(sys.modules.get(module), "__dict__", {}).items()]:
            if found is value and is_own(name := f"{module}:{attribute}"):
                return name
    raise ConfigError(f"{argument}={shown(value)}: expected a module-level object, which runs can refer to by name")
