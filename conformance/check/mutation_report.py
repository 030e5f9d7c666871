"""Test the suite on known variants. Every variant must fail on at least one vector.

A variant runs in float64, op by op, on the cases that call a function or router that the variant replaces. The algorithms run
one after another until two cases have failed. Only the first step of a trajectory runs, because trajectories take
longer. Error cases run last, and only if no other case has failed, because most variants do not validate their arguments.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
from tqdm import tqdm

from moespec.conformance.author.variant import Variant, module_of
from moespec.conformance.cases import variants
from moespec.conformance.check.match_variant import DTYPE, called
from moespec.conformance.check.results import FAILED, CaseResult
from moespec.conformance.check.run import run_cases
from moespec.conformance.check.target import Target, job_of
from moespec.conformance.format import Case, Value
from moespec.conformance.functions import function
from moespec.conformance.matrix_rows import ALGORITHMS

__all__ = ["MutationReport", "falls", "first_step", "mutation_report", "table"]

ENOUGH = 2
"""Once this many cases catch a variant, no further algorithm is tried."""


@dataclass(frozen=True)
class MutationReport:
    """The cases that catch each variant.

    caught: for each variant, the ids of failing cases, each with the first stage that differs. The search stops after
    the algorithm in which a second case fails. cases: the ids of all available cases.
    """

    caught: Mapping[str, Mapping[str, str]]
    cases: tuple[str, ...]

    @property
    def survivors(self) -> list[str]:
        """The variants that no case of their algorithms catches. Omits variants if some of their algorithms were not run."""
        run = {id.split("/")[0] for id in self.cases}
        return [
            name
            for name, ids in self.caught.items()
            if variants()[name].algorithms <= run and not {id.split("/")[0] for id in ids} & variants()[name].algorithms
        ]

    @property
    def singly_detected(self) -> dict[str, str]:
        """The variants that exactly one case catches, with the id of the case. Empty if some algorithms were not run."""
        whole = {id.split("/")[0] for id in self.cases} == ALGORITHMS.keys()
        return {name: next(iter(ids)) for name, ids in self.caught.items() if whole and len(ids) == 1}


def mutation_report(cases: Sequence[Case], chosen: Collection[Variant]) -> MutationReport:
    """Runs every variant on the cases that call a name that the variant replaces."""
    cases = [first_step(case) for case in cases]
    names = {case.id: _called_by(case) for case in tqdm(cases, desc="reading cases", unit="case", disable=None)}
    caught = {}
    for variant in tqdm(chosen, desc="variants", unit="variant", disable=None):
        caught[variant.name] = _caught_by(variant, [case for case in cases if variant.replaced.keys() & names[case.id]])
    return MutationReport(caught, tuple(case.id for case in cases))


def _caught_by(variant: Variant, cases: Sequence[Case]) -> dict[str, str]:
    """Returns cases that fail on the variant, at least `ENOUGH` if possible. The algorithms that must catch the variant run first."""
    target, caught, otherwise = Target(variant.name, DTYPE, module_of(variant.replaced)), dict[str, str](), False

    def rank(case: Case) -> tuple[bool, bool, bool, str]:
        last = case.expect is not None, case.kind == "trajectory"
        return *last, case.algorithm not in variant.algorithms, case.algorithm

    for (is_error, *_), part in groupby(sorted(cases, key=rank), rank):
        if len(caught) >= ENOUGH or (is_error and otherwise):
            break
        with np.errstate(all="ignore"):  # some variants compute NaN
            results = run_cases(target, list(part), "eager")
        caught |= {result.id: result.first.stage for result in results if falls(result)}
        otherwise = bool(caught) and not is_error
    return caught


def falls(result: CaseResult) -> bool:
    """Whether a case fails on a variant for a reason other than a missing argument."""
    return result.state in FAILED and not result.first.message.startswith("TypeError")


def _called_by(case: Case) -> set[str]:
    if case.expect is not None:  # the call raises an error, so it is not run
        return {name for stage in case.stages for name in (stage.call.partition(".")[0], stage.router)}
    names = set().union(*(called(job_of(case, stage.name)) for stage in case.stages))
    names |= {name for stage in case.stages for name in function(stage.call).needs}
    return names | {"value_and_grad"} if case.gradients else names


def first_step(case: Case) -> Case:
    """Truncates a trajectory to its first step. Returns other cases unchanged."""
    if case.kind != "trajectory":
        return case
    (stage,) = case.stages
    outputs = {
        name: _sliced(value) if value.axes[:1] == ("steps",) else value
        for name, value in stage.outputs.items()
        if not name.startswith("parameters/") or name == "parameters/1"
    }
    options = {**stage.options, "rates": stage.options["rates"][:1]}
    return replace(case, stages=(replace(stage, options=options, outputs=outputs),))


def _sliced(value: Value) -> Value:
    scale = value.scale if isinstance(value.scale, str) else value.scale[:1]
    return replace(value, array=value.array[:1], scale=scale)


def table(report: MutationReport) -> str:
    """Returns a line for each variant: the number of cases that catch the variant, the first case and stage, and the ledger id.

    A line of totals follows.
    """
    rows = [("variant", "caught by", "first", "ledger")]
    for name, ids in report.caught.items():
        if ids or name in report.survivors:
            first = next((f"{id} ({stage})" for id, stage in ids.items()), "") or "SURVIVES"
            rows.append((name, str(len(ids)), first, variants()[name].ledger))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    last = f"{len(rows) - 1} variants, {len(report.survivors)} survive, {len(report.singly_detected)} caught by a single case; "
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:], "", f"{last}{len(report.cases)} cases"])
