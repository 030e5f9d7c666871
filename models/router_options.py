"""The options of a router in a model: those that the user sets, which are all but those that the model decides.

Each router has the options of its own class `Options` (`moespec.spec.routers`), and no others.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields, make_dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, NamedTuple

from tyro.conf import FlagConversionOff, arg

from moespec.models.checks import check_value
from moespec.spec.errors import ConfigError
from moespec.spec.options import RouterOptions
from moespec.spec.ranges import option_types
from moespec.spec.routers import ROUTERS

__all__ = ["Decided", "RouterSection", "check_options", "named", "options_of", "section", "settings"]


PREFIX = "router_options."


class Decided(NamedTuple):
    """What a model says about the options of its routers: names of those that it decides, and other defaults."""

    names: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = {}


@contextmanager
def named(prefix: str, names: Collection[str]) -> Iterator[None]:
    """Adds to a ConfigError about one of `names` the prefix with which the user wrote that name."""
    try:
        yield
    except ConfigError as error:
        about = re.match(r"\w+", str(error))
        if about and about[0] in names:
            raise ConfigError(f"{prefix}{error}") from None
        raise


def options_of(router: str) -> dict[str, Any]:
    """The types of all options of a router, by name."""
    kind: Any = ROUTERS[router].Options
    return option_types(kind)


def check_router(router: str) -> None:
    """ConfigError unless there is such a router."""
    if router not in ROUTERS:
        raise ConfigError(f"router={router!r}: expected one of {', '.join(ROUTERS)}")


def check_options(router: str, options: Mapping[str, Any], decided: tuple[str, ...]) -> None:
    """ConfigError for an unknown router, an option that it does not have or that is `decided`, or a wrong value."""
    check_router(router)
    types = _set_by_user(router, decided)
    _check_names(router, types, options, PREFIX)
    for name, value in options.items():
        check_value(f"{PREFIX}{name}", value, types[name])


def settings(router: str, options: Mapping[str, Any], **decided: Any) -> RouterOptions:
    """The options of `router`: those `decided` by the model as far as the router has them, and the user's `options`.

    Raises ConfigError for an unknown router, one that needs what the model does not decide, an option that it does not
    have, or values that it cannot have.
    """
    check_options(router, options, tuple(decided))
    needs = ROUTERS[router].needs
    if needs and not decided.get(needs):
        raise ConfigError(f"router={router!r} needs {needs} of the tokens, and what it would route here has none")
    has = options_of(router)
    with named(PREFIX, options):
        made: RouterOptions = ROUTERS[router].options(
            **{name: value for name, value in decided.items() if name in has}, **options
        )
    return made


@dataclass(frozen=True)
class RouterSection:
    """The section `model.router_options` of a run's configuration: a class for each router, here that for none.

    Raises ConfigError for a value that an option cannot have.
    """

    router: ClassVar[str] = "a model without a router"
    types: ClassVar[Mapping[str, Any]] = {}

    def __post_init__(self) -> None:
        for name in self.types:
            self.check(name, getattr(self, name))

    @classmethod
    def check(cls, name: str, value: Any) -> None:
        """ConfigError unless the router has the option `name` and it can have the value."""
        cls.check_names({name: value})
        check_value(f"model.{PREFIX}{name}", value, cls.types[name])

    @classmethod
    def check_names(cls, given: Mapping[str, Any]) -> None:
        """ConfigError for an option that the router does not have."""
        _check_names(cls.router, cls.types, given, f"model.{PREFIX}")

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "RouterSection":
        """The section with these options. Raises ConfigError for one that the router does not have."""
        cls.check_names(given)
        return cls(**given)

    def changed(self) -> dict[str, Any]:
        """The options that differ from the defaults."""
        values = {field.name: (getattr(self, field.name), field.default) for field in fields(self)}
        return {name: value for name, (value, default) in values.items() if value != default}


@cache
def _section(router: str, names: tuple[str, ...], defaults: tuple[tuple[str, Any], ...]) -> type[RouterSection]:
    types, help_texts, Options = _set_by_user(router, names), _help(ROUTERS[router].Options), ROUTERS[router].Options
    other = dict(defaults)
    members = []
    for field in fields(Options):
        if field.name in types:
            marks = (FlagConversionOff, arg(help=help_texts.get(field.name, "")))
            default = other.get(field.name, field.default)
            if default is MISSING:
                raise TypeError(f"{router}: the option {field.name} has no default, and no model decides it")
            members.append((field.name, Annotated[(types[field.name], *marks)], default))
    namespace = {"__doc__": f"Options of the router {router}.", "router": router, "types": types}
    return make_dataclass(f"{router}_options", members, bases=(RouterSection,), frozen=True, namespace=namespace)


def section(router: str | None, decided: Decided | None) -> type[RouterSection]:
    """The class of the section for a router in a model; for no router, or a model without routers, that without options.

    Raises ConfigError for an unknown router.
    """
    if router is None or decided is None:
        return RouterSection
    check_router(router)
    return _section(router, decided.names, tuple(decided.defaults.items()))


def _set_by_user(router: str, decided: tuple[str, ...]) -> dict[str, Any]:
    """The types of the options of `router` that the model does not decide, by name."""
    return {name: hint for name, hint in options_of(router).items() if name not in decided}


def _check_names(router: str, types: Mapping[str, Any], given: Mapping[str, Any], prefix: str) -> None:
    for name, value in given.items():
        if name not in types:
            has = f"it has {', '.join(types)}" if types else "it has none"
            raise ConfigError(f"{prefix}{name}={value!r}: {router} does not have this option; {has}")


def _help(Options: type[RouterOptions]) -> dict[str, str]:
    """The docstring below each field, by the name of the field, of the class and those it is made of."""
    texts: dict[str, str] = {}
    for kind in reversed(Options.__mro__[:-1]):
        body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, text in zip(body.body, body.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
                texts[field.target.id] = " ".join(str(ast.literal_eval(text.value)).split())
    return texts
