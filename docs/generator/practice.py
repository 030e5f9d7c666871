"""What code bases do: the readings that the ledger says they take, and the known variants of the suite that they are."""

from collections.abc import Iterator
from string import ascii_lowercase
from typing import NamedTuple

from generator.catalogue import Page
from moespec.conformance.author.variant import Variant
from moespec.conformance.cases import variants
from moespec.spec import LEDGER

__all__ = ["Practice", "by_code_base", "of_page", "practices", "variants_of"]


class Practice(NamedTuple):
    """What one code base, or the paper, does about one question.

    reading: of the ledger, or its entry where the ledger does not list it, or nothing where the ledger does not ask.
    where: the place in the code, or the name of the known variant.
    """

    who: str
    reading: str
    question: str
    text: str
    where: str

    @property
    def entry(self) -> str:
        """The id of the ledger's entry."""
        return self.reading.rstrip(ascii_lowercase)


def practices() -> Iterator[Practice]:
    """All of them: first those of the ledger, then the variants that the ledger does not have already."""
    told = set()
    for entry in LEDGER.values():
        for reading in entry.readings:
            for taker in reading.takers:
                told.add((taker.who, reading.id))
                yield Practice(taker.who, reading.id, entry.question, reading.text, taker.where)
    for variant in variants().values():
        for who in variant.who.split(", "):
            if who and (who, variant.ledger) not in told:
                question = LEDGER[variant.ledger.rstrip(ascii_lowercase)].question if variant.ledger else ""
                yield Practice(who, variant.ledger, question, variant.computes, f"known variant `{variant.name}`")


def by_code_base() -> dict[str, list[Practice]]:
    """The code bases with what they do, those of which most is known first; the papers last."""
    found: dict[str, list[Practice]] = {}
    for practice in practices():
        found.setdefault(practice.who, []).append(practice)
    return dict(sorted(found.items(), key=lambda item: ("/" not in item[0], -len(item[1]), item[0])))


def of_page(page: Page) -> list[Practice]:
    """What is done about the entries of a page, or by a variant of what it is about."""
    entries = {entry.id for entry in page.entries}
    own = {f"known variant `{variant.name}`" for variant in variants_of(page)}
    return [practice for practice in practices() if practice.entry in entries or practice.where in own]


def variants_of(page: Page) -> list[Variant]:
    """The known variants that replace what a page is about, and not only something that every algorithm uses."""
    names = {page.name, *page.algorithm.functions} - {"ROUTERS"}
    return [variant for variant in variants().values() if variant.replaced.keys() & names]
