"""Makes negatives: one fault each, with a positive twin that is one edit away.

`static` faults (shapes, dtypes, options) must raise when compiled code is traced, too; `runtime` faults (values) are
required of the specification and optional for compiled targets. The cases themselves stand with those of each family.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from moespec.conformance.cases.definition import Definition
from moespec.conformance.cases.inputs import experts, kernel, tokens
from moespec.conformance.format import Expectation, Tensor, Twin

__all__ = [
    "SHAPE",
    "SMALL",
    "array_faults",
    "fault",
    "integer_faults",
    "option",
    "router_config",
    "router_faults",
    "router_inputs",
    "size_faults",
    "small_experts",
    "with_value",
]


class Sizes(NamedTuple):
    """Sizes of an input."""

    groups: int
    tokens: int
    experts: int
    width: int


SMALL = Sizes(2, 4, 2, 3)
"""The sizes of the negatives, which need no more to be wrong."""
SHAPE = SMALL[:3]
"""That of scores: groups, tokens, experts."""

ARTICLES = {
    "ConfigError": "out of range or unknown",
    "ShapeError": "of the wrong shape",
    "DtypeError": "of the wrong dtype",
    "ContractError": "not finite",
}
"""What is wrong with an argument, by the error that it raises."""

ARGUMENTS = {
    "capacity_factor": "factor",
    "selector_gamma": "gamma",
    "sinkhorn_iterations": "iterations",
    "transport_steps": "steps",
}
"""Fields of `RouterConfig` that an error calls by the name of the argument they become."""


# Edits of an array.


def with_value(value: Tensor, number: float) -> Tensor:
    """The tensor with one entry replaced."""
    array = value.array.copy()
    array.flat[array.size // 2] = number
    return Tensor(array, value.axes)


def flat(value: Tensor) -> Tensor:
    """The tensor without its last axis; a number becomes a row of two."""
    if not value.axes:
        return Tensor(np.stack([value.array] * 2), ("entries",))
    return Tensor(value.array[..., 0].copy(), value.axes[:-1])


def shorter(value: Tensor, axis: int) -> Tensor:
    """The tensor without the last entry along an axis."""
    return Tensor(np.delete(value.array, -1, axis), value.axes)


def whole(value: Tensor) -> Tensor:
    """The tensor with integers in place of floats."""
    return Tensor(value.array.astype(np.int32), value.axes)


# Negatives.


def fault(
    algorithm: str,
    stage: str,
    name: str,
    error: str,
    argument: str,
    inputs: Mapping[str, Tensor],
    config: Mapping[str, Any],
    *,
    wrong_inputs: Mapping[str, Tensor] | None = None,
    wrong_config: Mapping[str, Any] | None = None,
    purpose: str = "",
) -> Definition:
    """A negative: `inputs` and `config` are right, and wrong with the arrays and options of `wrong_...` in them."""
    wrong_inputs, wrong_config = wrong_inputs or {}, wrong_config or {}
    return Definition(
        algorithm,
        f"negative_{name}",
        "negative",
        purpose or f"The argument {argument} is {ARTICLES[error]}.",
        {**inputs, **wrong_inputs},
        {**config, **wrong_config},
        (stage,),
        ("static_fault" if error != "ContractError" else "runtime_fault",),
        expect=Expectation(
            stage,
            error,
            argument,
            "runtime" if error == "ContractError" else "static",
            Twin({name: config[name] for name in wrong_config}, {name: inputs[name] for name in wrong_inputs}),
        ),
    )


def option(
    algorithm: str,
    stage: str,
    name: str,
    argument: str,
    inputs: Mapping[str, Tensor],
    config: Mapping[str, Any],
    **wrong: Any,
) -> Definition:
    """A wrong option: `config` is right, and wrong with `wrong` in it."""
    return fault(algorithm, stage, name, "ConfigError", argument, inputs, config, wrong_config=wrong)


def array_faults(
    algorithm: str,
    stage: str,
    argument: str,
    inputs: Mapping[str, Tensor],
    config: Mapping[str, Any],
    prefix: str = "",
    without: str = "",
    named: str = "",
) -> Iterator[Definition]:
    """NaN, a missing axis and a wrong dtype of one array; `without` one of these that is no fault of it.

    Infinity, too, of the array that needs no prefix, the main one of an algorithm. named: what the error calls the
    array, if not by its name among the inputs.
    """
    value, named = inputs[argument], named or argument.split("/")[-1]
    for name, error, wrong in (
        ("nan", "ContractError", with_value(value, np.nan)),
        ("infinite", "ContractError", with_value(value, np.inf)),
        ("rank", "ShapeError", flat(value)),
        ("dtype", "DtypeError", whole(value)),
    ):
        if name != without and not (prefix and name == "infinite"):
            yield fault(
                algorithm, stage, f"{prefix}{name}", error, named, inputs, config, wrong_inputs={argument: wrong}
            )


def integer_faults(
    algorithm: str,
    stage: str,
    argument: str,
    inputs: Mapping[str, Tensor],
    config: Mapping[str, Any],
    prefix: str = "",
    below: int | None = None,
) -> Iterator[Definition]:
    """A missing axis, a wrong dtype and a number out of range of an array of integers; `below`: what they must be."""
    value = inputs[argument]
    faults = [
        ("rank", "ShapeError", Tensor(value.array[0], value.axes[1:])),
        ("dtype", "DtypeError", Tensor(value.array.astype(np.float32), value.axes)),
        ("below_zero", "ContractError", Tensor(value.array - value.array.max() - 1, value.axes)),
    ]
    if below is not None:
        faults.append(("too_large", "ContractError", Tensor(value.array + below, value.axes)))
    for name, error, wrong in faults:
        purpose = f"The argument {argument} is out of range." if error == "ContractError" else ""
        name = f"{prefix}{name}"
        yield fault(
            algorithm, stage, name, error, argument, inputs, config, wrong_inputs={argument: wrong}, purpose=purpose
        )


def size_faults(
    algorithm: str,
    stage: str,
    inputs: Mapping[str, Tensor],
    config: Mapping[str, Any],
    prefix: str = "",
    **axes: int,
) -> Iterator[Definition]:
    """One entry less along an axis of each array named, `__` for `/`."""
    for name, axis in axes.items():
        array = name.replace("__", "/")
        named = array.split("/")[-1]
        wrong = {array: shorter(inputs[array], axis)}
        yield fault(algorithm, stage, f"{prefix}{named}_size", "ShapeError", named, inputs, config, wrong_inputs=wrong)


# Routers.


def small_experts() -> dict[str, Tensor]:
    """Experts of the sizes of the negatives."""
    _, _, e, d = SMALL
    return experts("negative/experts", e, d, 2, d)


def router_inputs(**parameters: Tensor) -> dict[str, Tensor]:
    """Tokens, experts, and the parameters of a router; without any, a kernel."""
    _, _, e, d = SMALL
    parameters = parameters or {"kernel": kernel("negative/kernel", d, e)}
    given = {f"router/{name}": value for name, value in parameters.items()}
    drawn = tokens("negative/router", (SMALL.groups, SMALL.tokens, d))
    return {"tokens": drawn, **given, **small_experts()}


def router_config(**fields: Any) -> dict[str, Any]:
    """The configuration of a router for these inputs."""
    return {"tokens": SMALL.tokens, "experts": SMALL.experts, "width": SMALL.width} | fields


def router_faults(router: str, inputs: Mapping[str, Tensor], **options: tuple[Any, Any]) -> Iterator[Definition]:
    """Faults in the configuration of a router: the right and the wrong value of each option."""
    for field, (right, wrong) in options.items():
        good = router_config(**{field: right})
        argument = ARGUMENTS.get(field, field)
        yield option(router, "route", field, argument, inputs, {"router": good}, router={**good, field: wrong})
