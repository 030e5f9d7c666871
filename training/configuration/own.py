"""Third-party objects in a configuration, `package.module:object`, and the rules for importing them.

An object is imported if its name is on the command line or in the file after `--config`. This file is trusted like a script. An object
named in a run's config.toml is imported only if the command line repeats the name, with the option of the object or with `--trust`.
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
    """Returns whether the value of an option names a third-party object. name: the dotted name of the option, as in a file."""
    return _OPTIONS.fullmatch(name) is not None and is_own(value)


def load_named(values: Mapping[str, Any], source: str = "") -> None:
    """Imports the third-party objects that the `values` of a trusted file name. Raises ConfigError if an import fails."""
    for name, value in values.items():
        if is_option(name, value):
            load_own(f"{source}: {name}" if source else name, value)


def load_written(arguments: Sequence[str]) -> None:
    """Imports the third-party objects that a command line names, in options or after `--trust`. Raises ConfigError like `load_named`."""
    load_named(dict(_options(arguments)))
    for name in trusted(arguments):
        load_own("trust", name)


def trusted(arguments: Sequence[str]) -> list[str]:
    """Returns the names after `--trust` on a command line."""
    return [name for option, value in _options(arguments) if option == "trust" for name in value.split(",")]


def _options(arguments: Sequence[str]) -> list[tuple[str, str]]:
    """Returns the full dotted name and the value of each option on a command line. The value is the next word or follows an equals sign."""
    found = []
    for word, following in pairwise([*arguments, ""]):
        if word.startswith("--"):
            name, equals, value = word.removeprefix("--").partition("=")
            name = name.replace("-", "_")
            found.append((SHORT.get(name, name), value if equals else following))
    return found
