"""Writes the page `docs/peers.md`, which shows the recorded results of other packages."""

import re
from collections import Counter
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from moespec.conformance.check.results import FAILED
from moespec.conformance.peers import PEERS
from moespec.conformance.peers.measure import MEASURED, counts
from moespec.spec import LEDGER
from moespec.spec.implementations.places import of_package

__all__ = ["VERDICTS", "judged", "table"]

Record = dict[str, Any]
_PLACE = re.compile(r"; at .*?(?=: error|$)")
READINGS = {*LEDGER, *(reading.id for entry in LEDGER.values() for reading in entry.readings)}

HEAD = """# What other packages compute

<!-- Made by `python -m moespec.conformance.peers` from the records in conformance/reports. Do not edit. -->

Look up a package to see which of its functions compute what moespec specifies, where results differ, and why. These commands
measure a package again, and list its answers to the questions of the ambiguity ledger:

```console
$ nox -s "peers(peer='pot')"        # install the package, run the suite on it, write this page
$ moespec ledger --by torchtitan    # list the answers of torchtitan
```

The suite ran in eager mode on a CPU with Python {python} and NumPy {numpy}. Each package had its own environment. A small adapter
([conformance/peers/adapters](../conformance/peers/adapters)) calls the package's code, translates shapes and parameters, and keeps
the package's default where a case sets no value. To add a package, [send a report](conformance.md#peers).

| term | meaning |
|---|---|
| 100/19/22 | cases that passed / failed / are not offered by the package |
| failed | the error exceeds the suite's [tolerance](conformance.md), or the package raised an exception |
| SM-3b | answer b to question SM-3 of [the ambiguity ledger](implementations.md), which cites papers and other code |
| cases | failing cases by algorithm, in float64 and float32 unless a dtype is named |
| equals | [known variant](#known-variants) that gives the same results in n of the m stages where the package or the variant fails |
| first failure | in the first case listed: stage, wrong entries, and the error of the worst entry |
| not compared | error messages, losses and metrics inside routers, bfloat16, compiled code |

A failure is not necessarily a bug. `conformance/peers/peers.toml` gives each failing case a verdict and a reason:
"""

VERDICTS = {
    "another default": "the package's default differs where the case sets no value",
    "another reading": "the package answers a question of the ambiguity ledger differently",
    "another method": "the package deliberately computes something else, and the ledger has no question about it",
    "lower precision": "the formula is the same, but its rounding exceeds the tolerance",
    "not supported": "the package raises an exception",
    "bug": "the package contradicts its own documentation",
    "unexplained": "cause unknown",
}
"""The verdicts on failing cases, with their meaning."""

READ = {
    "AI-Hypercomputer/maxtext": "needs Python 3.12 or later",
    "databricks/megablocks": "its package is built only for torch 2.7.0",
    "deepseek-ai/DeepSeek-V3": "no package",
    "facebookresearch/fairseq": "package lacks `modules/moe`",
    "google/flaxformer": "no package",
    "google/praxis": "needs TensorFlow 2.9, which does not support the suite's Python version",
    "laekov/fastmoe": "no package",
    "microsoft/Tutel": "no package",
    "stanford-crfm/levanter": "package has no mixture of experts",
}
"""Repositories whose code the ledger cites but the suite does not run, and the reason for each repository."""

TAIL = """
## Read, not run

The ambiguity ledger also cites these repositories. Their code was read, but the suite does not run on them.
For example, `moespec ledger --by google/praxis` lists the answers of praxis, with links to the source lines.
"""


def table(records: Sequence[Record]) -> str:
    """Return the page as Markdown: all peers, then the functions and failures of each peer."""
    rows = [["package", "version", "float64", "float32", "differs in"]]
    for record in records:
        differing: dict[str, list[str]] = {}
        for name, verdict, _, _ in judged(record):
            differing.setdefault(verdict, []).append(f"`{name}`")
        causes = [f"{verdict}: {', '.join(dict.fromkeys(names))}" for verdict, names in differing.items()]
        entries = [entry for function in record["functions"].values() for entry in function["cases"]]
        section = f"[{record['peer']}](#{_anchor(record)})"
        package = f"[{_version(record)}]({of_package(record['package'], _version(record))})"
        rows.append([section, package, *_numbers(entries), "<br>".join(causes) or "nothing"])
    head = HEAD.format(python=records[0]["python"], numpy=records[0]["versions"]["numpy"])
    sections = (line for record in records for line in _section(record))
    verdicts = _grid([["verdict", "meaning"], *VERDICTS.items()])
    read = _grid([["repository", "why not run"], *READ.items()])
    return "\n".join([head, *verdicts, "", *_grid(rows), *sections, *_known(records), TAIL, *read]) + "\n"


def _known(records: Sequence[Record]) -> list[str]:
    """List the known variants whose results equal the results of a package, and describe each variant."""
    functions = [function for record in records for function in record["functions"].values()]
    found = {each["variant"]: each for function in functions for each in function["variants"]}
    rows = ([f"`{name}`", found[name]["ledger"], found[name]["computes"]] for name in sorted(found))
    return ["", "## Known variants", "", *_grid([["variant", "answer", "computes"], *rows])]


def _version(record: Record) -> str:
    return str(record["versions"][record["package"]])


def _anchor(record: Record) -> str:
    """Return the anchor that a Markdown renderer creates for a section."""
    heading = f"{record['peer']} {_version(record)}".lower()
    return re.sub(r"[^\w -]", "", heading).replace(" ", "-")


def _section(record: Record) -> list[str]:
    others = [" ".join(each) for each in record["versions"].items() if each[0] not in (record["package"], "numpy")]
    functions = record["functions"]
    rows = [["function", "what runs", "float64", "float32"]]
    rows += [[f"`{name}`", entry["runs"], *_numbers(entry["cases"])] for name, entry in functions.items()]
    ran_with = [f"With {', '.join(others)}.", ""] if others else []
    lines = ["", f"## {record['peer']} {_version(record)}", "", record["about"], "", *ran_with, *_grid(rows), ""]
    rows = [["differs", "verdict", "cases", "equals", "first failure"]]
    for name, verdict, reason, failing in judged(record):
        named = [] if f"`{name}`" in [row[0] for row in rows] else _variants(functions[name]["variants"])
        first = f"{failing[0]['stage']}: {_PLACE.sub('', failing[0]['message'])}"
        rows.append([f"`{name}`", f"{verdict}{reason}", _cases(failing), "<br>".join(named), first])
    return [*lines, *(_grid(rows) if rows[1:] else ["No case differs."])]


def judged(record: Record) -> list[tuple[str, str, str, list[Record]]]:
    """Group failing cases by function and verdict, as (function, verdict, reason, cases). Unexplained cases come last.

    Raises ValueError if a verdict or reading is unknown, or if a verdict matches no failing case.
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
    """Count the cases that passed, failed or did neither, in each dtype."""
    return ["/".join(map(str, counts(entries, dtype))) for dtype in MEASURED]


def _variants(found: Sequence[Record]) -> list[str]:
    """List the known variants that the peer equals, with the numbers of equal and compared stages in each dtype."""
    texts = []
    for variant in dict.fromkeys(each["variant"] for each in found):
        own = [each for each in found if each["variant"] == variant]
        counts: dict[str, Counter[str]] = {}
        for each in own:  # one per algorithm
            counts.setdefault(each["dtype"], Counter()).update(agree=each["agree"], of=each["of"])
        parts = [f"{dtype} {count['agree']} of {count['of']}" for dtype, count in counts.items()]
        same = len(counts) == len(MEASURED) and len({tuple(count.items()) for count in counts.values()}) == 1
        texts.append(f"`{variant}` ({parts[0].split(' ', 1)[1] if same else ', '.join(parts)})")
    return texts


def _cases(entries: Sequence[Record]) -> str:
    """List the cases by algorithm, and also by dtype unless all cases fail in both dtypes."""
    dtypes: dict[str, list[str]] = {}
    for entry in entries:
        dtypes.setdefault(entry["id"], []).append(entry["dtype"])
    groups: dict[str, dict[str, list[str]]] = {}
    for id, found in dtypes.items():
        algorithm, case = id.split("/")
        groups.setdefault(" and ".join(found), {}).setdefault(algorithm, []).append(case)
    marked = [*groups] != [" and ".join(MEASURED)]
    texts = ("; ".join(f"{name}: {', '.join(own)}" for name, own in each.items()) for each in groups.values())
    return "<br>".join(f"**{title}** {text}" if marked else text for title, text in zip(groups, texts, strict=True))


def _grid(rows: Sequence[Sequence[str]]) -> list[str]:
    """Format rows as a Markdown table. Escapes vertical bars in cells."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return [lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]
