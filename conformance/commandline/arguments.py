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
"""Sizes of fresh cases: the vectors' sizes with other numbers, and layers large enough for kernels."""
DIGITS = 40
"""Maximum digits of a seed."""
PYTEST = """
Every case is a test of pytest in each dtype and mode, such as token_choice/tied[float32-eager]. All other options are pytest's:
-k EXPRESSION chooses by words of these names, --lf what failed the last time, -x stops at the first failure, -v prints each
test, --junit-xml FILE writes all results for CI services, --collect-only runs nothing. Files of settings and other plugins
of pytest are not read, but for those that -p names.
"""


class _Parser(argparse.ArgumentParser):
    """A parser that reports an error in one line, without a usage text longer than a screen."""

    def error(self, message: str) -> NoReturn:
        if choice := re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message):
            message += near_it(choice[1], re.findall(r"[\w-]+", choice[2]))
        self.exit(2, f"{self.prog}: {message.removeprefix('argument ')}\n")


class _Words(argparse.Action):
    """Accumulate an option's words over repeated uses, without duplicates."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        before = getattr(namespace, self.dest)
        setattr(namespace, self.dest, list(dict.fromkeys([*(before if before is not self.default else ()), *values])))


def spread(words: Sequence[str]) -> Iterator[str]:
    """The command line with `--algorithm a b` as `--algorithm a --algorithm b`; if another argument may follow, only known words."""
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
    """The parser of all commands. The parsed `command` is the command's name."""
    parser = _Parser(prog="moespec conformance", description=description)
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, text: str, **more: Any) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text, **more)
        text = "folder of the vectors (default: those shipped)"
        added.add_argument("--vectors", type=Path, default=VECTORS, help=text)
        return added

    def interfaces(added: argparse.ArgumentParser, *, required: bool, files: bool) -> None:
        group = added.add_mutually_exclusive_group(required=required)
        group.add_argument("--target", help="module with the public names, e.g. moespec.backends.jax")
        group.add_argument("--adapter", help="module[:object] with layer(x, params, options)")
        if files:
            group.add_argument("--files", help="folder of safetensors files, as of `check`")
        default = DEFAULT if required else ("eager",)
        text = (
            "comma-separated: eager (op by op), compiled (by the target's `compile`), strided (op by op, some cases on "
            f"views, in torch); default: {','.join(default)}"
        )
        added.add_argument("--mode", action=_Words, type=_some_of("--mode"), default=list(default), help=text)
        text = "comma-separated: float64 (f64), float32 (f32), bfloat16 (bf16), float16 (f16); default: the first three"
        added.add_argument("--dtype", action=_Words, type=_some_of("--dtype"), default=list(DTYPES), help=text)

    def algorithms(added: argparse.ArgumentParser) -> None:
        text = "only these, NAME ...: what stands before the / in the ids that `list` prints"
        added.add_argument("--algorithm", metavar="NAME", action=_Words, type=_some_of("--algorithm"), help=text)

    def called(added: argparse.ArgumentParser) -> None:
        text = "compute everything twice; what is not the same bit by bit fails"
        added.add_argument("--repeat", action="store_true", help=text)
        text = f"the time that one case may take; one that takes longer is an error (default: {LIMIT:g})"
        added.add_argument("--timeout", metavar="SECONDS", type=_positive, default=LIMIT, help=text)
        text = "the memory that the target's process may address; a case that needs more is an error "
        text += "(default: no limit, for JAX and GPUs reserve many times what they use)"
        added.add_argument("--memory", metavar="GIB", type=_positive, default=0, help=text)
        text = "routers that the vectors name and that may be imported: package.module:ROUTER, comma-separated"
        added.add_argument("--trust", metavar="NAMES", default="", help=text)

    def seeded(added: argparse.ArgumentParser) -> None:
        text = "cases generated on the fly from a seed, a whole number: values, ties, overflow and gradients; "
        text += "no error cases, training and whole models, and no cases whose inputs are not drawn"
        added.add_argument("--fresh", metavar="SEED", type=_seed, help=text)
        text = "of the cases of --fresh: small, those of the vectors with other numbers; large, layers of 64 to 264 tokens, "
        text += "width 64 to 384 and 8 to 264 experts, and their gradients (default: small)"
        added.add_argument("--size", choices=SIZES, default="small", help=text)

    def checked(added: argparse.ArgumentParser) -> None:
        algorithms(added)
        text = "only these ids, or those that patterns match, such as 'z_loss/*'"
        added.add_argument("--case", metavar="ID", action="append", help=text)
        text = f"comma-separated: {', '.join(CLASSES)}; default: all"
        added.add_argument("--class", dest="classes", action=_Words, type=_some_of("--class"), help=text)
        added.add_argument("--waivers", type=Path, help="TOML file of failures that are answered for")
        added.add_argument("--report", type=_output, help="write all results as JSON")
        text = "fail if the installed suite is not of this version of moespec, such as 0.2 or 0.2.0"
        added.add_argument("--require-suite", metavar="VERSION", type=_suite, help=text)
        text = f"print every failure, not only {matrix.MOST} of each algorithm"
        added.add_argument("--all", action="store_true", help=text)

    text = "Run the suite on a target or an adapter and print the matrix."
    run_ = command("run", text, allow_abbrev=False, epilog=PYTEST)
    interfaces(run_, required=True, files=False)
    checked(run_)
    called(run_)
    text = "leave gradients out; without it, an adapter whose backward pass is not checked fails"
    run_.add_argument("--forward-only", action="store_true", help=text)
    text = "processes that share the work, a number or auto, by pytest-xdist (default: this one)"
    run_.add_argument("-n", dest="processes", metavar="N", help=text)
    seeded(run_)

    check = command("check", "Check safetensors files that any program wrote from the published inputs.")
    check.add_argument("folder", help="holds <algorithm>/<case>.safetensors with tensors named <stage>/<result>")
    check.add_argument("--dtype", type=_one_dtype, help="default: that of the files, which must have the same")
    checked(check)

    report_ = command("report", "Print the matrix of reports, and make a page and a badge of them.")
    report_.add_argument("reports", type=Path, nargs="+", help="files that `--report` wrote; each gives columns")
    report_.add_argument("--html", type=_output, help="write one HTML file with every case")
    report_.add_argument("--badge", type=_output, help="write an SVG")
    report_.add_argument("--shields", type=_output, help="write the JSON of which shields.io makes a badge")

    golden = command("golden", "Make the vectors from the specification.")
    golden.add_argument("--check", action="store_true", help="write nothing; fail if a committed vector differs")
    golden.add_argument("--cases", metavar="MODULE", help="cases of routers of your own: a module, which is imported")
    text = "folder for their vectors and a page (default: vectors); the backends that are installed are checked on them"
    golden.add_argument("--out", metavar="FOLDER", type=Path, default=Path("vectors"), help=text)
    algorithms(golden)
    text = "Try the suite on known variants: each must fail."
    algorithms(command("variants", text))
    text = "Print what the vectors cover of each function, by rule; something that is missing is an error."
    algorithms(command("coverage", text))

    text = "Run a model and keep what its gates compute: logits, choices and weights."
    record = commands.add_parser("record", help=text, description=text)
    text = "package:model, of torch or a function; or a function or class that makes it, or a function that runs all"
    record.add_argument("model", help=text)
    text = "of the names of torch's modules, or of taps (default: all taps)"
    record.add_argument("--module", metavar="PATTERN", help=text)
    text = "arguments of the model, or batches of them"
    record.add_argument("--data", metavar="FILE.npz|package:function", help=text)
    text = "says what a module returns where that is not clear"
    record.add_argument("--outputs", metavar="package:function", help=text)
    record.add_argument("--out", type=_output, required=True, help="file to write, of safetensors")
    text = "Say which router explains a recording, or where two of the same weights part."
    explain = commands.add_parser("explain", help=text, description=text)
    explain.add_argument("recordings", type=Path, nargs="+", metavar="FILE", help="one recording, or two")
    command("list", "List the cases.")
    new = commands.add_parser("new", help="Write a target to start from, and its test.")
    new.add_argument(
        "kind",
        choices=list(KINDS),
        help="what it is written in; dropless: a layer in torch, as an adapter",
    )
    new.add_argument("name", help="of the module, or the program; the files are written here")
    show = command("show", "Print a case and, for a target, an adapter or files, what they make of it.")
    interfaces(show, required=False, files=True)
    show.add_argument("case", help="id, such as token_choice/tied")
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
"""Options that take several words, with their known words; some words are aliases for others."""


def _some_of(option: str) -> Callable[[str], list[str]]:
    """An option type: a comma-separated list of the option's known words."""
    known = LISTS[option]

    def parse(text: str) -> list[str]:
        words = [word.strip() for word in text.split(",")]
        for word in words:
            if word not in known:
                own = ", or --case 'NAME/*' for vectors of your own" * (option == "--algorithm")
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
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number above 0")
    return number


def _seed(text: str) -> int:
    if not text.isdecimal() or len(text) > DIGITS:
        expected = f"expected a whole number from 0, of at most {DIGITS} digits"
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
    """Option type: a file to write. Checks its folder early, so that no work is lost."""
    try:
        check_output("file", Path(text))
    except RunError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return Path(text)
