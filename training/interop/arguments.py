"""Reads the arguments of another project's model. An argument without a counterpart in this project is an error."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Self

from moespec.models.checks import check_value
from moespec.spec.errors import ConfigError
from moespec.spec.ranges import Count, Positive

__all__ = ["Arguments"]


class Arguments:
    """The arguments of another project's model. `finish` rejects the arguments that were not read."""

    def __init__(self, name: str, values: Mapping[str, Any]) -> None:
        self.name, self._rest = name, dict(values)

    def take(self, key: str, *default: Any) -> Any:
        """Returns the value of `key`, or the default. Raises ConfigError if there is neither a value nor a default."""
        if key not in self._rest and not default:
            raise ConfigError(f"{self.name}.{key} is missing")
        return self._rest.pop(key, *default)

    def number(self, key: str, *default: Any) -> float:
        """Returns the value of `key`, a finite number greater than 0."""
        check_value(f"{self.name}.{key}", value := self.take(key, *default), Positive)
        return float(value)

    def count(self, key: str, *default: Any) -> Any:
        """Returns the value of `key`, an integer of at least 1, or None if the default is None."""
        value = self.take(key, *default)
        if value is not None or None not in default:
            check_value(f"{self.name}.{key}", value, Count)
        return value

    def section(self, key: str) -> Self:
        """Returns the arguments nested under `key`; empty if `key` is absent."""
        value = self.take(key, None) or {}
        if not isinstance(value, Mapping):
            raise ConfigError(f"{self.name}.{key}={value!r}: expected a mapping of arguments")
        return type(self)(f"{self.name}.{key}", value)

    def choose(self, key: str, default: Any, options: Mapping[Any, Any]) -> Any:
        """Returns this project's name for the value of `key`."""
        value = self.take(key, default)
        if value not in list(options):  # a list, since the value may be unhashable
            raise ConfigError(f"{self.name}.{key}={value!r}: expected one of {', '.join(map(repr, options))}")
        return options[value]

    def require(self, key: str, expected: Any) -> None:
        """Raises ConfigError unless the value of `key` is `expected`, which is also the default."""
        value = self.take(key, expected)
        if value != expected:
            raise ConfigError(f"{self.name}.{key}={value!r}: only {expected!r} is supported")

    def square(self, key: str, *default: Any) -> int:
        """Returns the size under `key`, stored as a number or a pair of equal numbers."""
        value = self.take(key, *default)
        sizes = [value] if isinstance(value, str) or not isinstance(value, Sequence) else list(value)
        if not sizes or any(size != sizes[0] for size in sizes):
            raise ConfigError(f"{self.name}.{key}={value!r}: expected square images and patches")
        check_value(f"{self.name}.{key}", sizes[0], Count)
        return int(sizes[0])

    def skip(self, *keys: str) -> None:
        """Ignores arguments that do not affect the result of the model."""
        for key in keys:
            self._rest.pop(key, None)

    def warn_of_dropout(self, *keys: str) -> None:
        for key in keys:
            if rate := self.take(key, 0.0):
                advice = "is ignored; set dropout or stochastic_depth instead"
                warnings.warn(f"{self.name}.{key}={rate!r} {advice}", stacklevel=3)

    def finish(self) -> None:
        """Raises ConfigError if an argument was not read."""
        for key, value in self._rest.items():
            raise ConfigError(f"{self.name}.{key}={value!r} is not supported")
