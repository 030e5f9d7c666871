"""Error cases that follow from signatures, on the specification and on every backend; and what is smooth has a gradient."""

import importlib
import re
from functools import partial

import numpy as np
import pytest
from committed import CASES

from moespec import spec
from moespec.conformance import call
from moespec.conformance.author.reference import Making, backend
from moespec.conformance.check.run import verdict
from moespec.conformance.check.target import Target, job_of
from moespec.conformance.compare import DTYPES
from moespec.conformance.failure import Failure
from moespec.conformance.golden.derived import derived, valid_calls

VALID = valid_calls(CASES)
WRONG = {path: [*derived(valid)] for path, valid in VALID.items()}
"""The derived error cases of each public function, by its path."""
UNDERIVED = {"mean", "stop_gradient", "slot_tokens"}
"""Public functions that no case calls."""


def test_every_public_function_has_derived_cases():
    functions = {name for name in spec.__all__ if callable(getattr(spec, name)) and name[0].islower()}
    functions |= {f"ROUTERS.{name}.route" for name in spec.ROUTERS}
    functions |= {f"CAPACITY_RULES.{name}" for name in spec.CAPACITY_RULES}
    assert functions - VALID.keys() == UNDERIVED
    of_routings = {"collapse_metrics", "cumulative_dispatch", "experts_per_token", "routing_metrics", "summed_dispatch"}
    assert {path for path, cases in WRONG.items() if not cases} == of_routings


def by_specification(case):
    """What a case's last call gives by the specification, group by group: results, or the exception."""
    making, stage = Making(case.inputs, {stage.name: stage for stage in case.stages}), case.stages[-1]
    try:
        result = call.result(backend(stage), stage, making.stages, making.tensors)
        return [result(group) for group in making.groups(stage)]
    except Exception as error:
        return error


def told(result):
    """Results, or the failure that stands for an exception."""
    return Failure.of(result) if isinstance(result, Exception) else result


def wrong_value(case):
    """What of a derived case its message has to say: the option, the dtype, the number."""
    for name, right in case.expect.valid.inputs.items():
        wrong = case.inputs[name].array
        if wrong.dtype != right.array.dtype:
            return {"float32": "float64"}.get(wrong.dtype.name, wrong.dtype.name)
        if wrong.dtype.kind == "f" and wrong.shape == right.array.shape:
            return str(wrong[~np.isfinite(wrong)][0])
    for name in case.expect.valid.options.keys() - {"options"}:
        return str(case.stages[-1].options[name]).replace(str(2**31), "32 bits")
    return ""


@pytest.mark.parametrize("path", WRONG)
def test_the_specification_raises_every_derived_error(path):
    """Of its class; the message begins with the name of an argument and has that which is wrong, with its value."""
    valid = by_specification(VALID[path])
    for case in WRONG[path]:
        error = by_specification(case)
        assert verdict(case, told(error), told(valid), required=True) == ("pass", ""), case.id
        assert re.match(r"[\w. ]+(\['\w+'\])?[:=]", str(error)), f"{case.id}: {error}"
        assert wrong_value(case) in str(error), f"{case.id}: {error}"


@pytest.fixture(scope="module", params=["numpy", "torch", pytest.param("jax", marks=pytest.mark.full)])
def target(request):
    """A backend. JAX shortens the traceback of every exception, which takes longer than to trace a small function; the suite has three
    errors of each function for it."""
    framework = pytest.importorskip(request.param)
    if request.param == "jax":
        framework.config.update("jax_traceback_filtering", "off")
    yield Target(f"moespec.backends.{request.param}", DTYPES["float64" if request.param == "numpy" else "float32"])
    if request.param == "jax":
        framework.config.update("jax_traceback_filtering", "auto")


def by_backend(target, case):
    """What a case's last call gives on a backend, in JAX only traced: results, or the exception."""
    job = job_of(case, case.stages[-1].name)
    try:
        function, arrays = job.bind(target), job.arrays(target)
        if target.name.endswith("jax") and job.traced:
            function = partial(importlib.import_module("jax").eval_shape, function)
        return function(arrays)
    except Exception as error:
        return error


@pytest.mark.parametrize("path", WRONG)
def test_every_backend_raises_the_derived_errors(target, path):
    """Those of values only where values are looked at. The options of routers are those of the specification."""
    valid = by_backend(target, VALID[path])
    for case in WRONG[path]:
        of_options = "options" in case.expect.valid.options
        if target.facts().checks_values or (case.expect.when == "static" and not of_options):
            assert verdict(case, told(by_backend(target, case)), told(valid), required=True) == ("pass", ""), case.id
