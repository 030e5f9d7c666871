"""The options of a router in a model: those that the user sets, which are all but those that the model decides.

Each router has the options of its own class `Options` (`moespec.spec.routers`), and no others.
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
    """What a model says about the options of its routers: names of those that it decides, and other defaults."""

    names: tuple[str, ...] = ()
    defaults: tuple[tuple[str, Any], ...] = ()


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


def named_routers(value: Any) -> Any:
    """A field `router` or `block`, with the name of each router that is given as a `Router`."""
    if isinstance(value, Mapping):
        return {key: named_routers(each) for key, each in value.items()}
    return router_name(value) if isinstance(value, Router) else value


def options_of(router: str) -> dict[str, Any]:
    """The types of all options of a router, by name."""
    kind: Any = ROUTERS[router].Options
    return option_types(kind)


def check_options(router: str, options: Mapping[str, Any], decided: Collection[str]) -> None:
    """ConfigError for an unknown router, an option that it does not have or that is `decided`, or a wrong value."""
    router_name(router)
    types = {name: hint for name, hint in options_of(router).items() if name not in decided}
    check_names(PREFIX, options, router, types)
    for name, value in options.items():
        check_value(f"{PREFIX}{name}", value, types[name])


def settings(router: str, options: Mapping[str, Any], **decided: Any) -> RouterOptions:
    """The options of `router`: those `decided` by the model as far as the router has them, and the user's `options`.

    Raises ConfigError for an unknown router, one that needs what the model does not decide, an option that it does not
    have, or values that it cannot have.
    """
    check_options(router, options, tuple(decided))
    needs = ROUTERS[router].requires
    if needs and not decided.get(needs):
        raise ConfigError(f"router={router!r} needs {needs} of the tokens, and what it would route here has none")
    has = options_of(router)
    with named(PREFIX, options):
        made: RouterOptions = ROUTERS[router].options(**{n: v for n, v in decided.items() if n in has}, **options)
    warn_untrained(router, made)
    return made


@dataclass(frozen=True)
class RouterSection:
    """The section `model.router_options` of a run's configuration: a class for each router, here that for none.

    Raises ConfigError for a value that an option cannot have.
    """

    owner: ClassVar[str] = ""
    decided: ClassVar[tuple[str, ...]] = ()
    described_in: ClassVar[Any]
    """The class of the router's options, whose fields have the texts for help."""

    def __post_init__(self) -> None:
        if self.owner:
            with named("model.", ("router_options",)):
                check_options(self.owner, vars(self), self.decided)

    def changed(self) -> dict[str, Any]:
        """The options that differ from the defaults."""
        return {field.name: value for field in fields(self) if (value := getattr(self, field.name)) != field.default}


@cache
def section(router: str, kind: Any, decided: Decided) -> type[RouterSection]:
    """The class of the section for a router with options of the class `kind` in a model, without the options that the model decides.

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
