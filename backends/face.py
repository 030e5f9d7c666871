"""The public names of a backend. They are collected from its modules, so that no list is kept by hand."""

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Collection, Iterator, Mapping
from types import ModuleType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from moespec import spec
from moespec.backends import common, single_device
from moespec.backends.common.namespace import Namespace
from moespec.backends.optimizer import OptimizerConfig
from moespec.spec.array_like import ArrayLike
from moespec.spec.names import Names
from moespec.spec.numerics import Leading, Shared
from moespec.spec.routing import Routing, Summed

__all__ = ["array_arguments", "install", "specified", "takes_groups"]


def install(
    package: ModuleType,
    *,
    apart: Collection[str] = (),
    xp: Namespace | None = None,
    derive: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None,
    program: Callable[[Callable[..., Any], Mapping[str, str], bool], Callable[..., Any]] | None = None,
) -> list[str]:
    """Gives `package` the public names of a backend, and returns them all, sorted.

    These are every name in `__all__` of its modules (of those in `apart`, which are imported where they are wanted, none) and
    of `single_device`, the formulas of `common`, with the array namespace `xp`, what the specification has that knows no groups,
    `OptimizerConfig`, the `name` that the package has, `put`, which on one device is `from_numpy`, and `ROUTERS`, those of a
    module or of the specification, computed by the package. With `derive`, every other function of the specification that no module has is
    derived from it. With `program`, it makes what is public of those that modules have, of the function and what
    `array_arguments` and `is_summed` say of it.

    Raises ImportError for a name that two modules have.
    """
    names: dict[str, Any] = {"OptimizerConfig": OptimizerConfig}
    names |= {name: getattr(single_device, name) for name in single_device.__all__}
    if xp is not None:
        names |= {name: _of_namespace(value, xp) for _, name, value in _public(common)}
    for module, name, value in _public(package, apart):
        if name in names:
            raise ImportError(
                f"{package.__name__}: {name} is public in {module} and in another module; if one is of an earlier version, remove"
                " build/ and install again"
            )
        names[name] = value
    for name, value in specified():
        if not takes_groups(value):
            names.setdefault(name, value)
        elif name in names:
            if program is not None:
                names[name] = program(names[name], array_arguments(value), is_summed(value))
        elif derive is not None:
            names[name] = derive(value)
    names["put"] = names["from_numpy"]
    routers = names.get("ROUTERS", spec.ROUTERS)
    names["ROUTERS"] = Names({name: router.bind(package) for name, router in routers.items()})
    for name, value in names.items():
        setattr(package, name, value)
        _document(name, value)
    public = sorted({*names, "name"})
    package.__dir__ = lambda: public  # type: ignore[method-assign]
    return public


def _public(package: ModuleType, apart: Collection[str] = ()) -> Iterator[tuple[str, str, Any]]:
    """What is public of the modules of a package: the module, the name and the value."""
    for module in pkgutil.iter_modules(package.__path__):
        if module.name not in apart:
            loaded = importlib.import_module(f"{package.__name__}.{module.name}")
            for name in getattr(loaded, "__all__", ()):
                yield module.name, name, getattr(loaded, name)


def _of_namespace(function: Callable[..., Any], xp: Namespace) -> Callable[..., Any]:
    """A formula of `common` on the arrays of a namespace, which is its first argument."""

    @functools.wraps(function)
    def formula(*arguments: Any, **options: Any) -> Any:
        return function(xp, *arguments, **options)

    signature = inspect.signature(function)
    _, *parameters = signature.parameters.values()
    formula.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return formula


def _document(name: str, value: Any) -> None:
    """Adds what the specification says of a function to what a backend says, which is only what differs."""
    original = getattr(spec, name, None)
    if inspect.isfunction(value) and inspect.isfunction(original) and value.__doc__ != original.__doc__:
        own, common = inspect.getdoc(value), inspect.getdoc(original)
        value.__doc__ = f"{own}\n\nThe specification, of one group:\n\n{common}" if own else common


def specified() -> Iterator[tuple[str, Any]]:
    """The public functions of the specification by name, and its tables of functions.

    Without those of its records of a routing: a backend has its own.
    """
    for name in spec.__all__:
        value = getattr(spec, name)
        if getattr(value, "__module__", "") == Routing.__module__:
            continue
        if inspect.isfunction(value) or (isinstance(value, Mapping) and all(map(inspect.isfunction, value.values()))):
            yield name, value


def takes_groups(value: Any) -> bool:
    """Whether a function (or one of a table) has arguments that differ from group to group, or could."""
    functions = value.values() if isinstance(value, Mapping) else [value]
    return any(kind != "shared" for function in functions for kind in array_arguments(function).values())


def array_arguments(function: Callable[..., Any]) -> dict[str, str]:
    """The arguments of a function of the specification that are arrays or routings, by name.

    "shared" is one array for all groups, "leading" has any leading axes, and "group" is what one group has, so that a
    backend takes it with a leading axis of groups. The types tell which it is: `Shared`, `Leading`, and plain arrays.
    """
    hints = get_type_hints(function, include_extras=True)
    hints.pop("return", None)
    kinds = {name: _kind(hint) for name, hint in hints.items()}
    return {name: kind for name, kind in kinds.items() if kind}


def is_summed(function: Callable[..., Any]) -> bool:
    """Whether what a function of the specification returns adds over groups, as its type `Summed` says."""
    return bool(get_type_hints(function, include_extras=True).get("return") == Summed)


def _kind(hint: Any) -> str:
    alternatives = get_args(hint) or (hint,)
    if hint == Shared or Shared in alternatives:
        return "shared"
    if hint == Leading or Leading in alternatives:
        return "leading"
    is_array = hint is ArrayLike or (get_origin(hint) in (Union, UnionType) and ArrayLike in alternatives)
    return "group" if is_array or hint is Routing else ""
