"""Learning rate schedules: values, continuity, errors; the examples in their docstrings run too."""

import doctest
import math

import pytest

from moespec.models.training import schedules
from moespec.models.training.schedules import SCHEDULES, cosine, linear, rsqrt
from moespec.spec.errors import ConfigError


def test_docstrings():
    assert doctest.testmod(schedules).failed == 0


@pytest.mark.parametrize("name", SCHEDULES)
def test_warm_up_is_linear_and_peaks_at_its_end(name):
    rate = SCHEDULES[name](0.003, total=100, warmup=10)
    assert [rate(n) for n in range(11)] == [0.003 * n / 10 for n in range(11)]
    assert all(isinstance(rate(n), float) and 0 <= rate(n) <= 0.003 for n in range(100))
    later = [rate(n) for n in range(10, 100)]
    assert later == sorted(later, reverse=True)


@pytest.mark.parametrize("name", SCHEDULES)
def test_without_warm_up_the_first_step_has_the_peak(name):
    assert SCHEDULES[name](1.0, total=7)(0) == 1.0


def test_values():
    assert cosine(2.0, total=10)(5) == pytest.approx(1.0)
    assert cosine(2.0, total=10)(9) == pytest.approx(1 + math.cos(0.9 * math.pi))
    assert linear(1.0, total=10, end=0.1)(9) == pytest.approx(0.1 + 0.9 * 0.1)
    rate = rsqrt(1.0, total=300, warmup=100, cooldown=50, timescale=50)
    assert rate(250) == pytest.approx(rate(249), rel=0.01)
    assert rate(250) == pytest.approx(1 / math.sqrt(4))
    assert rate(275) == pytest.approx(rate(250) / 2)
    assert rate(299) == pytest.approx(rate(250) / 50)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: cosine(-1.0, total=10), "peak=-1.0"),
        (lambda: cosine(math.nan, total=10), "peak=nan"),
        (lambda: linear(1.0, total=0), "total=0"),
        (lambda: linear(1.0, total=10, warmup=10), "warmup=10"),
        (lambda: linear(1.0, total=10, warmup=-1), "warmup=-1"),
        (lambda: linear(1.0, total=10, end=-0.1), "end=-0.1"),
        (lambda: rsqrt(1.0, total=10, warmup=5, cooldown=6), "cooldown=6"),
        (lambda: rsqrt(1.0, total=10, timescale=0), "timescale=0"),
        (lambda: cosine(1.0, total=10)(10), "step=10"),
        (lambda: rsqrt(1.0, total=10)(-1), "step=-1"),
    ],
)
def test_errors(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
