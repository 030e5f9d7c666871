"""Rates by pattern: a regular expression sets the rate of each parameter whose path matches the expression."""

import math
import re
from collections.abc import Iterable, Iterator, Sequence

from moespec.spec.errors import ConfigError
from moespec.spec.ranges import LARGEST

__all__ = ["Pattern", "check_found", "first", "parsed"]

Pattern = tuple[re.Pattern[str], float]


def parsed(option: str, text: str) -> Iterator[Pattern]:
    """Yields the patterns and rates in `text`, in order. Raises ConfigError unless `text` has the form `pattern=rate, ...`."""
    for part in text.split(",") if text.strip() else ():
        pattern, equals, number = part.strip().rpartition("=")
        try:
            rate, compiled = float(number), re.compile(pattern)
        except (ValueError, re.error):
            rate = math.nan
        if not equals or not pattern or not 0.0 <= rate <= LARGEST:
            raise ConfigError(
                f"{option}={text!r}: expected pattern=rate pairs, separated by commas, with regular "
                f"expressions as patterns and finite float32 rates >= 0, got {part.strip()!r}"
            )
        yield compiled, rate


def first(patterns: Iterable[Pattern], path: Sequence[str], default: float) -> float:
    """The rate of the first pattern that matches the path (keys joined by `/`), or `default` if no pattern matches."""
    name = "/".join(path)
    return next((rate for pattern, rate in patterns if pattern.search(name)), default)


def check_found(option: str, text: str, paths: Iterable[Sequence[str]]) -> None:
    """Raises ConfigError if a pattern in `text` matches no path."""
    names = ["/".join(path) for path in paths]
    for pattern, _ in parsed(option, text):
        if not any(pattern.search(name) for name in names):
            raise ConfigError(f"{option}={text!r}: {pattern.pattern!r} matches no parameter of the model")
