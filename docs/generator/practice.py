"""Practice: the implementations that take each reading of the ledger, and the suite's known variants."""

import re

from generator.catalogue import Page
from moespec.conformance.author.variant import Variant
from moespec.conformance.cases import variants
from moespec.spec import ALGORITHMS, LEDGER
from moespec.spec.errors import ConfigError
from moespec.spec.implementations.entries import entries_of
from moespec.spec.implementations.positions import find, implementations, seen


def concerned() -> dict[str, list[str]]:
    """The matrix rows (routers and functions) affected by each ledger entry."""
    by_name = {name: {entry.id for entry in entries_of(name)} for name in ALGORITHMS}
    return {id: [name for name, own in by_name.items() if id in own] for id in LEDGER}


def known_of() -> dict[str, list[str]]:
    """The implementations with a known reading of each ledger entry."""
    by_name = {name: seen(name) for name in implementations()}
    return {id: [name for name, own in by_name.items() if id in own] for id in LEDGER}


def beyond() -> list[Variant]:
    """The known variants whose reading the ledger lacks, or whose public code the ledger does not list under the reading."""
    return [variant for variant in variants().values() if variant.who and not _told(variant)]


def _told(variant: Variant) -> bool:
    for who in variant.who.split(", "):
        try:
            known = seen(find(who.partition(" (")[0])).values()
        except ConfigError:  # code unknown to the ledger
            return False
        if not any(variant.ledger == each.reading for all in known for each in all):
            return False
    return True


def variants_of(page: Page) -> list[Variant]:
    """The known variants that replace the page's router or one of the page's functions."""
    names = {page.name, *page.algorithm.functions} - {"ROUTERS"}
    return [variant for variant in variants().values() if variant.replaced.keys() & names]


def with_issues(who: str) -> str:
    """The code's owner as Markdown: "owner/name (issue 7)" with a link to the issue."""
    return re.sub(r"([\w.-]+/[\w.-]+)( \([^)]*?)issue (\d+)", r"\1\2[issue \3](https://github.com/\1/issues/\3)", who)
