"""What a run checks: which cases, on which target, and how; and what comes of them, a part at a time."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, lru_cache
from pathlib import Path

from moespec.conformance import suite
from moespec.conformance.author import fresh
from moespec.conformance.check.adapter import Adapter
from moespec.conformance.check.classes import kind
from moespec.conformance.check.interface import claims
from moespec.conformance.check.modes import STRIDED, divided
from moespec.conformance.check.process import LIMIT
from moespec.conformance.check.recognise import Known
from moespec.conformance.check.results import CaseResult, Match
from moespec.conformance.check.run import Part, run_part
from moespec.conformance.check.target import Target
from moespec.conformance.check.waivers import Waiver, waived
from moespec.conformance.format import Case
from moespec.conformance.report.diagnosis import diagnosed
from moespec.conformance.report.report import Report, Unsupported

__all__ = ["Plan"]


@dataclass(frozen=True)
class Plan:
    """Cases by id, to be checked on a target or an adapter, which `interface` says, in dtypes and modes.

    seed, size: of fresh cases; those of the vectors have none. limit, memory: see `Part`.
    """

    interface: type[Target]
    name: str
    ids: tuple[str, ...]
    dtypes: tuple[str, ...]
    modes: tuple[str, ...]
    waivers: tuple[Waiver, ...] = ()
    repeat: bool = False
    seed: int | None = None
    size: str = "small"
    vectors: Path = suite.VECTORS
    limit: float = LIMIT
    memory: float = 0.0

    def parts(self) -> Iterator[tuple[str, str, list[str]]]:
        """What is run together: a dtype, a mode and the ids of cases of one algorithm."""
        return divided(self.ids, self.modes, self.dtypes, self._kind)

    def _kind(self, id: str) -> str:
        return suite.kind(self.vectors / f"{id}.json") if self.seed is None else kind(id)

    def check(self, dtype: str, mode: str, ids: Sequence[str]) -> Report:
        """What came of a part, or of some cases of one.

        Raises VectorError for a vector that is damaged, and GoldenError for a fresh case that cannot be made.
        """
        known = _known(self.vectors, self.seed, tuple(ids))
        cases = list(known.cases.values())
        part = Part(self.interface, self.name, dtype, mode, self.repeat, cases, self.limit, self.memory)
        results, reason = run_part(part)
        counted = len(ids) if mode != STRIDED or self.modes == (STRIDED,) else 0
        lacking = [Unsupported(dtype, reason, counted)] if reason else []
        report = diagnosed(self._report(results, lacking, []), known)
        results = [waived(self.waivers, replace(result, returned={})) for result in report.results]
        return replace(report, results=results)

    def packed(self) -> str:
        """The plan as text, for another process."""
        return json.dumps(asdict(self) | {"interface": self.interface is Adapter, "vectors": str(self.vectors)})

    @classmethod
    def unpacked(cls, text: str) -> "Plan":
        """The inverse of `packed`."""
        content = json.loads(text)
        lists = {name: tuple(value) for name, value in content.items() if isinstance(value, list)}
        waivers = tuple(Waiver(**each) for each in content["waivers"])
        interface = Adapter if content["interface"] else Target
        return cls(
            **content | lists | {"waivers": waivers, "interface": interface, "vectors": Path(content["vectors"])}
        )

    def joined(self, reports: Sequence[Report]) -> Report:
        """The reports of parts, or of single cases of them, as one; its order does not depend on theirs."""
        numbers = {id: number for number, id in enumerate(self.ids)}
        numbers |= {id.partition("/")[0]: number for id, number in list(numbers.items())[::-1]}

        def place(one: CaseResult | Match, name: str) -> tuple[int, int, int]:
            return self.modes.index(one.mode), self.dtypes.index(one.dtype), numbers[name]

        results = sorted((each for one in reports for each in one.results), key=lambda each: place(each, each.id))
        matches = sorted(
            {each: 0 for one in reports for each in one.matches}, key=lambda each: place(each, each.algorithm)
        )
        counts: dict[tuple[str, str], int] = {}
        for each in (each for one in reports for each in one.unsupported):
            counts[each.dtype, each.reason] = counts.get((each.dtype, each.reason), 0) + each.cases
        lacking = [Unsupported(*key, counts[key]) for key in sorted(counts, key=lambda key: self.dtypes.index(key[0]))]
        return replace(
            self._report(results, lacking, matches),
            suite=suite.digest(self.vectors),
            claims=claims(self.interface, self.name),
        )

    def _report(self, results: list[CaseResult], lacking: list[Unsupported], matches: list[Match]) -> Report:
        kind = "adapter" if self.interface is Adapter else "target"
        return Report(kind, self.name, "", results, lacking, [], matches, self.seed, "", self.size, self.repeat)


@cache
def _case(vectors: Path, seed: int | None, id: str) -> Case:
    return suite.case(vectors / f"{id}.json") if seed is None else fresh.made(seed, id)


@lru_cache(maxsize=1)
def _known(vectors: Path, seed: int | None, ids: Sequence[str]) -> Known:
    """The cases, and what variants compute for them, which is the same in every dtype."""
    return Known([_case(vectors, seed, id) for id in ids])
