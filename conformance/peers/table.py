"""The table of what peers compute, made of their records."""

import re
from collections import Counter
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from moespec.conformance.check.results import FAILED
from moespec.conformance.peers import PEERS
from moespec.conformance.peers.measure import MEASURED, counts
from moespec.spec import LEDGER
from moespec.spec.implementations.places import of_package, places

__all__ = ["VERDICTS", "judged", "table"]

Record = dict[str, Any]
READINGS = {*LEDGER, *(reading.id for entry in LEDGER.values() for reading in entry.readings)}

HEAD = """# What other packages compute

<!-- Made by `python -m moespec.conformance.peers` from the records in conformance/reports; not to be edited. -->

The suite was run on packages from the Python registry, each in an environment of its own. A small adapter
([conformance/peers/adapters](../conformance/peers/adapters)) calls the package's code and translates shapes and parameters; what a
case does not say is left to the package's default.

The numbers count cases: passed / failed / not offered, op by op on a CPU, in float64 and in float32. A case fails when the
result is not within the tolerance of the suite ([conformance.md](conformance.md)), or an exception is raised. A failure is no bug by
itself: `conformance/peers/peers.toml` has a *verdict* with its reason. The ambiguity ledger has the questions that implementations
answer differently, and says which answers a paper gives; [implementations.md](implementations.md) has what these packages were
measured to answer. Not compared: errors (a package has its own), losses and metrics inside routers, bfloat16, compiled code.

What a package *computes instead* has a name where its results equal those of one of the suite's known variants
([conformance/cases](../conformance/cases)); in brackets, in how many of the stages that fail or would fail.

[conformance.md](conformance.md#peers) says how to send a report of another package.

| verdict | meaning |
|---|---|
"""

VERDICTS = {
    "another default": "what the case leaves to the package's default is another number or form there",
    "another reading": "the package answers a question of the ambiguity ledger differently",
    "another method": "the package computes something else on purpose, which the ledger has no question for",
    "lower precision": "the same formula, rounded more than the tolerance allows",
    "not supported": "the package raises an exception for what it does not offer",
    "bug": "the package does not do what it says itself",
    "unexplained": "no reason is written down yet",
}
"""What can be said of a case that fails, and what it means."""

READ = {
    "AI-Hypercomputer/maxtext": "its package needs Python 3.12 or later",
    "databricks/megablocks": "its package is built with torch 2.7.0 alone",
    "deepseek-ai/DeepSeek-V3": "no package",
    "facebookresearch/fairseq": "its package has no `modules/moe`",
    "google/flaxformer": "no package",
    "google/praxis": "its package needs TensorFlow 2.9, which is older than this suite's Python",
    "laekov/fastmoe": "no package",
    "microsoft/Tutel": "no package",
    "stanford-crfm/levanter": "its package has no mixture of experts",
}
"""Repositories whose code the ledger knows by reading, and why it is not run."""

TAIL = """
## Read, not run

Of these the ambiguity ledger says what their code does ([implementations.md](implementations.md)): it was read.
"""


def table(records: Sequence[Record]) -> str:
    """The table as Markdown: all peers, then each by its functions and where it differs."""
    rows = [["package", "version", "float64", "float32", "differs in"]]
    for record in records:
        functions = record["functions"]
        differing: dict[str, list[str]] = {}
        for name, verdict, _, _ in judged(record):
            differing.setdefault(verdict, []).append(f"`{name}`")
        said = [f"{verdict}: {', '.join(dict.fromkeys(names))}" for verdict, names in differing.items()]
        entries = [entry for function in functions.values() for entry in function["cases"]]
        section = f"[{record['peer']}](#{_anchor(record)})"
        package = f"[{_version(record)}]({of_package(record['package'], _version(record))})"
        rows.append([section, package, *_numbers(entries), "<br>".join(said) or "nothing"])
    sections = (line for record in records for line in _section(record))
    verdicts = [f"| {verdict} | {meaning} |" for verdict, meaning in VERDICTS.items()]
    return "\n".join([HEAD.rstrip("\n"), *verdicts, "", *_grid(rows), *sections, TAIL, *_grid(_read())]) + "\n"


def _read() -> list[list[str]]:
    """The repositories of `READ`, with the files that were read."""
    rows = [["repository", "why it is not run", "what was read", "what it does"]]
    for name, why in READ.items():
        commit, lines = places()[name]["commit"], places()[name]["lines"]
        files = ", ".join(f"[{path}](https://github.com/{name}/blob/{commit}/{path})" for path in lines)
        rows.append([name, why, files, f"`moespec ledger --by {name}`"])
    return rows


def _version(record: Record) -> str:
    return str(record["versions"][record["package"]])


def _anchor(record: Record) -> str:
    """What a Markdown renderer makes of the heading of a section."""
    heading = f"{record['peer']} {_version(record)}".lower()
    return re.sub(r"[^\w -]", "", heading).replace(" ", "-")


def _section(record: Record) -> list[str]:
    others = [f"{name} {version}" for name, version in record["versions"].items() if name != record["package"]]
    functions = record["functions"]
    rows = [["function", "what runs", "float64", "float32"]]
    rows += [[f"`{name}`", entry["runs"], *_numbers(entry["cases"])] for name, entry in functions.items()]
    lines = [
        "",
        f"## {record['peer']} {_version(record)}",
        "",
        record["about"],
        "",
        f"With {', '.join(others)}.",
        "",
        *_grid(rows),
        "",
    ]
    rows = [["differs", "verdict", "cases", "computes instead", "the first of them"]]
    for name, verdict, reason, failing in judged(record):
        named = [] if f"`{name}`" in [row[0] for row in rows] else _variants(functions[name]["variants"])
        example = "{id}, {dtype}, {stage}: {message}".format(**failing[0])
        rows.append([f"`{name}`", f"{verdict}{reason}", _cases(failing), "<br>".join(named), example])
    return [*lines, *(_grid(rows) if rows[1:] else ["No case differs."])]


def judged(record: Record) -> list[tuple[str, str, str, list[Record]]]:
    """The failing cases by function and verdict: function, verdict, its reason, cases; last those without one.

    Raises ValueError for a verdict that is none, or is of no failing case.
    """
    rows = []
    functions = record["functions"].items()
    left = {name: [case for case in own["cases"] if case["state"] in FAILED] for name, own in functions}
    for entry in PEERS[record["peer"]].verdicts:
        name, patterns = entry["function"], entry.get("cases", ["*"])
        own = [case for case in left.get(name, []) if any(fnmatchcase(case["id"], each) for each in patterns)]
        if not own or entry["verdict"] not in VERDICTS or entry.get("ledger", "TC-1a") not in READINGS:
            raise ValueError(f"peers.toml, {record['peer']}: {dict(entry)} matches no failing case, verdict or reading")
        left[name] = [case for case in left[name] if case not in own]
        reading = f", {entry['ledger']}" if "ledger" in entry else ""
        rows.append((name, entry["verdict"], f"{reading}: {entry['reason']}", own))
    return rows + [(name, "unexplained", "", failing) for name, failing in left.items() if failing]


def _numbers(entries: Sequence[Record]) -> list[str]:
    """Passed / failed / everything else, in each dtype."""
    return [" / ".join(map(str, counts(entries, dtype))) for dtype in MEASURED]


def _variants(found: Sequence[Record]) -> list[str]:
    """The known variants that were recognised, with how many of the stages that fail each explains."""
    texts = []
    for variant in dict.fromkeys(each["variant"] for each in found):
        own = [each for each in found if each["variant"] == variant]
        counts: dict[str, Counter[str]] = {}
        for each in own:  # one for each algorithm
            counts.setdefault(each["dtype"], Counter()).update(agree=each["agree"], of=each["of"])
        parts = ", ".join(f"{dtype} {count['agree']} of {count['of']}" for dtype, count in counts.items())
        ledger = f", {own[0]['ledger']}" if own[0]["ledger"] else ""
        texts.append(f"`{variant}`{ledger}: {own[0]['computes']} ({parts})")
    return texts


def _cases(entries: Sequence[Record]) -> str:
    """The cases by algorithm, with the dtype of those that fail in one only."""
    dtypes: dict[str, list[str]] = {}
    for entry in entries:
        dtypes.setdefault(entry["id"], []).append(entry["dtype"])
    algorithms: dict[str, list[str]] = {}
    for id, found in dtypes.items():
        algorithm, case = id.split("/")
        algorithms.setdefault(algorithm, []).append(case if len(found) == len(MEASURED) else f"{case} ({found[0]})")
    return "; ".join(f"{algorithm}: {', '.join(cases)}" for algorithm, cases in algorithms.items())


def _grid(rows: Sequence[Sequence[str]]) -> list[str]:
    """A table of Markdown; bars within a cell are escaped."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return [lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]
