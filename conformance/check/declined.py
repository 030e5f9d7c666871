"""Read `not_offered`, which maps the cases (id patterns) and options that a target declines to the reasons.

    not_offered = {"token_choice/keep*": "every choice is made", "token_choice(tries=)": "a full expert drops its token"}

An entry with an option declines each case that calls the function or router with a non-default value of the option.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from fnmatch import fnmatchcase
from functools import cache
from inspect import isfunction, signature
from typing import Any

from moespec import spec
from moespec.conformance import suite
from moespec.conformance.format import Case
from moespec.conformance.functions import FUNCTIONS
from moespec.spec.names import near_it

__all__ = ["declines", "problem"]

OPTION = re.compile(r"(\w+)\((\w+)=\)")


@cache
def _defaults() -> dict[str, dict[str, Any]]:
    """The options of each function and router with their defaults."""
    calls = {name: getattr(spec, name) for name in FUNCTIONS if isfunction(getattr(spec, name, None))}
    known = {}
    for name, call in {**calls, **{name: router.route for name, router in spec.ROUTERS.items()}}.items():
        known[name] = {
            each.name: each.default for each in signature(call).parameters.values() if each.default is not each.empty
        }
    for name, router in spec.ROUTERS.items():
        known[name] |= {each.name: each.default for each in fields(router.Options) if each.default is not MISSING}
    return known


def problem(entry: str) -> str:
    """Returns the error in an entry (an unknown call or option, or no matching case), or ""."""
    if found := OPTION.fullmatch(entry):
        known, (name, option) = _defaults(), found.groups()
        if name in known:
            text = f"{name} has no option {option!r}; expected one of {', '.join(known[name]) or 'none'}"
            return "" if option in known[name] else f"{entry!r}: {text}"
        return f"{entry!r}: unknown function or router {name!r}; expected one of {', '.join(known)}"
    from moespec.conformance.author.large import ids

    every = {*suite.ids(), *ids()}
    matched = any(fnmatchcase(id, entry) for id in every)
    return "" if matched else f"no case matches {entry!r}; `list` prints all cases{near_it(entry, every)}"


def declines(entry: str, case: Case) -> bool:
    """Whether an entry of `not_offered` declines a case."""
    if not (found := OPTION.fullmatch(entry)):
        return fnmatchcase(case.id, entry)
    name, option = found.groups()
    default = _defaults()[name][option]
    return any(call == name and given.get(option, default) != default for call, given in _calls(case))


def _calls(case: Case) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields each function and router that a case calls, with all arguments and options of the call."""
    waiting: list[Any] = [{"call": s.call, "arguments": s.arguments, "options": s.options} for s in case.stages]
    for each in waiting:
        if isinstance(each, Mapping) and "call" in each:
            name = each["call"].removeprefix("ROUTERS.").partition(".")[0]
            yield name, {**each["arguments"], **each["options"], **each["options"].get("options", {})}
            waiting += each["arguments"].values()
