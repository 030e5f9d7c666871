"""`moespec conformance`: check a target, an adapter or files; reports; the vectors and their cases."""

import argparse
import json
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from moespec.conformance.engine import copies, files, large, suite, waivers
from moespec.conformance.engine.adapter import Adapter
from moespec.conformance.engine.classes import CLASSES, class_of
from moespec.conformance.engine.compare import ALL_DTYPES, DTYPES, SHORT
from moespec.conformance.engine.devices import MeshError, processes_of
from moespec.conformance.engine.files import FileError
from moespec.conformance.engine.format import Case, VectorError
from moespec.conformance.engine.fresh import fresh
from moespec.conformance.engine.interface import interface
from moespec.conformance.engine.large import SIZES
from moespec.conformance.engine.manifest import encode, to_text
from moespec.conformance.engine.modes import MESH, MODES, is_mode, mesh_mode, mesh_of, meshes
from moespec.conformance.engine.reference import GoldenError
from moespec.conformance.engine.rows import ALGORITHMS
from moespec.conformance.engine.run import run
from moespec.conformance.engine.suite import VECTORS, load
from moespec.conformance.engine.target import Target
from moespec.conformance.engine.waivers import Waiver, WaiverError
from moespec.conformance.report import matrix, report
from moespec.conformance.report.diagnosis import diagnosed
from moespec.conformance.report.report import Report, ReportError, Unsupported
from moespec.conformance.report.results import FAILED
from moespec.conformance.start import KINDS, commands, start
from moespec.spec.errors import ConfigError

RENAMED = {"judge": "check", "mutants": "variants", "--lane": "--dtype"}
"""Commands and options that have another name now."""


JOBS = 1024
"""Processes that may share the work, at most."""
DEVICES = 64
"""Devices of a mesh, at most: they are processes of this machine, or parts of its CPU."""


def main(arguments: list[str] | None = None) -> int:
    """The exit status: 0 if everything passed, 1 if something failed or nothing was collected, 2 for wrong usage."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = _parser()
    for word in (*arguments[:1], *(argument.split("=")[0] for argument in arguments if argument.startswith("--"))):
        if word in RENAMED:
            parser.error(f"{word} is called {RENAMED[word]} now")
    options = parser.parse_args(arguments)
    if getattr(options, "size", "small") != "small" and options.fresh is None:
        parser.error(f"--size {options.size}: needs --fresh SEED, of which these cases are made")
    try:
        status: int = options.command(options)
        return status
    except VectorError as error:
        print(f"--vectors {str(options.vectors)!r}: the vectors are damaged: {error}", file=sys.stderr)
        return 1
    except (FileError, GoldenError, MeshError, ReportError, WaiverError) as error:
        print(error, file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="moespec conformance", description=__doc__)
    commands = parser.add_subparsers(required=True)

    def command(name: str, function: object, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.set_defaults(command=function)
        added.add_argument(
            "--vectors", type=Path, default=VECTORS, help="folder of the vectors (default: those shipped)"
        )
        return added

    def interfaces(added: argparse.ArgumentParser, *, required: bool, files: bool) -> None:
        group = added.add_mutually_exclusive_group(required=required)
        group.add_argument("--target", help="module with the public names, e.g. moespec.backends.jax")
        group.add_argument("--adapter", help="module[:object] with layer(x, params, options)")
        if files:
            group.add_argument("--files", help="folder of safetensors files, as of `check`")
        text = (
            "comma-separated: eager (op by op), compiled (by the target's `compile`), mesh (every mesh of --devices), "
        )
        text += "or one, such as 'mesh data 2 x expert 2'; default: eager"
        added.add_argument("--mode", type=_modes, default=["eager"], help=text)
        added.add_argument("--devices", type=_devices, help="of the meshes of --mode mesh")
        text = "processes that have the devices of a mesh (default: as few as the target needs)"
        added.add_argument("--processes", type=_devices, help=text)
        text = "comma-separated: float64 (f64), float32 (f32), bfloat16 (bf16), float16 (f16); default: the first three"
        added.add_argument("--dtype", type=_some_of(_DTYPES), default=list(DTYPES), help=text)

    def algorithms(added: argparse.ArgumentParser) -> None:
        added.add_argument("--algorithm", action="append", choices=list(ALGORITHMS), help="only these (repeatable)")

    def repeatable(added: argparse.ArgumentParser) -> None:
        text = "compute everything twice; what is not the same bit by bit fails"
        added.add_argument("--repeat", action="store_true", help=text)

    def seeded(added: argparse.ArgumentParser) -> None:
        text = "cases made now, with inputs drawn from a seed, a whole number: values, ties, overflow and gradients; "
        text += "no error cases, training and whole models, and no cases whose inputs are not drawn"
        added.add_argument("--fresh", metavar="SEED", type=_seed, help=text)
        text = "of the cases of --fresh: small, those of the vectors with other numbers; large, layers of 64 to 256 tokens, "
        text += "width 64 to 384 and 8 to 32 experts, and their gradients (default: small)"
        added.add_argument("--size", choices=SIZES, default="small", help=text)

    def checked(added: argparse.ArgumentParser) -> None:
        algorithms(added)
        text = f"comma-separated: {', '.join(CLASSES)}; default: all"
        added.add_argument("--class", dest="classes", type=_some_of({name: name for name in CLASSES}), help=text)
        added.add_argument("--waivers", type=Path, help="TOML file of failures that are answered for")
        added.add_argument("--report", type=_output, help="write all results as JSON")
        added.add_argument("--junit", type=_output, help="write all results as JUnit's XML, for CI services")
        text = "fail if the installed suite is not of this version of moespec, such as 0.1 or 0.1.0"
        added.add_argument("--require-suite", metavar="VERSION", type=_suite, help=text)
        text = f"print every failure, not only {matrix.MOST} of each algorithm"
        added.add_argument("--all", action="store_true", help=text)

    run_ = command("run", _run, "Run the suite on a target or an adapter and print the matrix.")
    interfaces(run_, required=True, files=False)
    checked(run_)
    repeatable(run_)
    run_.add_argument("--jobs", type=_positive, default=1, help="processes that share the work (default: 1)")
    seeded(run_)

    check = command("check", _check, "Check safetensors files that any program wrote from the published inputs.")
    check.add_argument("folder", help="holds <algorithm>/<case>.safetensors with tensors named <stage>/<result>")
    check.add_argument("--dtype", type=_one_dtype, help="default: that of the files, which must have the same")
    checked(check)

    report_ = command("report", _report, "Print the matrix of reports, and make a page and a badge of them.")
    report_.add_argument("reports", type=Path, nargs="+", help="files that `--report` wrote; each gives columns")
    report_.add_argument("--html", type=_output, help="write one HTML file with every case")
    report_.add_argument("--badge", type=_output, help="write an SVG")
    report_.add_argument("--shields", type=_output, help="write the JSON of which shields.io makes a badge")

    golden = command("golden", _golden, "Make the vectors from the specification.")
    golden.add_argument("--check", action="store_true", help="write nothing; fail if a committed vector differs")
    algorithms(golden)
    text = "Try the suite on known variants: each must fail, and each case must catch one."
    algorithms(command("variants", _variants, text))

    command("list", _list, "List the cases.")
    new = commands.add_parser("new", help="Write a target to start from, and its test.")
    new.set_defaults(command=_new)
    new.add_argument("kind", choices=list(KINDS), help="what it is written in")
    new.add_argument("name", help="of the module, or the program; the files are written here")
    show = command("show", _show, "Print a case and, for a target, an adapter or files, what they make of it.")
    interfaces(show, required=False, files=True)
    show.add_argument("case", help="id, such as token_choice/tied")
    repeatable(show)
    seeded(show)
    return parser


_DTYPES = {**SHORT, **{name: name for name in ALL_DTYPES}}


def _some_of(known: Mapping[str, str]) -> Callable[[str], list[str]]:
    """The type of an option: a comma-separated list of known words, of which some stand for others."""

    def parse(text: str) -> list[str]:
        words = [word.strip() for word in text.split(",")]
        for word in words:
            if word not in known:
                raise argparse.ArgumentTypeError(f"unknown {word!r}; expected {', '.join(known)}")
        return list(dict.fromkeys(known[word] for word in words))

    return parse


def _modes(text: str) -> list[str]:
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if word != MESH and not is_mode(word):
            known = ", ".join((*MODES, MESH))
            raise argparse.ArgumentTypeError(f"unknown {word!r}; expected {known}, or a mesh such as 'mesh data 2'")
    return list(dict.fromkeys(words))


def _one_dtype(text: str) -> str:
    name = SHORT.get(text, text)
    if name not in DTYPES:
        raise argparse.ArgumentTypeError(f"unknown {text!r}; expected one of {', '.join(DTYPES)}")
    return name


def _positive(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= JOBS:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number from 1 to {JOBS}")
    return int(text)


def _devices(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= DEVICES:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number from 1 to {DEVICES}")
    return int(text)


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number from 0")
    return int(text)


def _suite(text: str) -> str:
    """The type of an option that demands a version of the suite."""
    try:
        suite.require(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _output(text: str) -> Path:
    """The type of an option that names a file to write, so that no work is lost for want of a folder."""
    path = Path(text)
    if "\0" in text:
        raise argparse.ArgumentTypeError(f"{text!r}: no file can have this name")
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r}: {'is a folder' if path.is_dir() else 'its folder is not there'}")
    return path


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
    reports = report.distinct({path: report.read(path, cases, digest) for path in options.reports})
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


def _chosen(options: argparse.Namespace) -> list[Case]:
    """The cases of the chosen algorithms and classes, by default of all; fresh ones if a seed is given."""
    chosen = getattr(options, "classes", None)

    def only(id: str) -> bool:
        return (not options.algorithm or id.split("/")[0] in options.algorithm) and (
            not chosen or class_of(id) in chosen
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
    if not _expanded(options):
        return None
    meshed = [mode for mode in options.mode if mesh_of(mode)]
    if meshed and options.target is None:
        print(f"--mode {meshed[0]!r}: an adapter has no mesh; a target may", file=sys.stderr)
        return None
    try:
        named = interface(options.target, options.adapter)
    except ConfigError as error:
        print(f"--{error}", file=sys.stderr)
        return None
    return named if options.target is None or _has_meshes(options) else None


def _expanded(options: argparse.Namespace) -> bool:
    """Whether the options of meshes fit each other, after the meshes of `--devices` took the place of `mesh`; says why not."""
    if (MESH in options.mode) != (options.devices is not None):
        print("--mode mesh and --devices N belong together: the meshes of N devices", file=sys.stderr)
        return False
    several = [mesh_mode(sizes) for sizes in meshes(options.devices or 1)]
    expanded = [mode for word in options.mode for mode in (several if word == MESH else [word])]
    options.mode = list(dict.fromkeys(expanded))
    if getattr(options, "repeat", False) and any(map(mesh_of, options.mode)):
        print("--repeat: meshes are run once; run the other modes by themselves", file=sys.stderr)
        return False
    if options.processes is not None and not any(map(mesh_of, options.mode)):
        print(f"--processes {options.processes}: no mesh is run; --jobs shares the work", file=sys.stderr)
        return False
    return True


def _has_meshes(options: argparse.Namespace) -> bool:
    """Whether the target has a mesh, if one is to be run, with as many processes; says why not."""
    try:
        for sizes in filter(None, map(mesh_of, options.mode)):
            processes_of(options.target, sizes.devices, options.processes)
    except MeshError as error:
        print(f"--target {options.target!r}: {error}; see docs/conformance.md", file=sys.stderr)
        return False
    return True


def _checked(interface: type[Target], options: argparse.Namespace, cases: Sequence[Case]) -> Report:
    """What came of cases on a target or an adapter."""
    name, jobs = options.target or options.adapter, getattr(options, "jobs", 1)
    results, lacking = run(
        *(name, cases),
        dtypes=options.dtype,
        modes=options.mode,
        jobs=jobs,
        interface=interface,
        processes=options.processes,
        repeat=options.repeat,
    )
    count = sum(sum(map(copies.chosen, cases)) if mesh_of(mode) else len(cases) for mode in options.mode)
    unsupported = [Unsupported(dtype, reason, count) for dtype, reason in lacking.items()]
    found = Report(
        "adapter" if interface is Adapter else "target",
        name,
        suite.digest(options.vectors),
        results,
        unsupported,
        seed=options.fresh,
        claims=interface(name, DTYPES["float64"]).claims,
        size=options.size,
        repeat=options.repeat,
    )
    return diagnosed(found, cases)


def _conclude(options: argparse.Namespace, found: Report, waived: Sequence[Waiver]) -> int:
    """Apply the waivers, print and write the report; the exit status."""
    results, problems = waivers.apply(waived, found.results)
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
    from moespec.conformance.engine.generate import StaleError, generate

    def only(id: str) -> bool:
        return not options.algorithm or id.split("/")[0] in options.algorithm

    try:
        generate(options.vectors, check=options.check, only=only)
    except (StaleError, GoldenError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _variants(options: argparse.Namespace) -> int:
    from moespec.conformance.algorithms import variants
    from moespec.conformance.engine import survey

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
        raise SystemExit("--fresh: files are computed from the committed vectors")
    if not cases:
        raise SystemExit(f"no such case: {options.case!r}; `list` prints them all")
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
    from moespec.conformance.engine.reproduce import code

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


if __name__ == "__main__":
    sys.exit(main())
