"""The committed vectors: their form, their size, and that they cover what the registry lists."""

import json
import re
import statistics
from pathlib import Path

import numpy as np
import pytest
from committed import BY_ID, CASES, of
from jsonschema import Draft202012Validator

from moespec.conformance import call, suite
from moespec.conformance.author.inputs import to_bfloat16
from moespec.conformance.check.files import expected
from moespec.conformance.check.results import COLUMNS
from moespec.conformance.compare import CONSTANTS, DTYPES, certified
from moespec.conformance.format import KINDS
from moespec.conformance.functions import FUNCTIONS
from moespec.conformance.golden.derived import all_definitions
from moespec.conformance.golden.generate import suite_text
from moespec.conformance.matrix_rows import ALGORITHMS
from moespec.conformance.report.page import flags
from moespec.spec import LEDGER, ROUTERS

SCHEMA = json.loads((suite.VECTORS.parent / "schema.json").read_text())
# Nothing selects in these, or what selects is a part of them.
WITHOUT_TIES = {
    *("biased_scores", "cosine_logits", "cosine_token_choice", "image_pooling"),
    *("capped_affinity", "contrastive_loss", "convolution", "embedding", "gated_experts", "gating_noise"),
    "hierarchical_load_loss",
    *(
        *("limoe", "image_pooling", "logit_cap", "mixer", "moco", "network", "router_jitter", "routing_statistics"),
        *("sigmoid_loss", "threefry"),
    ),
    *("threshold_loss", "vit"),
}
WITHOUT_ERRORS = {"network", "vit", "mixer", "gated_experts"}
PAGE = (Path(__file__).parents[2] / "docs" / "conformance.md").read_text()
LARGE = {"real_size"}
"""The flag of the cases that may be larger than the others."""


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_vector_fits_the_schema(algorithm):
    """What does not fit it is in test_loader.py."""
    Draft202012Validator.check_schema(SCHEMA)
    validator = Draft202012Validator(SCHEMA)
    for case in of(algorithm):
        manifest = json.loads((suite.VECTORS / f"{case.id}.json").read_text())
        errors = [f"{list(error.path)}: {error.message[:200]}" for error in validator.iter_errors(manifest)]
        assert not errors, case.id


def test_the_words_of_the_schema_are_those_of_the_code():
    assert SCHEMA["properties"]["class"]["enum"] == list(KINDS)
    assert sorted(kind for kinds in COLUMNS.values() for kind in kinds) == sorted(KINDS)
    assert SCHEMA["$defs"]["decision"]["properties"]["needed"]["required"] == list(DTYPES)


def test_the_suite_file_and_the_definitions_are_of_these_vectors():
    assert (suite.VECTORS.parent / "suite.json").read_text() == suite_text()
    assert BY_ID.keys() == all_definitions().keys()


def test_flags_in_use_are_the_flags_defined():
    assert {flag for case in CASES for flag in case.flags} == set(flags())


@pytest.mark.parametrize("flag", flags())
def test_a_flag_says_what_goes_wrong_and_what_follows_from_it(flag):
    meaning = flags()[flag]
    assert set(meaning) == {"bugType", "description", "effect", "links"}
    for text in (meaning["description"], meaning["effect"]):
        assert re.fullmatch(r"[A-Z].{40,}\.", text)
    assert all(link in LEDGER or link.startswith("https://") for link in meaning["links"])
    assert f"`{meaning['bugType']}`" in PAGE  # what the kinds of mistakes mean


def test_budgets():
    """Of manifests and the arrays beside them: every step of every router is stored, so that a manifest runs by itself."""
    sizes = [sum(path.stat().st_size for path in suite.VECTORS.glob(f"{case.id}.*")) for case in CASES]
    assert statistics.median(sizes) <= 8_000
    assert sum(sizes) <= 7_200_000


def test_sizes_are_small_but_for_a_few():
    """A token or a width of a case is small; "patch", "images" and such have their own axes."""
    limits = {"tokens": 32, "experts": 8, "width": 16}
    for case in CASES:
        for tensor in case.inputs.values():
            for axis, size in zip(tensor.axes, tensor.array.shape, strict=True):
                assert size <= limits.get(axis, 32) or LARGE & set(case.flags), (case.id, axis, size)
    assert sum(bool(LARGE & set(case.flags)) for case in CASES) <= 9


def test_inputs_are_exact_in_bfloat16():
    """But for the parameters of a router in a model, which are float32 in every dtype."""
    inexact = set()
    for case in CASES:
        tensors = [*case.inputs.items(), *([("probe", case.gradients.probe)] if case.gradients else ())]
        tensors += case.expect.valid.inputs.items() if case.expect else ()
        for name, tensor in tensors:
            if tensor.array.dtype == np.float32:
                finite = tensor.array[np.isfinite(tensor.array)]
                if not np.array_equal(finite, to_bfloat16(finite)):
                    inexact.add((case.id, name))
    assert inexact == {("vit/router_in_float32", "params/blocks/0/moe/router/kernel")}


def test_only_what_models_compute_with_is_rounded_to_bfloat16():
    """Logits, affinities, losses, weights and metrics are compared with the roundoff of float32."""
    models = {name for name, known in FUNCTIONS.items() if known.batched}
    network = {
        *("array_operations", "attention", "batch_norm", "expert_mlp", "gelu", "layer_norm", "moe_layer", "moe_mlp"),
        *("multi_hash_mlp", "convolution", "dropout", "patch_embed", "rescale"),
    }
    rounded = json.loads((suite.VECTORS.parent / "suite.json").read_text())["rounded"]
    assert rounded.keys() == models | network
    for name, results in rounded.items():
        outputs = FUNCTIONS[name].outputs
        assert set(results) == {result for result, output in outputs.items() if output.kind == "float"}


def test_a_choice_in_bfloat16_needs_the_margin_of_float32_unless_a_model_computes_what_it_sees():
    wide = {True: set(), False: set()}
    for case in CASES:
        for name, decision in case.decisions.items():
            if decision["margin"] is not None:
                needed, stage = decision["needed"], case.stage(name)
                exact = call.function(stage.call).batched and case.id != "vit/router_in_float32"
                wide[exact].add(needed["bfloat16"] == needed["float32"])
    assert wide == {True: {False}, False: {True}}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_has_cases_of_each_class(algorithm):
    kinds = {case.kind for case in of(algorithm)}
    assert "value" in kinds
    assert "tie" in kinds or algorithm in WITHOUT_TIES
    assert "negative" in kinds or algorithm in WITHOUT_ERRORS


def test_every_public_function_of_an_algorithm_is_called():
    called = set()
    for case in CASES:
        stages, known = {stage.name: stage for stage in case.stages}, call.golden(case)
        paths = {path for stage in case.stages for path in call.names(stage, stages, known)}
        called |= {name for path in paths for name in (path.split(".")[0], *call.function(path).needs)}
    assert {name for algorithm in ALGORITHMS.values() for name in algorithm.functions} <= called


def test_every_router_with_a_capacity_of_evaluation_has_a_case_that_sees_it():
    seen = {case.algorithm for case in CASES if "evaluation_capacity" in case.flags and case.expect is None}
    assert seen == {name for name, router in ROUTERS.items() if hasattr(router.Options, "eval_capacity_factor")}


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
