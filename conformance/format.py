"""The format of the vectors: a case has a JSON manifest, and a `.safetensors` file for arrays of more than 64 numbers.

    vectors/<algorithm>/<case>.json, vectors/<algorithm>/<case>.safetensors

`schema.json` describes the manifest. A case consists of calls on inputs. Each stage names a function, its arguments (an input or a result
of an earlier stage) and its options, so a manifest is self-contained and executable. Inputs are float32 (exact in bfloat16, except in cases
with the flag `low_precision` and for model parameters), int32 or bool. Results are float64, int32 or bool. A small array is a nested list
under `data`. For a large array, `tensor` contains the key in the safetensors file, which is the array's path in the manifest. Arrays
contain NaN and infinity only in error cases, as the strings "nan", "inf", "-inf". An infinite option is the string "inf".
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec.spec.values import even

__all__ = [
    *("KINDS", "Case", "Edit", "Expectation", "GoldenError", "Gradients", "Reference", "Stage", "Tensor", "Value"),
    *("VectorError", "finish", "path_parts", "routing_arrays"),
]

KINDS = ("value", "tie", "near_tie", "overflow", "degenerate", "negative", "gradient", "trajectory")
"""The classes of cases."""


class VectorError(Exception):
    """Raised if a vector file is missing, damaged or malformed. The message names the file."""


class GoldenError(Exception):
    """Raised if a vector cannot be generated because two computations disagree or a random search found nothing."""


@dataclass(frozen=True)
class Tensor:
    """An array with the names of its axes."""

    array: NDArray[Any]
    axes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Value:
    """An expected result with its tolerance.

    kind: "int" or "bool", which are compared exactly, or "float". scale: the A of the tolerance `c * u * A`, an array like `array`, or
    "magnitude" for `abs(array)`. constant: the name of c in `compare.CONSTANTS`.
    """

    array: NDArray[Any]
    axes: tuple[str, ...]
    kind: str
    scale: NDArray[Any] | str = "magnitude"
    constant: str = "direct"


def path_parts(call: str) -> list[str]:
    """Splits the path of a call into names and keys. A custom name, `package.module:object`, is one part."""
    return re.findall(r"(?!ROUTERS\.)\w[\w.]*:\w+|\w+", call)


Reference = str | dict[str, Any] | None
"""An argument: null for none; the name of an input, or of an earlier stage for its complete result; `stage/result` for
one result; a dict of references; or a function, `{"call", "arguments", "options"}`."""


@dataclass(frozen=True)
class Stage:
    """One call of the public name at the path `call`. `outputs` contains the expected results of the call by name."""

    name: str
    call: str
    arguments: dict[str, Reference]
    options: dict[str, Any]
    outputs: dict[str, Value] = field(default_factory=dict)

    @property
    def router(self) -> str:
        """The router whose `route` the stage calls, or ""."""
        owner, *rest = path_parts(self.call)
        return rest[0] if owner == "ROUTERS" and rest[1:] == ["route"] else ""


@dataclass(frozen=True)
class Gradients:
    """The gradients of `sum(probe * output)`, for the output of one stage, with respect to some of the inputs.

    losses: whether the differentiated sum includes the weighted losses of the case's router.
    """

    stage: str
    output: str
    probe: Tensor
    wrt: dict[str, Value]
    losses: bool = False


@dataclass(frozen=True)
class Edit:
    """The replacement inputs and options that make an error case valid."""

    options: dict[str, Any]
    inputs: dict[str, Tensor]


@dataclass(frozen=True)
class Expectation:
    """What an error case expects: the class of the error that a stage must raise, and the argument that the message must name.

    when: "static" if the error must also be raised while compiled code is traced, else "runtime".
    """

    stage: str
    error: str
    argument: str
    when: str
    valid: Edit


@dataclass(frozen=True)
class Case:
    """One vector. `decisions` maps each stage with choices to the smallest tie margin and the required margin in each dtype."""

    id: str
    algorithm: str
    cites: str
    purpose: str
    kind: str
    flags: tuple[str, ...]
    inputs: dict[str, Tensor]
    stages: tuple[Stage, ...] = ()
    decisions: dict[str, Any] = field(default_factory=dict)
    gradients: Gradients | None = None
    expect: Expectation | None = None

    @property
    def expected_gradients(self) -> Gradients:
        """The gradients of a gradient case."""
        if self.gradients is None:
            raise VectorError(f"{self.id}: this case has no gradients")
        return self.gradients

    @property
    def expected_error(self) -> Expectation:
        """The error of an error case."""
        if self.expect is None:
            raise VectorError(f"{self.id}: this case expects no error")
        return self.expect

    @property
    def whole(self) -> list[str]:
        """The names of the main stages. In a router case, the stages before the router are steps; all other stages are main stages."""
        names = [stage.name for stage in self.stages]
        return next((names[i:] for i, stage in enumerate(self.stages) if stage.router), names)

    def stage(self, name: str) -> Stage:
        """Returns the stage with this name."""
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise KeyError(f"{self.id}: unknown stage {name!r}")


def routing_arrays(routing: Any, *, sparse: bool) -> dict[str, Any]:
    """Returns `dispatch` and `combine` of a routing by name. If `sparse`, adds a prefix for `finish`, and `token` and `weight`, if any."""
    dense = routing.dense() if hasattr(routing, "dense") else routing
    prefix = "routing." if sparse else ""
    arrays = {f"{prefix}dispatch": dense.dispatch, f"{prefix}combine": dense.combine}
    if sparse and hasattr(routing, "token"):
        arrays |= {"routing.token": routing.token, "routing.weight": routing.weight}
    return arrays


def finish(results: Mapping[str, Any]) -> dict[str, Any]:
    """Converts results to NumPy arrays and reduces every sparse routing to `slots` and `weights`.

    `slots[..., e, c]` is the token in slot c of expert e; an empty slot contains the number of tokens. Raises ValueError if
    the tensors are not a sparse routing or if the routing's `token` and `weight` differ from the dense tensors.
    """
    finished = {name: even(name, value) for name, value in results.items()}
    for prefix in [name.removesuffix("routing.dispatch") for name in finished if name.endswith("routing.dispatch")]:
        slots, weights = _slots(finished.pop(f"{prefix}routing.dispatch"), finished.pop(f"{prefix}routing.combine"))
        for part, dense in (("token", slots), ("weight", weights)):
            record = finished.pop(f"{prefix}routing.{part}", None)
            if record is not None and not np.array_equal(record, dense):
                raise ValueError(f"{prefix}routing.{part} differs from routing.dispatch and routing.combine")
        finished |= {f"{prefix}slots": slots, f"{prefix}weights": weights}
    return finished


def _slots(dispatch: Any, combine: Any) -> tuple[Any, Any]:
    """Converts `(..., T, E, C)` tensors of a sparse routing to `(..., E, C)` slots and weights."""
    filled = dispatch != 0
    if dispatch.shape != combine.shape or not (dispatch.real[filled] == 1).all():
        raise ValueError("sparse routing: dispatch must contain only 0 and 1, and combine must have the same shape")
    if (filled.sum(axis=-3) > 1).any() or (combine[~filled] != 0).any():
        raise ValueError("a slot holds two tokens, or a token has a combine weight in a slot it does not occupy")
    slots = np.where(filled.any(axis=-3), filled.argmax(axis=-3), dispatch.shape[-3]).astype(np.int32)
    return slots, combine.sum(axis=-3)
