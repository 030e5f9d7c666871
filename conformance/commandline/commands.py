"""What the commands of `moespec conformance` do. Each takes what the parser made of its arguments and returns the exit status."""

import argparse
import json
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from moespec.conformance import suite
from moespec.conformance.author import large
from moespec.conformance.author.fresh import fresh
from moespec.conformance.author.reference import GoldenError
from moespec.conformance.check import files, waivers
from moespec.conformance.check.adapter import Adapter
from moespec.conformance.check.classes import CLASSES, class_of
from moespec.conformance.check.interface import claims, interface
from moespec.conformance.check.modes import MODES, STRIDED
from moespec.conformance.check.results import FAILED
from moespec.conformance.check.run import run
from moespec.conformance.check.target import Target
from moespec.conformance.check.waivers import Waiver
from moespec.conformance.compare import ALL_DTYPES, DTYPES
from moespec.conformance.format import Case
from moespec.conformance.manifest import encode, to_text
from moespec.conformance.report import matrix, reading, report
from moespec.conformance.report.diagnosis import diagnosed
from moespec.conformance.report.report import Report, Unsupported
from moespec.conformance.rows import ALGORITHMS
from moespec.conformance.start import commands, start
from moespec.conformance.suite import load
from moespec.spec.errors import ConfigError

__all__ = ["COMMANDS"]


def _run(options: argparse.Namespace) -> int:
    interface = _interface(options)
    if interface is None:
        return 2
    cases = _chosen(options)
    waived = _waivers(options, cases, dtypes=options.dtype, modes=options.mode)
    return _conclude(options, _checked(interface, options, cases), waived)


def _check(options: argparse.Namespace) -> int:
    tensors = files.read_all(Path(options.folder), suite.ids(options.vectors))
    dtype = DTYPES[options.dtype] if options.dtype else files.dtype_of(tensors)
    cases = _chosen(options)
    waived = _waivers(options, cases, dtypes=[dtype.name], modes=[files.MODE])
    results = files.check(tensors, cases, dtype)
    digest = suite.digest(options.vectors)
    return _conclude(options, diagnosed(Report("files", options.folder, digest, results), cases), waived)


def _report(options: argparse.Namespace) -> int:
    from moespec.conformance.report.badge import badge, shields
    from moespec.conformance.report.page import flags, page

    cases, digest = [*load(options.vectors), *large.outlines()], suite.digest(options.vectors)
    reports = report.distinct({path: reading.read(path, cases, digest) for path in options.reports})
    run_ = {result.id for one in reports for result in one.results}
    cases = [case for case in cases if case.stages or case.id in run_]
    if options.html:
        report.write_text(options.html, page(reports, cases, flags()))
    if options.badge:
        report.write_text(options.badge, badge(reports))
    if options.shields:
        report.write_text(options.shields, shields(reports))
    for one in reports:
        print(f"{one.interface} {one.target}", matrix.summary(one), sep="\n\n", end="\n\n")
    return _status(reports)


def _differentiates(options: argparse.Namespace) -> bool:
    """Whether gradients are among what is to be checked."""
    return not getattr(options, "forward_only", False) and "gradients" in (getattr(options, "classes", None) or CLASSES)


def _chosen(options: argparse.Namespace) -> list[Case]:
    """The cases of the chosen algorithms and classes, by default of all; fresh ones if a seed is given."""
    chosen = getattr(options, "classes", None)

    def only(id: str) -> bool:
        return (not options.algorithm or id.split("/")[0] in options.algorithm) and (
            (not chosen or class_of(id) in chosen) and (_differentiates(options) or class_of(id) != "gradients")
        )

    if getattr(options, "fresh", None) is not None:
        return fresh(options.fresh, only, jobs=options.jobs, size=options.size)
    return load(options.vectors, only)


def _waivers(
    options: argparse.Namespace, cases: Sequence[Case], *, dtypes: Collection[str], modes: Collection[str]
) -> list[Waiver]:
    """The waivers that may be for the results of a command."""
    if not options.waivers:
        return []
    return [
        waiver
        for waiver in waivers.read(options.waivers, {*suite.ids(options.vectors), *large.ids()}, (*MODES, files.MODE))
        if any(waiver.matches(case.id) for case in cases)
        and waiver.dtype in ("", *dtypes)
        and waiver.mode in ("", *modes)
    ]


def _interface(options: argparse.Namespace) -> type[Target] | None:
    """The interface of `--target` or `--adapter`, or None, after saying why what is named has none."""
    try:
        return interface(options.target, options.adapter)
    except ConfigError as error:
        print(f"--{error}", file=sys.stderr)
        return None


def _checked(interface: type[Target], options: argparse.Namespace, cases: Sequence[Case]) -> Report:
    """What came of cases on a target or an adapter."""
    name, jobs = options.target or options.adapter, getattr(options, "jobs", 1)
    results, lacking = run(
        *(name, cases),
        dtypes=options.dtype,
        modes=options.mode,
        jobs=jobs,
        interface=interface,
        repeat=options.repeat,
    )
    modes = [mode for mode in options.mode if mode != STRIDED or options.mode == [STRIDED]]
    unsupported = [Unsupported(dtype, reason, len(cases) * len(modes)) for dtype, reason in lacking.items()]
    found = Report(
        "adapter" if interface is Adapter else "target",
        name,
        suite.digest(options.vectors),
        results,
        unsupported,
        seed=options.fresh,
        claims=claims(interface, name),
        size=options.size,
        repeat=options.repeat,
    )
    return diagnosed(found, cases)


def _conclude(options: argparse.Namespace, found: Report, waived: Sequence[Waiver]) -> int:
    """Apply the waivers, print and write the report; the exit status."""
    results, problems = waivers.apply(waived, found.results)
    if found.not_differentiated and _differentiates(options):
        names = ", ".join(found.not_differentiated)
        problems.append(f"the backward pass of {names} is not checked; run without gradients by --forward-only")
    found = replace(found, results=results, problems=problems)
    text = matrix.summary(found, options.algorithm or tuple(ALGORITHMS), everything=options.all)
    if text:
        print(text)
    if options.report:
        report.write(found, options.report)
    if options.junit:
        from moespec.conformance.report.junit import junit

        report.write_text(options.junit, junit(found))
    return _status([found])


def _status(reports: Sequence[Report]) -> int:
    """Print the last line; the exit status is 1 if anything failed or nothing passed."""
    if not any(one.results for one in reports):
        print("nothing was collected")
    print(matrix.total(reports))
    passed, failed = (sum(one.counts[i] for one in reports) for i in (0, 1))
    return 1 if failed or not passed else 0


def _golden(options: argparse.Namespace) -> int:
    from moespec.conformance.author.generate import StaleError, generate

    def only(id: str) -> bool:
        return not options.algorithm or id.split("/")[0] in options.algorithm

    try:
        generate(options.vectors, check=options.check, only=only)
    except (StaleError, GoldenError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _variants(options: argparse.Namespace) -> int:
    from moespec.conformance.cases import variants
    from moespec.conformance.check import survey

    found = survey.survey(_chosen(options), variants().values())
    print(survey.table(found))
    return 1 if found.survivors or found.idle or not found.cases else 0


def _list(options: argparse.Namespace) -> int:
    for path in suite.verify(options.vectors):
        manifest = json.loads(path.read_text())
        print(f"{manifest['id']:48} {manifest['class']:10} {manifest['purpose']}")
    return 0


def _new(options: argparse.Namespace) -> int:
    try:
        paths = start(options.kind, options.name, Path())
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"wrote {' and '.join(map(str, paths))}; next:", *commands(options.kind, options.name), sep="\n")
    return 0


def _show(options: argparse.Namespace) -> int:
    if options.fresh is None:
        cases = load(options.vectors, lambda id: id == options.case)
    elif options.files is None:
        cases = fresh(options.fresh, lambda id: id == options.case, size=options.size)
    else:
        print("--fresh: files are computed from the committed vectors", file=sys.stderr)
        return 2
    if not cases:
        fresh_ones = "" if options.fresh is None else f" of --fresh --size {options.size}, which leave some out"
        print(f"no such case: {options.case!r}; `list` prints them all{fresh_ones}", file=sys.stderr)
        return 2
    print(to_text(encode(cases[0])[0]), end="")
    if options.files is not None:
        dtype = ALL_DTYPES[options.dtype[0]] if len(options.dtype) == 1 else None
        tensors = files.read_all(Path(options.files), suite.ids(options.vectors))
        results = files.check(tensors, cases, dtype or files.dtype_of(tensors))
        found = Report("files", options.files, suite.digest(options.vectors), results)
    elif options.target is None and options.adapter is None:
        return 0
    else:
        interface = _interface(options)
        if interface is None:
            return 2
        found = _checked(interface, options, cases)
    return _shown(found, cases[0])


def _shown(found: Report, case: Case) -> int:
    """Print what came of one case; the exit status."""
    from moespec.conformance.check.reproduce import code

    for each in found.unsupported:
        print(f"{each.dtype}: not supported by the target: {each.reason}")
    for result in found.results:
        for o in result.outcomes:
            place = f"{result.dtype} {result.mode} {o.stage}"
            print(f"{place}: {o.state}, {o.fraction:.3g} of the tolerance. {o.message}")
        if result.state in FAILED:
            print("", code(found, result, case), sep="\n")
    for match in found.matches:
        print(f"{match.dtype} {match.mode} equals the known variant {match.text}")
    return 1 if any(result.state in FAILED for result in found.results) else 0


COMMANDS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "run": _run,
    "check": _check,
    "report": _report,
    "golden": _golden,
    "variants": _variants,
    "list": _list,
    "new": _new,
    "show": _show,
}
