"""The ambiguity ledger: questions that implementations answer differently. Docstrings of modules contain entries like this one:

    XX-1: The question?
        Reading: the answer of this specification.
            By: the paper, section 2; owner/repository, file.py, function.
        Alternative b: another answer.
            By: owner/repository, file.py, function.

`By` lists the sources of an answer: papers that state the answer explicitly, and public code (repository, file and function). "the
paper" means the paper that the module's table of symbols names. Entries cite other papers by name and arXiv number, as in "Switch (arXiv
2101.03961), appendix B". Each paper has one name in all entries. The entries below the heading "Often done differently" are pitfalls: a
paper answers the question explicitly, but implementations often differ from the paper. For the entries below the heading
"Ambiguity ledger", the paper gives no clear answer, or another source differs from the paper.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from moespec.spec.names import warn_renamed

__all__ = ["Implementation", "LedgerEntry", "Reading"]

PITFALLS = "Often done differently"
_ENTRY = re.compile(r"^(?P<id>[A-Z]{2}-\d+): (?P<question>.+\?)\n(?P<readings>(?: {4}.+\n)+)", re.MULTILINE)
_READING = re.compile(
    r"^ {4}(?:Reading|Alternative (?P<letter>[b-z])): (?P<text>.+\n(?: {8}(?!By: ).+\n)*)(?: {8}By: (?P<by>.+\n(?: {8}.+\n)*))?",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Implementation:
    """A source of an answer: "the paper", another paper as "Name (arXiv number)", or a repository. where: the location in the source."""

    who: str
    where: str = ""


@dataclass(frozen=True)
class Reading:
    """One answer to a question of the ledger.

    id: the id of the entry and a letter, as in "GS-3b". The letter a denotes the answer of this specification.
    text: the answer.
    implementations: the known sources of this answer.
    """

    id: str
    text: str
    implementations: tuple[Implementation, ...] = ()

    @property
    def takers(self) -> tuple[Implementation, ...]:
        """The deprecated name of `implementations`."""
        warn_renamed("Reading.takers", "implementations")
        return self.implementations


@dataclass(frozen=True)
class LedgerEntry:
    """A question that implementations answer differently.

    readings: the answers, starting with the answer of this specification.
    pitfall: whether a paper answers the question explicitly.
    module: the name of the module whose docstring contains the entry.
    """

    id: str
    question: str
    readings: tuple[Reading, ...]
    pitfall: bool = False
    module: str = ""


def entries(documentation: str, module: str = "") -> Iterator[LedgerEntry]:
    """Yields the ledger entries in the docstring of a module."""
    ledger, *pitfalls = documentation.split(f"\n{PITFALLS}\n", 1)
    for text, pitfall in ((ledger, False), ("".join(pitfalls), True)):
        for entry in _ENTRY.finditer(text + "\n"):
            readings = tuple(_readings(entry["id"], entry["readings"]))
            yield LedgerEntry(entry["id"], _line(entry["question"]), readings, pitfall, module)


def _readings(id: str, text: str) -> Iterator[Reading]:
    for reading in _READING.finditer(text):
        lines = (line.split(", ", 1) for line in _line(reading["by"] or "").rstrip(".").split("; ") if line)
        letter = reading["letter"] or "a"
        yield Reading(f"{id}{letter}", _line(reading["text"]), tuple(Implementation(*line) for line in lines))


def _line(text: str) -> str:
    return " ".join(text.split())
