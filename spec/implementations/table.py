"""The page `docs/implementations.md`: which reading each implementation takes of the entries of each module."""

from collections.abc import Sequence

from moespec.spec import LEDGER
from moespec.spec.implementations.places import link, link_papers
from moespec.spec.implementations.positions import Measured, Seen, implementations, seen
from moespec.spec.ledger import LedgerEntry, Reading

__all__ = ["groups", "page", "takers"]

HEAD = """# What implementations do

<!-- Made by `python -m moespec.conformance.peers` from the ambiguity ledger and conformance/reports. Do not edit. -->

Papers leave questions of routing open, and implementations answer them differently. Look up a question, or compare implementations
in the tables. Below each answer, links lead to the evidence. The command line prints the same:

```console
$ moespec ledger GS-3                       # one question, in full
$ moespec ledger gshard                     # all questions about a router or a function
$ moespec ledger --by vmoe                  # what a code base does
$ moespec ledger --by vmoe --by mesh        # where two code bases differ
$ moespec ledger --json                     # everything, for programs
```

To cite an answer, name the version and the reading: "Routing as in moespec 0.2, gshard, reading GS-3a".

| notation | meaning |
|---|---|
| GS-3 | question; *(stated in the paper)*: the paper answers it explicitly |
| a, b, c | answers; a is what this version of the specification does |
| a | read in the code or the paper, at the linked line or section |
| **a** | measured: the suite ran on the linked [package](peers.md), which called the code named |
| a, b | the implementation does both, in different places or by an option |
| empty cell | unknown |
"""

UNKNOWN = """## No implementation known

`moespec ledger BG-1` prints the answers to one of these questions.
"""


def page(packages: Sequence[Measured]) -> str:
    """The page as Markdown. packages: those that the suite ran on."""
    known = {name: seen(name, packages) for name in implementations(packages)}
    answered = {id for readings in known.values() for id in readings}
    parts = {title: [entry for entry in entries if entry.id in answered] for title, entries in groups().items()}
    sections = [_section(title, entries, known, packages) for title, entries in parts.items() if entries]
    unknown = [f"| {entry.id} | {entry.question} |" for entry in LEDGER.values() if entry.id not in answered]
    return "\n".join([HEAD, *sections, UNKNOWN, "| id | question |", "|---|---|", *unknown, ""])


def groups() -> dict[str, list[LedgerEntry]]:
    """The entries of each part of the specification, by a heading that names its modules."""
    parts: dict[str, list[LedgerEntry]] = {}
    for entry in LEDGER.values():
        parts.setdefault(entry.id.partition("-")[0], []).append(entry)
    return {_title(entries): entries for entries in parts.values()}


def _title(entries: Sequence[LedgerEntry]) -> str:
    return ", ".join(f"`{name}`" for name in dict.fromkeys(entry.module.rpartition(".")[2] for entry in entries))


def _section(
    title: str, entries: Sequence[LedgerEntry], known: dict[str, dict[str, list[Seen]]], packages: Sequence[Measured]
) -> str:
    rows = [
        [link_papers(name), *(_cell(readings.get(entry.id, [])) for entry in entries)]
        for name, readings in known.items()
        if any(entry.id in readings for entry in entries)
    ]
    grid = [["implementation", *(entry.id for entry in entries)], ["---"] * (len(entries) + 1), *rows]
    table = ["| " + " | ".join(row) + " |" for row in grid]
    described = (line for entry in entries for line in _described(entry, packages))
    return "\n".join([f"## {title}", "", *table, "", *described, ""])


def _cell(all: Sequence[Seen]) -> str:
    """The letters of the readings, bold if measured."""
    letters = sorted({each.reading[-1] for each in all})
    bold = {each.reading[-1] for each in all if each.measured}
    return ", ".join(f"**{letter}**" if letter in bold else letter for letter in letters)


def _described(entry: LedgerEntry, packages: Sequence[Measured]) -> list[str]:
    settled = " *(stated in the paper)*" if entry.pitfall else ""
    lines = [f"- **{entry.id}** {entry.question}{settled}"]
    for reading in entry.readings:
        lines.append(f"  - {reading.id[-1]}: {reading.text}")
        lines += [f"    - {taker}" for taker in takers(entry, reading, packages)]
    return lines


def takers(entry: LedgerEntry, reading: Reading, packages: Sequence[Measured]) -> list[str]:
    """Who takes a reading and where, as Markdown with links: one line per implementation, code that was read first."""
    lines = [(taker.who, link(taker, entry.module)) for taker in reading.takers]
    for run in (each for each in packages if reading.id in each.readings):
        package = f"measured: [{run.package} {run.version}]({run.address}), {run.readings[reading.id]}"
        lines.append((run.repository, f"{run.repository}, {package}"))
    merged: dict[str, str] = {}
    for who, line in lines:
        merged[who] = f"{merged[who]}; {line.removeprefix(f'{who}, ')}" if who in merged else line
    return list(merged.values())
