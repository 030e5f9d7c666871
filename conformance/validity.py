"""What a case must be beyond its format: names that exist, shapes that agree, numbers that can be compared with."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec.conformance.format import KINDS, Case, Expectation, Gradients, StageRecord, Tensor, Value
from moespec.conformance.judge import CONSTANTS, LANES
from moespec.conformance.programs import PROGRAMS

__all__ = ["faults"]

Shapes = dict[str, tuple[int, ...]]
ERRORS = ("ConfigError", "ShapeError", "DtypeError", "ContractError")
NAME = re.compile(r"[a-z0-9_]+(/[a-z0-9_]+)*")


def faults(case: Case) -> Iterator[str]:
    """What is wrong with a case, one sentence each."""
    if case.algorithm not in PROGRAMS:
        yield f"there is no algorithm {case.algorithm!r}"
        return
    if case.kind not in KINDS:
        yield f"there is no class {case.kind!r}"
    if case.revision < 1:
        yield f"the revision is {case.revision}"
    for name, tensor in case.inputs.items():
        yield from _tensor(name, tensor, finite=case.kind != "negative")
    if (case.expect is not None) != (case.kind == "negative") or (case.gradients is not None) != (
        case.kind == "gradient"
    ):
        yield f"a case of class {case.kind!r} has an error to expect if it is a negative, and gradients if a gradient"
    known = {name: tensor.array.shape for name, tensor in case.inputs.items()}
    for stage in case.stages:
        yield from _stage(stage, case, known)
    if not case.stages and case.expect is None:
        yield "there are no stages"
    for name, decision in case.decisions.items():
        yield from _decision(name, decision, case)
    if case.gradients is not None:
        yield from _gradients(case.gradients, case, known)
    if case.expect is not None:
        yield from _expect(case.expect, case)


def _tensor(name: str, tensor: Tensor, *, finite: bool = True) -> Iterator[str]:
    yield from _array(name, tensor.array, tensor.axes)
    if tensor.array.dtype not in (np.float32, np.int32):
        yield f"{name}: dtype {tensor.array.dtype}, expected float32 or int32"
    if finite and not np.isfinite(tensor.array).all():
        yield f"{name}: not finite, in a case that is no negative"


def _array(name: str, array: NDArray[Any], axes: tuple[str, ...]) -> Iterator[str]:
    if not NAME.fullmatch(name):
        yield f"{name!r} is no name"
    if array.ndim != len(axes):
        yield f"{name}: shape {array.shape} does not have the axes {axes}"


def _stage(stage: StageRecord, case: Case, known: Shapes) -> Iterator[str]:
    if stage.name not in PROGRAMS[case.algorithm]:
        yield f"there is no stage {stage.name!r} of {case.algorithm}"
    for name in stage.reads:
        if name not in known:
            yield f"stage {stage.name} reads {name!r}, which nothing gives"
    if not stage.outputs:
        yield f"stage {stage.name} has no results"
    for name, value in stage.outputs.items():
        yield from _value(f"{stage.name}/{name}", value)
        known.setdefault(name, value.array.shape)


def _value(name: str, value: Value) -> Iterator[str]:
    yield from _array(name, value.array, value.axes)
    dtypes = {"int": np.int32, "float": np.float64}
    if value.kind not in dtypes:
        yield f"{name}: there is no kind {value.kind!r}"
        return
    if value.array.dtype != dtypes[value.kind]:
        yield f"{name}: dtype {value.array.dtype}"
    if not np.isfinite(value.array).all():
        yield f"{name}: not finite"
    if value.constant not in CONSTANTS:
        yield f"{name}: there is no constant {value.constant!r}"
    if isinstance(value.scale, str):
        if value.scale != "magnitude":
            yield f"{name}: there is no scale {value.scale!r}"
    elif value.scale.shape != value.array.shape or not (np.isfinite(value.scale) & (value.scale >= 0)).all():
        yield f"{name}: the scale is an array like the result, of finite numbers of at least 0"


def _decision(name: str, decision: Any, case: Case) -> Iterator[str]:
    if name not in [stage.name for stage in case.stages]:
        yield f"a decision of {name!r}, which is no stage"
    if not isinstance(decision, Mapping) or "margin" not in decision:
        yield f"the decision of {name!r} has no margin"
    elif decision["margin"] is not None:
        needed = decision.get("needed")
        numbers = [decision["margin"], *(needed.values() if isinstance(needed, Mapping) else ())]
        if not isinstance(needed, Mapping) or set(needed) != set(LANES):
            yield f"the decision of {name!r} says what margin is needed in {', '.join(LANES)}"
        if any(type(number) not in (int, float) or not number >= 0 for number in numbers):
            yield f"the margins of the decision of {name!r} are numbers of at least 0"


def _gradients(gradients: Gradients, case: Case, known: Shapes) -> Iterator[str]:
    outputs = {stage.name: stage.outputs for stage in case.stages}.get(gradients.stage, {})
    yield from _tensor("probe", gradients.probe)
    if gradients.output not in outputs:
        yield f"gradients of {gradients.output!r}, which is no result of a stage {gradients.stage!r}"
    elif outputs[gradients.output].array.shape != gradients.probe.array.shape:
        yield f"the probe has not the shape of {gradients.output}"
    if not gradients.wrt:
        yield "gradients by nothing"
    for name, value in gradients.wrt.items():
        yield from _value(name, value)
        if name not in case.inputs or known[name] != value.array.shape:
            yield f"the gradient by {name!r} has not the shape of an input of that name"


def _expect(expect: Expectation, case: Case) -> Iterator[str]:
    if case.stages or case.decisions:
        yield "a negative has no stages"
    if expect.stage not in PROGRAMS[case.algorithm]:
        yield f"there is no stage {expect.stage!r} of {case.algorithm}"
    if expect.error not in ERRORS:
        yield f"there is no error {expect.error!r}"
    if expect.when not in ("static", "runtime"):
        yield f"a fault is static or runtime, not {expect.when!r}"
    twin = expect.twin
    if not (twin.inputs.keys() <= case.inputs.keys() and twin.config.keys() <= case.config.keys()):
        yield "the twin replaces what the case does not have"
    if not (twin.inputs or twin.config):
        yield "the twin replaces nothing"
    for name, tensor in twin.inputs.items():
        yield from _tensor(name, tensor)
