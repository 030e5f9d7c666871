"""The definition of a case: its inputs and the calls on them. The specification computes the rest; see `generate.py`."""

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
    """How to draw noise: its axes after the groups axis, and its grid."""

    axes: str
    reach: float
    step: float
    centre: float = 0.0


class Draws(NamedTuple):
    """How to draw tokens: reach and step of their grid, maximum attempts, and the sufficient tie margin.

    Neighbours that differ by 12 % of their sum usually stay distinct in bfloat16.
    """

    reach: float = 2.0
    tries: int = 150
    enough: float = 0.12
    step: float = 0.25


DRAWS = Draws()
"""Draws for most routers."""


@dataclass(frozen=True)
class Routed:
    """A router to run, with its calls recorded as stages.

    options: fields of its `Options`. groups, noise, draws, accept: control the drawing of tokens and noise, see
    `draws.py`. If `drawn` is False, tokens are an ordinary input. gelu: GELU form of the layer's experts. also: stages
    before `route`.
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
    """One case before its expected results are computed.

    kind: value, tie, near_tie, overflow, degenerate, negative, gradient, trajectory. stages: the calls in order; for a router, the calls
    before `route`. of: the differentiated result of a gradient case (`stage/name`; default: first float of the last stage). by: the inputs
    of the gradient (default: all floats). losses: whether to add the router's weighted losses. error, argument: the error class that the
    last call of an error case must raise, and the argument that its message must name. valid: the valid case that an error case edits.
    exact_ties: the scores of every choice are exact, or equal by symmetry, so all implementations compute equal numbers. several: results
    (`stage/name`) with several correct values, which are not stored. unrounded: results whose products and sums are exact in float32 in any
    order, so their scale is their magnitude even under cancellation. exact_tokens: the model's routers see tokens that are exact in every
    dtype, so choices are as certain in bfloat16 as in float32. sampled: the case is too large to differentiate each number; see `Making`.
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
    """A float32, int32 or bool tensor whose axes are named in one string."""
    array = np.asarray(values)
    array = array.astype({"f": np.float32, "b": np.bool_}.get(array.dtype.kind, np.int32))
    if array.ndim != len(axes(names)):
        raise ValueError(f"expected the axes {names!r}, got shape {array.shape}")
    return Tensor(array, axes(names))


def call(path: str, arguments: Mapping[str, Any] | None = None, /, *, name: str = "", **options: Any) -> Stage:
    """A call of the public name `path`. The stage is named after the last part of `path`.

    arguments: for each name, a reference: an input, an earlier stage or its result, a dict of references, a `function`.
    """
    return Stage(name or path.rpartition(".")[2], path, dict(arguments or {}), options)


def function(path: str, arguments: Mapping[str, Any] | None = None, /, **options: Any) -> dict[str, Any]:
    """A reference to a function: the public name `path` with all arguments bound except the first."""
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
    """A case of several calls. fields: other fields of `Definition`."""
    return Definition(algorithm, name, kind, purpose, inputs, stages, flags, **fields)


def of_array(algorithm: str, argument: str, **defaults: Any) -> Callable[..., Definition]:
    """A factory for cases of one array, using `single`: `case(name, kind, purpose, array, *flags, **others)`.

    Gradient cases differentiate with respect to the combine scores if there are any.
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
    """A case of one call. Each value is an input (a tensor), several inputs (a dict of tensors), an omitted argument
    (None), or an option (anything else).

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
