"""The page of implementations: which reading each implementation takes, by part of the specification."""

from collections.abc import Sequence

from moespec.spec import LEDGER
from moespec.spec.implementations.places import link, link_papers
from moespec.spec.implementations.positions import Measured, Seen, implementations, seen
from moespec.spec.ledger import LedgerEntry, Reading

__all__ = ["answered_by", "groups", "page"]

HEAD = """# What implementations do

<!-- Made by `python -m moespec.conformance.peers` from the ambiguity ledger and conformance/reports; not to be edited. -->

The ambiguity ledger has the questions that implementations answer differently. Each question has an id (GS-3), each answer a
letter: a is that of this specification, in this version. Here are the public implementations of which it is known what they
do: a letter in plain type was read in their code, one in **bold** was measured, by a run of the suite on the package
([peers.md](peers.md)). Two letters: it does both, in different places or by an option. An empty cell says nothing.

Below each answer stand the places where it was seen, as links: code at a commit, papers, and packages at the version that was
measured. `python -m generator.find_places` (`docs/generator`) checks that each is there. The command line has the
same:

```console
$ moespec ledger GS-3                       # one question, in full
$ moespec ledger gshard                     # what concerns a router or a function
$ moespec ledger --by vmoe                  # what a code base does
$ moespec ledger --by vmoe --by mesh        # where two of them differ
$ moespec ledger --json                     # all of it, for programs
```

To cite an answer, name the version and the reading: "Routing as in moespec 0.2, gshard, reading GS-3a".
"""


def page(packages: Sequence[Measured]) -> str:
    """The page as Markdown. packages: the packages that the suite was run on."""
    known = {name: seen(name, packages) for name in implementations(packages)}
    return "\n".join([HEAD, *(_section(title, entries, known, packages) for title, entries in groups().items())])


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
    table = ["| " + " | ".join(row) + " |" for row in grid] if rows else ["No implementation is named here."]
    described = (line for entry in entries for line in _described(entry, packages))
    return "\n".join([f"## {title}", "", *table, "", *described, ""])


def _cell(all: Sequence[Seen]) -> str:
    """The letters of the readings, bold where one was measured."""
    letters = sorted({each.reading[-1] for each in all})
    bold = {each.reading[-1] for each in all if each.measured}
    return ", ".join(f"**{letter}**" if letter in bold else letter for letter in letters)


def _described(entry: LedgerEntry, packages: Sequence[Measured]) -> list[str]:
    settled = " *(The paper answers it in so many words.)*" if entry.pitfall else ""
    lines = [f"- **{entry.id}** {entry.question}{settled}"]
    for reading in entry.readings:
        lines.append(f"  - {reading.id[-1]}: {reading.text}")
        lines += [f"    - {each}" for each in answered_by(entry, reading, packages)]
    return lines


def answered_by(entry: LedgerEntry, reading: Reading, packages: Sequence[Measured]) -> list[str]:
    """Who takes a reading and where, as Markdown with links: first papers and code, then measured packages."""
    ran = [each for each in packages if reading.id in each.readings]
    return [
        *(link(each, entry.module) for each in reading.implementations),
        *(
            f"{run.repository}, measured: [{run.package} {run.version}]({run.address}), {run.readings[reading.id]}"
            for run in ran
        ),
    ]
