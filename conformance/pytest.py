"""Use the suite in a project's tests, with a pytest test for each case and dtype.

    import moespec.conformance.pytest as conformance

    @conformance.parametrize(target="my_package.moe", algorithms=["token_choice"])
    def test_router(case):
        case.check()

A failed test shows the suite's diagnosis: the matching known variant, the first difference with its size, and the command that
shows the case. A test is skipped with a reason if the target lacks the function or if the dtype is too coarse for the case.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import pytest

from moespec.conformance import suite
from moespec.conformance.check.adapter import Adapter
from moespec.conformance.check.process import claims
from moespec.conformance.check.results import Report
from moespec.conformance.check.run import Plan
from moespec.conformance.check.target import Target
from moespec.conformance.check.waivers import Waiver
from moespec.conformance.compare import ALL_DTYPES, DTYPES, SHORT
from moespec.conformance.matrix_rows import ALGORITHMS
from moespec.conformance.plugin import settle
from moespec.spec.errors import ConfigError

__all__ = ["VectorCase", "parametrize"]


@dataclass(frozen=True)
class VectorCase:
    """One case in one dtype, to check on a target or an adapter. waivers: all waivers of the test function."""

    id: str
    dtype: str
    interface: str
    name: str
    waivers: tuple[Waiver, ...] = ()

    def __str__(self) -> str:
        return f"{self.id}-{self.dtype}"

    def check(self) -> None:
        """Runs the case in eager mode. Fails the test with the suite's diagnosis, or skips the test with the reason."""
        __tracebackhide__ = True
        report = Report(self.interface, self.name, "", [])
        plan = Plan(report, [self.id], [self.dtype], ["eager"], self.waivers)
        settle(plan.check(self.dtype, "eager", [self.id])[self.id])


def parametrize(
    *,
    target: str | None = None,
    adapter: str | None = None,
    algorithms: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    dtypes: Sequence[str] = tuple(DTYPES),
    expected_failures: Mapping[str, str] | None = None,
    require_suite: str | None = None,
) -> pytest.MarkDecorator:
    """Returns a mark that runs a test function for each case and dtype, with a VectorCase as the argument `case`.

    target: the module with the public names. adapter: the module or `module:object` that defines `layer`. Pass exactly one.
    algorithms, classes: select cases like `run --algorithm` and `run --class`; by default, all.
    dtypes: by default, float64, float32 and bfloat16. expected_failures: maps patterns to reasons. A pattern matches ids, such as
    "token_choice/tied", or ids with dtypes, such as "token_choice/tied-bfloat16". A matching test must fail or be skipped; a pass counts as
    a failure. require_suite: the required version of moespec's suite, such as "0.1".

    Raises ConfigError for an unknown algorithm, class or dtype, a target that cannot be run, and a pattern that no test matches.
    """
    if (target is None) == (adapter is None):
        raise ConfigError(f"target={target!r}, adapter={adapter!r}: expected exactly one of them")
    if require_suite is not None:
        suite.require(require_suite)
    _check_words("algorithms", algorithms, ALGORITHMS)
    _check_words("classes", classes, suite.CLASSES)
    _check_words("dtypes", dtypes, {**SHORT, **ALL_DTYPES})
    interface, name = (Target, target) if target is not None else (Adapter, str(adapter))
    claims(interface, name)
    expected = tuple(Waiver(pattern, reason) for pattern, reason in (expected_failures or {}).items())
    cases = [
        VectorCase(id, SHORT.get(dtype, dtype), interface.kind, name, expected)
        for id in sorted(suite.ids())
        if (algorithms is None or id.partition("/")[0] in algorithms)
        and (classes is None or suite.class_of(id) in classes)
        for dtype in dict.fromkeys(dtypes)
    ]
    if not cases:
        raise ConfigError(
            f"algorithms={algorithms!r}, classes={classes!r}, dtypes={dtypes!r}: no case matches all of them"
        )
    for waiver in expected:
        if not any(waiver.covers(case.id, case.dtype, "eager") for case in cases):
            raise ConfigError(f"expected_failures: no case matches {waiver.case!r}; `list` prints all cases")
    return pytest.mark.parametrize("case", [pytest.param(case, id=str(case)) for case in cases])


def _check_words(argument: str, words: Sequence[str] | None, known: Collection[str]) -> None:
    if isinstance(words, str):
        raise ConfigError(f"{argument}={words!r}: expected a list of words")
    for word in words or ():
        if word not in known:
            raise ConfigError(f"{argument}: unknown {word!r}; expected {', '.join(known)}")
