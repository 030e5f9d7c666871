"""The command `moespec`: its commands and exit statuses.

The module of a command, and NumPy, are imported only when a command runs. A user error (`SpecError`, an unreadable file, too
little memory) prints one line to standard error and exits with status 2. A run that a signal stops exits with status 128 plus
the signal's number, which is 130 for Ctrl-C. If the reader of its output closes the pipe (`moespec ledger | head`), a command
exits with status 141.
"""

import os
import re
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple

from moespec.streams import open_streams

__all__ = ["COMMANDS", "main"]


class Command(NamedTuple):
    """A command: the module whose `main` runs it, its summary, and the pip extra that it needs."""

    module: str
    text: str
    extra: str = "train"


COMMANDS = {
    "train": Command("moespec.training.commands.train", "train a model and write a report"),
    "launch": Command("moespec.training.commands.launch", "train in several processes on this machine"),
    "finetune": Command("moespec.training.commands.finetune", "fine-tune from a run or a weight file"),
    "evaluate": Command("moespec.training.commands.evaluate", "evaluate a run's checkpoint on the validation images"),
    "study": Command("moespec.training.commands.study", "compare routers or models with several seeds each"),
    "count": Command("moespec.training.commands.count", "count the parameters and operations of a model"),
    "plan": Command("moespec.training.commands.plan", "estimate memory and time of a training run on other hardware"),
    "inspect": Command("moespec.training.commands.inspect", "draw which experts process each patch of an image"),
    "predict": Command("moespec.training.commands.predict", "classify the images in a folder"),
    "convert": Command("moespec.training.commands.convert", "convert weights to and from other projects' files"),
    "export": Command("moespec.training.commands.export", "export a model as ONNX, StableHLO or torch.export program"),
    "scan": Command("moespec.training.commands.scan", "list unreadable images of a data set"),
    "list": Command("moespec.training.commands.list", "list models, routers, data sets and recipes"),
    "ledger": Command(
        "moespec.training.commands.ledger", "show how implementations resolve ambiguities in the papers", ""
    ),
    "conformance": Command(
        "moespec.conformance.__main__", "check an implementation against the golden vectors", "conformance"
    ),
}
EXTRAS: dict[str, tuple[str, ...]] = {
    "": (),
    "train": ("filelock", "grain", "jinja2", "matplotlib", "msgpack", "PIL", "tomli_w", "tqdm"),
    "conformance": ("jinja2", "jsonschema", "pytest", "tqdm", "xdist"),
}
"""The packages of each extra, by import name."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status."""
    output = open_streams() if arguments is None else None
    name, *rest = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    status: int | None = 0
    try:
        status = _run(name, rest)
        print(end="", flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # discards the output that is flushed at exit
        status = 128 + signal.SIGPIPE
    except KeyboardInterrupt as stop:
        status = _stopped(stop, name)
    except Exception as error:
        status = _failed(_user_error(error))
    if output is not None and output.failed is not None:
        print(f"moespec: standard output: {output.failed.strerror}; the rest of the output is lost", file=sys.stderr)
        status = status or (0 if name in ("train", "finetune", "launch", "study") else 2)  # a run also writes files
    if watchdog := sys.modules.get("moespec.training.loop.watchdog"):
        return int(watchdog.ended(status or 0))
    return status or 0


def _run(name: str, arguments: list[str]) -> int | None:
    """Runs a command. Raises SpecError for an unknown command, or for a command whose packages are not installed."""
    if name in ("-h", "--help"):
        print(_usage())
        return 0
    if name == "--version":
        from moespec.version import version

        print(f"moespec {version()}")
        return 0
    from moespec.spec.errors import ConfigError, SpecError
    from moespec.spec.names import near_it

    if name not in COMMANDS:
        raise SpecError(f"{name!r} is not a command{near_it(name, COMMANDS) or '; see moespec --help'}")
    module, _, extra = COMMANDS[name]
    if missing := [package for package in EXTRAS[extra] if find_spec(package) is None]:
        raise ConfigError(f"moespec {name} needs {', '.join(missing)}: pip install 'moespec[{extra}]'")
    if extra == "train":
        import_module("moespec.training.configuration.own").load_written(arguments)
    status: int | None = import_module(module).main(arguments)
    return status


def _stopped(stop: KeyboardInterrupt, name: str) -> int:
    """Reports that a signal stopped a command, and returns the exit status."""
    from moespec.models.errors import Interrupted

    if isinstance(stop, Interrupted):
        _failed(str(stop))
        return 128 + stop.signal
    way_on = "; `moespec train --run DIR --resume` resumes from the last checkpoint"
    print(f"moespec: interrupted{way_on * (name != 'conformance')}", file=sys.stderr)
    return 128 + signal.SIGINT


def _user_error(error: Exception) -> str:
    """Returns the message of an error that the user can mend. Raises any other error."""
    from moespec.models.shown import printable
    from moespec.spec.errors import SpecError

    if isinstance(error, SpecError | OSError):
        return printable(str(error))
    if isinstance(error, UnicodeEncodeError):
        near = ascii(error.object[max(0, error.start - 40) : error.end + 40])
        return f"{near}: expected UTF-8 text"
    text = str(error).partition("\n")[0]
    if isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and re.search("allocate|out of memory|RESOURCE_EXHAUSTED", text)
    ):
        return f"not enough memory ({text})"
    raise error


def _failed(message: str) -> int:
    """Prints an error line, with the process index if there are several processes, and returns the exit status."""
    rank = os.environ.get("RANK") or os.environ.get("SLURM_PROCID")
    print(f"moespec{f' (process {rank})' if rank else ''}: {message}", file=sys.stderr)
    return 2


def _usage() -> str:
    lines = [f"  {name:{max(map(len, COMMANDS))}}  {command.text}" for name, command in COMMANDS.items()]
    usage = ["usage: moespec COMMAND [options]", "       moespec --version"]
    return "\n".join([*usage, "", *lines, "", "Run moespec COMMAND --help for the options of a command."])
