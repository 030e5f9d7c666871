"""Run the cases that know of devices on meshes: what each device computed is compared as if it were alone."""

import math
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

from moespec.backends.mesh import MeshSizes
from moespec.conformance.engine import copies
from moespec.conformance.engine.compare import DTYPES, Dtype, Outcome, certified, compared
from moespec.conformance.engine.devices import Devices, Key, LostError, Work, processes_of
from moespec.conformance.engine.format import Case
from moespec.conformance.engine.modes import mesh_mode
from moespec.conformance.engine.on_mesh import GRADIENT, Share
from moespec.conformance.engine.target import Job, Target, job_of
from moespec.conformance.report.results import STATES, CaseResult

__all__ = ["run_on_meshes"]

Results = dict[tuple[str, str, str], CaseResult]


@dataclass(frozen=True)
class Part:
    """The cases of one algorithm in one dtype on one mesh, with what is to be run of them."""

    target: Target
    sizes: MeshSizes
    results: dict[str, CaseResult]
    jobs: dict[Key, Job]

    @property
    def work(self) -> Work:
        """What is sent to the processes."""
        return Work(self.target.dtype, self.sizes, self.jobs)


def run_on_meshes(
    name: str,
    groups: Sequence[Sequence[Case]],
    dtypes: Sequence[str],
    meshes: Sequence[MeshSizes],
    *,
    processes: int | None,
    jobs: int,
) -> tuple[Results, dict[str, str]]:
    """The results of cases that run on a mesh, by mode, dtype and id, and the dtypes that the target has not, with its reason.

    groups: the cases of an algorithm are run together. meshes: of the same number of devices, which `processes` have (by
    default as few as can be). jobs: where it is a multiple of `processes`, several sets of them share the work.
    Raises MeshError where the devices cannot be had.
    """
    parts = deque(
        _part(Target(name, DTYPES[dtype]), sizes, [case for case in group if copies.chosen(case)])
        for group in groups
        for sizes in meshes
        for dtype in dtypes
    )
    results: Results = {}
    unsupported: dict[str, str] = {}
    count = processes_of(name, meshes[0].devices, processes)
    sets = max(1, jobs // count)
    total = sum(len(part.results) for part in parts)

    def share() -> None:
        while parts:
            with Devices(name, meshes[0].devices, count) as devices:
                while parts:
                    try:
                        part = parts.popleft()
                    except IndexError:  # the last was another's
                        return
                    lost, reason = _run(devices, part)
                    if reason:
                        unsupported[part.target.dtype.name] = reason
                    else:
                        key = (mesh_mode(part.sizes), part.target.dtype.name)
                        results.update({(*key, id): result for id, result in part.results.items()})
                    bar.set_postfix_str(f"{part.target.dtype.name} {mesh_mode(part.sizes)}")
                    bar.update(len(part.results))
                    if lost:
                        break

    with tqdm(total=total, desc=name, unit="case", disable=None) as bar, ThreadPoolExecutor(sets) as pool:
        for future in [pool.submit(share) for _ in range(sets)]:
            future.result()
    return results, unsupported


def _part(target: Target, sizes: MeshSizes, cases: Sequence[Case]) -> Part:
    results = {c.id: CaseResult(c.id, c.algorithm, c.kind, target.dtype.name, mesh_mode(sizes)) for c in cases}
    jobs: dict[Key, Job] = {}
    for case in cases:
        wanted = {stage.name: stage.name for stage in case.stages if copies.runs(stage)}
        if case.gradients and copies.runs(case.stage(case.gradients.stage)):
            wanted[GRADIENT] = case.gradients.stage
        for name, stage in wanted.items():
            job = job_of(case, stage)
            lacks = target.lacks(job.stage, case) or copies.reason(job, sizes)
            if lacks:
                results[case.id].outcomes.append(Outcome(name, "not implemented", 0.0, lacks))
            else:
                jobs[case.id, name] = job
    return Part(target, sizes, results, jobs)


def _run(devices: Devices, part: Part) -> tuple[bool, str]:
    """Adds the outcomes. Returns whether the processes were lost, and why the target does not have the dtype."""
    begun, lost, reason = time.perf_counter(), False, ""
    try:
        shares, reason = devices.run(part.work) if part.jobs else ([], "")
    except LostError as error:
        lost, shares = True, [{key: Share(error=f"{type(error).__name__}: {error}") for key in part.jobs}]
    for (id, name), job in part.jobs.items() if not reason else ():
        outcomes, failing = _compared(job, name, [process[id, name] for process in shares], part.target.dtype)
        part.results[id].outcomes.extend(outcomes)
        if failing is not None and name != GRADIENT:
            part.results[id].returned[name] = failing
    for result in part.results.values():
        result.seconds = (time.perf_counter() - begun) / len(part.results)
    return lost, reason


def _compared(
    job: Job, name: str, shares: Sequence[Share], dtype: Dtype
) -> tuple[list[Outcome], dict[str, Any] | None]:
    """The outcome for each result on the device where it is worst, and what one device returned that differs."""
    for index, share in enumerate(shares):
        if share.error:
            place = f"process {index} of {len(shares)}: " if len(shares) > 1 else ""
            return [Outcome(name, "error", math.inf, f"{place}{share.error[:400]}")], None
    expected = job.case.expected_gradients.wrt if name == GRADIENT else job.stage.outputs
    parts = {part: sum(share.parts[part] for share in shares) for part in shares[0].parts}
    devices = shares[0].devices or [{}]
    sure = certified(job.case.decisions.get(job.stage.name), dtype)
    worst: dict[str, tuple[Outcome, dict[str, Any]]] = {}
    for index, results in enumerate(devices):
        found = {**copies.put_back(job, results, index), **parts}
        for outcome in compared(name, expected, found, dtype, sure, "" if name == GRADIENT else job.stage.call):
            if len(devices) > 1 and outcome.message:
                text = f"device {index} of {len(devices)}: {outcome.message}"
                outcome = Outcome(outcome.stage, outcome.state, outcome.fraction, text)
            before = worst.setdefault(outcome.stage, (outcome, found))
            if _badness(outcome) > _badness(before[0]):
                worst[outcome.stage] = outcome, found
    failing = [found for outcome, found in worst.values() if outcome.state == "fail"]
    return [outcome for outcome, _ in worst.values()], failing[0] if failing else None


def _badness(outcome: Outcome) -> tuple[int, float]:
    return -list(STATES).index(outcome.state), outcome.fraction
