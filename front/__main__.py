"""The command `moespec`, also `python -m moespec`: the commands of `moespec.models.cli` and that of the suite."""

import os
import sys
from collections.abc import Sequence

from moespec.models import cli


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status."""
    return cli.main(
        arguments, more={"conformance": ("check an implementation against the golden vectors", _conformance)}
    )


def _conformance(arguments: list[str]) -> int:
    """Runs the suite, on modules of the current folder too, as `python -m` does and an installed command does not."""
    sys.path.insert(0, os.getcwd())
    from moespec.conformance.__main__ import main

    return main(arguments)


if __name__ == "__main__":
    sys.exit(main())
