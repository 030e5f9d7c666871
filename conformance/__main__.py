"""`python -m moespec.conformance`: judge a target, an adapter or files; reports; the vectors and their cases."""

import argparse
import importlib
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

from moespec.conformance import files, matrix, mutation, report, reproduce, suite, waivers
from moespec.conformance.adapter import Adapter, kernel
from moespec.conformance.badge import badge
from moespec.conformance.files import FoundFileError
from moespec.conformance.format import Case, VectorError, encode, to_text
from moespec.conformance.judge import LANES
from moespec.conformance.mutants import MUTANTS
from moespec.conformance.page import page
from moespec.conformance.recognise import Known, recognise
from moespec.conformance.report import Refusal, Report, ReportError
from moespec.conformance.results import FAILED
from moespec.conformance.runner import run
from moespec.conformance.suite import VECTORS, load
from moespec.conformance.target import MODES, Target
from moespec.conformance.waivers import Waiver, WaiverError
from moespec.spec import ALGORITHMS


def main(arguments: list[str] | None = None) -> int:
    """The exit status: 0 if everything passed, 1 if something failed or nothing was collected, 2 for wrong usage."""
    options = _parser().parse_args(arguments)
    try:
        status: int = options.command(options)
        return status
    except VectorError as error:
        print(f"the vectors are damaged: {error}", file=sys.stderr)
        return 1
    except (FoundFileError, ReportError, WaiverError) as error:
        print(error, file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m moespec.conformance", description=__doc__)
    commands = parser.add_subparsers(required=True)

    def command(name: str, function: object, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.set_defaults(command=function)
        return added

    def common(added: argparse.ArgumentParser) -> None:
        added.add_argument(
            "--vectors", type=Path, default=VECTORS, help="folder of the vectors (default: those shipped)"
        )

    def doors(added: argparse.ArgumentParser, *, required: bool, files: bool) -> None:
        group = added.add_mutually_exclusive_group(required=required)
        group.add_argument("--target", help="module with the public names, e.g. moespec.backends.jax")
        group.add_argument("--adapter", help="module[:object] with layer(x, params, config)")
        if files:
            group.add_argument("--files", help="folder of safetensors files, as of `judge`")
        added.add_argument(
            "--mode",
            type=_some_of(MODES),
            default=["eager"],
            help="comma-separated: eager (op by op), compiled (by the target's `compile`); default: eager",
        )
        added.add_argument(
            "--lane", type=_some_of(LANES), default=list(LANES), help="comma-separated: f64, f32, bf16 (default: all)"
        )

    def judged(added: argparse.ArgumentParser) -> None:
        added.add_argument("--algorithm", action="append", choices=list(ALGORITHMS), help="only these (repeatable)")
        added.add_argument("--waivers", type=Path, help="TOML file of failures that are answered for")
        added.add_argument("--report", type=_output, help="write all results as JSON")

    run_ = command("run", _run, "Run the suite on a target or an adapter and print the matrix.")
    common(run_)
    doors(run_, required=True, files=False)
    judged(run_)
    run_.add_argument("--jobs", type=_positive, default=1, help="processes that share the work (default: 1)")

    judge = command("judge", _judge, "Judge safetensors files that any program wrote from the published inputs.")
    common(judge)
    judge.add_argument("folder", help="holds <algorithm>/<case>.safetensors with tensors named <stage>/<result>")
    judge.add_argument("--lane", choices=list(LANES), help="default: that of the coarsest dtype in the files")
    judged(judge)

    report_ = command("report", _report, "Print the matrix of reports, and make a page and a badge of them.")
    common(report_)
    report_.add_argument("reports", type=Path, nargs="+", help="files that `--report` wrote; each gives columns")
    report_.add_argument("--html", type=_output, help="write one HTML file with every case")
    report_.add_argument("--badge", type=_output, help="write an SVG")

    golden = command("golden", _golden, "Make the vectors from the specification.")
    common(golden)
    golden.add_argument("--check", action="store_true", help="write nothing; fail if a committed vector differs")
    golden.add_argument("--algorithm", action="append", choices=list(ALGORITHMS), help="only these (repeatable)")

    mutants = command(
        "mutants", _mutants, "Try the suite on wrong implementations: each must fail, and each case fail one."
    )
    common(mutants)
    mutants.add_argument("--algorithm", action="append", choices=list(ALGORITHMS), help="only these (repeatable)")

    list_ = command("list", _list, "List the cases.")
    common(list_)
    show = command("show", _show, "Print a case and, for a target, an adapter or files, what they make of it.")
    common(show)
    doors(show, required=False, files=True)
    show.add_argument("case", help="id, such as token_choice/tied")
    return parser


def _some_of(known: Collection[str]) -> Callable[[str], list[str]]:
    """The type of an option: a comma-separated list of known words."""

    def parse(text: str) -> list[str]:
        words = [word.strip() for word in text.split(",")]
        for word in words:
            if word not in known:
                raise argparse.ArgumentTypeError(f"unknown {word!r}; expected {', '.join(known)}")
        return list(dict.fromkeys(words))

    return parse


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number from 1")
    return int(text)


def _output(text: str) -> Path:
    """The type of an option that names a file to write, so that no work is lost for want of a folder."""
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r}: {'is a folder' if path.is_dir() else 'its folder is not there'}")
    return path


def _run(options: argparse.Namespace) -> int:
    door = _door(options)
    if door is None:
        return 2
    cases, waived = _asked(options, load(options.vectors), lanes=options.lane, modes=options.mode)
    found = _judged_by(door, options, cases)
    return _conclude(options, found, waived)


def _judge(options: argparse.Namespace) -> int:
    cases = load(options.vectors)
    tensors = files.read_all(Path(options.folder), {case.id for case in cases})
    lane = LANES[options.lane] if options.lane else files.lane_of(tensors)
    cases, waived = _asked(options, cases, lanes=[lane.name], modes=[files.MODE])
    results = files.judge(tensors, cases, lane)
    conventions = recognise(results, Known(cases))
    digest = suite.digest(options.vectors)
    return _conclude(options, Report("files", options.folder, digest, results, conventions=conventions), waived)


def _report(options: argparse.Namespace) -> int:
    cases, digest = load(options.vectors), suite.digest(options.vectors)
    reports = report.distinct({path: report.read(path, cases, digest) for path in options.reports})
    if options.html:
        report.write_text(options.html, page(reports, cases, suite.flags()))
    if options.badge:
        report.write_text(options.badge, badge(reports))
    for one in reports:
        print(f"{one.door} {one.target}", matrix.summary(one), sep="\n\n", end="\n\n")
    return _status(reports)


def _asked(
    options: argparse.Namespace, cases: Sequence[Case], *, lanes: Collection[str], modes: Collection[str]
) -> tuple[list[Case], list[Waiver]]:
    """Of all cases those that are asked for, and the waivers that may be for them."""
    algorithms = options.algorithm or list(ALGORITHMS)
    waived = waivers.read(options.waivers, {case.id for case in cases}, (*MODES, files.MODE)) if options.waivers else []
    return [case for case in cases if case.algorithm in algorithms], [
        waiver
        for waiver in waived
        if waiver.case.split("/")[0] in algorithms and waiver.lane in ("", *lanes) and waiver.mode in ("", *modes)
    ]


def _door(options: argparse.Namespace) -> type[Target] | None:
    """The door of `--target` or `--adapter`, or None, after saying why what stands behind it cannot be judged."""
    if options.target is not None:
        return Target if _is_target(options.target) else None
    if options.mode != ["eager"]:
        print(f"--mode {','.join(options.mode)}: an adapter is run as it is, without --mode", file=sys.stderr)
        return None
    try:
        kernel(options.adapter)
    except (Exception, SystemExit) as error:  # a stranger's module may do anything
        print(f"--adapter {options.adapter!r}: {type(error).__name__}: {error}", file=sys.stderr)
        return None
    return Adapter


def _judged_by(door: type[Target], options: argparse.Namespace, cases: Sequence[Case]) -> Report:
    name = options.adapter if door is Adapter else options.target
    jobs = getattr(options, "jobs", 1)
    results, refused = run(name, cases, lanes=options.lane, modes=options.mode, jobs=jobs, door=door)
    unseen = len(cases) * len(options.mode)
    return Report(
        "adapter" if door is Adapter else "target",
        name,
        suite.digest(options.vectors),
        results,
        [Refusal(lane, reason, unseen) for lane, reason in refused.items()],
        conventions=recognise(results, Known(cases)),
    )


def _conclude(options: argparse.Namespace, found: Report, waived: Sequence[Waiver]) -> int:
    """Apply the waivers, print and write the report; the exit status."""
    results, faults = waivers.apply(waived, found.results)
    found = replace(found, results=results, faults=faults)
    text = matrix.summary(found, options.algorithm or tuple(ALGORITHMS))
    if text:
        print(text)
    if options.report:
        report.write(found, options.report)
    return _status([found])


def _status(reports: Sequence[Report]) -> int:
    """Print the last line; the exit status is 1 if anything failed or nothing passed."""
    if not any(one.results for one in reports):
        print("nothing was collected")
    print(matrix.total(reports))
    passed, failed = (sum(one.counts[i] for one in reports) for i in (0, 1))
    return 1 if failed or not passed else 0


def _is_target(name: str) -> bool:
    """Whether the module can be imported and has what a target must have; says why not."""
    try:
        module = importlib.import_module(name)
    except (Exception, SystemExit) as error:  # a stranger's module may do anything
        print(f"--target {name!r}: cannot be imported: {type(error).__name__}: {error}", file=sys.stderr)
        return False
    missing = [needed for needed in ("from_numpy", "to_numpy") if not hasattr(module, needed)]
    if missing:
        print(f"--target {name!r}: has no {' and no '.join(missing)}; see docs/conformance.md", file=sys.stderr)
    return not missing


def _golden(options: argparse.Namespace) -> int:
    from moespec.conformance.generate import StaleError, generate
    from moespec.conformance.reference import GoldenError

    try:
        generate(
            options.vectors,
            check=options.check,
            only=lambda id: not options.algorithm or id.split("/")[0] in options.algorithm,
        )
    except (StaleError, GoldenError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _mutants(options: argparse.Namespace) -> int:
    algorithms = options.algorithm or list(ALGORITHMS)
    cases = load(options.vectors, lambda id: id.split("/")[0] in algorithms)
    found = mutation.survey(cases, MUTANTS.values())
    print(mutation.table(found))
    return 1 if found.survivors or found.idle or not found.cases else 0


def _list(options: argparse.Namespace) -> int:
    for case in load(options.vectors):
        print(f"{case.id:48} {case.kind:10} {case.purpose}")
    return 0


def _show(options: argparse.Namespace) -> int:
    cases = load(options.vectors, lambda id: id == options.case)
    if not cases:
        raise SystemExit(f"no such case: {options.case!r}; `list` prints them all")
    print(to_text(encode(cases[0])[0]), end="")
    if options.files is not None:
        lane = LANES[options.lane[0]] if len(options.lane) == 1 else None
        tensors = files.read_all(Path(options.files), {case.id for case in load(options.vectors)})
        results = files.judge(tensors, cases, lane or files.lane_of(tensors))
        found = Report("files", options.files, suite.digest(options.vectors), results)
    elif options.target is None and options.adapter is None:
        return 0
    else:
        door = _door(options)
        if door is None:
            return 2
        found = _judged_by(door, options, cases)
    for refusal in found.refused:
        print(f"{refusal.lane}: refused by the target: {refusal.reason}")
    for result in found.results:
        for outcome in result.outcomes:
            print(
                f"{result.lane} {result.mode} {outcome.stage}: {outcome.state}, {outcome.share:.3g} of the bound. "
                f"{outcome.message}"
            )
        if result.state in FAILED:
            print("", reproduce.code(found, result), sep="\n")
    for convention in found.conventions:
        print(f"{convention.lane} {convention.mode} equals {convention.text}")
    return 1 if any(result.state in FAILED for result in found.results) else 0


if __name__ == "__main__":
    sys.exit(main())
