"""`python -m moespec.conformance`: run the suite on a target, make and check the vectors, list and show cases."""

import argparse
import importlib
import sys
from collections.abc import Callable, Collection
from pathlib import Path

from moespec.conformance import matrix
from moespec.conformance.format import VectorError, encode, to_text
from moespec.conformance.judge import LANES
from moespec.conformance.runner import run
from moespec.conformance.suite import VECTORS, load
from moespec.conformance.target import MODES
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

    def target(added: argparse.ArgumentParser, required: bool) -> None:
        added.add_argument(
            "--target", required=required, help="module with the public names, e.g. moespec.backends.jax"
        )
        added.add_argument(
            "--mode",
            type=_some_of(MODES),
            default=["eager"],
            help="comma-separated: eager (op by op), compiled (by the target's `compile`); default: eager",
        )
        added.add_argument(
            "--lane", type=_some_of(LANES), default=list(LANES), help="comma-separated: f64, f32, bf16 (default: all)"
        )

    run_ = command("run", _run, "Run the suite on a target and print the matrix.")
    common(run_)
    target(run_, required=True)
    run_.add_argument("--algorithm", action="append", choices=list(ALGORITHMS), help="only these (repeatable)")
    run_.add_argument("--report", type=Path, help="write all results as JSON")
    run_.add_argument("--jobs", type=_positive, default=1, help="processes that share the work (default: 1)")

    golden = command("golden", _golden, "Make the vectors from the specification.")
    common(golden)
    golden.add_argument("--check", action="store_true", help="write nothing; fail if a committed vector differs")
    golden.add_argument("--algorithm", action="append", choices=list(ALGORITHMS), help="only these (repeatable)")

    list_ = command("list", _list, "List the cases.")
    common(list_)
    show = command("show", _show, "Print a case and, with --target, what the target computes for it.")
    common(show)
    target(show, required=False)
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


def _run(options: argparse.Namespace) -> int:
    if not _is_target(options.target):
        return 2
    cases = load(options.vectors, lambda id: not options.algorithm or id.split("/")[0] in options.algorithm)
    results, refused = run(options.target, cases, lanes=options.lane, modes=options.mode, jobs=options.jobs)
    if results:
        print(matrix.table(results, options.algorithm or tuple(ALGORITHMS)), end="\n\n")
    unseen = len(cases) * len(options.mode)
    for line in (*matrix.skips(results, refused, unseen), matrix.failures(results, options.target)):
        if line:
            print(line)
    if options.report:
        matrix.write_report(matrix.report(results, options.target, refused), options.report)
    passed, failed, skipped = matrix.counts(results)
    if not results:
        print("nothing was collected")
    print(f"{passed} passed, {failed} failed, {skipped + unseen * len(refused)} skipped")
    return 1 if failed or not passed else 0


def _is_target(name: str) -> bool:
    """Whether the module can be imported and has what a target must have; says why not."""
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        print(f"--target {name}: cannot be imported: {error}", file=sys.stderr)
        return False
    missing = [needed for needed in ("from_numpy", "to_numpy") if not hasattr(module, needed)]
    if missing:
        print(f"--target {name}: has no {' and no '.join(missing)}; see docs/conformance.md", file=sys.stderr)
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


def _list(options: argparse.Namespace) -> int:
    for case in load(options.vectors):
        print(f"{case.id:48} {case.kind:10} {case.purpose}")
    return 0


def _show(options: argparse.Namespace) -> int:
    cases = load(options.vectors, lambda id: id == options.case)
    if not cases:
        raise SystemExit(f"no such case: {options.case!r}; `list` prints them all")
    print(to_text(encode(cases[0])[0]), end="")
    if not options.target:
        return 0
    if not _is_target(options.target):
        return 2
    results, refused = run(options.target, cases, lanes=options.lane, modes=options.mode)
    for lane, reason in refused.items():
        print(f"{lane}: refused by the target: {reason}")
    for result in results:
        for outcome in result.outcomes:
            print(
                f"{result.lane} {result.mode} {outcome.stage}: {outcome.state}, {outcome.share:.3g} of the bound. "
                f"{outcome.message}"
            )
    return 1 if any(result.state in ("fail", "error") for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
