"""What a case runs: stages, written once for the specification (one group) and for every target (batched).

A stage calls public names of `B`, the specification or a target, on values that the case gives: its inputs, and the
expected results of earlier stages, so that one wrong decision does not cascade. The names are the same on both sides,
and so is the text of a stage; `reference.py` maps it over the groups for the specification.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["BATCH_AXES", "Choice", "Output", "Stage", "describe", "finish", "nested", "routing_arrays", "select"]

Values = dict[str, Any]
Config = Mapping[str, Any]

BATCH_AXES = ("groups", "images", "rows")
"""Names of a leading axis that arrays of a target have and those of the specification, one group, have not."""


@dataclass(frozen=True)
class Output:
    """How a named result is stored and judged.

    scale: how A is found (see `scale.py`): "condition", "spread", "magnitude" (of the result), "unit" (1 more than the
    magnitude), or "written".
    written: `(config, values) -> A`, the same computation on absolute values, for one group; the larger of this and the
    condition counts where both are given. constant: the name of c, or a function of the configuration.
    """

    axes: tuple[str, ...] = ()
    kind: str = "float"
    scale: str = "condition"
    written: Callable[[Config, Values], Any] | None = None
    constant: str | Callable[[Config], str] = "direct"


def _unmeasured(config: Config, scores: Values, scales: Values) -> float:
    raise TypeError("the margin of a choice with the scale 'stability' is not found from scores")


@dataclass(frozen=True)
class Choice:
    """The discrete decision of a stage.

    scores: the name of the value that is ordered, or a function `(B, config, values) -> dict` that computes what is
    ordered from what the stage reads. margin: `(config, scores, scales) -> number` on such dicts, see `margins.py`.
    scale, constant: as of an `Output`, for the scores ("condition", "spread" or "magnitude"); with the scale
    "stability" the function returns what is chosen, and the margin is the largest relative change of the inputs that
    leaves it as it is.
    wide: what is ordered is in float32 or better in every lane, as affinities are.
    """

    scores: str | Callable[[Any, Config, Values], Values]
    margin: Callable[[Config, Values, Values], float] = _unmeasured
    scale: str = "condition"
    constant: str = "direct"
    wide: bool = True


@dataclass(frozen=True)
class Stage:
    """One step of a program.

    calls: public names that a target needs for it. reads: names of values; `params` stands for every `params/...`.
    run: `(B, config, values) -> dict` of arrays. outputs: descriptions by name; a name ending in `*` stands for all that
    begin so. whole: what the other stages of the program are the steps of; they are looked at only where this one does
    not pass. traced: False for what is not compiled as a whole: plain integers, and training, which compiles its loss
    with `config["compile"]`. batched: the reference is batched (models). pooled: the spread is found with few probes and
    is at least its root mean square over a result, for what takes seconds. prepare: makes the configuration ready before
    anything is traced.
    """

    name: str
    calls: tuple[str, ...]
    reads: tuple[str, ...]
    run: Callable[[Any, Config, Values], Values]
    outputs: Mapping[str, Output] = field(default_factory=dict)
    choice: Choice | None = None
    whole: bool = False
    traced: bool = True
    batched: bool = False
    pooled: bool = False
    prepare: Callable[[Config], Config] = dict


TOKENS_EXPERTS = ("groups", "tokens", "experts")
SLOTS = ("groups", "experts", "capacity")
DENSE = ("groups", "tokens", "experts", "capacity")

COMMON: dict[str, Output] = {
    "logits": Output(TOKENS_EXPERTS),
    "scores": Output(TOKENS_EXPERTS),
    "plan": Output(TOKENS_EXPERTS),
    "order": Output(("groups", "tokens"), "int"),
    "slots": Output(SLOTS, "int"),
    "weights": Output(SLOTS),
    "dispatch": Output(DENSE),
    "combine": Output(DENSE),
    "output": Output(("groups", "tokens", "width")),
    "loss": Output(),
    "losses/*": Output(),
    "metrics/load": Output(("experts",), scale="unit"),
    "metrics/coverage": Output(scale="unit"),
    "metrics/dropped": Output(scale="unit"),
    "metrics/entropy": Output(scale="unit"),
    "metrics/*": Output(),
}
"""Descriptions of results that several stages have."""


def describe(stage: Stage, name: str) -> Output:
    """The description of a result of a stage."""
    for table in (stage.outputs, COMMON):
        for key in (name, f"{name.split('/')[0]}/*"):
            if key in table:
                return table[key]
    raise KeyError(f"{stage.name}: the result {name!r} is not described")


def select(values: Mapping[str, Any], reads: tuple[str, ...]) -> Values:
    """The values that `reads` names; optional ones that a case does not give are left out."""
    return {name: value for name, value in values.items() if name in reads or name.split("/")[0] in reads}


def nested(values: Values, prefix: str) -> Any:
    """The tree below `prefix`: with `params`, the value `params/experts/w1` becomes `["experts"]["w1"]`."""
    tree: dict[str, Any] = {}
    for name, value in values.items():
        if name.startswith(f"{prefix}/"):
            *path, leaf = name.split("/")[1:]
            node = tree
            for key in path:
                node = node.setdefault(key, {})
            node[leaf] = value
    return tree


def routing_arrays(routing: Any, *, sparse: bool = True) -> Values:
    """A routing as arrays that can leave compiled code: its dense pair, and the slot record where there is one."""
    dense = routing.dense() if hasattr(routing, "dense") else routing
    if not sparse:
        return {"dispatch": dense.dispatch, "combine": dense.combine}
    arrays = {"routing.dispatch": dense.dispatch, "routing.combine": dense.combine}
    if hasattr(routing, "token"):
        arrays |= {"routing.token": routing.token, "routing.weight": routing.weight}
    return arrays


def finish(results: Mapping[str, Any]) -> Values:
    """NumPy results with every sparse routing reduced to `slots` and `weights`.

    `slots[..., e, c]` is the token in the slot, or the number of tokens if there is none. Raises ValueError when the
    tensors are no sparse routing, or when a slot record differs from its own dense form.
    """
    finished = {name: np.asarray(value) for name, value in results.items()}
    for prefix in [name.removesuffix("routing.dispatch") for name in finished if name.endswith("routing.dispatch")]:
        taken = [finished.pop(f"{prefix}routing.{part}", None) for part in ("dispatch", "combine", "token", "weight")]
        dispatch, combine, token, weight = taken
        slots, weights = _slots(dispatch, combine)
        if (
            token is not None
            and weight is not None
            and not (np.array_equal(token, slots) and np.array_equal(weight, weights))
        ):
            raise ValueError("the slot record (token, weight) differs from its dense form")
        finished |= {f"{prefix}slots": slots, f"{prefix}weights": weights}
    return finished


def _slots(dispatch: Any, combine: Any) -> tuple[Any, Any]:
    """`(..., T, E, C)` tensors of a sparse routing to `(..., E, C)` slots and weights."""
    filled = dispatch != 0
    if dispatch.shape != combine.shape or not (dispatch.real[filled] == 1).all():
        raise ValueError("dispatch of a sparse routing is 0 or 1, and combine has the same shape")
    if (filled.sum(axis=-3) > 1).any() or (combine[~filled] != 0).any():
        raise ValueError("a slot holds two tokens, or a token has a combine weight in a slot that it is not in")
    slots = np.where(filled.any(axis=-3), filled.argmax(axis=-3), dispatch.shape[-3]).astype(np.int32)
    return slots, combine.sum(axis=-3)
