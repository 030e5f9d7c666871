"""The router options that a user can set in a model. The model itself determines all other router options.

The class `Options` of each router (`moespec.spec.routers`) defines all options of the router.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields, make_dataclass
from functools import cache
from typing import Any, ClassVar, NamedTuple

from moespec.backends.layer import warn_untrained
from moespec.models.checks import check_names, check_value
from moespec.spec.errors import ConfigError
from moespec.spec.options import RouterOptions
from moespec.spec.ranges import option_types
from moespec.spec.routers import ROUTERS, Router, router_name

__all__ = ["Decided", "RouterSection", "check_options", "named", "named_routers", "options_of", "section", "settings"]

PREFIX = "router_options."


class Decided(NamedTuple):
    """The names of the router options that a model determines, and the model's defaults for options that the user can set."""

    names: tuple[str, ...] = ()
    defaults: tuple[tuple[str, Any], ...] = ()


@contextmanager
def named(prefix: str, names: Collection[str]) -> Iterator[None]:
    """Adds the section `prefix` to a ConfigError about one of the settings `names`."""
    try:
        yield
    except ConfigError as error:
        about = re.match(r"\w+", str(error))
        if about and about[0] in names:
            raise ConfigError(f"{prefix}{error}") from None
        raise


def named_routers(value: Any) -> Any:
    """Returns the value of the field `router` or `block`, with each `Router` object replaced by its name."""
    if isinstance(value, Mapping):
        return {key: named_routers(each) for key, each in value.items()}
    return router_name(value) if isinstance(value, Router) else value


def options_of(router: str) -> dict[str, Any]:
    """Returns the types of all options of a router, by name."""
    kind: Any = ROUTERS[router].Options
    return option_types(kind)


def check_options(router: str, options: Mapping[str, Any], decided: Collection[str]) -> None:
    """Raises ConfigError for an unknown router, for an option that the router lacks or that is in `decided`, and for an invalid value."""
    router_name(router)
    types = {name: hint for name, hint in options_of(router).items() if name not in decided}
    check_names(PREFIX, options, router, types)
    for name, value in options.items():
        check_value(f"{PREFIX}{name}", value, types[name])


def settings(router: str, options: Mapping[str, Any], **decided: Any) -> RouterOptions:
    """Returns the options of `router` with the user's `options` and with all values in `decided` for which the router has an option.

    Raises ConfigError for an unknown router, for a router with an input that the model does not provide, for an option
    that the router does not have, and for invalid values.
    """
    check_options(router, options, tuple(decided))
    needs = ROUTERS[router].requires
    if needs and not decided.get(needs):
        raise ConfigError(f"router={router!r} needs {needs} of the tokens, which this model does not have")
    has = options_of(router)
    with named(PREFIX, options):
        made: RouterOptions = ROUTERS[router].options(**{n: v for n, v in decided.items() if n in has}, **options)
    warn_untrained(router, made)
    return made


@dataclass(frozen=True)
class RouterSection:
    """The section `model.router_options` of a run's configuration. Each router has a subclass; a model without a router uses this class.

    Raises ConfigError for an invalid value of an option.
    """

    owner: ClassVar[str] = ""
    decided: ClassVar[tuple[str, ...]] = ()
    described_in: ClassVar[Any]
    """The class of the router's options. Its fields have the help texts."""

    def __post_init__(self) -> None:
        if self.owner:
            with named("model.", ("router_options",)):
                check_options(self.owner, vars(self), self.decided)

    def changed(self) -> dict[str, Any]:
        """Returns the options that differ from the defaults."""
        return {field.name: value for field in fields(self) if (value := getattr(self, field.name)) != field.default}


@cache
def section(router: str, kind: Any, decided: Decided) -> type[RouterSection]:
    """Returns the section class of a router, with the options in the class `kind` except those that the model determines.

    Raises ConfigError for an option without a default.
    """
    members = []
    for option in fields(kind):
        if option.name not in decided.names:
            default = dict(decided.defaults).get(option.name, option.default)
            if default is MISSING:
                raise ConfigError(f"router={router!r}: its option {option.name} needs a default")
            members.append((option.name, options_of(router)[option.name], default))
    about = {"owner": router, "decided": decided.names, "described_in": kind}
    namespace = {"__doc__": f"Options of the router {router}.", **about}
    return make_dataclass(
        f"{ROUTERS[router].name}_options", members, bases=(RouterSection,), frozen=True, namespace=namespace
    )
