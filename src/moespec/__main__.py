"""The command `moespec`, also available as `python -m moespec`."""

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    if words[:1] == ["conformance"]:
        from moespec.conformance.__main__ import keep_apart

        keep_apart(words[1:])  # this must run before any other import
    from moespec import cli

    return cli.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
