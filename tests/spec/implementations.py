"""Try a property on every implementation, and on one that must not have it.

A property is a function of an implementation `B` and of values, in which it finds whatever breaks an invariant:

    @holds(wrong="softmax_over_tokens", logits=logits)
    def test_rows_sum_to_one(B, logits):
        np.testing.assert_allclose(B.softmax_affinity(logits).sum(axis=2), 1)

`B` has the public names of the specification, batched over groups: NumPy arrays in, NumPy arrays out, in float64.
"""

import inspect
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings

from moespec import spec
from moespec.conformance.author.variant import module_of
from moespec.conformance.cases import variants

__all__ = ["SPEC", "holds"]

settings.register_profile("properties", derandomize=True, deadline=None, database=None)

EXAMPLES = {"spec": (40, 100), "jax": (4, 12), "torch": (6, 12)}
"""How many are tried, and how many in a full run."""

SPEC = ("spec",)
"""For what only the specification promises."""


class Implementation:
    """A backend as the properties see it.

    few: whether it is tried on few shapes and options, since each is compiled anew, by `compiler` if there is one.
    """

    def __init__(self, module: Any, *, few: bool = False, compiler: Any = None) -> None:
        self.module, self.few, self.compiler = module, few, compiler
        self._ready: dict[Any, Callable[[Any], Any]] = {}

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """The public function of that name; a routing is returned as its dense pair."""
        signature = inspect.signature(getattr(spec, name))

        def call(*arguments: Any, **options: Any) -> Any:
            return self.run(_function(name), **signature.bind(*arguments, **options).arguments)

        return call

    def run(self, function: Callable[..., Any], **values: Any) -> Any:
        """`function(module, **values)` on arrays of the backend; arrays, and dicts of arrays, are moved there and back."""
        arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray | dict)}
        options = {name: value for name, value in values.items() if name not in arrays}
        with self.module.with_dtype("float64") if hasattr(self.module, "with_dtype") else nullcontext():
            ready = self._prepared(function, tuple(options.items()))
            return self.module.to_numpy(ready(self.module.from_numpy(arrays, "float64")))

    def _prepared(self, function: Callable[..., Any], options: tuple[tuple[str, Any], ...]) -> Callable[[Any], Any]:
        if (function, options) not in self._ready:

            def ready(arrays: Any) -> Any:
                result = function(self.module, **arrays, **dict(options))
                return result.dense() if hasattr(result, "dense") else result

            self._ready[function, options] = self.compiler(ready) if self.compiler else ready
        return self._ready[function, options]


@cache
def _function(name: str) -> Callable[..., Any]:
    return lambda module, **values: getattr(module, name)(**values)


@cache
def implementation(name: str) -> Implementation:
    """spec: the specification behind batched names. jax: jitted. torch: op by op, for Inductor takes seconds a function."""
    if name == "spec":
        return Implementation(import_module("moespec.backends.numpy"))
    module = import_module(f"moespec.backends.{name}")
    return Implementation(module, few=True, compiler=import_module("jax").jit if name == "jax" else None)


Strategy = Callable[[bool], Any]
"""A strategy of Hypothesis, from whether few shapes and options are wanted."""


Wrong = str | Mapping[str, Callable[..., Any]]
"""The name of a known variant of the conformance suite; or public names with what they become, `(B, *arguments)`."""


def holds(
    *, wrong: Wrong | tuple[Wrong, ...], on: tuple[str, ...] = ("spec", "jax", "torch"), **strategies: Strategy
) -> Callable[[Callable[..., None]], Callable[[str, bool], None]]:
    """The test that a property holds of the implementations `on`, and fails on each that is wrong."""
    variants_of = {_name(each): each for each in (wrong if isinstance(wrong, tuple) else (wrong,))}

    def decorate(check: Callable[..., None]) -> Callable[[str, bool], None]:
        def attempt(B: Implementation, examples: int, **options: Any) -> None:
            def example(**values: Any) -> None:
                check(B, **values)

            example.__name__ = check.__name__
            profile = settings(settings.get_profile("properties"), max_examples=examples, **options)
            profile(given(**{name: strategy(B.few) for name, strategy in strategies.items()})(example))()

        full = [pytest.param(name, True, marks=pytest.mark.full, id=f"{name}-full") for name in on]

        @pytest.mark.parametrize(
            ("name", "full"), [*(pytest.param(n, False, id=n) for n in (*on, *variants_of)), *full]
        )
        def test(name: str, full: bool) -> None:
            if name in variants_of:
                variant = variants_of[name]
                module = module_of(variants()[variant].replaced if isinstance(variant, str) else variant)
                with pytest.raises(AssertionError), np.errstate(all="ignore"):
                    attempt(Implementation(module), 100, phases=[Phase.generate], report_multiple_bugs=False)
            else:
                attempt(implementation(name), EXAMPLES[name][full])

        test.__doc__ = check.__doc__
        return test

    return decorate


def _name(wrong: Wrong) -> str:
    return f"wrong: {wrong}" if isinstance(wrong, str) else f"wrong: another {', '.join(wrong)}"
