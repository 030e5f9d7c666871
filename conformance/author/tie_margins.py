"""Computes tie margins: the distance of a stage's choices from a tie, and the distance that each dtype needs.

If a choice orders inputs of the case, the choice is exact and its margin is None. The choices of a router are the choices of all calls
inside the router. These choices order scores, which are functions of the router's inputs. A stage that reads another stage's routing
inherits that stage's choices. The ordered scores are float32 or better in every run, unless a model computes the tokens.
"""

import importlib
from collections.abc import Iterator, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from moespec import spec
from moespec.conformance.author.outputs import PROBES, along
from moespec.conformance.author.reference import Arrays, Making
from moespec.conformance.author.scale import condition, pooled_spread, spread, stability
from moespec.conformance.author.trace import Recorder
from moespec.conformance.compare import CONSTANTS, DTYPES, LARGE, constant
from moespec.conformance.format import Stage
from moespec.conformance.functions import FUNCTIONS, function
from moespec.conformance.functions.describe import Choice

__all__ = ["choices", "decision", "ordered"]

CARRYING = SimpleNamespace(**{**{name: getattr(spec, name) for name in dir(spec)}, "stop_gradient": lambda x: x})
"""The specification, with a `stop_gradient` that does nothing. The real function would hide errors of a plan that only selects."""


pooled = partial(pooled_spread, probes=PROBES)
"""Computes the scale of the ordered scores in a sampled case."""


class Decided(NamedTuple):
    """The margin of a choice, and the name of the error constant for the ordered scores."""

    margin: float
    constant: str


def decision(making: Making, stage: Stage) -> dict[str, Any] | None:
    """Return the margin of a stage's choices and the margin that each dtype needs, or None if the stage makes no choice."""
    choices_of_stage = list(_router(making, stage) if stage.router else _own(making, stage))
    margins = [each for each in choices_of_stage if each is not None]
    if making.sampled:
        margins = [each._replace(constant=LARGE + each.constant) for each in margins]
    decided = [_entry(each, rounded=function(stage.call).batched) for each in margins]
    earlier = (r.partition("/")[0] for r in stage.arguments.values() if isinstance(r, str) and r not in making.tensors)
    taken = [making.decisions[name] for name in earlier if name in making.decisions]
    decided += [entry for entry in taken if entry["margin"] is not None]
    if decided:
        return min(decided, key=lambda entry: entry["margin"] / entry["needed"]["float64"])
    return {"margin": None} if choices_of_stage or taken else None


def _entry(decided: Decided, *, rounded: bool) -> dict[str, Any]:
    """Return the margin, and the margin that each dtype requires. rounded: whether the ordered scores are rounded to the run's dtype."""
    dtypes = {name: dtype if rounded or name != "bfloat16" else DTYPES["float32"] for name, dtype in DTYPES.items()}
    return {
        "margin": float(f"{min(decided.margin, 1.0):.3g}"),
        "needed": {name: float(f"{constant(decided.constant, of) * of.roundoff:.3g}") for name, of in dtypes.items()},
    }


def ordered(choice: Choice, given: Mapping[str, Any]) -> Arrays:
    """Compute the scores that a choice orders, from the arguments of the call."""
    scores = given[choice.ordered] if isinstance(choice.ordered, str) else choice.ordered(**given)
    return scores if isinstance(scores, dict) else {"": scores}


def margin(choice: Choice, scores: Arrays, scales: Arrays, options: Mapping[str, Any]) -> float:
    """Return the margin of a choice for one group."""
    if choice.margin is None:
        raise TypeError("the margin of a choice with the scale 'stability' cannot be computed from scores")
    scores = {key: np.real(value) for key, value in scores.items()}
    if scores.keys() == {""}:
        return choice.margin(scores[""], scales[""], options)
    return choice.margin(scores, scales, options)


def _own(making: Making, stage: Stage) -> Iterator[Decided | None]:
    """Yield the margin of a function's choice, or None for an exact choice."""
    known = function(stage.call)
    choice = known.choice
    if choice is None:
        return
    if isinstance(choice.ordered, str) and stage.arguments[choice.ordered] in making.inputs:
        yield None
        return
    if known.run is not None:
        yield _of_calls(making, stage, choice)
        return
    margins = []
    for group in making.groups(stage):

        def scores_of(values: Arrays) -> Arrays:
            return ordered(choice, making.given(stage, values))

        if choice.scale == "stability":
            margins.append(stability(scores_of, group))
            continue
        scores = {key: np.real(value) for key, value in scores_of(group).items()}
        if isinstance(choice.ordered, str) or choice.scale == "magnitude":
            scales = {key: np.abs(value) for key, value in scores.items()}
        else:
            scale = condition if choice.scale == "condition" else spread
            scales = (pooled if making.sampled else scale)(scores_of, group, scores)
        margins.append(margin(choice, scores, scales, stage.options))
    yield Decided(min(margins), choice.constant)


def _of_calls(making: Making, stage: Stage, choice: Choice) -> Decided:
    """Return the smallest margin of the choices that a model's calls make."""
    (values,) = making.groups(stage)
    run: Any = choice.ordered

    def calls(values: Arrays) -> list[tuple[Stage, Choice, Arrays]]:
        recorder = Recorder(spec, {}, followed=False)
        run(_of_groups(recorder), **making.given(stage, values))
        made = choices(tuple(recorder.stages))
        return [(inner, known, ordered(known, recorder.given[inner.name])) for inner, known in made]

    def together(made: list[tuple[Stage, Choice, Arrays]]) -> Arrays:
        return {f"{inner.name}/{key}": np.real(value) for inner, _, own in made for key, value in own.items()}

    made = calls(values)
    scores = together(made)
    scales = {key: np.abs(value) for key, value in scores.items()}
    if choice.scale == "spread":
        scales = spread(lambda values: together(calls(values)), values, scores)
    margins = [
        margin(known, own, {key: scales[f"{inner.name}/{key}"] for key in own}, inner.options)
        for inner, known, own in made
    ]
    return Decided(min(margins, default=1.0), choice.constant)


def _of_groups(recorder: Recorder) -> Any:
    """Return the batched NumPy backend. Group by group, `recorder` records the calls of its routers and choice functions."""
    numpy = importlib.import_module("moespec.backends.numpy")
    groups = importlib.import_module("moespec.backends.numpy.groups")
    module = SimpleNamespace(**{name: getattr(numpy, name) for name in numpy.__all__})
    for name in FUNCTIONS.keys() & set(spec.__all__):
        if FUNCTIONS[name].choice is not None:
            setattr(module, name, groups.batched(getattr(recorder, name)))
    module.ROUTERS = {
        name: groups.router_of_groups(recorder.router(name), router) for name, router in numpy.ROUTERS.items()
    }
    return module


def choices(stages: tuple[Stage, ...]) -> list[tuple[Stage, Choice]]:
    """Return each router call that chooses by ordering scores, together with the call's `Choice`."""
    pairs = [(stage, function(stage.call).choice) for stage in stages]
    return [(stage, choice) for stage, choice in pairs if choice is not None and choice.scale != "stability"]


def _router(making: Making, stage: Stage) -> Iterator[Decided]:
    """Yield the margin of each choice that a router's calls make."""
    for inner, choice in choices(making.trace):
        margins = []
        arguments = inner.arguments.values()
        named = [inner.arguments[choice.ordered]] if isinstance(choice.ordered, str) else arguments
        constants = [along(making, each) for each in named if isinstance(each, str)]
        scale = spread if "spread" in {rule for each in named for rule in _rules(making, each)} else condition
        scale = pooled if making.sampled else scale
        for group in making.groups(stage):

            def scores_of(values: Arrays, inner: Stage = inner, choice: Choice = choice) -> Arrays:
                recorder = Recorder(CARRYING, values)
                making.run(stage, values, recorder)
                return ordered(choice, recorder.given[inner.name])

            scores = {key: np.real(value) for key, value in scores_of(group).items()}
            scales = scale(scores_of, group, scores)
            if isinstance(choice.ordered, str):
                scales[""] = np.maximum(scales[""], _written(making, stage, group, inner.arguments[choice.ordered]))
            margins.append(margin(choice, scores, scales, inner.options))
        yield Decided(min(margins), max(constants, key=lambda name: CONSTANTS[name][0]))


def _written(making: Making, stage: Stage, group: Arrays, reference: Any) -> Any:
    """Return the `written` scale of a router call's result, which covers errors inside the call, or 0 if the result has none."""
    name, _, part = reference.partition("/")
    made = next((inner for inner in making.trace if inner.name == name), None)
    output = function(made.call).output(part or next(iter(function(made.call).outputs))) if made else None
    if made is None or output is None or output.written is None or making.sampled:
        return 0.0
    recorder = Recorder(spec, group)
    making.run(stage, group, recorder)
    return output.written(**recorder.given[name])


def _rules(making: Making, reference: Any) -> Iterator[str]:
    """Yield the scale rules of a result and of all earlier results that the result depends on."""
    stage = making.stages.get(reference.partition("/")[0]) if isinstance(reference, str) else None
    if stage is not None:
        yield from (output.scale for output in function(stage.call).outputs.values())
        for each in stage.arguments.values():
            yield from _rules(making, each)
