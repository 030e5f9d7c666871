"""`moespec conformance golden --cases my_package.cases --out FOLDER`: vectors of routers of the user's own, and what comes of them.

FOLDER/suite.json, FOLDER/vectors/   the vectors, as ours are: `moespec conformance run --vectors FOLDER` checks any target on them
FOLDER/<router>.md                   its page: what it computes, its options, its cases, and how many of them each backend passes
"""

import importlib
import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any, cast

from moespec.conformance import suite
from moespec.conformance.author.definition import Definition
from moespec.conformance.author.draws import drawn, recorded, route_of
from moespec.conformance.author.reference import Making
from moespec.conformance.check import process
from moespec.conformance.check.results import FAILED, Report
from moespec.conformance.check.run import Plan
from moespec.conformance.check.target import DEFAULT, Target
from moespec.conformance.compare import DTYPES
from moespec.conformance.format import Case
from moespec.conformance.functions import FUNCTIONS
from moespec.conformance.golden.derived import invalid_options
from moespec.conformance.golden.generate import generate
from moespec.conformance.matrix_rows import ALGORITHMS, OWN
from moespec.conformance.report import matrix
from moespec.models.files import write_atomically
from moespec.models.options import help_texts
from moespec.spec.errors import ConfigError
from moespec.spec.own import is_own
from moespec.spec.routers import ROUTERS

__all__ = ["publish", "read"]

BACKENDS = ("numpy", "jax", "torch")
"""The backends that are checked, those of them that are installed."""


def publish(name: str, folder: Path, *, check: bool) -> int:
    """Make the vectors that a module defines, or with `check` compare them; check each backend, and write the pages. The exit status.

    Raises ConfigError as `read` does, and StaleError as `generate` does.
    """
    definitions, routers = read(name)
    vectors = folder / "vectors"
    generate(vectors, check=check, own=definitions)
    cases = suite.load(vectors)
    for router, definition in routers.items():
        for reason in _lost(definition):
            print(f"{router}: the vectors have no step {reason}")
    reports = {backend: _report(vectors, backend, sorted(routers)) for backend in BACKENDS if find_spec(backend)}
    for backend, report in reports.items():
        if text := matrix.failures(report):
            print(f"\n{backend}\n{text}\n")
    of_row = {router: [case for case in cases if case.algorithm == ROUTERS[router].name] for router in routers}
    for router in () if check else routers:
        page = _page(router, of_row[router], reports)
        write_atomically(folder / f"{ROUTERS[router].name}.md", page.encode())
    print(_table([ROUTERS[router].name for router in routers], reports))
    for backend in BACKENDS:
        if backend not in reports:
            print(f"{backend} is not installed, and was not checked")
    return 1 if any(report.counts[1] or not report.counts[0] for report in reports.values()) else 0


def read(name: str) -> tuple[dict[str, Definition], dict[str, Definition]]:
    """The cases by id that the module of this name defines, with an error case for each option of a router; the first of each router.

    Imports the module. Its rows and functions are known from then on. Raises ConfigError for anything else than cases of such routers.
    """
    try:
        module = importlib.import_module(name)
        FUNCTIONS.update({each.name: each for each in getattr(module, "FUNCTIONS", ())})
        written = [*module.cases()]
    except Exception as error:  # whatever the user's module raises
        raise ConfigError(f"cases={name!r}: {type(error).__name__}: {error}") from error
    routers: dict[str, Definition] = {}
    for each in [*written]:
        if each.routed is None or not is_own(router := each.routed.router):
            raise ConfigError(f"cases={name!r}: {each.id} is no case of a router package.module:ROUTER")
        if router not in routers:
            written += invalid_options(each, each.routed)
            routers[router] = each
    by_id = {each.id: each for each in written}
    if len(by_id) != len(written):
        raise ConfigError(f"cases={name!r}: two cases, or two routers, have one name")
    OWN.update({ROUTERS[router].name: replace(ROUTERS[router].algorithm, functions=(router,)) for router in routers})
    for row in {each.algorithm for each in written} & ALGORITHMS.keys():
        raise ConfigError(
            f"cases={name!r}: moespec has a row {row!r}; give your Router another name, its first argument"
        )
    return by_id, routers


def _lost(definition: Definition) -> list[str]:
    """Why calls of a router are no steps of its vectors."""
    inputs = drawn(definition)
    (values, *_) = Making(inputs).groups(route_of(replace(definition, inputs=inputs)))
    recorder, _ = recorded(definition, values)
    return [
        f"{call}, whose argument {argument} is computed between two calls; make that a function, and describe it in FUNCTIONS"
        for call, argument in recorder.lost.items()
        if argument
    ]


def _report(vectors: Path, backend: str, routers: Sequence[str]) -> Report:
    """What comes of the vectors on a backend, in a process that may import these routers."""
    process.TRUSTED[:] = routers
    target = f"moespec.backends.{backend}"
    process.claims(Target, target)
    report = Report(Target.kind, target, suite.digest(vectors), [], where=suite.where(vectors, routers))
    plan = Plan(report, sorted(suite.ids(vectors)), list(DTYPES), DEFAULT, vectors=vectors)
    reports = [each for part in plan.parts() for each in plan.check(*part).values()]
    process.end()
    return plan.joined(reports)


def _table(rows: Sequence[str], reports: Mapping[str, Report]) -> str:
    """The rows of the matrix as Markdown: how many cases of a router pass in each dtype, of those that can be decided in it."""
    lines = [f"| router | backend | {' | '.join(DTYPES)} |", "|---|---|" + "---|" * len(DTYPES)]
    for row, (backend, report) in product(rows, reports.items()):
        cells = []
        for dtype in DTYPES:
            own = [result for result in report.results if (result.algorithm, result.dtype) == (row, dtype)]
            failed, ran = ({r.id for r in own if r.state in states} for states in (FAILED, (*FAILED, "pass")))
            cells.append(f"{len(ran - failed)} of {len(ran)}" if ran else "")
        lines.append(f"| {row} | {backend} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _page(name: str, cases: Sequence[Case], reports: Mapping[str, Report]) -> str:
    """The page of a router."""
    router, kind = ROUTERS[name], cast("Any", ROUTERS[name].Options)  # mypy takes the class of a dataclass for unhashable
    texts = help_texts(kind)
    values = next(case for case in cases if case.kind != "negative")
    params = [(key.removeprefix("router/"), t.axes) for key, t in values.inputs.items() if key.startswith("router/")]
    facts = {"source": router.source, "balances": router.balances, "cost": router.cost, "drops": router.drops}
    facts |= {"parameters": ", ".join(f"`{key}` ({', '.join(axes)})" for key, axes in params)}
    options = [
        f"| `{f.name}` | {'' if f.default is MISSING else f'`{f.default}`'} | {texts.get(f.name, '')} |"
        for f in fields(kind)
    ]
    steps = {case.id: ", ".join(f"`{stage.name}`" for stage in case.stages if stage.outputs) for case in cases}
    return "\n".join(
        [
            f"# {router.name}",
            "",
            inspect.cleandoc(sys.modules[router.Options.__module__].__doc__ or ""),
            "",
            f"`{name}`, revision {router.revision}.",
            "",
            *(f"* {fact}: {text}" for fact, text in facts.items()),
            "",
            "## Options",
            "",
            "| option | default | |",
            "|---|---|---|",
            *options,
            "",
            "## Results",
            "",
            _table([router.name], reports),
            "",
            "## Cases",
            "",
            "| case | class | purpose | steps |",
            "|---|---|---|---|",
            *(f"| `{case.id}` | {case.kind} | {case.purpose} | {steps[case.id]} |" for case in cases),
            "",
            f"`moespec conformance run --vectors FOLDER --target MODULE --trust {name}` checks a target on them.",
            "",
        ]
    )
