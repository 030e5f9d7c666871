"""The committed vectors: their form, their size, and that they cover what the registry lists."""

import copy
import json
import statistics

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from moespec.conformance import suite
from moespec.conformance.draw import to_bfloat16
from moespec.conformance.format import KINDS
from moespec.conformance.judge import CONSTANTS, LANES, certified
from moespec.conformance.programs import PROGRAMS
from moespec.conformance.results import COLUMNS
from moespec.spec import ALGORITHMS, ROUTERS

CASES = suite.load()
SCHEMA = json.loads((suite.FOLDER / "schema.json").read_text())
VALIDATOR = Draft202012Validator(SCHEMA)
# Nothing selects in these, or what selects is a part of them.
WITHOUT_TIES = {"gating_noise", "router_jitter", "network", "vit", "mixer"}
WITHOUT_NEGATIVES = {"network", "vit", "mixer"}
LARGE = {"real_size"}
"""The flag of the cases that may be larger than the others."""


def manifest(id):
    return json.loads((suite.VECTORS / f"{id}.json").read_text())


def of(algorithm):
    return [case for case in CASES if case.algorithm == algorithm]


def test_the_schema_is_a_schema():
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_vector_fits_the_schema(algorithm):
    for case in of(algorithm):
        errors = [f"{list(error.path)}: {error.message[:200]}" for error in VALIDATOR.iter_errors(manifest(case.id))]
        assert not errors, case.id


BROKEN = {
    "token_choice/tied": (
        lambda m: m.pop("purpose"),
        lambda m: m.update(schema=2),
        lambda m: m.update(made="today"),
        lambda m: m.update({"class": "random"}),
        lambda m: m.update({"class": "negative"}),
        lambda m: m.update({"class": "gradient"}),
        lambda m: m.update(id="../tied"),
        lambda m: m.update(revision=0),
        lambda m: m.update(flags=["tie_order", "tie_order"]),
        lambda m: m.pop("stages"),
        lambda m: m.update(stages=[]),
        lambda m: m.update(tensors={"file": "../tied.safetensors", "sha256": "0" * 64}),
        lambda m: m.update(tensors={"file": "tied.safetensors", "sha256": "0"}),
        lambda m: m["inputs"].update({"../scores": m["inputs"]["scores"]}),
        lambda m: m["inputs"]["scores"].update(dtype="float64"),
        lambda m: m["inputs"]["scores"].update(tensor="inputs/scores"),
        lambda m: m["inputs"]["scores"].pop("data"),
        lambda m: m["inputs"]["scores"].update(data="large"),
        lambda m: m["inputs"]["scores"].update(shape=[2, 0, 3]),
        lambda m: m["stages"][0]["outputs"]["slots"].update(data=[0.5]),
        lambda m: m["stages"][0]["outputs"]["slots"].update(scale="magnitude"),
        lambda m: m["stages"][0]["outputs"]["weights"].pop("scale"),
        lambda m: m["stages"][0]["outputs"]["weights"].update(scale="unit"),
        lambda m: m["stages"][0]["outputs"]["weights"].update(dtype="float32"),
        lambda m: m["stages"][0]["outputs"]["weights"].update(data="nan"),
        lambda m: m["stages"][0].update(outputs={}),
        lambda m: m["decisions"]["allocation"].update(margin=0.5),
        lambda m: m["decisions"]["allocation"].update(margin=0.5, needed={"f32": 1e-6}),
    ),
    "token_choice/negative_nan": (
        lambda m: m.pop("expect"),
        lambda m: m.update(stages=[]),
        lambda m: m["expect"].pop("twin"),
        lambda m: m["expect"].update(error="ValueError"),
        lambda m: m["expect"].update(when="later"),
        lambda m: m["expect"].update(text="NaN"),
    ),
    "token_choice/gradient": (
        lambda m: m.pop("gradients"),
        lambda m: m["gradients"].update(wrt={}),
        lambda m: m["gradients"].pop("probe"),
        lambda m: m["gradients"]["wrt"]["scores"].update(kind="int"),
    ),
}


@pytest.mark.parametrize(("id", "number"), [(id, n) for id, edits in BROKEN.items() for n in range(len(edits))])
def test_a_broken_manifest_does_not_fit_the_schema(id, number):
    good = manifest(id)
    broken = copy.deepcopy(good)
    BROKEN[id][number](broken)
    assert broken != good
    assert VALIDATOR.is_valid(good)
    assert not VALIDATOR.is_valid(broken)


def test_the_words_of_the_schema_are_those_of_the_code():
    assert SCHEMA["properties"]["class"]["enum"] == list(KINDS)
    assert sorted(kind for kinds in COLUMNS.values() for kind in kinds) == sorted(KINDS)
    assert SCHEMA["$defs"]["decision"]["properties"]["needed"]["required"] == list(LANES)


def test_the_suite_file_is_what_the_vectors_give():
    assert (suite.FOLDER / "suite.json").read_text() == suite.suite_text()


def test_flags_in_use_are_the_flags_defined():
    assert {flag for case in CASES for flag in case.flags} == set(suite.flags())


@pytest.mark.parametrize("flag", suite.flags())
def test_a_flag_says_what_goes_wrong_and_why_it_matters(flag):
    meaning = suite.flags()[flag]
    assert set(meaning) == {"goes_wrong", "matters"}
    assert all(text[0].isupper() and text.endswith(".") and len(text) > 40 for text in meaning.values())


def test_budgets():
    sizes = [
        sum(path.stat().st_size for path in suite.VECTORS.glob(f"{case.id}.*"))  # manifest and arrays
        for case in CASES
    ]
    assert statistics.median(sizes) <= 8_000
    assert sum(sizes) <= 4_000_000


def test_sizes_are_small_but_for_a_few():
    """A token or a width of a case is small; "patch", "images" and such have their own axes."""
    limits = {"tokens": 32, "experts": 8, "width": 16}
    for case in CASES:
        for tensor in case.inputs.values():
            for axis, size in zip(tensor.axes, tensor.array.shape, strict=True):
                assert size <= limits.get(axis, 32) or LARGE & set(case.flags), (case.id, axis, size)
    assert sum(bool(LARGE & set(case.flags)) for case in CASES) <= 5


def test_inputs_are_exact_in_bfloat16():
    for case in CASES:
        tensors = [*case.inputs.values(), *((case.gradients.probe,) if case.gradients else ())]
        tensors += case.expect.twin.inputs.values() if case.expect else ()
        for tensor in tensors:
            if tensor.array.dtype == np.float32:
                finite = tensor.array[np.isfinite(tensor.array)]
                assert np.array_equal(finite, to_bfloat16(finite)), case.id


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_coverage(algorithm):
    kinds = {case.kind for case in of(algorithm)}
    assert "value" in kinds
    assert "tie" in kinds or algorithm in WITHOUT_TIES
    assert "negative" in kinds or algorithm in WITHOUT_NEGATIVES


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_public_function_of_an_algorithm_is_called(algorithm):
    called = {name for case in of(algorithm) for stage in case.stages for name in stage.calls}
    assert set(ALGORITHMS[algorithm].functions) <= called


def test_no_case_is_of_an_algorithm_that_is_not_listed():
    assert {case.algorithm for case in CASES} == set(ALGORITHMS)


def test_cases_repeat_what_the_registry_says():
    for case in CASES:
        algorithm = ALGORITHMS[case.algorithm]
        assert (case.revision, case.section, case.cites) == (algorithm.revision, algorithm.section, algorithm.cites)


def test_every_algorithm_whose_choice_is_observable_says_how_certain_it_is():
    for case in CASES:
        selecting = [stage.name for stage in case.stages if {"slots", "order"} & set(stage.outputs)]
        if case.algorithm in ("hash_routing", "hash"):
            continue  # a table of integers decides
        assert set(selecting) <= set(case.decisions), case.id


def test_every_choice_is_certain_in_double_precision():
    assert not {case.id for case in CASES for made in case.decisions.values() if not certified(made, LANES["f64"])}


@pytest.mark.parametrize("lane", LANES)
def test_most_choices_of_the_suite_are_certain(lane):
    made = [decision for case in CASES for decision in case.decisions.values()]
    assert np.mean([certified(decision, LANES[lane]) for decision in made]) > 0.8


def facts(case):
    """Which flags are true of the sparse routing of a case that has one, and scores."""
    values = {name: tensor.array for name, tensor in case.inputs.items()}
    for stage in case.stages:
        values |= {name: value.array for name, value in stage.outputs.items() if name not in values}
    slots, scores = values["slots"], values.get("plan", values["scores"])
    groups, tokens, experts = scores.shape
    filled = slots < tokens
    none = np.concatenate([scores, np.ones((groups, 1, experts))], 1)
    chosen = np.take_along_axis(none, np.swapaxes(slots, 1, 2).astype(int), 1)
    options = case.config.get("router", case.config)
    default = ROUTERS[case.algorithm].defaults.get("choices", 1) if case.algorithm in ROUTERS else 1
    wanted = options.get("choices", default) * tokens
    found = {
        "empty_slot": not filled.all(),
        "uncovered_token": any(len({*group.ravel()} - {tokens}) < tokens for group in slots),
        "overflow_drop": (filled.sum(axis=(1, 2)) < wanted).any(),
        "zero_score_slots": (chosen == 0).any() or not filled.all(),
        "tie_order": any((np.diff(np.sort(scores, axis), axis=axis) == 0).any() for axis in (1, 2)),
    }
    return {flag: bool(true) for flag, true in found.items()}


def test_flags_are_true_of_their_cases():
    untrue = set()
    for case in CASES:
        names = {name for stage in case.stages for name in stage.outputs} | set(case.inputs)
        if {"slots", "scores"} <= names:
            true = facts(case)
            untrue |= {(case.id, flag) for flag in case.flags if not true.get(flag, True)}
    assert not untrue


def test_every_constant_is_used_and_has_a_reason():
    used = {value.constant for case in CASES for stage in case.stages for value in stage.outputs.values()}
    used |= {value.constant for case in CASES if case.gradients for value in case.gradients.wrt.values()}
    stages = [stage for program in PROGRAMS.values() for stage in program.values()]
    used |= {stage.choice.constant for stage in stages if stage.choice is not None}
    assert used == set(CONSTANTS)
    assert all(len(reason) > 40 for _, reason in CONSTANTS.values())
