"""Try a property on the specification, and on implementations that must not have it.

A property is a function of an implementation `B` and of values, in which it finds whatever breaks an invariant:

    @holds(wrong="softmax_over_tokens", logits=logits)
    def test_rows_sum_to_one(B, logits):
        np.testing.assert_allclose(B.softmax_affinity(logits).sum(axis=2), 1)

`B` has the public names of the specification, batched over groups: NumPy arrays in, NumPy arrays out, in float64. The vectors of the
conformance suite, and its fresh cases, compare the backends with the specification.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings

from moespec import spec
from moespec.backends import numpy as specification
from moespec.conformance.author.variant import module_of
from moespec.conformance.cases import variants

settings.register_profile("properties", derandomize=True, deadline=None, database=None)

EXAMPLES = 100


class Implementation:
    """A module whose functions return a routing as its dense pair."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function, signature = getattr(self.module, name), inspect.signature(getattr(spec, name))
        return lambda *given, **named: _dense(function(**signature.bind(*given, **named).arguments))

    def run(self, function: Callable[..., Any], **values: Any) -> Any:
        """`function(module, **values)`."""
        return _dense(function(self.module, **values))


def _dense(result: Any) -> Any:
    return result.dense() if hasattr(result, "dense") else result


Wrong = str | Mapping[str, Callable[..., Any]]
"""The name of a known variant of the conformance suite; or public names with what they become, `(B, *arguments)`."""


def holds(
    *, wrong: Wrong | tuple[Wrong, ...], **strategies: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The test that a property holds of the specification, and fails on each implementation that is wrong."""
    several = wrong if isinstance(wrong, tuple) else (wrong,)
    replaced = {f"wrong: {each if isinstance(each, str) else ', '.join(each)}": each for each in several}

    def decorate(check: Callable[..., None]) -> Callable[..., None]:
        def attempt(module: Any, **options: Any) -> None:
            def example(**values: Any) -> None:
                check(Implementation(module), **values)

            example.__name__ = check.__name__
            profile = settings(settings.get_profile("properties"), max_examples=EXAMPLES, **options)
            profile(given(**strategies)(example))()

        @pytest.mark.parametrize("name", ["spec", *replaced])
        def test(name: str) -> None:
            if name == "spec":
                attempt(specification)
                return
            variant = replaced[name]
            module = module_of(variants()[variant].replaced if isinstance(variant, str) else variant)
            with pytest.raises((AssertionError, pytest.fail.Exception)), np.errstate(all="ignore"):
                attempt(module, phases=[Phase.generate], report_multiple_bugs=False)

        test.__doc__ = check.__doc__
        return test

    return decorate
