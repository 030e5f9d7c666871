"""The page `docs/implementations.md`, which shows the answers of each implementation to the questions of the ledger."""

from collections.abc import Sequence

from moespec.spec import LEDGER
from moespec.spec.implementations.places import link, link_papers
from moespec.spec.implementations.positions import Measured, Seen, implementations, seen
from moespec.spec.ledger import LedgerEntry, Reading

__all__ = ["answered_by", "groups", "page"]

HEAD = """# What implementations do

<!-- Made by `python -m moespec.conformance.peers` from the ambiguity ledger and conformance/reports. Do not edit. -->

Papers leave routing questions open, and implementations answer them differently. Answer a is what this version of the specification
does. Plain letters were read in code or papers. **Bold** letters were measured by running the suite on the [package](peers.md). Two
letters mean that the implementation does both, in different places or by an option. An empty cell means unknown. Links below each
answer show where it was seen. *(stated in the paper)*: the paper answers the question explicitly, but implementations often differ.

The command line prints the same. It takes the names of routers, algorithms and public functions of `moespec.spec`. Some headings, such
as `hash_layers`, name modules, which it does not take: use an id below the heading.

```console
$ moespec ledger GS-3                       # one question, in full
$ moespec ledger gshard                     # questions about a router or a public function
$ moespec ledger --by vmoe                  # answers of a code base
$ moespec ledger --by vmoe --by mesh        # where two code bases differ
$ moespec ledger --json                     # everything, for programs
```

To cite an answer, name the version and the reading: "Routing as in moespec 0.2, gshard, reading GS-3a".
"""


def page(packages: Sequence[Measured]) -> str:
    """Returns the page as Markdown. packages: the packages on which the suite ran."""
    known = {name: seen(name, packages) for name in implementations(packages)}
    answered = {id for readings in known.values() for id in readings}
    parts = {title: [entry for entry in entries if entry.id in answered] for title, entries in groups().items()}
    sections = [_section(title, entries, known, packages) for title, entries in parts.items() if entries]
    unknown = [f"| {e.id} | {_title([e])} | {e.question} |" for e in LEDGER.values() if e.id not in answered]
    last = "## No implementation known\n\n| id | about | question |\n| --- | --- | --- |"
    return "\n".join([HEAD, *sections, last, *unknown, ""])


def groups() -> dict[str, list[LedgerEntry]]:
    """Returns the ledger entries, grouped by the prefix of the id. Each key is a heading that names the modules."""
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
    described = [line for entry in entries for line in _described(entry, packages)]
    return "\n".join([f"## {title}", "", *([*table, ""] if min(len(entries), len(rows)) > 1 else []), *described, ""])


def _cell(all: Sequence[Seen]) -> str:
    """Returns the letters of the readings. The letters of measured readings are bold."""
    letters = sorted({each.reading[-1] for each in all})
    bold = {each.reading[-1] for each in all if each.measured}
    return ", ".join(f"**{letter}**" if letter in bold else letter for letter in letters)


def _described(entry: LedgerEntry, packages: Sequence[Measured]) -> list[str]:
    lines = [f"- **{entry.id}** {entry.question}{' *(stated in the paper)*' if entry.pitfall else ''}"]
    for reading in entry.readings:
        lines.append(f"  - {reading.id[-1]}: {reading.text}")
        lines += [f"    - {each}" for each in answered_by(entry, reading, packages)]
    return lines


def answered_by(entry: LedgerEntry, reading: Reading, packages: Sequence[Measured]) -> list[str]:
    """Returns one line of Markdown for each implementation that gives this answer, with links to the code or the paper."""
    lines = [(each.who, link(each, entry.module)) for each in reading.implementations]
    for run in (each for each in packages if reading.id in each.readings):
        package = f"measured: [{run.package} {run.version}]({run.address}), {run.readings[reading.id]}"
        lines.append((run.repository, f"{run.repository}, {package}"))
    merged = dict[str, str]()
    for who, line in lines:
        merged[who] = f"{merged[who]}; {line.removeprefix(f'{who}, ')}" if who in merged else line
    return list(merged.values())
