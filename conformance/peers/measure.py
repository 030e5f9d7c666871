"""Run the suite on a peer, and keep the results as a record."""

import importlib
import importlib.metadata
import inspect
import io
import json
import platform
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from moespec.conformance.check.match_variant import Known, match_variants
from moespec.conformance.check.results import FAILED, CaseResult
from moespec.conformance.check.run import run_part
from moespec.conformance.compare import Outcome
from moespec.conformance.format import Case
from moespec.conformance.peers import Peer
from moespec.conformance.peers.target import PeerTarget, checked_function, router_of
from moespec.models.files import read_file, write_atomically
from moespec.spec import ROUTERS

__all__ = ["MEASURED", "counts", "measure", "read_record", "write_record"]

SCHEMA = 2
MEASURED = ("float64", "float32")
"""The dtypes: is the algorithm right, are the numerics."""


def measure(peer: Peer, cases: Sequence[Case], digest: str) -> dict[str, Any]:
    """The record of a peer: its version, the functions of its adapter, and what came of each case that calls one.

    digest: of the suite that the cases are from.

    Raises ImportError if the package is not installed.
    """
    module = importlib.import_module(peer.target)
    with redirect_stdout(io.StringIO()):  # of packages that print
        results, unsupported = _results(peer, cases)
    by_id = {case.id: PeerTarget.wanted(case) for case in cases}
    parts: dict[str, list[CaseResult]] = {}
    for result in results:
        for function, part in _parts(module, by_id[result.id], result):
            parts.setdefault(function, []).append(part)
    parts = {name: own for name, own in sorted(parts.items()) if {part.state for part in own} != {"not implemented"}}
    known = Known(list(by_id.values()))
    requirements = [requirement.split("==")[0] for requirement in (*peer.requires, *peer.alone)]
    return {
        "schema": SCHEMA,
        "peer": peer.name,
        "package": peer.package,
        "versions": {name: importlib.metadata.version(name) for name in sorted({peer.package, "numpy", *requirements})},
        "python": platform.python_version(),
        "suite": digest,
        "about": inspect.cleandoc(module.__doc__ or ""),
        "unsupported": unsupported,
        "functions": {
            name: {
                **_words(module, name),
                "variants": [asdict(match) for match in match_variants(own, known)],
                "cases": [_entry(part) for part in sorted(own, key=lambda part: (part.id, MEASURED.index(part.dtype)))],
            }
            for name, own in parts.items()
        },
    }


def _results(peer: Peer, cases: Sequence[Case]) -> tuple[list[CaseResult], dict[str, str]]:
    """What came of all cases in each dtype, and the dtypes that the peer does not have, each with its reason."""
    results: list[CaseResult] = []
    unsupported: dict[str, str] = {}
    groups = [list(group) for _, group in groupby(cases, key=lambda case: case.algorithm)]
    for dtype in MEASURED:
        for group in groups:
            own, reason = run_part(PeerTarget, peer.target, group, dtype)
            results += own
            unsupported |= {dtype: reason} if reason else {}
    return results, unsupported


def _words(module: Any, function: str) -> dict[str, str]:
    """From the docstring: what of the peer's runs, its first paragraph, and what to know of the cases that fail."""
    found = module.ROUTERS[function].route if function in ROUTERS else getattr(module, function)
    runs, _, notes = (inspect.getdoc(found) or "").partition("\n\n")
    return {"runs": " ".join(runs.split()).removesuffix("."), "notes": " ".join(notes.split())}


def _parts(module: Any, case: Case, result: CaseResult) -> Iterator[tuple[str, CaseResult]]:
    """The functions of the peer that a case checks, each with what came of the stages that do."""
    checked: dict[str, list[Outcome]] = {}
    for outcome in result.outcomes if case.expect is None else []:
        name = outcome.stage.split("/")[0]
        stage = case.stage(case.expected_gradients.stage if name == "gradient" else name)
        function = checked_function(module, stage, case)
        # Whether a router differs is for its whole to say; its steps are functions of their own.
        if function and (stage.name in case.whole or not router_of(case)):
            checked.setdefault(function, []).append(outcome)
    for function, outcomes in checked.items():
        yield function, replace(result, outcomes=outcomes)


def _entry(part: CaseResult) -> dict[str, Any]:
    """What decides, and the first line of why."""
    entry = {"id": part.id, "dtype": part.dtype, "state": part.state}
    if part.state != "pass":
        entry |= {"stage": part.first.stage, "message": part.first.message.split("\n")[0]}
    return entry


def counts(cases: Sequence[Mapping[str, Any]], dtype: str) -> tuple[int, int, int]:
    """How many cases of records passed, failed, and came to neither, in a dtype."""
    states = Counter(case["state"] for case in cases if case["dtype"] == dtype)
    failed = sum(states[state] for state in FAILED)
    return states["pass"], failed, states.total() - states["pass"] - failed


def write_record(record: dict[str, Any], path: Path) -> None:
    """Write a record with sorted keys."""
    write_atomically(path, (json.dumps(record, sort_keys=True, indent=1) + "\n").encode())


def read_record(path: Path) -> dict[str, Any]:
    """A record from its file. Raises ValueError, naming the file, if it is not a record."""
    try:
        record = json.loads(read_file(path))
        if record["schema"] != SCHEMA:
            raise ValueError(f"schema {record['schema']}, expected {SCHEMA}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: no record of a peer: {type(error).__name__}: {error}") from error
    return dict(record)
