"""Rates by pattern: a regular expression sets the rate of the parameters whose path matches it."""

import math
import re
from collections.abc import Iterable, Iterator, Sequence

from moespec.spec.errors import ConfigError
from moespec.spec.ranges import LARGEST

__all__ = ["Pattern", "check_found", "first", "parsed"]

Pattern = tuple[re.Pattern[str], float]


def parsed(option: str, text: str) -> Iterator[Pattern]:
    """The patterns and rates of `text`, in order. Raises ConfigError for text that is not `pattern=rate, ...`."""
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
    """The rate of the first pattern found in the path (its keys joined by `/`), else `default`."""
    name = "/".join(path)
    return next((rate for pattern, rate in patterns if pattern.search(name)), default)


def check_found(option: str, text: str, paths: Iterable[Sequence[str]]) -> None:
    """Raises ConfigError for a pattern of `text` that matches none of the paths."""
    names = ["/".join(path) for path in paths]
    for pattern, _ in parsed(option, text):
        if not any(pattern.search(name) for name in names):
            raise ConfigError(f"{option}={text!r}: {pattern.pattern!r} matches no parameter of the model")
