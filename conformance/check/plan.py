"""What a run checks: which cases, on which target, and how; and what comes of them, a part at a time."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from moespec.conformance import suite
from moespec.conformance.check.adapter import Adapter
from moespec.conformance.check.process import LIMIT
from moespec.conformance.check.results import FAILED, Report, Unsupported, packed, unpacked
from moespec.conformance.check.run import run_part
from moespec.conformance.check.target import STRIDED, Target
from moespec.conformance.check.waivers import Waiver, waived
from moespec.conformance.format import Case

if TYPE_CHECKING:
    from moespec.conformance.check.match_variant import Known

__all__ = ["Plan"]


@dataclass(frozen=True)
class Plan:
    """Cases by id, to be checked in dtypes and modes on the target of a report, which says what `interface` it is.

    report: without results; of fresh cases it has their seed. limit, memory: see `run_part`.
    """

    interface: type[Target]
    report: Report
    ids: Sequence[str]
    dtypes: Sequence[str]
    modes: Sequence[str]
    waivers: Sequence[Waiver] = ()
    vectors: Path = suite.VECTORS
    limit: float = LIMIT
    memory: float = 0.0

    def parts(self) -> Iterator[tuple[str, str, list[str]]]:
        """What is run together: a dtype, a mode and the ids of cases of one algorithm.

        Composite algorithms come late in the registry and are slow, so they are first.
        """
        groups: dict[str, list[str]] = {}
        for id in self.ids:
            groups.setdefault(id.partition("/")[0], []).append(id)
        for group in list(groups.values())[::-1]:
            for mode in self.modes:
                if mode != STRIDED:
                    yield from ((dtype, mode, group) for dtype in self.dtypes)
                elif ids := self._strided(group):
                    yield "float32" if "float32" in self.dtypes else self.dtypes[0], mode, ids

    def _strided(self, ids: Sequence[str]) -> list[str]:
        """The first of the cases with values, and the first with a gradient."""
        firsts = (next((id for id in ids if self._kind(id) == wanted), "") for wanted in ("value", "gradient"))
        return [id for id in firsts if id]

    def _kind(self, id: str) -> str:
        if self.report.seed is None:
            return suite.kind(self.vectors / f"{id}.json")
        from moespec.conformance.golden import fresh  # which imports all cases

        return fresh.kind(id)

    def check(self, dtype: str, mode: str, ids: Sequence[str]) -> dict[str, Report]:
        """What came of each case of a part, or of some of them, by id. A mode that the target does not have has no results.

        Raises VectorError for a vector that is damaged, and GoldenError for a fresh case that cannot be made.
        """
        place, repeat = (self.vectors, self.report.seed), self.report.repeat
        cases = [_case(*place, id) for id in ids]
        target = self.interface, self.report.target
        results, reason = run_part(*target, cases, dtype, mode, repeat=repeat, limit=self.limit, memory=self.memory)
        counted = int(mode != STRIDED or set(self.modes) == {STRIDED})
        lacking = [Unsupported(dtype, reason, counted)] if reason else []
        report = replace(self.report, results=results, unsupported=lacking)
        if any(result.state in FAILED for result in results):
            from moespec.conformance.check.diagnosis import diagnosed  # which imports all known variants

            report = diagnosed(report, _known(*place, tuple(ids)))
        settled = {one.id: [waived(self.waivers, replace(one, returned={}))] for one in report.results}
        return {id: replace(report, results=settled.get(id, [])) for id in ids}

    def packed(self) -> str:
        """The plan as text, for another process."""
        parts = {
            "waivers": list(map(asdict, self.waivers)),
            "report": packed(self.report),
            "vectors": str(self.vectors),
        }
        return json.dumps(vars(self) | parts | {"interface": self.interface.kind})

    @classmethod
    def unpacked(cls, text: str) -> "Plan":
        """The inverse of `packed`."""
        plan = json.loads(text)
        parts = {"waivers": [Waiver(**each) for each in plan["waivers"]], "report": unpacked(plan["report"])}
        interface = Adapter if plan["interface"] == Adapter.kind else Target
        return cls(**plan | parts | {"vectors": Path(plan["vectors"]), "interface": interface})

    def joined(self, reports: Sequence[Report]) -> Report:
        """The reports of single cases as one, whose order does not depend on theirs."""
        numbers = {id: number for number, id in enumerate(self.ids)}

        def place(report: Report) -> tuple[int, int, int]:
            (one,) = report.results
            return self.modes.index(one.mode), self.dtypes.index(one.dtype), numbers[one.id]

        ran = sorted((report for report in reports if report.results), key=place)
        lacking: Counter[tuple[int, str]] = Counter()
        for each in (each for report in reports for each in report.unsupported):
            lacking[self.dtypes.index(each.dtype), each.reason] += each.cases
        return replace(
            self.report,
            results=[one for report in ran for one in report.results],
            matches=list(dict.fromkeys(match for report in ran for match in report.matches)),
            unsupported=[Unsupported(self.dtypes[n], why, cases) for (n, why), cases in sorted(lacking.items())],
        )


@cache
def _case(vectors: Path, seed: int | None, id: str) -> Case:
    if seed is None:
        return suite.case(vectors / f"{id}.json")
    from moespec.conformance.golden import fresh

    return fresh.made(seed, id)


@lru_cache(maxsize=1)
def _known(vectors: Path, seed: int | None, ids: Sequence[str]) -> "Known":
    """The cases, and what variants compute for them, which is the same in every dtype."""
    from moespec.conformance.check.match_variant import Known

    return Known([_case(vectors, seed, id) for id in ids])
