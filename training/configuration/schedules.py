"""Learning-rate schedules: functions from a step to a learning rate. Every backend uses the same rates, in Python floats.

Steps are n = 0, 1, ..., total - 1. All schedules here warm up linearly, `peak * n / warmup` for n < warmup. Source: the code
of vmoe and big_vision.
"""

import math
from collections.abc import Callable

from moespec.models.checks import called
from moespec.spec.errors import ConfigError
from moespec.spec.own import is_own, own_function
from moespec.spec.ranges import LARGEST

__all__ = ["SCHEDULES", "Schedule", "cosine", "linear", "rsqrt", "schedule_of"]

Schedule = Callable[[int], float]
"""Step -> learning rate."""


def cosine(peak: float, *, total: int, warmup: int = 0, end: float = 0.0) -> Schedule:
    """Half a cosine from `peak` at the end of the warm-up to `end` at `total`.

        rate(n) = end + (peak - end) / 2 * (1 + cos(pi (n - warmup) / (total - warmup)))

    Raises ConfigError unless peak, end >= 0 and 0 <= warmup < total.

    >>> rate = cosine(1.0, total=12, warmup=4)
    >>> [rate(n) for n in (0, 2, 4, 8)]
    [0.0, 0.5, 1.0, 0.5]
    """
    _check(peak, total, warmup)
    _check_rate("end", end)

    def after(step: int) -> float:
        return end + (peak - end) * (1 + math.cos(math.pi * (step - warmup) / (total - warmup))) / 2

    return _warmed(peak, total, warmup, after)


def rsqrt(peak: float, *, total: int, warmup: int = 0, cooldown: int = 0, timescale: float = 10_000.0) -> Schedule:
    """A reciprocal square root after the warm-up, then a linear cooldown to 0 at `total`.

        rate(n) = peak / sqrt(1 + (n - warmup) / timescale)                        for n < total - cooldown
        rate(n) = rate(total - cooldown) * (1 - (n - (total - cooldown)) / cooldown)    afterwards

    Raises ConfigError unless peak, cooldown >= 0, 0 <= warmup < total, warmup + cooldown <= total and timescale > 0.

    >>> rate = rsqrt(1.0, total=40, warmup=4, cooldown=10, timescale=26 / 3)
    >>> [round(rate(n), 12) for n in (0, 2, 4, 30, 35)]
    [0.0, 0.5, 1.0, 0.5, 0.25]
    """
    _check(peak, total, warmup)
    if cooldown < 0 or warmup + cooldown > total:
        raise ConfigError(f"cooldown={cooldown!r}: expected 0 <= cooldown <= total - warmup = {total - warmup}")
    if not 0 < timescale < math.inf:
        raise ConfigError(f"timescale={timescale!r}: expected a positive number of steps")
    start = total - cooldown

    def after(step: int) -> float:
        if step < start:
            return peak / math.sqrt(1 + (step - warmup) / timescale)
        return peak / math.sqrt(1 + (start - warmup) / timescale) * (1 - (step - start) / cooldown)

    return _warmed(peak, total, warmup, after)


def linear(peak: float, *, total: int, warmup: int = 0, end: float = 0.0) -> Schedule:
    """A straight line from `peak` at the end of the warm-up to `end` at `total`.

        rate(n) = end + (peak - end) * (1 - (n - warmup) / (total - warmup))

    Raises ConfigError unless peak, end >= 0 and 0 <= warmup < total.

    >>> rate = linear(1.0, total=10, warmup=2, end=0.5)
    >>> [rate(n) for n in (0, 1, 2, 6)]
    [0.0, 0.5, 1.0, 0.75]
    """
    _check(peak, total, warmup)
    _check_rate("end", end)

    return _warmed(peak, total, warmup, lambda step: end + (peak - end) * (1 - (step - warmup) / (total - warmup)))


SCHEDULES: dict[str, Callable[..., Schedule]] = {"cosine": cosine, "rsqrt": rsqrt, "linear": linear}
"""The built-in schedules by their names in a configuration."""


def schedule_of(name: str, peak: float, *, total: int, warmup: int, **options: float) -> Schedule:
    """Returns the learning-rate schedule with this name. A third-party schedule is checked at up to 1000 steps."""
    if not is_own(name):
        return SCHEDULES[name](peak, total=total, warmup=warmup, **options)
    what = f"schedule.name={name!r}"
    made = called(what, own_function("schedule.name", name), peak, total=total, warmup=warmup)
    for step in range(0, total, -(-total // 1000)):
        if not isinstance(rate := called(what, made, step), int | float) or not 0 <= rate <= LARGEST:
            raise ConfigError(f"{what}: the rate at step {step} is {rate!r}, expected a finite number >= 0")
    return lambda step: float(made(step))


def _check(peak: float, total: int, warmup: int) -> None:
    _check_rate("peak", peak)
    if total < 1:
        raise ConfigError(f"total={total!r}: expected at least one step")
    if not 0 <= warmup < total:
        raise ConfigError(f"warmup={warmup!r}: expected 0 <= warmup < total={total}")


def _check_rate(name: str, rate: float) -> None:
    if not 0 <= rate <= LARGEST:
        raise ConfigError(f"{name}={rate!r}: expected a scalar >= 0 that is finite as float32")


def _warmed(peak: float, total: int, warmup: int, after: Schedule) -> Schedule:
    """Returns a schedule with a linear warm-up, followed by `after`. The schedule raises ConfigError for a step outside the run."""

    def rate(step: int) -> float:
        if not 0 <= step < total:
            raise ConfigError(f"step={step!r}: expected 0 <= step < total={total}")
        return peak * step / warmup if step < warmup else after(step)

    return rate
