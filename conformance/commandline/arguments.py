"""The options of `moespec conformance` and their valid values."""

import argparse
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf, nan
from pathlib import Path
from typing import Any, NoReturn

from moespec.conformance import suite
from moespec.conformance.check.process import LIMIT
from moespec.conformance.check.target import DEFAULT, MODES
from moespec.conformance.compare import ALL_DTYPES, DTYPES, SHORT
from moespec.conformance.matrix_rows import ALGORITHMS
from moespec.conformance.report import matrix
from moespec.conformance.scaffold import KINDS
from moespec.conformance.suite import CLASSES, VECTORS
from moespec.models.checks import check_output
from moespec.models.errors import RunError
from moespec.spec.errors import ConfigError
from moespec.spec.names import near_it

__all__ = ["parser", "spread"]

SIZES = ("small", "large")
"""Sizes of fresh cases. Small cases have the vectors' sizes but other numbers. Large cases are layers large enough to test kernels."""
DIGITS = 40
"""Maximum digits of a seed."""
PYTEST = """
Each case in each dtype and mode is a pytest test, such as token_choice/tied[float32-eager]. All other options are passed to
pytest: -k EXPRESSION selects tests by name, --lf reruns the last failures, -x stops at the first failure, -v prints each test,
--junit-xml FILE writes the results for CI services, --collect-only lists the tests without running them. pytest's configuration
files are ignored, and so are its plugins unless -p names them.
"""


class _Parser(argparse.ArgumentParser):
    """A parser that reports an error in one line. The parser omits the usage text, which is longer than a screen."""

    def error(self, message: str) -> NoReturn:
        if choice := re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message):
            message += near_it(choice[1], re.findall(r"[\w-]+", choice[2]))
        self.exit(2, f"{self.prog}: {message.removeprefix('argument ')}\n")


class _Words(argparse.Action):
    """Collect the words of an option that is used repeatedly, without duplicates."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        before = getattr(namespace, self.dest)
        setattr(namespace, self.dest, list(dict.fromkeys([*(before if before is not self.default else ()), *values])))


def spread(words: Sequence[str]) -> Iterator[str]:
    """Rewrite `--algorithm a b` as `--algorithm a --algorithm b`. If other arguments may follow, the option takes only known words."""
    option, valued = "", True
    first = words[:1] in (["run"], ["golden"], ["variants"]) or not "".join(words[1:2]).startswith("-")
    for word in words:
        if word.startswith("-"):
            option, _, value = word.partition("=")
            valued = bool(value)
        elif valued and option in LISTS and (first or set(word.split(",")) <= {*LISTS[option]}):
            yield option
        else:
            valued = True
        yield word


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return the parser of all commands. The parser stores the name of the command as `command`."""
    parser = _Parser(prog="moespec conformance", description=description)
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, text: str, **more: Any) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text, **more)
        text = "folder of the vectors (default: the shipped vectors)"
        added.add_argument("--vectors", type=Path, default=VECTORS, help=text)
        return added

    def interfaces(added: argparse.ArgumentParser, *, required: bool, files: bool) -> None:
        group = added.add_mutually_exclusive_group(required=required)
        group.add_argument("--target", help="module with the public names, e.g. moespec.backends.jax")
        group.add_argument("--adapter", help="module or module:object that has a function layer(x, params, options)")
        if files:
            group.add_argument("--files", help="folder of safetensors files, as for `check`")
        default = DEFAULT if required else ("eager",)
        text = (
            "comma-separated: eager (op by op), compiled (with the target's `compile`), strided (op by op, some cases on "
            f"strided views, torch only) (default: {','.join(default)})"
        )
        added.add_argument("--mode", action=_Words, type=_some_of("--mode"), default=list(default), help=text)
        text = "comma-separated: float64 (f64), float32 (f32), bfloat16 (bf16), float16 (f16) (default: the first 3)"
        added.add_argument("--dtype", action=_Words, type=_some_of("--dtype"), default=list(DTYPES), help=text)

    def algorithms(added: argparse.ArgumentParser) -> None:
        text = "use only these comma-separated algorithms; `list` prints case ids as algorithm/case"
        added.add_argument("--algorithm", metavar="NAME", action=_Words, type=_some_of("--algorithm"), help=text)

    def called(added: argparse.ArgumentParser) -> None:
        text = "run every case twice and fail on any bitwise difference"
        added.add_argument("--repeat", action="store_true", help=text)
        text = f"time limit of one case; a case that exceeds it is an error (default: {LIMIT:g})"
        added.add_argument("--timeout", metavar="SECONDS", type=_positive, default=LIMIT, help=text)
        text = "address space limit of the target's process; a case that exceeds it is an error "
        text += "(default: no limit, because JAX and GPUs reserve far more than they use)"
        added.add_argument("--memory", metavar="GIB", type=_positive, default=0, help=text)
        text = "comma-separated routers from the vectors that may be imported, as package.module:ROUTER"
        added.add_argument("--trust", metavar="NAMES", default="", help=text)

    def seeded(added: argparse.ArgumentParser) -> None:
        text = "run cases (values, ties, overflow, gradients) generated from this integer seed instead of the vectors; "
        text += "this skips error cases, training, complete models and cases with fixed inputs"
        added.add_argument("--fresh", metavar="SEED", type=_seed, help=text)
        text = "size of the --fresh cases; small: the shapes of the vectors; large: layers with 64 to 264 tokens, "
        text += "width 64 to 384 and 8 to 264 experts, and their gradients (default: small)"
        added.add_argument("--size", choices=SIZES, default="small", help=text)

    def checked(added: argparse.ArgumentParser) -> None:
        algorithms(added)
        text = "use only cases that match this id or pattern, such as 'z_loss/*' (repeatable)"
        added.add_argument("--case", metavar="ID", action="append", help=text)
        text = f"comma-separated classes of cases: {', '.join(CLASSES)} (default: all)"
        added.add_argument("--class", dest="classes", action=_Words, type=_some_of("--class"), help=text)
        added.add_argument("--waivers", type=Path, help="TOML file of known failures, which do not fail the run")
        added.add_argument("--report", type=_output, help="write all results to this JSON file")
        text = "fail unless the installed suite is from this version of moespec, such as 0.2 or 0.2.0"
        added.add_argument("--require-suite", metavar="VERSION", type=_suite, help=text)
        text = f"print every failure instead of the first {matrix.MOST} of each algorithm"
        added.add_argument("--all", action="store_true", help=text)

    text = "Run the suite on a target or an adapter and print the matrix."
    run_ = command("run", text, allow_abbrev=False, epilog=PYTEST)
    interfaces(run_, required=True, files=False)
    checked(run_)
    called(run_)
    text = "skip gradients; without this option, the run fails if an adapter's backward pass is not checked"
    run_.add_argument("--forward-only", action="store_true", help=text)
    text = "number of worker processes of pytest-xdist, or auto (default: no workers)"
    run_.add_argument("-n", dest="processes", metavar="N", help=text)
    seeded(run_)

    check = command("check", "Check safetensors files that a program in any language wrote from the published inputs.")
    check.add_argument("folder", help="folder of files <algorithm>/<case>.safetensors with tensors <stage>/<result>")
    check.add_argument("--dtype", type=_one_dtype, help="dtype of the results (default: the common dtype of the files)")
    checked(check)

    report_ = command("report", "Print the matrix of one or more reports, and write a page or a badge.")
    report_.add_argument("reports", type=Path, nargs="+", help="files written by `--report`; each file adds columns")
    report_.add_argument("--html", type=_output, help="write one HTML file with every case")
    report_.add_argument("--badge", type=_output, help="write an SVG badge")
    report_.add_argument("--shields", type=_output, help="write the JSON of a shields.io endpoint badge")

    golden = command("golden", "Generate the vectors from the specification.")
    golden.add_argument("--check", action="store_true", help="write nothing; fail if a committed vector differs")
    golden.add_argument("--cases", metavar="MODULE", help="module to import; vectors are generated for its routers")
    text = "with --cases: folder for the vectors and for a page with the results of the installed backends (default: vectors)"
    golden.add_argument("--out", metavar="FOLDER", type=Path, default=Path("vectors"), help=text)
    algorithms(golden)
    text = "Run the suite on the known variants; each variant must fail."
    algorithms(command("variants", text))
    text = "Print the number of vectors per function and rule; fail if a required vector is missing."
    algorithms(command("coverage", text))

    text = "Run a model and record the logits, choices and weights of its gates."
    record = commands.add_parser("record", help=text, description=text)
    text = "package:name of the model (a torch module or function), or of a function that creates or runs the model"
    record.add_argument("model", help=text)
    text = "record the torch modules or taps whose names match (default: all taps)"
    record.add_argument("--module", metavar="PATTERN", help=text)
    text = "file with the arguments of the model, or a function that returns batches of them"
    record.add_argument("--data", metavar="FILE.npz|package:function", help=text)
    text = "function that names the outputs of a module if they are ambiguous"
    record.add_argument("--outputs", metavar="package:function", help=text)
    text = "the pattern names MoE blocks of torch: record their gates, and find the layers that return their outputs"
    record.add_argument("--layer", action="store_true", help=text)
    record.add_argument("--out", type=_output, required=True, help="safetensors file to write")
    text = "Find the router that explains a recording, or where two recordings of the same weights diverge."
    explain = commands.add_parser("explain", help=text, description=text)
    explain.add_argument("recordings", type=Path, nargs="+", metavar="FILE", help="one or two recordings")
    command("list", "List the cases.")
    new = commands.add_parser("new", help="Write a template of a target and its test.")
    new.add_argument(
        "kind",
        choices=list(KINDS),
        help="language or framework of the target; dropless is a torch layer behind an adapter",
    )
    new.add_argument("name", help="name of the module or program; the files are written to the current folder")
    show = command("show", "Print a case and its results for a target, an adapter or files.")
    interfaces(show, required=False, files=True)
    show.add_argument("case", help="case id, such as token_choice/tied")
    called(show)
    seeded(show)
    return parser


LISTS: Mapping[str, Mapping[str, str]] = {
    "--dtype": {**SHORT, **{name: name for name in ALL_DTYPES}},
    "--case": {},
    **{
        f"--{name}": dict(zip(n, n, strict=True))
        for name, n in (("algorithm", [*ALGORITHMS]), ("class", CLASSES), ("mode", MODES))
    },
}
"""Maps each option that takes several words to its known words, and each known word to the word that it stands for."""


def _some_of(option: str) -> Callable[[str], list[str]]:
    """Option type: a comma-separated list of the option's known words."""
    known = LISTS[option]

    def parse(text: str) -> list[str]:
        words = [word.strip() for word in text.split(",")]
        for word in words:
            if word not in known:
                own = ", or --case 'NAME/*' for your own vectors" * (option == "--algorithm")
                near = near_it(word, known) or f"; expected {', '.join(known)}{own}"
                raise argparse.ArgumentTypeError(f"unknown {word!r}{near}")
        return list(dict.fromkeys(known[word] for word in words))

    return parse


def _one_dtype(text: str) -> str:
    name = SHORT.get(text, text)
    if name not in DTYPES:
        raise argparse.ArgumentTypeError(f"unknown {text!r}; expected one of {', '.join(DTYPES)}")
    return name


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = nan
    if not 0 < number < inf:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a positive number")
    return number


def _seed(text: str) -> int:
    if not text.isdecimal() or len(text) > DIGITS:
        expected = f"expected a non-negative integer of at most {DIGITS} digits"
        raise argparse.ArgumentTypeError(f"{text[:DIGITS]!r}: {expected}")
    return int(text)


def _suite(text: str) -> str:
    """Option type: a required version of the suite."""
    try:
        suite.require(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _output(text: str) -> Path:
    """Option type: a file to write. Checks before the command starts whether the folder exists, so that no work is lost."""
    try:
        check_output("file", Path(text))
    except RunError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return Path(text)
