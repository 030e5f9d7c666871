"""The suite tried on mutants: every mutant must be killed by a vector, and every vector must kill a mutant.

A mutant is run, in double precision and op by op, on the cases that call a name that it replaces. First their values;
only where all of these are right their gradients, and then the first step of the trajectories, which take longer.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from tqdm import tqdm

from moespec.conformance.execute import Job, execute, job_of
from moespec.conformance.format import Case, StageRecord, Value
from moespec.conformance.judge import LANES
from moespec.conformance.mutants import MUTANTS, Mutant, build, recorded
from moespec.conformance.negatives import fault_and_twin
from moespec.conformance.results import FAILED
from moespec.conformance.runner import run_lane
from moespec.conformance.target import Target

__all__ = ["Survey", "called", "first_step", "survey", "table"]

LANE = LANES["f64"]


@dataclass(frozen=True)
class Survey:
    """Which cases kill which mutants.

    kills: for each mutant the ids of the cases that fail on it, with the stage where it differs first. cases: the ids
    of all cases that were run.
    """

    kills: Mapping[str, Mapping[str, str]]
    cases: tuple[str, ...]

    @property
    def survivors(self) -> list[str]:
        """The mutants that no case of an algorithm that they concern kills, if all those were run."""
        run = {id.split("/")[0] for id in self.cases}
        return [
            name
            for name, killed in self.kills.items()
            if MUTANTS[name].algorithms <= run and not {id.split("/")[0] for id in killed} & MUTANTS[name].algorithms
        ]

    @property
    def idle(self) -> list[str]:
        """The cases that kill no mutant."""
        useful = {id for killed in self.kills.values() for id in killed}
        return [id for id in self.cases if id not in useful]


def survey(cases: Sequence[Case], mutants: Collection[Mutant]) -> Survey:
    """Every mutant run on the cases that it concerns."""
    cases = [first_step(case) for case in cases]
    names = {case.id: _called_by(case) for case in tqdm(cases, desc="what cases call", unit="case", disable=None)}
    kills = {}
    for mutant in tqdm(mutants, desc="mutants", unit="mutant", disable=None):
        kills[mutant.name] = _killed_by(mutant, [case for case in cases if mutant.replaced.keys() & names[case.id]])
    return Survey(kills, tuple(case.id for case in cases))


def _killed_by(mutant: Mutant, cases: Sequence[Case]) -> dict[str, str]:
    target = Target(mutant.name, LANE, build(mutant.replaced))
    values = [replace(case, gradients=None) for case in cases if case.kind != "trajectory"]
    gradients = [case for case in cases if case.gradients]
    trajectories = [case for case in cases if case.kind == "trajectory"]
    for part in (values, gradients, trajectories):
        with np.errstate(all="ignore"):  # those that compute with NaN
            results = run_lane(target, part, "eager")
        killed = {result.id: result.first.stage for result in results if result.state in FAILED}
        if killed:
            return killed
    return {}


def called(job: Job) -> set[str]:
    """The public names, and the routers, that a stage calls on the values of a case."""
    names: set[str] = set()
    execute(Target("recorded", LANE, recorded(names)), [job], "eager")
    return names


def _called_by(case: Case) -> set[str]:
    jobs: Collection[Job] = [job_of(case, record.name) for record in case.stages]
    names = set().union(*(called(job) for job in jobs or fault_and_twin(case)))
    return names | {"value_and_grad"} if case.gradients else names


def first_step(case: Case) -> Case:
    """A trajectory as if it were one step long; any other case as it is."""
    if case.kind != "trajectory":
        return case
    (stage,) = case.stages
    outputs = {
        name: _sliced(value) if value.axes[:1] == ("steps",) else value
        for name, value in stage.outputs.items()
        if not name.startswith("parameters/") or name == "parameters/1"
    }
    stages = (StageRecord(stage.name, stage.calls, stage.reads, outputs),)
    return replace(case, config={**case.config, "rates": case.config["rates"][:1]}, stages=stages)


def _sliced(value: Value) -> Value:
    scale = value.scale if isinstance(value.scale, str) else value.scale[:1]
    return replace(value, array=value.array[:1], scale=scale)


def table(found: Survey) -> str:
    """For each mutant that concerns the cases how many kill it, the first with its stage, and its ledger id.

    Then the cases that kill nothing, and a line with the numbers.
    """
    rows = [("mutant", "killed by", "first", "ledger")]
    for name, killed in found.kills.items():
        if killed or name in found.survivors:
            first = next((f"{id} ({stage})" for id, stage in killed.items()), "") or "SURVIVES"
            rows.append((name, str(len(killed)), first, MUTANTS[name].ledger))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    last = (
        f"{len(rows) - 1} mutants, {len(found.survivors)} survive; "
        f"{len(found.cases)} cases, {len(found.idle)} kill nothing"
    )
    idle = [f"{id} kills nothing" for id in found.idle]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:], "", *idle, last])
