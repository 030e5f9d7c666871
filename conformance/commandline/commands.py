"""The commands of `moespec conformance`. Each command takes the parsed arguments and returns the exit status."""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path

from moespec.conformance import suite
from moespec.conformance.check import files, waivers
from moespec.conformance.check.adapter import Adapter
from moespec.conformance.check.process import TRUSTED, claims
from moespec.conformance.check.results import FAILED, Report
from moespec.conformance.check.run import Plan
from moespec.conformance.check.target import MODES, Target
from moespec.conformance.check.waivers import Waiver, waived
from moespec.conformance.commandline.arguments import parser, spread
from moespec.conformance.compare import ALL_DTYPES, DTYPES
from moespec.conformance.format import Case, GoldenError, VectorError
from moespec.conformance.manifest import encode, to_text
from moespec.conformance.matrix_rows import ALGORITHMS
from moespec.conformance.report import matrix
from moespec.conformance.report.report import ReportError, distinct, read, write
from moespec.conformance.scaffold import commands, start
from moespec.conformance.suite import load
from moespec.models.errors import RunError
from moespec.models.files import read_file, write_atomically
from moespec.spec.checks import plural
from moespec.spec.errors import ConfigError, SpecError
from moespec.spec.names import near_it

__all__ = ["main"]

OUTPUTS = ("report", "html", "badge", "shields")
"""Options that name a file to write."""


def _check_installed(command: str, *packages: str) -> None:
    """Raise ConfigError with the install command if a package that `command` needs is not installed."""
    for module, package in ((name.removeprefix("pytest-"), name) for name in packages):
        if find_spec(module) is None:
            raise ConfigError(f'{command} needs {package}: pip install "moespec[conformance]"')


def _run(options: argparse.Namespace) -> int:
    _check_installed("moespec conformance run", "pytest", "tqdm")
    from moespec.conformance import plugin

    only = _only(options)
    if options.fresh is not None:
        from moespec.conformance.golden import fresh

        every = fresh.ids(options.fresh, options.size)
        ids = [id for id in every if only(id)]
    else:
        every = sorted(suite.ids(options.vectors))
        ids = [f"{path.parent.name}/{path.stem}" for path in suite.verify(options.vectors, only)]
    plan, several = _plan(options, ids), []
    if options.processes is not None:
        _check_installed("-n", "pytest-xdist")
        several = ["-p", "xdist", "-n", options.processes]
    try:
        report = plugin.run(plan, [*several, *options.pytest])
    except (ConfigError, RunError) as error:
        raise ConfigError(f"moespec conformance run: {error}") from error
    return report if isinstance(report, int) else _conclude(options, _with_left_out(options, report, ids, every))


def _check(options: argparse.Namespace) -> int:
    from moespec.conformance.check.explain import diagnosed
    from moespec.conformance.check.match_variant import Known

    tensors = files.read_all(Path(options.folder), suite.ids(options.vectors))
    if not tensors:
        raise ConfigError(f"folder={options.folder!r}: expected files <algorithm>/<case>.safetensors, found none")
    dtype = DTYPES[options.dtype] if options.dtype else files.dtype_of(tensors)
    cases, listed = load(options.vectors, _only(options)), _waivers(options)
    results = files.check(tensors, cases, dtype)
    report = diagnosed(Report("files", options.folder, suite.digest(options.vectors), results), Known(cases))
    report = replace(report, results=[waived(listed, result) for result in report.results])
    return _conclude(options, _with_left_out(options, report, [case.id for case in cases], suite.ids(options.vectors)))


def _report(options: argparse.Namespace) -> int:
    if options.html:
        _check_installed("--html", "jinja2")
    from moespec.conformance.author import large
    from moespec.conformance.report.badge import badge, shields

    cases, digest = [*load(options.vectors), *large.outlines()], suite.digest(options.vectors)
    reports = distinct({path: read(path, cases, digest) for path in options.reports})
    run_ = {result.id for one in reports for result in one.results}
    cases = [case for case in cases if case.stages or case.id in run_]
    if options.html:
        from moespec.conformance.report.page import flags, page

        write_atomically(options.html, page(reports, cases, flags()).encode())
    if options.badge:
        write_atomically(options.badge, badge(reports).encode())
    if options.shields:
        write_atomically(options.shields, shields(reports).encode())
    for one in reports:
        print(f"{one.interface} {one.target}", matrix.summary(one), sep="\n\n", end="\n\n")
    return _status(reports)


def _only(options: argparse.Namespace) -> Callable[[str], bool]:
    """Return a predicate that accepts ids of cases in the chosen algorithms, classes and id patterns (default: all).

    Raises ConfigError if no case matches an id pattern.
    """
    patterns, classes = getattr(options, "case", None), getattr(options, "classes", None)
    for pattern in patterns or ():
        if not any(fnmatchcase(id, pattern) for id in _ids(options)):
            near = near_it(pattern, _ids(options))
            raise ConfigError(f"--case: no case matches {pattern!r}; `list` prints all cases{near}")

    def only(id: str) -> bool:
        return (
            (not options.algorithm or id.partition("/")[0] in options.algorithm)
            and (not patterns or any(fnmatchcase(id, pattern) for pattern in patterns))
            and (not classes or _class_of(options, id) in classes)
            and not (getattr(options, "forward_only", False) and _class_of(options, id) == "gradients")
        )

    return only


def _ids(options: argparse.Namespace) -> Iterator[str]:
    """Yield the ids of all cases: the stored vectors, then the large cases, which are generated and never stored."""
    yield from suite.ids(options.vectors)
    from moespec.conformance.author import large

    yield from large.ids()


def _class_of(options: argparse.Namespace, id: str) -> str:
    """Return the `--class` word of a case id. For large cases, which are not stored, use the class in the definition."""
    if getattr(options, "size", "small") == "small":
        return suite.class_of(id, options.vectors)
    from moespec.conformance.golden import fresh

    return next(word for word, kinds in suite.CLASSES.items() if fresh.kind(id) in kinds)


def _waivers(options: argparse.Namespace) -> list[Waiver]:
    if not options.waivers:
        return []
    return waivers.read(options.waivers, set(_ids(options)), (*MODES, files.MODE))


def _plan(options: argparse.Namespace, ids: Sequence[str]) -> Plan:
    """Return the plan of a run for a target or an adapter."""
    interface, name = (Target, options.target) if options.target is not None else (Adapter, options.adapter)
    TRUSTED[:] = filter(None, options.trust.split(","))
    try:
        claimed = claims(interface, name)
    except ConfigError as error:
        raise ConfigError(f"--{error}") from error
    fresh_cases = {"seed": options.fresh, "size": options.size, "repeat": options.repeat}
    report = Report(interface.kind, name, suite.digest(options.vectors), [], claims=claimed, **fresh_cases)
    listed = _waivers(options) if options.command == "run" else []
    how = (options.dtype, options.mode, listed, options.vectors, options.timeout, options.memory)
    return Plan(report, ids, *how)


def _with_left_out(options: argparse.Namespace, report: Report, chosen: Iterable[str], every: Iterable[str]) -> Report:
    """Return the report with `left_out`, the cases of the chosen algorithms that were not run."""
    rows = options.algorithm or {id.partition("/")[0] for id in chosen}
    ran = {result.id for result in report.results}
    ids = sorted(id for id in every if id.partition("/")[0] in rows and id not in ran)
    return replace(report, left_out={id: _class_of(options, id) for id in ids})


def _conclude(options: argparse.Namespace, report: Report) -> int:
    """Print and write the report. Returns the exit status."""
    differentiated = {result.algorithm for result in report.results if result.kind == "gradient"}
    if unseen := [name for name in report.not_differentiated if name in differentiated]:
        text = f"the backward pass of {', '.join(unseen)} is not checked; --forward-only skips gradients"
        report = replace(report, problems=[*report.problems, text])
    algorithms = options.algorithm or [name for name in ALGORITHMS if name in {r.algorithm for r in report.results}]
    if text := matrix.summary(report, algorithms, everything=options.all):
        print(text)
    if options.report:
        write(report, options.report)
        print(f"to cite: {report.citation}")
    return _status([report])


def _status(reports: Sequence[Report]) -> int:
    """Print the last lines of the reports. Return exit status 1 if anything failed or nothing passed, else 0."""
    if not any(one.results for one in reports):
        print("no case was run")
    if line := matrix.missed(reports):
        print(line)
    print(matrix.total(reports))
    passed, failed = (sum(one.counts[i] for one in reports) for i in (0, 1))
    return 1 if failed or not passed else 0


def _golden(options: argparse.Namespace) -> int:
    _check_installed("moespec conformance golden", "tqdm")
    from moespec.conformance.golden.generate import StaleError, generate

    try:
        if options.cases is not None:
            return _golden_of_own(options)
        generate(options.vectors, check=options.check, only=_only(options))
    except (StaleError, GoldenError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _golden_of_own(options: argparse.Namespace) -> int:
    """Generate vectors of custom routers, check the backends on them, and write a page of descriptions and results."""
    from moespec.conformance.golden.generate import generate
    from moespec.conformance.golden.own import described, read

    definitions, routers = read(options.cases)
    vectors, failed, page = options.out / "vectors", 0, "".join(map(described, routers.values())) + "# Results\n\n"
    generate(vectors, check=options.check, own=definitions)
    TRUSTED[:] = routers.values()
    for backend in ("numpy", "jax", "torch"):
        if find_spec(backend) is None:
            print(f"{backend} is not installed, so its backend is not checked", end="\n\n")
            continue
        report = Report(Target.kind, f"moespec.backends.{backend}", suite.digest(vectors), [])
        plan = Plan(report, sorted(definitions), [*DTYPES], ["eager"], vectors=vectors)
        report = plan.joined([each for part in plan.parts() for each in plan.check(*part).values()])
        print(report.target, matrix.summary(report, [*routers]), matrix.total([report]), sep="\n\n", end="\n\n")
        page += f"* `{report.target}`: {matrix.total([report])}\n"
        failed += report.counts[1]
    if not options.check:
        cases = "".join(f"* `{id}`: {each.purpose}\n" for id, each in definitions.items())
        write_atomically(options.out / "ROUTERS.md", f"{page}\n# Cases\n\n{cases}".encode())
    return 1 if failed else 0


def _variants(options: argparse.Namespace) -> int:
    _check_installed("moespec conformance variants", "tqdm")
    from moespec.conformance.cases import variants
    from moespec.conformance.check.mutation_report import mutation_report, table

    report = mutation_report(load(options.vectors, _only(options)), variants().values())
    print(table(report))
    return 1 if report.survivors or not report.cases else 0


def _coverage(options: argparse.Namespace) -> int:
    from moespec.conformance import coverage

    rows = coverage.table(load(options.vectors, _only(options)))
    print(coverage.text(rows))
    return 1 if any(row.missing() for row in rows) or not rows else 0


def _record(options: argparse.Namespace) -> int:
    from moespec.conformance.record.recorder import record

    if options.layer:
        _check_installed("--layer", "torch")
        from moespec.conformance.record.layer import record_layers

        text, right = record_layers(options.model, options.module, options.data, options.out, options.outputs)
        print(text)
        return 0 if right else 1
    gates = record(options.model, options.module, options.data, options.out, options.outputs)
    tokens = sum(gate.tokens for gate in gates)
    print(f"{options.out}: {plural(len(gates), 'gates')}, {plural(tokens, 'tokens')}")
    return 0


def _explain(options: argparse.Namespace) -> int:
    from moespec.conformance.record import explain, part, read

    if len(options.recordings) > 2:
        raise ConfigError(f"expected one recording, or two to compare, got {len(options.recordings)}")
    recordings = [read(path) for path in options.recordings]
    text, right = explain(*recordings) if len(recordings) == 1 else part(*recordings)
    print(text)
    return 0 if right else 1


def _list(options: argparse.Namespace) -> int:
    for path in suite.verify(options.vectors):
        manifest = json.loads(read_file(path))
        print(f"{manifest['id']:48} {manifest['class']:10} {manifest['purpose']}")
    return 0


def _new(options: argparse.Namespace) -> int:
    paths = start(options.kind, options.name, Path())
    print(f"wrote {' and '.join(map(str, paths))}; next:", *commands(options.kind, options.name), sep="\n")
    return 0


def _show(options: argparse.Namespace) -> int:
    if options.fresh is None:
        cases = load(options.vectors, lambda id: id == options.case)
    elif options.files is None:
        from moespec.conformance.golden import fresh

        cases = fresh.fresh(options.fresh, lambda id: id == options.case, size=options.size)
    else:
        raise ConfigError("--fresh: cannot be combined with --files, which needs the committed vectors")
    if not cases:
        fresh_ones = "" if options.fresh is None else f"; --fresh --size {options.size} omits some of them"
        near = near_it(options.case, _ids(options))
        raise ConfigError(f"unknown case {options.case!r}; `list` prints all cases{fresh_ones}{near}")
    print(to_text(encode(cases[0])[0]), end="")
    if options.files is not None:
        dtype = ALL_DTYPES[options.dtype[0]] if len(options.dtype) == 1 else None
        tensors = files.read_all(Path(options.files), suite.ids(options.vectors))
        results = files.check(tensors, cases, dtype or files.dtype_of(tensors))
        report = Report("files", options.files, suite.digest(options.vectors), results)
    elif options.target is None and options.adapter is None:
        return 0
    else:
        plan = _plan(options, [options.case])
        report = plan.joined([plan.check(*part)[options.case] for part in plan.parts()])
    return _shown(report, cases[0])


def _shown(report: Report, case: Case) -> int:
    """Print the result of one case. Returns the exit status."""
    from moespec.conformance.check.reproduce import code

    for each in report.unsupported:
        print(f"{each.dtype}: not supported by the target: {each.reason}")
    for result in report.results:
        for o in result.outcomes:
            place = f"{result.dtype} {result.mode} {o.stage}"
            print(f"{place}: {o.state}, {o.fraction:.3g} of the tolerance. {o.message}")
        if result.explanation:
            print(result.explanation)
        if result.state in FAILED:
            print("", code(report, result, case), sep="\n")
    for match in report.matches:
        print(f"{match.dtype} {match.mode} {match.text}")
    return 1 if any(result.state in FAILED for result in report.results) else 0


COMMANDS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "run": _run,
    "check": _check,
    "report": _report,
    "golden": _golden,
    "variants": _variants,
    "coverage": _coverage,
    "record": _record,
    "explain": _explain,
    "list": _list,
    "new": _new,
    "show": _show,
}


def main(arguments: list[str]) -> int:
    """Run a command and return its exit status."""
    parsing = parser("Check a target, an adapter or files, render reports, inspect cases, and generate vectors.")
    options, options_of_pytest = parsing.parse_known_args([*spread(arguments)])
    if options_of_pytest and options.command != "run":
        parsing.error(f"unrecognized arguments: {' '.join(options_of_pytest)}")
    options.pytest = options_of_pytest
    if hasattr(options, "vectors") and (options.vectors / "suite.json").is_file():
        options.vectors /= "vectors"  # a folder written by `golden --out`
    if getattr(options, "size", "small") != "small" and options.fresh is None:
        parsing.error(f"--size {options.size}: needs --fresh SEED, which generates these cases")
    paths = [path for name in OUTPUTS if (path := getattr(options, name, None))]
    for path in paths:
        if (*paths, *getattr(options, "reports", ())).count(path) > 1:
            parsing.error(f"{str(path)!r}: this output path is used twice")
    try:
        return COMMANDS[options.command](options)
    except VectorError as error:
        print(f"--vectors {str(options.vectors)!r}: the vectors are damaged: {error}", file=sys.stderr)
        return 2
    except (SpecError, files.FileError, GoldenError, ReportError, waivers.WaiverError) as error:
        print(error, file=sys.stderr)
        return 2
