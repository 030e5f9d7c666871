"""The definition of a case: the inputs, and the calls that use the inputs. `build.py` computes the expected results."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from moespec.conformance.format import Stage, Tensor
from moespec.conformance.functions.describe import axes

__all__ = [
    *("DRAWS", "Definition", "Draws", "Noise", "Routed", "call", "composed", "function", "of_array", "single"),
    "tensor",
]


class Noise(NamedTuple):
    """Describes how to draw noise: the axes after the groups axis, and the grid of the values."""

    axes: str
    reach: float
    step: float
    centre: float = 0.0


class Draws(NamedTuple):
    """Describes how to draw tokens: the grid of the values, the maximum number of attempts, and the tie margin that ends the attempts.

    Two scores at the default margin differ by 12 % of their sum, so they usually differ in bfloat16. fixed: the attempt to use, by group.
    Set `fixed` if several attempts have equal margins up to rounding. Otherwise, the processor's rounding would choose the attempt.
    """

    reach: float = 2.0
    tries: int = 150
    enough: float = 0.12
    step: float = 0.25
    fixed: tuple[int, ...] = ()


DRAWS = Draws()
"""Draws for most routers."""


@dataclass(frozen=True)
class Routed:
    """A router to run. The calls of the router are recorded as stages.

    options: fields of the router's `Options`. gelu: the GELU form of the experts. also: stages to run before `route`.
    groups, noise, draws, accept: control how tokens and noise are drawn; see `draws.py`.
    drawn: whether tokens are drawn; otherwise, the tokens are an ordinary input.
    """

    router: str
    options: Mapping[str, Any]
    train: bool = False
    drawn: bool = True
    groups: int = 2
    noise: Noise | None = None
    draws: Draws = DRAWS
    accept: Callable[[Any], bool] | None = None
    gelu: str = "tanh"
    also: tuple[Stage, ...] = ()


@dataclass(frozen=True)
class Definition:
    """A case without expected results.

    kind: value, tie, near_tie, overflow, degenerate, negative, gradient or trajectory. sampled: whether a few probes estimate the scales.
    stages: the calls in order; for a router, the calls before `route`. losses: whether the gradient includes the router's weighted losses.
    of: the differentiated result (default: the first float of the last stage). by: the inputs to differentiate by (default: all floats).
    error, argument: the error class that the last call must raise, and the argument that the message must name.
    valid: the valid case that an error case edits. several: results that are not stored, because several values are correct.
    exact_ties: whether the scores of every choice are exact, or equal by symmetry, so that every implementation computes equal scores.
    unrounded: results whose products and sums are exact in float32 in any order. The scale of an unrounded result is its magnitude.
    exact_tokens: whether the tokens of the model's routers are exact in every dtype, so that bfloat16 needs only float32's tie margin.
    """

    algorithm: str
    name: str
    kind: str
    purpose: str
    inputs: Mapping[str, Tensor] = field(default_factory=dict)
    stages: tuple[Stage, ...] = ()
    flags: tuple[str, ...] = ()
    of: str = ""
    by: tuple[str, ...] = ()
    losses: bool = False
    error: str = ""
    argument: str = ""
    valid: "Definition | None" = None
    exact_ties: bool = False
    several: tuple[str, ...] = ()
    unrounded: tuple[str, ...] = ()
    exact_tokens: bool = False
    sampled: bool = False
    routed: Routed | None = None

    @property
    def id(self) -> str:
        """`algorithm/name`."""
        return f"{self.algorithm}/{self.name}"


def tensor(values: Any, names: str) -> Tensor:
    """Return a float32, int32 or bool tensor. names: the names of all axes in one string."""
    array = np.asarray(values)
    array = array.astype({"f": np.float32, "b": np.bool_}.get(array.dtype.kind, np.int32))
    if array.ndim != len(axes(names)):
        raise ValueError(f"expected the axes {names!r}, got shape {array.shape}")
    return Tensor(array, axes(names))


def call(path: str, arguments: Mapping[str, Any] | None = None, /, *, name: str = "", **options: Any) -> Stage:
    """Return a stage that calls the public name `path`. By default, the stage's name is the last part of `path`.

    arguments: maps each argument to an input, an earlier stage, a result of a stage, a dict of any of these, or a `function`.
    """
    return Stage(name or path.rpartition(".")[2], path, dict(arguments or {}), options)


def function(path: str, arguments: Mapping[str, Any] | None = None, /, **options: Any) -> dict[str, Any]:
    """Return a reference to the function with the public name `path`, with all arguments bound except the first."""
    return {"call": path, "arguments": dict(arguments or {}), "options": options}


def composed(
    algorithm: str,
    name: str,
    kind: str,
    purpose: str,
    *flags: str,
    inputs: Mapping[str, Tensor],
    stages: tuple[Stage, ...],
    **fields: Any,
) -> Definition:
    """Return a case of several calls. fields: other fields of `Definition`."""
    return Definition(algorithm, name, kind, purpose, inputs, stages, flags, **fields)


def of_array(algorithm: str, argument: str, **defaults: Any) -> Callable[..., Definition]:
    """Return a function `case(name, kind, purpose, array, *flags, **others)` that makes a case with one array.

    A gradient case that passes `combine_scores` differentiates only with respect to `combine_scores`.
    """

    def case(name: str, kind: str, purpose: str, array: Tensor, *flags: str, **others: Any) -> Definition:
        values: dict[str, Any] = {argument: array, **defaults, **others}
        by = ("combine_scores",) if "combine_scores" in others else ()
        return single(algorithm, algorithm, name, kind, purpose, *flags, by=by, **values)

    return case


def single(
    algorithm: str,
    path: str,
    name: str,
    kind: str,
    purpose: str,
    *flags: str,
    of: str = "",
    by: tuple[str, ...] = (),
    exact_ties: bool = False,
    **values: Any,
) -> Definition:
    """Return a case of one call. A tensor in `values` becomes an input, and a dict of tensors becomes several inputs.
    The value None omits an argument. Any other value is an option.

    of: the result that a gradient case differentiates.
    """
    inputs: dict[str, Tensor] = {}
    arguments: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Tensor):
            inputs[key], arguments[key] = value, key
        elif isinstance(value, Mapping) and all(isinstance(each, Tensor) for each in value.values()):
            inputs |= {f"{key}/{part}": each for part, each in value.items()}
            arguments[key] = {part: f"{key}/{part}" for part in value}
        elif value is None:
            arguments[key] = None
        else:
            options[key] = value
    stage = Stage(path.rpartition(".")[2], path, arguments, options)
    of = of and f"{stage.name}/{of}"
    return Definition(algorithm, name, kind, purpose, inputs, (stage,), flags, of, by, exact_ties=exact_ties)
