"""Which known names are near one that is unknown, for errors; and tables by name whose `KeyError` says so."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import NoReturn, TypeVar

Value = TypeVar("Value")
MOST = 3
"""Names that are near."""


def near(name: object, known: Iterable[str]) -> list[str]:
    """The known names that are most like `name`, and those that have it as a part or begin like it: three at most."""
    text, spelled = str(name).lower(), {each.lower(): each for each in known}
    parts = [each for each in spelled if len(text) > 1 and text in each]
    begin = [each for each in spelled if get_close_matches(text, [each[: len(text) + 1]], cutoff=0.8)]
    return [spelled[each] for each in dict.fromkeys([*get_close_matches(text, spelled), *parts, *begin])][:MOST]


def near_it(name: object, known: Iterable[str]) -> str:
    """The end of an error about an unknown name: `; near it: soft_moe`, or nothing.

    >>> near_it("sotf_moe", ["soft_moe", "hash"]), near_it("softmax", ["hash"])
    ('; near it: soft_moe', '')
    """
    found = near(name, known)
    return f"; near it: {', '.join(found)}" if found else ""


class Names(dict[str, Value]):
    """A table by name. `table[name]` raises a KeyError that says which names are near; else it is a dictionary."""

    def __init__(self, kind: str, table: Mapping[str, Value]) -> None:
        super().__init__(table)
        self.kind = kind

    def __missing__(self, name: str) -> NoReturn:
        raise KeyError(f"{name!r}: there is no such {self.kind}{near_it(name, self)}")

    def __reduce__(self) -> tuple[type["Names[Value]"], tuple[str, dict[str, Value]]]:
        return Names, (self.kind, dict(self))
