"""Run the suite on a peer, record the results, and derive from records which readings of the ambiguity ledger a peer takes.

A peer takes an alternative reading if the peer equals a known variant with this reading and equals no variant with another reading. A
peer equals a variant if both have the same results in all stages in which the peer or the variant differs from the specification.

A peer can take the specification's reading of a question only if `answers` in `peers.toml` lists the question. In
addition, every alternative reading must have variants, and each variant must fail a case that the peer passes. If the peer and a variant
of an alternative reading fail the same case, a variant of another question must explain the peer's failure.

The float64 results determine the readings of a function. If a function has no float64 results, its float32 results determine the readings.
"""

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

from moespec.conformance.cases import variants
from moespec.conformance.check.match_variant import Known, match_variants
from moespec.conformance.check.results import FAILED, CaseResult
from moespec.conformance.check.run import run_part
from moespec.conformance.compare import DTYPES, Outcome
from moespec.conformance.format import Case
from moespec.conformance.peers import PEERS, Peer
from moespec.conformance.peers.target import PeerTarget, checked_function, checked_stages, router_of, routing_only
from moespec.models.files import read_file, write_atomically
from moespec.spec import LEDGER, ROUTERS

__all__ = ["MEASURED", "counts", "measure", "read_record", "readings", "write_record"]

Record = Mapping[str, Any]

SCHEMA = 2
MEASURED = ("float64", "float32")
"""The dtypes of the runs: float64 tests the algorithm, and float32 tests the numerics."""


def measure(peer: Peer, cases: Sequence[Case], digest: str) -> dict[str, Any]:
    """Record a peer: its version, its adapter's functions, and the result of each case that calls one of the functions.

    digest: the digest of the suite that contains the cases.

    Raises ImportError if the package is not installed.
    """
    module = importlib.import_module(peer.target)
    with redirect_stdout(io.StringIO()):  # some packages print
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
                "runs": _runs(module, name),
                "variants": [asdict(match) for match in match_variants(own, known)],
                "cases": [_entry(part) for part in sorted(own, key=lambda part: (part.id, MEASURED.index(part.dtype)))],
            }
            for name, own in parts.items()
        },
    }


def _results(peer: Peer, cases: Sequence[Case]) -> tuple[list[CaseResult], dict[str, str]]:
    """Return the results of all cases in each dtype and, for each unsupported dtype, the reason."""
    results: list[CaseResult] = []
    unsupported: dict[str, str] = {}
    groups = [list(group) for _, group in groupby(cases, key=lambda case: case.algorithm)]
    for dtype in MEASURED:
        for group in groups:
            own, reason, _ = run_part(PeerTarget, peer.target, group, dtype)
            results += own
            unsupported |= {dtype: reason} if reason else {}
    return results, unsupported


def _runs(module: Any, function: str) -> str:
    """Return the first paragraph of the adapter function's docstring, which names the peer's code that the function runs."""
    found = module.ROUTERS[function].route if function in ROUTERS else getattr(module, function)
    return " ".join((inspect.getdoc(found) or "").partition("\n\n")[0].split()).removesuffix(".")


def _parts(module: Any, case: Case, result: CaseResult) -> Iterator[tuple[str, CaseResult]]:
    """Yield each function of the peer that a case checks, with the results of the stages that check the function."""
    checked: dict[str, list[Outcome]] = {}
    for outcome in result.outcomes if case.expect is None else []:
        name = outcome.stage.split("/")[0]
        stage = case.stage(case.expected_gradients.stage if name == "gradient" else name)
        function = checked_function(module, stage, case)
        # In a case of a router, only the main stages check the router. Stages that compute single steps are ignored.
        if function and (stage.name in case.whole or not router_of(case)):
            checked.setdefault(function, []).append(outcome)
    for function, outcomes in checked.items():
        yield function, replace(result, outcomes=outcomes)


def _entry(part: CaseResult) -> dict[str, Any]:
    """Return the state of a case, the stage that determines the state, and the first line of the message."""
    entry = {"id": part.id, "dtype": part.dtype, "state": part.state}
    if part.state != "pass":
        entry |= {"stage": part.first.stage, "message": part.first.message.split("\n")[0]}
    return entry


def counts(cases: Sequence[Mapping[str, Any]], dtype: str) -> tuple[int, int, int]:
    """Count the cases that passed, failed or did neither in a dtype."""
    states = Counter(case["state"] for case in cases if case["dtype"] == dtype)
    failed = sum(states[state] for state in FAILED)
    return states["pass"], failed, states.total() - states["pass"] - failed


def write_record(record: dict[str, Any], path: Path) -> None:
    """Write a record with sorted keys."""
    write_atomically(path, (json.dumps(record, sort_keys=True, indent=1) + "\n").encode())


def read_record(path: Path) -> dict[str, Any]:
    """Read a record. Raises ValueError with the path if the file is not a record."""
    try:
        record = json.loads(read_file(path))
        if record["schema"] != SCHEMA:
            raise ValueError(f"expected schema {SCHEMA}, got {record['schema']}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: not a peer record: {type(error).__name__}: {error}") from error
    return dict(record)


def readings(records: Sequence[Record], cases: Sequence[Case]) -> list[dict[str, Any]]:
    """Return each peer's package, version, repository and readings. Each reading comes with the peer's code that takes the reading."""
    failing = _Failing(cases)
    rows = []
    for record in records:
        peer, taken = PEERS[record["peer"]], dict[str, list[str]]()
        for name, function in record["functions"].items():
            dtype = next(dtype for dtype in MEASURED if _ran(function, dtype))
            others = set(_others(name, function, dtype))
            for reading in sorted({*others, *_ours(name, function, dtype, others, peer.answers, failing)}):
                taken.setdefault(reading, []).append(function["runs"])
        row = {"package": record["package"], "version": record["versions"][record["package"]]}
        words = {reading: " and ".join(dict.fromkeys(runs)) for reading, runs in sorted(taken.items())}
        rows.append({**row, "repository": peer.repository, "readings": words})
    return rows


def _ran(function: Record, dtype: str) -> list[Record]:
    """Return the cases of a function that passed or failed in a dtype."""
    return [case for case in function["cases"] if case["dtype"] == dtype and case["state"] in ("pass", *FAILED)]


def _equal(function: Record, dtype: str) -> Iterator[tuple[str, set[str]]]:
    """Yield, for each algorithm, the variants that the peer equals; see the module's docstring."""
    full = [each for each in function["variants"] if each["dtype"] == dtype and each["agree"] == each["of"]]
    for algorithm in dict.fromkeys(each["algorithm"] for each in full):
        yield algorithm, {each["variant"] for each in full if each["algorithm"] == algorithm}


def _others(name: str, function: Record, dtype: str) -> Iterator[str]:
    """Yield the alternative readings that a function of a peer takes.

    If some matching variants replace only this function, ignore the others: a function's results cannot show changes in others.
    """
    for _, names in _equal(function, dtype):
        alone = {each for each in names if variants()[each].replaced.keys() == {name}}
        ids = {variants()[each].ledger for each in alone or names}
        if len(ids) == 1:
            yield from (id for id in ids if id not in LEDGER and id)


def _ours(
    name: str, function: Record, dtype: str, others: set[str], answers: Sequence[str], failing: "_Failing"
) -> Iterator[str]:
    """Yield the specification's readings that a function of a peer takes."""
    named = {  # ledger entries of the variants that the peer equals
        algorithm: {variants()[each].ledger.rstrip("abcdefgh") for each in names}
        for algorithm, names in _equal(function, dtype)
    }
    for id in answers:
        alternatives = {reading.id for reading in LEDGER[id].readings[1:]}
        rivals, beaten, contradicted = set[str](), set[str](), bool(others & alternatives)
        for case in _ran(function, dtype):
            fails = failing(case["id"], name, dtype)
            mine = {variant for variant in fails if variants()[variant].ledger in alternatives}
            fail = {variant for variant in mine if fails[variant]}
            why = named.get(case["id"].split("/")[0], set()) - {""}
            rivals |= mine
            if case["state"] == "pass":
                beaten |= fail
            elif fail and (not why or id in why):
                contradicted = True
        if {variants()[rival].ledger for rival in rivals} == alternatives and rivals == beaten and not contradicted:
            yield f"{id}a"


class _Failing:
    """For a function in a case, find the variants that affect the function, and whether each variant changes the function's results."""

    def __init__(self, cases: Sequence[Case]) -> None:
        self.cases = {case.id: routing_only(case) for case in cases}
        self.known = Known(list(self.cases.values()))
        self.found: dict[tuple[str, str, str], dict[str, bool]] = {}

    def __call__(self, id: str, function: str, dtype: str) -> dict[str, bool]:
        key = (id, function, dtype)
        if key not in self.found:
            self.found[key] = {}
            stages = checked_stages(self.cases[id], function) if id in self.cases else ()  # or a former case
            for stage in stages:
                if self.known.compares((id, stage)):
                    for name in self.known.concerned((id, stage)):
                        differs = self.known.differs((id, stage), name, DTYPES[dtype])
                        self.found[key][name] = self.found[key].get(name, False) or differs
        return self.found[key]
