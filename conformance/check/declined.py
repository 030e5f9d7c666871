"""What a target declares as not offered: patterns of ids of cases, and options of calls, each with a reason.

    not_offered = {"token_choice/keep*": "every choice is made", "token_choice(tries=)": "a full expert drops its token"}

The second declines each case that passes this option of a function, or of a router, with another value than its default,
in any of its calls: in a step of a router, too.
"""

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from fnmatch import fnmatchcase
from functools import cache
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
    """The options with their defaults of each function, by its name, and of each router."""
    calls = {name: getattr(spec, name, None) for name in FUNCTIONS}
    calls |= {name: router.route for name, router in spec.ROUTERS.items()}
    found = {name: inspect.signature(call).parameters.values() for name, call in calls.items() if callable(call)}
    known = {name: {p.name: p.default for p in own if p.default is not p.empty} for name, own in found.items()}
    for name, router in spec.ROUTERS.items():
        known[name] |= {f.name: f.default for f in fields(router.Options) if f.default is not MISSING}
    return {name: own for name, own in known.items() if own}


def problem(entry: str) -> str:
    """What is wrong with an entry, or an empty string: no such call or option, or no case that it matches."""
    found = OPTION.fullmatch(entry)
    if found is None:
        from moespec.conformance.author.large import ids

        known = {*suite.ids(), *ids()}
        matched = any(fnmatchcase(id, entry) for id in known)
        return "" if matched else f"no case matches {entry!r}; `list` prints them all{near_it(entry, known)}"
    name, option = found.groups()
    if name not in _defaults():
        return f"{entry!r}: no function or router {name!r} with options; expected {', '.join(_defaults())}"
    if option not in _defaults()[name]:
        return f"{entry!r}: {name} has no option {option!r}; expected {', '.join(_defaults()[name])}"
    return ""


def declines(entry: str, case: Case) -> bool:
    """Whether an entry is for a case."""
    found = OPTION.fullmatch(entry)
    if found is None:
        return fnmatchcase(case.id, entry)
    name, option = found.groups()
    default = _defaults()[name][option]
    return any(call == name and given.get(option, default) != default for call, given in _calls(case))


def _calls(case: Case) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The name of each function and router that a case calls, and all that is passed to it."""
    waiting: list[Any] = [{"call": s.call, "arguments": s.arguments, "options": s.options} for s in case.stages]
    for each in waiting:
        if isinstance(each, Mapping) and each.keys() == {"call", "arguments", "options"}:
            owner, _, rest = each["call"].partition(".")
            own = each["options"].get("options", {}) if owner == "ROUTERS" else {}
            yield rest.partition(".")[0] if owner == "ROUTERS" else owner, each["arguments"] | each["options"] | own
            waiting += each["arguments"].values()
