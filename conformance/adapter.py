"""The second door: an adapter, for a kernel that computes a whole layer and shows none of its steps.

    layer(x, params, config) -> output

x: tokens, (groups, tokens, width), in the dtype of the lane.
params: `{"router": {"kernel"}, "experts": {"w1", "b1", "w2", "b2"}}`, shaped as by the specification; the router of Soft
    MoE has `{"slots", "scale"}` instead.
config: the name of the router as `router`, every field of `moespec.spec.RouterConfig`, `train`, whether it routes as in
    training, and `gelu`, the form of GELU.
output: (groups, tokens, width).

What `layer` raises NotImplementedError for is not implemented. Without a `from_numpy(tree, dtype)` the arrays are
NumPy's, and the bf16 lane is refused; `to_numpy(tree)` gives results back. The routers' cases are judged on the output
alone; steps, noise, gradients and errors are not asked for.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from typing import Any

import numpy as np

from moespec.conformance.format import Case
from moespec.conformance.judge import Lane
from moespec.conformance.program import Stage, Values, nested
from moespec.conformance.programs import PROGRAMS
from moespec.conformance.results import NotOfferedError
from moespec.conformance.target import Target
from moespec.spec import ROUTERS

__all__ = ["Adapter", "Kernel", "kernel"]


@dataclass(frozen=True)
class Kernel:
    """What is used of an adapter."""

    layer: Callable[..., Any]
    from_numpy: Callable[..., Any]
    to_numpy: Callable[..., Any]


def kernel(name: str) -> Kernel:
    """The adapter `package.module` or `package.module:object`; of a class, an object made without arguments.

    Raises ValueError where there is none, and whatever importing the module raises.
    """
    module, _, path = name.partition(":")
    found: Any = importlib.import_module(module)
    if path:
        try:
            found = attrgetter(path)(found)
        except AttributeError as error:
            raise ValueError(f"the module {module!r} has no {path!r}") from error
    if isinstance(found, type):
        found = found()
    if not callable(getattr(found, "layer", None)):
        raise ValueError("it has no layer(x, params, config)")
    return Kernel(found.layer, getattr(found, "from_numpy", _from_numpy), getattr(found, "to_numpy", lambda tree: tree))


def _from_numpy(tree: Any, dtype: str) -> Any:
    if dtype == "bfloat16":
        raise ValueError("NumPy has no bfloat16, and the adapter no from_numpy")
    if isinstance(tree, Mapping):
        return {name: _from_numpy(value, dtype) for name, value in tree.items()}
    return np.asarray(tree, dtype)


class Adapter(Target):
    """An adapter in one lane; see the module's docstring."""

    def __init__(self, name: str, lane: Lane) -> None:
        self.name, self.lane, self.module = name, lane, kernel(name)

    def asked(self, case: Case) -> Case:
        """A router's case without its steps, and of its end the output."""
        ends = [
            replace(record, outputs={"output": record.outputs["output"]})
            for record in case.stages
            if PROGRAMS[case.algorithm][record.name].whole
        ]
        return replace(case, stages=tuple(ends) or case.stages)

    def lacks(self, stage: Stage, case: Case) -> str:
        """Why a stage is not asked for, or an empty string."""
        if case.expect is not None:
            return "an adapter is not asked to refuse anything"
        if not stage.whole:
            return "an adapter computes whole layers"
        taken = [name for name in ("noise", "ids") if name in case.inputs]
        return f"an adapter takes no {taken[0]}" if taken else ""

    def implementation(self, stage: Stage, case: Case) -> Callable[[Any, Mapping[str, Any], Values], Values]:
        """A call of `layer`. Raises NotOfferedError where that raises NotImplementedError."""

        def run(found: Kernel, config: Mapping[str, Any], values: Values) -> Values:
            settings = asdict(ROUTERS[case.algorithm].configure(**config["router"]))
            settings |= {name: config.get(name, default) for name, default in (("train", False), ("gelu", "tanh"))}
            settings["router"] = case.algorithm
            params = {name: nested(values, name) for name in ("router", "experts")}
            try:
                return {"output": found.layer(values["tokens"], params, settings)}
            except NotImplementedError as error:
                raise NotOfferedError(str(error) or "NotImplementedError") from error

        return run
