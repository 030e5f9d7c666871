"""Error cases that follow from signatures, on the specification and on every backend; and what is smooth has a gradient."""

import importlib
import re
from collections import defaultdict
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


@pytest.fixture(scope="module", params=["numpy", "torch", "jax"])
def target(request):
    """A backend. JAX shortens the traceback of every exception, which takes longer than to trace a small function."""
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


# Algorithms, stages, and inputs of a stage that have no gradient.
NOT_SMOOTH = {
    **dict.fromkeys(("batch_priority", "importance_score_order"), "an order is not a number"),
    **dict.fromkeys(("base_greedy",), "an assignment is not a number"),
    **dict.fromkeys(("moco/moco_loss/first_key", "moco/moco_loss/second_key"), "keys are constants"),
    **dict.fromkeys(("biased_scores", "group_limited_scores"), "they only select, and carry none"),
    "balance_loss/balance_loss/load": "it counts, and carries none",
    **dict.fromkeys(("required_biases", "quantile_bias"), "a state is moved by an update, and carries none"),
    **dict.fromkeys(("capacity_thresholds", "moved_thresholds"), "a state is moved by an update, and carries none"),
    "capacity_predictor/capacity_logits/tokens": "they are constants of the predictor",
    "batch_expert_choice/moe_layer/state/thresholds": "no gradient reaches what a router keeps",
    "balance_bias": "a state is moved by an update, and carries none",
    "sigmoid_token_choice/moe_layer/state/bias": "it only selects, and carries none",
    "gshard_keep": "whether a choice is made is not a number",
    "gshard_sample": "its scores only select, and carry none",
    **dict.fromkeys(("batchwise_mask", "threshold_mask"), "a mask is not a number"),
    **dict.fromkeys(("excess_gates", "renewed_penalty"), "no gradient reaches what a router keeps"),
    "momentum_update": "no gradient reaches what is averaged",
    **dict.fromkeys(
        (
            "relu/moe_layer/state/penalty",
            "relu_routing/relu_loss/penalty",
            "capacity_predictor/scores_above/thresholds",
        ),
        "no gradient reaches what a router keeps",
    ),
    "dropout/dropout/draws": "whether an entry is kept is not a number",
    "threefry/box_muller/uniform": "random numbers are drawn, not trained",
    **dict.fromkeys(("token_ids", "hash_tables", "hash_table_of"), "tables and ids are made before training"),
    "hash/moe_layer/router/tables": "a constant: the numbers of the experts",
    "sparse_transport_affinity": "the plan only selects, and carries none",
    **dict.fromkeys(("routing_metrics", "routing_statistics"), "they are logged, not trained by"),
    "capped_affinity": "it only selects, and carries none",
    "array_operations": "operations of the framework",
    **dict.fromkeys(("base/moe_layer/noise", "base_layers/base_assignment/noise"), "it only deals tokens to shards"),
    "gshard/moe_layer/noise": "it only decides which second experts are kept",
    **dict.fromkeys(
        (
            *("batch_priority/token_choice", "dselect_k_gate/dselect_k_codes", "sparse_transport/router_logits"),
            *("moe_layer/token_choice", "moe_layer/expert_choice", "moe_layer/soft_routing"),
            *("moe_layer/dselect_k_routing", "moe_layer/router_logits", "expert_choice/router_logits"),
            *("gshard/router_logits", "noisy_top_k_affinity/router_logits", "token_choice/router_logits"),
            *("balance_loss/router_logits", "gated_experts/token_choice"),
        ),
        "an algorithm of its own, and here a part of what is derived",
    ),
}


def test_every_float_input_has_a_gradient():
    """By stage; of a router at its end, which has all its inputs. Models are trained: their trajectories have theirs."""
    inputs, derived = defaultdict(set), defaultdict(set)
    for case in CASES:
        if case.expect is not None:
            continue
        stages, known = {stage.name: stage for stage in case.stages}, call.golden(case)
        routed = any(stage.router for stage in case.stages)
        for stage in case.stages[-1:] if routed else case.stages:
            if call.function(stage.call).run is None or call.function(stage.call).name == "array_operations":
                read = set(call.reads(stage, stages, known)) & case.inputs.keys()
                read = case.inputs.keys() if routed else read
                floats = {name for name in read if case.inputs[name].array.dtype.kind == "f"}
                inputs[f"{case.algorithm}/{stage.call}"] |= floats
        if case.gradients:
            stage = case.stages[-1] if routed else case.stage(case.gradients.stage)
            derived[f"{case.algorithm}/{stage.call}"] |= set(case.gradients.wrt)
    lacking = {f"{key}/{name}" for key in inputs for name in inputs[key] - derived[key]}
    lacking = sorted(key for key in lacking if not names_of(key) & set(NOT_SMOOTH))
    assert not lacking, "\n".join(lacking)


def names_of(key):
    """What an entry may call an input of a stage: its algorithm, its call, both, or all."""
    algorithm, function, _ = key.split("/", 2)
    return {algorithm, function, f"{algorithm}/{function}", key}
