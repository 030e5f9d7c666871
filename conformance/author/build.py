"""Build a case from a definition: compute results, scales, tie margins and gradients on the specification."""

from collections.abc import Collection
from dataclasses import replace

from moespec.conformance.author.definition import Definition
from moespec.conformance.author.draws import drawn, layer_of, recorded, route_of, updates_of
from moespec.conformance.author.outputs import outputs
from moespec.conformance.author.reference import Making
from moespec.conformance.author.reference_gradients import gradients
from moespec.conformance.author.tie_margins import decision
from moespec.conformance.format import Case, Edit, Expectation, Stage
from moespec.conformance.matrix_rows import ALGORITHMS

__all__ = ["build"]


def build(definition: Definition) -> Case:
    """Return the case that a definition describes, with expected results computed by the specification."""
    algorithm = ALGORITHMS[definition.algorithm]
    case = Case(
        definition.id,
        algorithm.name,
        algorithm.cites,
        definition.purpose,
        definition.kind,
        definition.flags,
        dict(definition.inputs),
    )
    if definition.valid is not None:
        return _error_case(case, definition, definition.valid)
    if definition.routed is not None:
        definition = replace(definition, inputs=drawn(definition))
    making = Making(dict(definition.inputs), sampled=definition.sampled)
    for stage in definition.stages:
        _make(making, stage, definition.several, definition.unrounded)
    if definition.routed is not None:
        _route(making, definition, definition.routed.also)
    stages = {name: stage for name, stage in making.stages.items() if name not in _unneeded(making, definition)}
    decisions = {name: found for name, found in making.decisions.items() if name in stages}
    if definition.exact_ties:
        decisions = {name: {"margin": None} for name in decisions}
    if definition.exact_tokens:
        for found in decisions.values():
            found["needed"] = {**found["needed"], "bfloat16": found["needed"]["float32"]}
    case = replace(case, inputs=dict(definition.inputs), stages=tuple(stages.values()), decisions=decisions)
    if definition.kind != "gradient":
        return case
    name, _, output = definition.of.partition("/")
    stage = making.stages[name or [*making.stages][-1]]
    output = output or next(name for name, value in stage.outputs.items() if value.kind == "float")
    floats = (n for n, tensor in definition.inputs.items() if tensor.array.dtype.kind == "f")
    by = definition.by or tuple(n for n in floats if not n.startswith("state/"))  # no optimiser updates a router state
    return replace(case, gradients=gradients(making, stage, output, by, definition.id, losses=definition.losses))


def _make(making: Making, stage: Stage, several: Collection[str] = (), unrounded: Collection[str] = ()) -> None:
    """Compute the results of a stage. Unless several results are correct, also compute the tie margin of the stage."""
    values = outputs(making, stage)
    values |= {n: replace(value, scale="magnitude") for n, value in values.items() if f"{stage.name}/{n}" in unrounded}
    complete = replace(stage, outputs={n: value for n, value in values.items() if f"{stage.name}/{n}" not in several})
    decided = decision(making, stage) if len(complete.outputs) == len(values) else None
    if decided is not None:
        making.decisions[stage.name] = decided
    making.add(complete)


def _route(making: Making, definition: Definition, also: tuple[Stage, ...]) -> None:
    """Add the stages of a router case: recorded calls, extra stages, the complete router, the state update and the surrounding layer."""
    route = route_of(definition)
    recorder, making.routing = recorded(definition, making.groups(route)[0])
    making.trace = tuple(recorder.stages)
    for stage in (*making.trace, *also, route, *updates_of(definition), layer_of(definition)):
        _make(making, stage, unrounded=definition.unrounded)


def _unneeded(making: Making, definition: Definition) -> set[str]:
    """Return the router calls that the case does not store: all calls if the case differentiates the router or the
    layer, else only the metrics."""
    if definition.routed is None:
        return set()
    calls = {stage.name: stage.call for stage in making.trace}
    is_whole = definition.kind == "gradient" and definition.of.partition("/")[0] not in calls
    return {name for name, call in calls.items() if is_whole or call == "routing_metrics"}


def _error_case(case: Case, definition: Definition, valid: Definition) -> Case:
    """Build an error case. An error case stores calls without results, and the last call must raise the error."""
    stages = (route_of(definition),) if definition.routed else definition.stages
    right = (route_of(valid),) if valid.routed else valid.stages
    name = stages[-1].name
    options = {key: value for key, value in right[-1].options.items() if value != stages[-1].options[key]}
    inputs = {key: tensor for key, tensor in valid.inputs.items() if tensor is not definition.inputs[key]}
    when = "runtime" if definition.error == "ContractError" else "static"
    expect = Expectation(name, definition.error, definition.argument, when, Edit(options, inputs))
    return replace(case, stages=stages, expect=expect)
