"""Makes error cases: one invalid input each, an edit away from a valid case.

`static` errors (shapes, dtypes, options) must be raised when compiled code is traced, too; `runtime` errors (values)
are required of the specification and optional for compiled targets.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from moespec.conformance.engine.definition import Definition
from moespec.conformance.engine.format import Tensor

__all__ = [
    "SHAPE",
    "SMALL",
    "flat",
    "invalid",
    "invalid_arrays",
    "invalid_integers",
    "invalid_option",
    "invalid_sizes",
    "with_value",
]


class Sizes(NamedTuple):
    """Sizes of an input."""

    groups: int
    tokens: int
    experts: int
    width: int


SMALL = Sizes(2, 4, 2, 3)
"""The sizes of error cases, which need no more to be wrong."""
SHAPE = SMALL[:3]
"""That of scores: groups, tokens, experts."""

KINDS = {
    "ConfigError": "out of range or unknown",
    "ShapeError": "of the wrong shape",
    "DtypeError": "of the wrong dtype",
    "ContractError": "not finite",
}
"""What is wrong with an argument, by the error that it raises."""


# Edits of an array.


def with_value(value: Tensor, number: float) -> Tensor:
    """The tensor with one entry replaced."""
    array = value.array.copy()
    array.flat[array.size // 2] = number
    return Tensor(array, value.axes)


def flat(value: Tensor) -> Tensor:
    """The tensor without its last axis; a scalar becomes a row of two."""
    if not value.axes:
        return Tensor(np.stack([value.array] * 2), ("entries",))
    return Tensor(value.array[..., 0].copy(), value.axes[:-1])


def shorter(value: Tensor, axis: int) -> Tensor:
    """The tensor without the last entry along an axis."""
    return Tensor(np.delete(value.array, -1, axis), value.axes)


def whole(value: Tensor) -> Tensor:
    """The tensor with integers in place of floats."""
    return Tensor(value.array.astype(np.int32), value.axes)


# Error cases.


def invalid(
    valid: Definition,
    name: str,
    error: str,
    argument: str,
    *,
    inputs: Mapping[str, Tensor] | None = None,
    options: Mapping[str, Any] | None = None,
    purpose: str = "",
) -> Definition:
    """A valid case with other inputs, and other options of its last call, which must raise the error.

    An option of a router that is `...` is left out.
    """
    stages = valid.stages
    routed = valid.routed
    if options and routed is not None:
        fields = {**routed.options, **options}
        routed = replace(routed, options={name: value for name, value in fields.items() if value is not ...})
    elif options:
        stages = (*stages[:-1], replace(stages[-1], options={**stages[-1].options, **options}))
    return replace(
        valid,
        name=f"negative_{name}",
        kind="negative",
        purpose=purpose or f"The argument {argument} is {KINDS[error]}.",
        inputs={**valid.inputs, **(inputs or {})},
        stages=stages,
        routed=routed,
        flags=("invalid_argument" if error != "ContractError" else "invalid_value",),
        error=error,
        argument=argument,
        valid=valid,
    )


def invalid_option(valid: Definition, name: str, argument: str = "", **options: Any) -> Definition:
    """A wrong option of a valid case, named as the error names it."""
    return invalid(valid, name, "ConfigError", argument or name, options=options)


def invalid_arrays(
    valid: Definition, argument: str, prefix: str = "", without: str = "", named: str = ""
) -> Iterator[Definition]:
    """NaN, a missing axis and a wrong dtype of one array, except the one named by `without`.

    Infinity, too, of the array that needs no prefix, the main one of an algorithm. named: what the error calls the
    array, if not by its name among the inputs.
    """
    value, named = valid.inputs[argument], named or argument.split("/")[-1]
    for name, error, wrong in (
        ("nan", "ContractError", with_value(value, np.nan)),
        ("infinite", "ContractError", with_value(value, np.inf)),
        ("rank", "ShapeError", flat(value)),
        ("dtype", "DtypeError", whole(value)),
    ):
        if name != without and not (prefix and name == "infinite"):
            yield invalid(valid, f"{prefix}{name}", error, named, inputs={argument: wrong})


def invalid_integers(
    valid: Definition, argument: str, prefix: str = "", below: int | None = None
) -> Iterator[Definition]:
    """A missing axis, a wrong dtype and a number out of range of an array of integers; `below`: what they must be."""
    value = valid.inputs[argument]
    edits = [
        ("rank", "ShapeError", Tensor(value.array[0], value.axes[1:])),
        ("dtype", "DtypeError", Tensor(value.array.astype(np.float32), value.axes)),
        ("below_zero", "ContractError", Tensor(value.array - value.array.max() - 1, value.axes)),
    ]
    if below is not None:
        edits.append(("too_large", "ContractError", Tensor(value.array + below, value.axes)))
    for name, error, wrong in edits:
        purpose = f"The argument {argument} is out of range." if error == "ContractError" else ""
        yield invalid(valid, f"{prefix}{name}", error, argument, inputs={argument: wrong}, purpose=purpose)


def invalid_sizes(valid: Definition, prefix: str = "", **axes: int) -> Iterator[Definition]:
    """One entry less along an axis of each array named, `__` for `/`."""
    for name, axis in axes.items():
        array = name.replace("__", "/")
        named = array.split("/")[-1]
        wrong = {array: shorter(valid.inputs[array], axis)}
        yield invalid(valid, f"{prefix}{named}_size", "ShapeError", named, inputs=wrong)
