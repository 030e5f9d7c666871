"""What a case states: its inputs and the calls made on them. The specification computes the rest; see `generate.py`."""

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
    """How noise is drawn: its axes after the groups, and its grid."""

    axes: str
    reach: float
    step: float
    centre: float = 0.0


class Draws(NamedTuple):
    """How tokens are drawn: the reach and the step of their grid, the largest number of attempts, and the margin that is large enough.

    Neighbours that differ by 12 % of their sum stay apart in bfloat16 in most cases.
    """

    reach: float = 2.0
    tries: int = 150
    enough: float = 0.12
    step: float = 0.25


DRAWS = Draws()
"""Those of most routers."""


@dataclass(frozen=True)
class Routed:
    """A router that is run, with its calls recorded as stages.

    options: the fields of its `Options`. groups, noise, draws, accept: what is drawn, see `draws.py`; with `drawn`
    False tokens are an input like the others. gelu: the form that the experts of the layer use. also: stages that come
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
    """One case before it is computed.

    kind: value, tie, near_tie, overflow, degenerate, negative, gradient, trajectory. stages: the calls in order, of a
    router those before its own. of, by: of a gradient, the result (`stage/name`; if empty the first float of the last
    stage) and the inputs (if empty all floats); losses: whether the router's weighted losses are added to it. error,
    argument: of an error case, the class of the error that the last call must raise, and the argument that its message
    names; valid: the case that it is an edit of. exact_ties: the scores of every choice are exact, or equal by symmetry,
    so that every implementation computes equal numbers. several: results (`stage/name`) of which several are right, and
    which are not stored. unrounded: results whose products and sums float32 holds, in any order, so that their scale is
    their magnitude, however little is left of what is added. exact_tokens: the routers of the model see tokens that every
    dtype holds exactly, so that in bfloat16 they choose as surely as in float32. sampled: it is too large for a
    derivative by each number; see `Making`.
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
    """A call of the public name `path`, whose stage is called like its last part.

    arguments: references by name: an input, an earlier stage or a result of it, a dict of references, a `function`.
    """
    return Stage(name or path.rpartition(".")[2], path, dict(arguments or {}), options)


def function(path: str, arguments: Mapping[str, Any] | None = None, /, **options: Any) -> dict[str, Any]:
    """The reference to a function: the public name `path` with these arguments and options, but for its first."""
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
    """A case of several calls; `fields` are those of `Definition`."""
    return Definition(algorithm, name, kind, purpose, inputs, stages, flags, **fields)


def of_array(algorithm: str, argument: str, **defaults: Any) -> Callable[..., Definition]:
    """What makes the cases of one array, by `single`: `case(name, kind, purpose, array, *flags, **others)`.

    A gradient is by the combine scores, where these are given.
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
    """A case of one call. Of its values a tensor is an input, a dict of tensors is several, None an argument that is
    not given, and anything else an option.

    of: of a gradient, the name of the result.
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
