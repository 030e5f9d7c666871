"""Third-party objects in a configuration, `package.module:object`, and the rules for importing them.

Names on the command line are imported, and so are names in a file that the command line names (`--config`, trusted like a script).
Names in a run's config.toml are imported only if the command line repeats them, with their option or with `--trust`.
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
    """Whether the value of the option `name`, dotted as in a file, names a third-party object."""
    return _OPTIONS.fullmatch(name) is not None and is_own(value)


def load_named(values: Mapping[str, Any], source: str = "") -> None:
    """Imports the objects that the `values` of a trusted file name. Raises ConfigError for an object that cannot be imported."""
    for name, value in values.items():
        if is_option(name, value):
            load_own(f"{source}: {name}" if source else name, value)


def load_written(arguments: Sequence[str]) -> None:
    """Imports the objects that a command line names, with their options or with `--trust`. Raises ConfigError as `load_named` does."""
    load_named(dict(_options(arguments)))
    for name in trusted(arguments):
        load_own("trust", name)


def trusted(arguments: Sequence[str]) -> list[str]:
    """The names after `--trust` on a command line."""
    return [name for option, value in _options(arguments) if option == "trust" for name in value.split(",")]


def _options(arguments: Sequence[str]) -> list[tuple[str, str]]:
    """The options of a command line by full dotted name, each with its value: the next word, or the text after an equals sign."""
    found = []
    for word, following in pairwise([*arguments, ""]):
        if word.startswith("--"):
            name, equals, value = word.removeprefix("--").partition("=")
            name = name.replace("-", "_")
            found.append((SHORT.get(name, name), value if equals else following))
    return found
