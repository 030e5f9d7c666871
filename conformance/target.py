"""A target: any module with some of the public names, loaded by name, in one lane and one mode.

A target has `from_numpy(tree, dtype)` and `to_numpy(tree)`; for gradients `value_and_grad`, `sum` and `cast`, and for
the compiled mode `compile`. It may have `lane(dtype)`, a context manager in which that dtype can be used,
`quick_compile`, which traces a function as `compile` does but generates no code, and `checks_values`, true if it
promises to refuse NaN and infinity.
"""

import importlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from moespec.conformance.format import Case, Tensor
from moespec.conformance.judge import Lane
from moespec.conformance.program import Stage, Values, finish
from moespec.spec import ROUTERS

__all__ = ["MODES", "Target"]

MODES = ("eager", "compiled")


class Target:
    """A module in one lane; see the module's docstring."""

    def __init__(self, name: str, lane: Lane, module: ModuleType | None = None) -> None:
        self.name, self.lane = name, lane
        self.module: Any = module or importlib.import_module(name)

    def context(self) -> AbstractContextManager[Any]:
        """In which everything of this lane runs."""
        return self.module.lane(self.lane.dtype) if hasattr(self.module, "lane") else nullcontext()

    def refusal(self) -> str:
        """Why the target does not compute in this lane, or an empty string."""
        try:
            with self.context():
                self.module.from_numpy(np.zeros(1, np.float32), self.lane.dtype)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""

    @property
    def checks_values(self) -> bool:
        """Whether the target must refuse values that are not finite, as the specification does."""
        return bool(getattr(self.module, "checks_values", False))

    @property
    def wide(self) -> str:
        """The dtype of affinities and losses in this lane."""
        return "float64" if self.lane.name == "f64" else "float32"

    def asked(self, case: Case) -> Case:
        """What of a case this target is asked for: all of it."""
        return case

    def lacks(self, stage: Stage, case: Case) -> str:
        """Why the target cannot run a stage of a case, or an empty string."""
        for name in stage.calls:
            if not hasattr(self.module, name):
                return f"{name} is missing"
        if "ROUTERS" in stage.calls and case.algorithm in ROUTERS and case.algorithm not in self.module.ROUTERS:
            return f"ROUTERS[{case.algorithm!r}] is missing"
        return ""

    def implementation(self, stage: Stage, case: Case) -> Callable[[Any, Mapping[str, Any], Values], Values]:
        """What runs a stage of a case on the target: `(module, config, values) -> results`."""
        return stage.run

    def compile(self, function: Callable[..., Any], *, code: bool) -> Callable[..., Any]:
        """The function compiled by the target, as one that its compiler has not seen; without `code`, by its
        `quick_compile` if it has one.

        Compilers remember a function by its code and generalise when they meet it with other constants; here each case
        has its own, and must be compiled as if it were the first.
        """
        Target.compiled += 1
        unseen = function.__code__.replace(co_firstlineno=Target.compiled)
        fresh = FunctionType(
            unseen, function.__globals__, function.__name__, function.__defaults__, function.__closure__
        )
        quick = not code and hasattr(self.module, "quick_compile")
        compiled: Callable[..., Any] = (self.module.quick_compile if quick else self.module.compile)(fresh)
        return compiled

    compiled = 0

    def arrays(self, values: Mapping[str, Tensor], dtype: str | None = None) -> Values:
        """Values as arrays of the target in the dtype of the lane."""
        plain = {name: value.array for name, value in values.items()}
        return dict(self.module.from_numpy(plain, dtype or self.lane.dtype))

    def dtype_of(self, stage: Stage) -> str:
        """The dtype of the values of a stage: the lane's, but float32 parameters for a model that computes in bf16."""
        return "float32" if stage.batched and self.lane.name == "bf16" else self.lane.dtype

    def config_of(self, stage: Stage, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """The configuration of a stage, with the dtype of the computation for a model."""
        return {**config, "dtype": "bfloat16"} if stage.batched and self.lane.name == "bf16" else config

    def finished(self, results: Any) -> Values:
        """Results on NumPy, routings reduced; see `program.finish`."""
        return finish(self.module.to_numpy(results))
