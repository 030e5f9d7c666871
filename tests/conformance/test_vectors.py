"""The committed vectors: their form, their size, and that they cover what the registry lists."""

import json

import jsonschema_rs
import numpy as np
import pytest
from committed import BY_ID, CASES, of

from moespec.conformance import call, suite
from moespec.conformance.check.files import expected
from moespec.conformance.compare import CONSTANTS, DTYPES, certified, exact
from moespec.conformance.functions import FUNCTIONS
from moespec.conformance.golden.derived import all_definitions
from moespec.conformance.golden.generate import suite_text
from moespec.conformance.matrix_rows import ALGORITHMS
from moespec.conformance.report.page import flags

SCHEMA = json.loads((suite.VECTORS.parent / "schema.json").read_text())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_vector_fits_the_schema(algorithm):
    """What does not fit it is in test_suite.py."""
    validator = jsonschema_rs.Draft202012Validator(SCHEMA)
    for case in of(algorithm):
        manifest = json.loads((suite.VECTORS / f"{case.id}.json").read_text())
        errors = [f"{error.instance_path}: {error.message[:200]}" for error in validator.iter_errors(manifest)]
        assert not errors, case.id


def test_the_suite_file_and_the_definitions_are_of_these_vectors():
    assert (suite.VECTORS.parent / "suite.json").read_text() == suite_text()
    assert BY_ID.keys() == all_definitions().keys()


def test_flags_in_use_are_the_flags_defined():
    assert {flag for case in CASES for flag in case.flags} == set(flags())


def test_budget():
    """Of manifests and the arrays beside them: every step of every router is stored, so that a manifest runs by itself."""
    assert sum(path.stat().st_size for path in suite.VECTORS.glob("*/*")) <= 9 * 2**20


def test_inputs_are_exact_in_bfloat16():
    """But for those of cases that are about precision, which are inconclusive in it, and parameters of a model."""
    inexact = set()
    for case in CASES:
        tensors = [*case.inputs.items(), *([("probe", case.gradients.probe)] if case.gradients else ())]
        tensors += case.expect.valid.inputs.items() if case.expect else ()
        if not all(exact(tensor.array, DTYPES["bfloat16"]) for _, tensor in tensors):
            inexact.add(case.id)
    flagged = {case.id for case in CASES if "low_precision" in case.flags}
    assert inexact - flagged == {"zero_computation_experts/all_kinds"}  # parameters of a layer
    assert inexact > {id for id in flagged if id.endswith("/wide")}
    assert {case.kind for case in CASES if case.id in inexact} == {"value", "gradient", "near_tie"}


def test_every_public_function_of_an_algorithm_is_called():
    called = set()
    for case in CASES:
        stages, known = {stage.name: stage for stage in case.stages}, call.golden(case)
        paths = {path for stage in case.stages for path in call.names(stage, stages, known)}
        called |= {name for path in paths for name in (path.split(".")[0], *call.function(path).needs)}
    assert {name for algorithm in ALGORITHMS.values() for name in algorithm.functions} <= called


def test_every_stage_that_chooses_says_how_certain_it_is():
    for case in CASES:
        if case.expect is not None or "any_optimum" in case.flags:
            continue
        choosing = {stage.name for stage in case.stages if call.function(stage.call).choice}
        routes = {stage.name for stage in case.stages if stage.router} if choosing else set()
        assert choosing | routes <= set(case.decisions), case.id


@pytest.mark.parametrize("dtype", DTYPES)
def test_most_choices_of_the_suite_are_certain(dtype):
    made = [certified(decision, DTYPES[dtype]) for case in CASES for decision in case.decisions.values()]
    assert np.mean(made) == 1 if dtype == "float64" else np.mean(made) > 0.8


def facts(case, stage):
    """Which flags are true of an allocation."""
    values = {name: tensor.array for name, tensor in call.golden(case).items()}
    scores = values[stage.arguments["scores"]]
    slots = stage.outputs["slots"].array
    groups, tokens, experts = scores.shape
    filled = slots < tokens
    none = np.concatenate([scores, np.ones((groups, 1, experts))], 1)
    chosen = np.take_along_axis(none, np.swapaxes(slots, 1, 2).astype(int), 1)
    wanted = stage.options.get("choices", 1) * tokens
    found = {
        "empty_slot": not filled.all(),
        "uncovered_token": any(len({*group.ravel()} - {tokens}) < tokens for group in slots),
        "overflow_drop": (filled.sum(axis=(1, 2)) < wanted).any(),
        "zero_score_slots": (chosen == 0).any() or not filled.all(),
        "tie_order": any((np.diff(np.sort(scores, axis), axis=axis) == 0).any() for axis in (1, 2)),
    }
    return {flag for flag, true in found.items() if not true}


def test_flags_are_true_of_their_cases():
    untrue = set()
    for case in CASES:
        allocations = [
            stage for stage in case.stages if {"slots"} <= set(stage.outputs) and "scores" in stage.arguments
        ]
        untrue |= {(case.id, flag) for stage in allocations[-1:] for flag in facts(case, stage) & set(case.flags)}
    assert not untrue


def test_every_constant_is_used_and_has_a_reason():
    used = {value.constant for case in CASES for value in expected(case).values()}
    used |= {known.choice.constant for known in FUNCTIONS.values() if known.choice is not None}
    assert used == set(CONSTANTS)
    assert all(len(reason) > 40 for _, reason in CONSTANTS.values())
