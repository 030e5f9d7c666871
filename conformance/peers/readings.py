"""Which readings of the ledger the peers were measured to take, from their records.

Another reading: the peer's results equal those of a known variant that takes it, in all stages where the peer or the
variant differs from the specification, and no variant that says something else equals them too.

The reading of this specification, of the questions that `peers.toml` says the package itself answers (its adapter tells
it nothing about them): each other reading has variants, and each of these fails a case that the peer passes. The peer
fails no case that one of them fails, but for those whose difference has the name of a variant of another question.

What counts is float64; float32 only for a function that the peer does not have in float64.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from moespec.conformance.cases import variants
from moespec.conformance.check.match_variant import Known
from moespec.conformance.check.results import FAILED
from moespec.conformance.compare import DTYPES
from moespec.conformance.format import Case
from moespec.conformance.peers import PEERS
from moespec.conformance.peers.measure import MEASURED
from moespec.conformance.peers.target import checked_stages, routing_only
from moespec.spec import LEDGER

__all__ = ["readings"]

Record = Mapping[str, Any]


def readings(records: Sequence[Record], cases: Sequence[Case]) -> list[dict[str, Any]]:
    """For each peer its package, version and repository, and by the id of a reading which of its code ran."""
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
    """The cases of a function that came to something in a dtype."""
    return [case for case in function["cases"] if case["dtype"] == dtype and case["state"] in ("pass", *FAILED)]


def _equal(function: Record, dtype: str) -> Iterator[tuple[str, set[str]]]:
    """Algorithm by algorithm the variants that the peer equals wherever it or they differ from the specification."""
    full = [each for each in function["variants"] if each["dtype"] == dtype and each["agree"] == each["of"]]
    for algorithm in dict.fromkeys(each["algorithm"] for each in full):
        yield algorithm, {each["variant"] for each in full if each["algorithm"] == algorithm}


def _others(name: str, function: Record, dtype: str) -> Iterator[str]:
    """The other readings that a function of a peer takes.

    Of variants that all equal it those count that replace this function alone: what else they do, it cannot show.
    """
    for _, names in _equal(function, dtype):
        alone = {each for each in names if variants()[each].replaced.keys() == {name}}
        ids = {variants()[each].ledger for each in alone or names}
        if len(ids) == 1:
            yield from (id for id in ids if id not in LEDGER and id)


def _ours(
    name: str, function: Record, dtype: str, others: set[str], answers: Sequence[str], failing: "_Failing"
) -> Iterator[str]:
    """The readings of this specification that a function of a peer takes."""
    named = {algorithm: {_entry(each) for each in names} for algorithm, names in _equal(function, dtype)}
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


def _entry(variant: str) -> str:
    """The entry of the ledger that a variant is about, or an empty string."""
    return variants()[variant].ledger.rstrip("abcdefgh")


class _Failing:
    """Which variants change something that a function calls in a case, and whether they fail the stages that check it."""

    def __init__(self, cases: Sequence[Case]) -> None:
        self.cases = {case.id: routing_only(case) for case in cases}
        self.known = Known(list(self.cases.values()))
        self.found: dict[tuple[str, str, str], dict[str, bool]] = {}

    def __call__(self, id: str, function: str, dtype: str) -> dict[str, bool]:
        key = (id, function, dtype)
        if key not in self.found:
            self.found[key] = {}
            for stage in checked_stages(self.cases[id], function):
                if self.known.compares((id, stage)):
                    for name in self.known.concerned((id, stage)):
                        differs = self.known.differs((id, stage), name, DTYPES[dtype])
                        self.found[key][name] = self.found[key].get(name, False) or differs
        return self.found[key]
