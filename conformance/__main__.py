"""Run `moespec conformance`, which checks targets, adapters and files, renders reports, shows cases and generates vectors."""

import os
import signal
import sys
from collections.abc import Sequence


def main(arguments: list[str] | None = None) -> int:
    """Run a command. Returns 0 if all tests pass, 1 if one fails or none is collected, and 2 for wrong usage."""
    from moespec.conformance.commandline.commands import main as command

    return command(sys.argv[1:] if arguments is None else arguments)


def keep_apart(arguments: Sequence[str]) -> None:
    """Moves the working folder from this process's `sys.path` to the front of `sys.path` in the target's process.

    The folder's files belong to the target, so the suite must not import a `pytest.py` or `json.py` from this folder. This process runs
    user code only for `record` (a model) and `golden --cases` (a router). Call this function before importing anything else.
    """
    folder = os.getcwd()
    if not sys.flags.safe_path and sys.path[:1] in ([""], [folder]):  # set by `python -m`
        del sys.path[0]
    if arguments[:1] == ["record"] or any(word.startswith("--cases") for word in arguments):
        sys.path.insert(0, folder)
        return
    from moespec.conformance.check import process

    process.FOLDERS[:] = [folder]


def _alone() -> int:
    """Runs `python -m moespec.conformance`, which exits like `moespec conformance` but imports no training code."""
    keep_apart(sys.argv[1:])
    try:
        status = main()
        print(end="", flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # discard buffered output at exit
        status = 128 + signal.SIGPIPE
    except OSError as error:
        print(f"moespec: {error}", file=sys.stderr)
        status = 2
    except KeyboardInterrupt:
        print("moespec: interrupted", file=sys.stderr)
        status = 130
    return status


if __name__ == "__main__":
    sys.exit(_alone())
