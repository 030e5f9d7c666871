"""Tracks the best evaluation of a run (`training.keep_best`) and decides when a run stops early (`training.patience`).

Each checkpoint records the best evaluation up to its step, so a resumed run makes the same decisions as an uninterrupted run."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from moespec.backends.contract import Backend
from moespec.models.pytrees import flatten
from moespec.spec.errors import ConfigError
from moespec.training.configuration.config import Config
from moespec.training.objectives.table import objective_of

__all__ = ["Best", "check_measure", "ended", "sentences", "updated"]


class Best(NamedTuple):
    """The best value of a measure, the step of the best evaluation, and the number of later evaluations."""

    measure: str
    value: float
    step: int
    since: int = 0


def check_measure(config: Config, others: Sequence[str]) -> None:
    """Raises ConfigError unless `training.keep_best` is empty, names a result of the run's evaluation, or is in `others`."""
    own = ["accuracy", "balanced_accuracy", "loss", "top5"] if objective_of(config).head else ["accuracy"]
    if (measure := config.training.keep_best) and measure not in (*own, *others):
        raise ConfigError(f"training.keep_best={measure!r}: expected one of {', '.join([*own, *others])}")


def updated(B: Backend, config: Config, best: Best | None, step: int, results: Mapping[str, Any]) -> Best | None:
    """The best evaluation up to `step`. results: the results of this step, by kind of log line. All processes use the value of process 0.

    The best loss is the smallest; the best value of any other measure is the largest. The first of equal values wins. Numbers beat NaN.
    """
    measure = config.training.keep_best
    name, _, path = measure.partition("/")
    kind, path = (f"evaluation/{name}", path) if name in config.evaluation else ("evaluation", measure)
    if not measure or kind not in results:
        return best
    if (found := flatten(results[kind]).get(path)) is None:
        raise ConfigError(f"training.keep_best={measure!r}: {kind} measures only {', '.join(results[kind])}")
    value = float(B.exchanged(repr(float(found)))[0])
    sign = -1 if path.rpartition("/")[2] == "loss" else 1
    if best is None or sign * value > sign * best.value or (math.isnan(best.value) and not math.isnan(value)):
        return Best(measure, value, step)
    return best._replace(since=best.since + 1)


def ended(config: Config, best: Best | None) -> bool:
    """Whether a run stops early because the last `training.patience` evaluations were no better than the best."""
    return best is not None and 0 < config.training.patience <= best.since


def sentences(config: Config, best: Best | None, done: int) -> list[str]:
    """Describes the best evaluation and, if a run stopped early after `done` steps, the reason why it stopped."""
    if best is None:
        return []
    why = f"stopped early: {best.since} evaluation{'s' * (best.since > 1)} without an improvement of {best.measure}"
    which = f"best {best.measure} {best.value:.4f} at step {best.step}"
    return [why, which] if ended(config, best) and done < config.training.total else [which]
