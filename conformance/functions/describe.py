"""How the results of a public function are stored and compared, and what it decides.

Each function of the specification is described once; every case that calls it, alone or inside a router, is stored and
compared as the description says.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["DENSE", "GROUPS", "METRICS", "ROUTE", "SLOTS", "Choice", "Function", "Output", "axes"]

GROUPS = ("groups", "images", "rows")
"""Names of a leading axis that arrays of a target have and those of the specification, one group, have not."""


def axes(names: str) -> tuple[str, ...]:
    """Names of axes from one string."""
    return tuple(names.split())


@dataclass(frozen=True)
class Output:
    """How one result is stored and compared.

    axes: their names in one string. A result without a groups axis is the mean over the groups.
    kind: "float", "int" or "bool".
    scale: how A of the tolerance `c * u * A` is found (see `scale.py`): "condition", "spread", "magnitude" (of the
        result), "unit" (1 more than the magnitude), or "written".
    written: `(**arguments) -> A`, called as the function itself on one group: the same computation on absolute values.
        Given besides a condition, the larger of the two counts. What a router makes of the result may have the error
        that this makes of it, too.
    constant: the name of c.
    rounded: whether the result has the dtype of the run. In bfloat16 every other one is promised in float32 or better,
        and its tolerance has the roundoff of float32.
    follows: the arguments whose numbers the result is made of, the first that is given; all of them if empty.
    summed: whether a result without a groups axis is the sum over the groups, not the mean.
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
    """What a function decides.

    ordered: the argument that is ordered, or a function of the arguments that computes what is. Where it is an argument
        and an input of a case, the choice is exact: every dtype holds its numbers. Of a whole model, a run like that of
        the function, which makes the calls that decide; the margins are those of these calls.
    margin: `(scores, scale, options) -> number`, see `margins.py`.
    scale: of what is ordered: "condition" or "magnitude"; with "stability" `ordered` returns what is chosen, and the
        margin is the largest relative change of the arguments that leaves it as it is.
    constant: the name of c, of the errors of what is ordered.
    """

    ordered: str | Callable[..., Any]
    margin: Callable[[Any, Any, Mapping[str, Any]], float] | None = None
    scale: str = "condition"
    constant: str = "direct"


@dataclass(frozen=True)
class Function:
    """A public function.

    name: of the function. outputs: its results by name: the fields of a record, the keys of a dict, or one name for an
    array. A sparse routing has the results `slots` and `weights`, a soft one `dispatch` and `combine`.
    traced: False for what is not compiled as a whole: plain integers, tables (which take NumPy's arrays), and training.
    run: `(module, **arguments, **options) -> results` where it is not a public function but a whole model; needs: the
    public names that a target must have for it. prepare: makes of its options what it takes, before anything is traced.
    compiles: it takes `compile`, for what it compiles itself. batched: the
    reference has a groups axis, too, and it takes the `dtype` of the computation (models). pooled: the spread is found
    with few probes and is at least its root mean square over a result, for what takes seconds.
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
        """Whether it takes NumPy's arrays, whatever the target, and may return float64 in every dtype."""
        return not self.traced and self.run is None

    def output(self, name: str) -> Output:
        """The description of a result; one of `prefix/*` stands for all that begin so."""
        for key in (name, f"{name.split('/')[0]}/*", "*"):
            if key in self.outputs:
                return self.outputs[key]
        raise KeyError(f"{self.name}: the result {name!r} has no description")


SLOTS: dict[str, Output] = {
    "slots": Output("groups experts capacity", "int"),
    "weights": Output("groups experts capacity", scale="magnitude", follows=("combine_scores", "scores")),
}
"""The results of an allocation, whose weights are copies of scores."""

DENSE = "groups tokens experts capacity"
"""Axes of a dense routing."""

METRICS: dict[str, Output] = {
    "load": Output("experts", scale="unit"),
    "coverage": Output(scale="unit"),
    "dropped": Output(scale="unit"),
    "entropy": Output(scale="unit"),
}
"""The metrics of every routing."""

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
        "statistics/required": Output("experts bins", scale="unit", summed=True),
    },
)
"""The `route` of a router."""
