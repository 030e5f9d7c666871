"""`moespec conformance`: check a target, an adapter or files; reports; the vectors and their cases."""

import sys

from moespec.conformance.author.reference import GoldenError
from moespec.conformance.check.files import FileError
from moespec.conformance.check.waivers import WaiverError
from moespec.conformance.commandline.arguments import parser, spread
from moespec.conformance.commandline.commands import COMMANDS
from moespec.conformance.format import VectorError
from moespec.conformance.report.report import ReportError
from moespec.spec.errors import SpecError

RENAMED = {"judge": "check", "mutants": "variants", "--lane": "--dtype", "--jobs": "-n", "--junit": "--junit-xml"}
"""Commands and options that have another name now."""

OUTPUTS = ("report", "html", "badge", "shields")
"""Options that name a file to write."""


def main(arguments: list[str] | None = None) -> int:
    """The exit status: 0 if everything passed, 1 if something failed or nothing was collected, 2 for wrong usage."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parsing = parser(__doc__)
    for word in (*arguments[:1], *(argument.split("=")[0] for argument in arguments if argument.startswith("--"))):
        if word in RENAMED:
            parsing.error(f"{word} is called {RENAMED[word]} now")
    options, options_of_pytest = parsing.parse_known_args([*spread(arguments)])
    if options_of_pytest and options.command != "run":
        parsing.error(f"unrecognized arguments: {' '.join(options_of_pytest)}")
    options.pytest = options_of_pytest
    if getattr(options, "size", "small") != "small" and options.fresh is None:
        parsing.error(f"--size {options.size}: needs --fresh SEED, of which these cases are made")
    paths = [path for name in OUTPUTS if (path := getattr(options, name, None))]
    for path in paths:
        if (*paths, *getattr(options, "reports", ())).count(path) > 1:
            parsing.error(f"{str(path)!r}: output path given twice")
    try:
        return COMMANDS[options.command](options)
    except VectorError as error:
        print(f"--vectors {str(options.vectors)!r}: the vectors are damaged: {error}", file=sys.stderr)
        return 2
    except (SpecError, FileError, GoldenError, ReportError, WaiverError) as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    from moespec.models import cli  # here, for the suite alone needs nothing that trains

    sys.exit(cli.main(["conformance", *sys.argv[1:]], more={"conformance": (__doc__ or "", main)}))
