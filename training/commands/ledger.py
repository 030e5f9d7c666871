"""The command `moespec ledger`."""

import json
import math
import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moespec.models.options import option
from moespec.spec import LEDGER
from moespec.spec.errors import ConfigError
from moespec.spec.implementations.entries import algorithm_of, entries_of
from moespec.spec.implementations.models import Model, find_model, transformers_version
from moespec.spec.implementations.models_page import call, said
from moespec.spec.implementations.places import addresses
from moespec.spec.implementations.positions import Measured, Seen, find, is_of, measured, seen
from moespec.spec.ledger import LedgerEntry, Reading
from moespec.training.commandline.parse import parse

__all__ = ["as_json", "comparison", "full", "main", "model_as_json", "positions"]

_ID = re.compile(r"([A-Za-z]{2})[-_ ]?(\d+)([a-z]?)")


@dataclass(frozen=True)
class LedgerArguments:
    """Show the ambiguity ledger: questions that implementations answer differently, and each implementation's answer.

    `moespec ledger expert_choice` prints the entries of an algorithm, `moespec ledger GS-3` one entry, `moespec ledger --by
    vmoe` the answers of a code base, `moespec ledger --by vmoe --by mesh` the differences between two code bases. `moespec ledger
    --model deepseek-v3` prints the router, the layer and the answers of a published model. This specification adopts reading a.
    "By" cites the code that was read. "Measured" names the packages on which the conformance suite was run.
    """

    what: tuple[str, ...] = option((), positional=True)
    """routers (moespec list routers), algorithms, public functions, entries (GS-3) or readings (GS-3b) (default: all entries)"""
    by: tuple[str, ...] = option((), single=True)
    """show the answers of this repository or package (a part of the name is enough); repeat to compare several"""
    model: str = ""
    """show the router, its options, the layer and the readings of this published model (docs/models.md)"""
    json: bool = False
    """print JSON"""


def main(words: list[str]) -> None:
    """Prints the selected ledger entries, by default all entries. With --by, prints only the answers of the named implementations.
    With --model, prints the router, the layer and the answers of a published model.

    Raises ConfigError for an unknown name, or for --model together with entries or --by.
    """
    given = parse("ledger", LedgerArguments, words)
    if given.model:
        if given.what or given.by:
            raise ConfigError(f"model={given.model!r}: cannot be combined with entries or --by; remove one of them")
        found = find_model(given.model)
        print(model_as_json(found) if given.json else "\n".join(_described(found)))
        return
    entries = [entry for name in given.what for entry in selected(name)] if given.what else list(LEDGER.values())
    entries = list(dict.fromkeys(entries))
    names = list(dict.fromkeys(map(find, given.by)))
    if given.json:
        print(as_json(entries, names))
    elif not names:
        print(full(entries))
    else:
        print(positions(entries, names[0]) if len(names) == 1 else comparison(entries, names))


def selected(name: str) -> list[LedgerEntry]:
    """Returns the entries that a name selects. The name is the id of an entry, the id of a reading, or an algorithm."""
    if not (match := _ID.fullmatch(name)):
        return entries_of(algorithm_of(name))
    prefix, number, letter = match.groups()
    entry = LEDGER.get(f"{prefix.upper()}-{number}")
    if entry is None:
        known = [id for id in LEDGER if id.startswith(f"{prefix.upper()}-")] or list(LEDGER)
        raise ConfigError(f"{name!r} is not in the ledger; expected one of {', '.join(known)}")
    if letter and f"{entry.id}{letter}" not in [reading.id for reading in entry.readings]:
        raise ConfigError(f"{name!r}: {entry.id} has only the readings {', '.join(r.id for r in entry.readings)}")
    return [entry]


def model_as_json(model: Model) -> str:
    """Returns a model as JSON, with the questions and the texts of its readings. An infinite option is the string "inf"."""
    options = {name: "inf" if value == math.inf else value for name, value in model.options.items()}
    readings = [{"id": text.id, "question": entry.question, "text": text.text} for entry, text in _readings(model)]
    version = transformers_version() if model.block else ""
    row = {**vars(model), "options": options, "readings": readings, "transformers": version}
    return json.dumps(row, indent=1, ensure_ascii=False)


def _readings(model: Model) -> list[tuple[LedgerEntry, Reading]]:
    """Returns the ledger entries and readings of a model."""
    return [(entry, text) for entry in LEDGER.values() for text in entry.readings if text.id in model.readings]


def _described(model: Model) -> Iterator[str]:
    """Yields the lines that describe a model."""
    yield f"{model.title} ({model.name})"
    if model.router:
        yield from _wrapped(f"Router: {call(model.router, model.options)}", 4)
    else:
        yield from _wrapped("Router: no router computes the same", 4)
    if model.layer:
        yield from _wrapped(f"Layer: {said(model.sizes)}, {said(model.layer)}", 4)
    for text in model.not_expressed:
        yield from _wrapped(f"Not expressed: {text}.", 4)
    how = {
        "layer": "a layer with the block's weights returns the block's output",
        "router": "the router was recorded; the layer is not compared",
        "": "not checked",
    }
    if model.config:
        yield from _wrapped(f"Sizes: {said(model.config)} ({model.source})", 4)
    block = f"transformers {transformers_version()}, {model.block}" if model.block else model.source
    same = f", the same block as {model.same_as}" if model.same_as else ""
    yield from _wrapped(f"Source: {block}{same} ({how[model.checked]}).", 4)
    for entry, reading in _readings(model):
        yield ""
        yield from _wrapped(f"{entry.id}: {entry.question}", 0)
        yield from _wrapped(
            f"{'Reading' if reading.id.endswith('a') else f'Alternative {reading.id[-1]}'}: {reading.text}", 4
        )


def full(entries: Sequence[LedgerEntry]) -> str:
    """Formats entries with their readings. For each reading, lists the implementations ("By") and the packages tested ("Measured")."""
    return "\n\n".join("\n".join(_entry(entry)) for entry in entries)


def _entry(entry: LedgerEntry) -> Iterator[str]:
    yield from _wrapped(f"{entry.id}: {entry.question}", 0)
    if entry.pitfall:
        yield from _wrapped("The paper states this explicitly, but implementations often differ.", 4)
    for reading in entry.readings:
        label = "Reading" if reading.id.endswith("a") else f"Alternative {reading.id[-1]}"
        yield from _wrapped(f"{label}: {reading.text}", 4)
        said = [f"{each.who}, {each.where}" if each.where else each.who for each in reading.implementations]
        read_at = [address for each in reading.implementations for address in addresses(each, entry.module)]
        runs = _measured_to(reading)
        ran = [f"{each.package} {each.version}, {each.readings[reading.id]}" for each in runs]
        for title, who, where in (("By", said, read_at), ("Measured", ran, [each.address for each in runs])):
            if who:
                yield from _wrapped(f"{title}: {'; '.join(who)}.", 8)
                yield from _listed(where)


def _listed(addresses: Iterable[str]) -> Iterator[str]:
    """Yields each address once, one per line, so that a terminal recognises each address as a link."""
    yield from (f"            {address}" for address in dict.fromkeys(addresses))


def _measured_to(reading: Reading) -> list[Measured]:
    return [each for each in measured() if reading.id in each.readings]


def positions(entries: Sequence[LedgerEntry], name: str) -> str:
    """Lists the answers of one implementation: first the answers that differ from this specification, then the answers that agree."""
    found = seen(name)
    known = [entry for entry in entries if entry.id in found]
    same = [entry for entry in known if _letters(found[entry.id]) == "a"]
    differing = [entry for entry in known if entry not in same]
    lines = _wrapped(
        f"{name}: the ledger lists its answers to {len(known)} of {_questions(len(entries))}: {len(same)} as in this "
        f"specification, {len(differing)} with a different answer or with several.",
        0,
    )
    for title, part in (("Different answer, or several answers:", differing), ("As in this specification:", same)):
        lines += ["", title] if part else []
        for entry in part:
            lines += ["", *_wrapped(f"{entry.id}: {entry.question}", 0)]
            lines += _wrapped(f"moespec: {entry.readings[0].text}", 4) if "a" not in _letters(found[entry.id]) else []
            lines += _taken(entry, {name: found[entry.id]})
    return "\n".join(lines)


def comparison(entries: Sequence[LedgerEntry], names: Sequence[str]) -> str:
    """Lists entries on which implementations differ, entries on which they agree, and entries known for only one implementation."""
    readings = {name: seen(name) for name in names}
    known = {e.id: {name: readings[name][e.id] for name in names if e.id in readings[name]} for e in entries}
    shared = [entry for entry in entries if len(known[entry.id]) == len(names)]
    differing = [entry for entry in shared if len({_letters(all) for all in known[entry.id].values()}) > 1]
    lines = _wrapped(
        f"{' and '.join(names)}: the ledger lists the answers of {'both' if len(names) == 2 else 'all'} to "
        f"{_questions(len(shared))}; {len(differing)} differ.",
        0,
    )
    for entry in differing:
        lines += ["", *_wrapped(f"{entry.id}: {entry.question}", 0), *_taken(entry, known[entry.id])]
    same = [f"{entry.id}{_letters(known[entry.id][names[0]])}" for entry in shared if entry not in differing]
    lines += ["", *_wrapped(f"The same: {', '.join(same)}.", 0)] if same else []
    for name in names:
        alone = [entry.id for entry in entries if list(known[entry.id]) == [name]]
        lines += ["", *_wrapped(f"Known only for {name}: {', '.join(alone)}.", 0)] if alone else []
    return "\n".join(lines)


def _taken(entry: LedgerEntry, known: Mapping[str, Sequence[Seen]]) -> Iterator[str]:
    """Yields lines with the readings that implementations follow, and the source or measurement for each reading."""
    for name, all in known.items():
        for reading in entry.readings:
            where = [each for each in all if each.reading == reading.id]
            title = f"{name}, {reading.id}" if len(known) > 1 else reading.id
            yield from _wrapped(f"{title}: {reading.text}", 4) if where else ()
            for each in where:
                if each.where:
                    yield from _wrapped(f"{'Measured' if each.measured else 'In'}: {each.where}.", 8)
                    yield from _listed(each.addresses)


def _letters(all: Iterable[Seen]) -> str:
    return "".join(sorted({each.reading[-1] for each in all}))


def as_json(entries: Sequence[LedgerEntry], names: Sequence[str]) -> str:
    """Returns entries as JSON. With `names`, includes only the named implementations and the entries that these implementations answer."""
    chosen = [entry for entry in entries if not names or any(entry.id in seen(name) for name in names)]
    return json.dumps([_json(entry, names) for entry in chosen], indent=1, ensure_ascii=False)


def _json(entry: LedgerEntry, names: Sequence[str]) -> dict[str, Any]:
    readings = []
    for reading in entry.readings:
        said = [
            {"who": each.who, "where": each.where, "addresses": addresses(each, entry.module)}
            for each in reading.implementations
        ]
        ran = [
            {"who": run.repository, "where": run.readings[reading.id], "addresses": [run.address]}
            | {"package": run.package, "version": run.version}
            for run in _measured_to(reading)
        ]
        answers = {"by": said, "measured": ran}
        if names:
            answers = {
                title: [
                    each for each in all if any(is_of(str(each["who"]), str(each["where"]), name) for name in names)
                ]
                for title, all in answers.items()
            }
        readings.append({"id": reading.id, "text": reading.text, **answers})
    return {
        "id": entry.id,
        "question": entry.question,
        "settled_by_the_paper": entry.pitfall,
        "module": entry.module,
        "readings": readings,
    }


def _questions(count: int) -> str:
    return f"{count} question{'s' if count != 1 else ''}"


def _wrapped(text: str, indent: int) -> list[str]:
    return textwrap.wrap(
        text,
        max(60, min(shutil.get_terminal_size((110, 24)).columns, 110)),
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + 4),
        break_long_words=False,
        break_on_hyphens=False,
    )
