"""Build error cases. Each error case differs from a valid case by one invalid input.

A compiled target must raise `static` errors (shapes, dtypes, options) while its code is traced. The specification must
also raise `runtime` errors (values), which a compiled target may omit.
"""

from collections.abc import Mapping
from dataclasses import replace
from inspect import signature
from typing import Any

from moespec import spec
from moespec.conformance import call
from moespec.conformance.author.definition import Definition
from moespec.conformance.format import Tensor

__all__ = ["invalid"]

KINDS = {
    "ConfigError": "out of range or unknown",
    "ShapeError": "of the wrong shape",
    "DtypeError": "of the wrong dtype",
    "ContractError": "not finite, or out of range",
}
"""Maps each error class to a description of the invalid argument."""


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
    """Return a copy of a valid case with changed inputs and options, so that the last call must raise the error.

    Options that the valid call omits are stored with their defaults.
    """
    stages, routed = valid.stages, valid.routed
    if options and routed is not None:
        routed = replace(routed, options={**routed.options, **options})
    elif options:
        *before, stage = stages
        parameters = signature(call.at(spec, stage.call)).parameters
        stage = replace(stage, options={**{name: parameters[name].default for name in options}, **stage.options})
        valid = replace(valid, stages=(*before, stage))
        stages = (*before, replace(stage, options={**stage.options, **options}))
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
