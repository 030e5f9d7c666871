"""Describes a public function: how to store and compare the results, and which choices the function makes.

Each function of the specification has one description. A description applies to every case that calls the function,
directly or inside a router.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["DENSE", "GROUPS", "METRICS", "ROUTE", "SLOTS", "Choice", "Function", "Output", "axes"]

GROUPS = ("groups", "images", "rows")
"""Leading axes that a target's arrays have and the specification's arrays lack, because the specification computes one group."""


def axes(names: str) -> tuple[str, ...]:
    """Split axis names."""
    return tuple(names.split())


@dataclass(frozen=True)
class Output:
    """Describes how to store and compare one result.

    axes: the names of the axes in one string. Without a groups axis, the result is the mean over groups.
    kind: "float", "int" or "bool".
    scale: how to compute A of the tolerance `c * u * A` (see `scale.py`): "condition", "spread", "magnitude" (of the
        result), "unit" (1 more than the magnitude), or "written".
    written: `(**arguments) -> A` for one group, which repeats the computation on absolute values. If `scale` is "condition", A is
    the larger of the condition scale and the written scale. If a router calls the function, the router's tolerances include A.
    constant: the name of the constant c.
    rounded: whether the result is rounded to the run's dtype. An unrounded result is in float32 or better even in a
    bfloat16 run, and the tolerance uses the roundoff of float32.
    follows: the arguments whose numbers the result may copy (default: all). The result copies the first of these arguments that is passed.
    summed: whether a result without a groups axis is the sum over groups instead of the mean.
    """

    axes: str = ""
    kind: str = "float"
    scale: str = "condition"
    written: Callable[..., Any] | None = None
    constant: str = "direct"
    rounded: bool = False
    follows: tuple[str, ...] = ()
    summed: bool = False


@dataclass(frozen=True)
class Choice:
    """A choice that a function makes.

    ordered: the name of the ordered argument, or a function that computes the ordered scores from the arguments. If the
    argument is an input of the case, the choice is exact, because every dtype represents the input. For a model,
    `ordered` runs the calls that make the choices.
    margin: `(scores, scale, options) -> number`, see `margins.py`.
    scale: the scale of the ordered scores: "condition" or "magnitude". With "stability", `ordered` returns the choice
    itself, and the margin is the largest relative change of the arguments that preserves the choice.
    constant: the name of the error constant c of the ordered scores.
    """

    ordered: str | Callable[..., Any]
    margin: Callable[[Any, Any, Mapping[str, Any]], float] | None = None
    scale: str = "condition"
    constant: str = "direct"


@dataclass(frozen=True)
class Function:
    """A public function.

    outputs: describes each result by name. A sparse routing returns `slots` and `weights`, a soft routing `dispatch` and `combine`.
    traced: whether the function is compiled as a unit. False for functions of plain integers, for tables and for training.
    run: computes a model's results: `(module, **arguments, **options) -> results`. needs: the public names that `run` calls.
    prepare: converts the options before tracing. compiles: whether `run` accepts `compile` for inner functions.
    batched: whether the reference also takes a groups axis, and the function takes a `dtype` (True for models).
    pooled: for slow functions, whether `pooled_spread` in `author/scale.py` estimates the scale from a few probes.
    """

    name: str
    outputs: Mapping[str, Output] = field(default_factory=dict)
    choice: Choice | None = None
    traced: bool = True
    run: Callable[..., Any] | None = None
    needs: tuple[str, ...] = ()
    prepare: Callable[[dict[str, Any]], dict[str, Any]] = dict
    compiles: bool = False
    batched: bool = False
    pooled: bool = False

    @property
    def on_numpy(self) -> bool:
        """Whether every target receives NumPy arrays for this function. Its results may be float64 in runs of any dtype."""
        return not self.traced and self.run is None

    def output(self, name: str) -> Output:
        """Return the description of a result. A description named `prefix/*` applies to all results with this prefix."""
        for key in (name, f"{name.split('/')[0]}/*", "*"):
            if key in self.outputs:
                return self.outputs[key]
        raise KeyError(f"{self.name}: the result {name!r} has no description")


SLOTS: dict[str, Output] = {
    "slots": Output("groups experts capacity", "int"),
    "weights": Output("groups experts capacity", scale="magnitude", follows=("combine_scores", "scores")),
}
"""The results of an allocation whose weights are copied from scores."""

DENSE = "groups tokens experts capacity"
"""Axes of a dense routing."""

METRICS: dict[str, Output] = {
    "load": Output("experts", scale="unit"),
    "coverage": Output(scale="unit"),
    "dropped": Output(scale="unit"),
    "entropy": Output(scale="unit"),
}
"""The metrics of any routing."""

ROUTE = Function(
    "ROUTERS",
    {
        "slots": SLOTS["slots"],
        "weights": Output("groups experts capacity"),
        "dispatch": Output(DENSE),
        "combine": Output(DENSE),
        "losses/*": Output(),
        **{f"metrics/{name}": output for name, output in METRICS.items()},
        "metrics/*": Output(),
        "statistics/*": Output("experts", scale="unit", summed=True),
        "statistics/reached": Output("pair experts", scale="unit", summed=True),
        "statistics/budget": Output("pair", scale="unit", summed=True),
        "statistics/required": Output("experts bins", scale="unit", summed=True),
    },
)
"""A router's `route`."""
