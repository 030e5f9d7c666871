"""What of a configuration may be the user's own, `package.module:object`, and who may have it imported.

The command line imports what it names, and what a file names that it names (`--config`, trusted as a script is). What the config.toml of a
run names is imported only if the command line names it again: with its option, or with `--trust`.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from moespec.spec.own import is_own, load_own
from moespec.training.configuration.modelconfig import SHORT

__all__ = ["is_option", "load_named", "load_written", "trusted"]

_OPTIONS = re.compile(
    r"(model(\.block\.\w+)?|text)\.router|training\.loss|objective|(data|schedule|optimizer)\.name|evaluation\.\w+\.(kind|data)"
)


def is_option(name: str, value: object) -> bool:
    """Whether the option `name`, dotted as in a file, has a value that names an object of the user's own."""
    return _OPTIONS.fullmatch(name) is not None and is_own(value)


def load_named(values: Mapping[str, Any], source: str = "") -> None:
    """Imports what a trusted file names, given its values by their dotted keys. Raises ConfigError for what cannot be imported."""
    for name, value in values.items():
        if is_option(name, value):
            load_own(f"{source}: {name}" if source else name, value)


def load_written(arguments: Sequence[str]) -> None:
    """Imports what a command line names, with the option that has it or with `--trust`. Raises ConfigError as `load_named` does."""
    load_named(dict(_options(arguments)))
    for name in trusted(arguments):
        load_own("trust", name)


def trusted(arguments: Sequence[str]) -> list[str]:
    """The names that a command line gives with `--trust`."""
    return [name for option, value in _options(arguments) if option == "trust" for name in value.split(",")]


def _options(arguments: Sequence[str]) -> list[tuple[str, str]]:
    """The options of a command line by their full dotted names, with the word that follows or stands behind the equals sign."""
    found = []
    for word, following in pairwise([*arguments, ""]):
        if word.startswith("--"):
            name, equals, value = word.removeprefix("--").partition("=")
            name = name.replace("-", "_")
            found.append((SHORT.get(name, name), value if equals else following))
    return found
