"""Comparators are distrusted: each is shown to fail on what is just wrong, and to pass on what is just right."""

import math
from dataclasses import replace
from itertools import cycle
from types import SimpleNamespace

import numpy as np
import pytest
from committed import BY_ID, CASES, of, replaced, results_of

import moespec.backends.numpy as reference
from moespec.conformance import compare as comparison
from moespec.conformance.author.inputs import to_bfloat16
from moespec.conformance.check.files import check, expected
from moespec.conformance.check.results import CaseResult, Report, counts
from moespec.conformance.check.run import verdict
from moespec.conformance.compare import ALL_DTYPES, CONSTANTS, DTYPES, certified, compare, exact, precision, tolerance
from moespec.conformance.failure import Failure
from moespec.conformance.format import Value
from moespec.conformance.functions import FUNCTIONS
from moespec.conformance.report import matrix
from moespec.models.tensors import StoredTensor
from moespec.spec import errors

ALGORITHMS = sorted({case.algorithm for case in CASES})
ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "bfloat16": 2.0**-8}
TINY = {"float64": 2.0**-1022, "float32": 2.0**-126, "bfloat16": 2.0**-126}


def values(algorithm, *kinds):
    """Every expected result and gradient of some kinds."""
    for case in of(algorithm):
        yield from ((f"{case.id} {name}", v) for name, v in expected(case).items() if v.kind in kinds)


def bound(value, dtype):
    """The tolerance, written again."""
    scale = np.abs(value.array) if isinstance(value.scale, str) else value.scale
    c = max(CONSTANTS[value.constant][0], 16 if dtype == "float64" else 0)
    return c * ROUNDOFF[dtype] * scale + TINY[dtype]


def around(want, size, sign):
    """Results off by 0.99 and by 1.01 of the bound; in double precision by the next number on the right side of it."""
    inside, outside = want + 0.99 * sign * size, want + 1.01 * sign * size
    inside = np.where(np.abs(inside - want) > size, np.nextafter(inside, want), inside)
    return inside, np.where(np.abs(outside - want) <= size, np.nextafter(outside, sign * math.inf), outside)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_float_of_every_vector_has_a_sharp_bound(algorithm):
    """Each in one dtype of three, by turns."""
    for (name, value), dtype in zip(values(algorithm, "float"), cycle(DTYPES), strict=False):
        size = bound(value, dtype)
        np.testing.assert_allclose(size, tolerance(value, DTYPES[dtype]), rtol=1e-15, err_msg=name)
        inside, outside = zip(*(around(value.array, size, sign) for sign in (1, -1)), strict=True)
        for got in inside:
            outcome = compare(value, got, DTYPES[dtype])
            assert outcome.passed, (name, outcome.message)
            # In float64 the bound may be two of nearly three numbers away.
            assert outcome.fraction > (0.66 if dtype == "float64" else 0.98) or not value.array.size
        for number, index in enumerate(np.ndindex(value.array.shape)):
            got = value.array.copy()
            got[index] = outside[number % 2][index]
            outcome = compare(value, got, DTYPES[dtype])
            assert not outcome.passed, (name, index)
            assert outcome.fraction > 1, (name, index)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_integer_and_bool_of_every_vector_is_exact(algorithm):
    for name, value in values(algorithm, "int", "bool"):
        widths = (np.int32, np.int64) if value.kind == "int" else (np.bool_,)
        assert all(compare(value, value.array.astype(width), DTYPES["bfloat16"]).passed for width in widths), name
        for number, index in enumerate(np.ndindex(value.array.shape)):
            got = value.array.copy()
            got[index] = ~got[index] if value.kind == "bool" else got[index] + (1 if number % 2 else -1)
            assert not compare(value, got, DTYPES["bfloat16"]).passed, (name, index)


FLOAT = Value(np.array([[1.0, 0.0, -2.0]]), ("rows", "n"), "float", np.array([[4.0, 1.0, 2.0]]))
COPIED = replace(FLOAT, scale="magnitude")
INTEGER = Value(np.array([[1, 0, 2]], np.int32), ("rows", "n"), "int")
BOOL = Value(np.array([[True, False, True]]), ("rows", "n"), "bool")


@pytest.mark.parametrize("dtype", DTYPES.values())
@pytest.mark.parametrize("value", [FLOAT, COPIED])
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_fails(value, dtype, number):
    for index in np.ndindex(value.array.shape):
        got = value.array.copy()
        got[index] = number
        outcome = compare(value, got, dtype)
        assert not outcome.passed
        assert "not finite" in outcome.message


@pytest.mark.parametrize("value", [FLOAT, COPIED, INTEGER, BOOL])
def test_another_shape_fails(value):
    for got in (value.array[0], value.array.T, value.array[..., None], value.array[:, :2], value.array[0, 0], []):
        outcome = compare(value, got, DTYPES["bfloat16"])
        assert not outcome.passed
        assert "shape" in outcome.message
    assert not compare(Value(np.float64(1.0), (), "float", np.float64(1.0)), [1.0], DTYPES["float64"]).passed


@pytest.mark.parametrize(
    ("value", "dtypes"),
    [
        (COPIED, (np.int32, bool, complex, object, str)),
        (INTEGER, (float, bool, complex, object, str)),
        (BOOL, (float, int, complex, object, str)),
    ],
)
def test_another_kind_of_dtype_fails(value, dtypes):
    for dtype in dtypes:
        outcome = compare(value, value.array.astype(dtype), DTYPES["bfloat16"])
        assert not outcome.passed
        assert "dtype" in outcome.message


def test_copies_of_zero_are_zero():
    for number, dtype, passes in (
        (-0.0, "float64", True),
        (1e-40, "float64", False),
        (1e-40, "float32", True),  # below the smallest normal number
        (1e-37, "float32", False),
    ):
        assert compare(COPIED, [[1.0, number, -2.0]], DTYPES[dtype]).passed == passes


def test_the_message_has_place_error_and_tolerance():
    got = FLOAT.array.copy()
    got[0, 2] = -2.5
    outcome = compare(FLOAT, got, DTYPES["float64"])
    assert outcome.fraction == pytest.approx(0.5 / (16 * 2.0**-53 * 2), rel=1e-12)
    for text in ("1 of 3 entries", "row 0, n 2", "got -2.5", "expected -2", "error 0.5", "allowed 3.55e-15"):
        assert text in outcome.message


def test_the_fraction_is_that_of_the_worst_entry():
    got = FLOAT.array + np.array([[0.5, 0.25, 0.125]]) * 4 * 2.0**-24 * FLOAT.scale
    assert compare(FLOAT, got, DTYPES["float32"]).fraction == pytest.approx(0.5, rel=1e-6)
    assert compare(FLOAT, FLOAT.array, DTYPES["float32"]).fraction == 0


# Precision that is promised whatever the dtype.


@pytest.mark.parametrize("dtype", DTYPES)
def test_only_bfloat16_has_results_of_another_precision(dtype):
    for name, known in FUNCTIONS.items():
        for result, output in known.outputs.items():
            wide = dtype == "bfloat16" and not output.rounded
            assert precision(name, result, DTYPES[dtype]).name == ("float32" if wide else dtype), (name, result)


@pytest.mark.parametrize(
    ("id", "result", "state"),
    [
        ("softmax_affinity/values", "softmax_affinity/scores", "fail"),
        ("z_loss/values", "z_loss/loss", "fail"),
        ("softmax_token_choice/values", "token_choice/weights", "fail"),
        ("softmax_token_choice/values", "route/weights", "fail"),
        ("softmax_token_choice/values", "moe_layer/output", "pass"),
        ("moe_layer/experts_tanh", "expert_mlp/outputs", "pass"),
        ("network/layer_norm", "layer_norm/normalised", "pass"),
        ("vit/soft_moe", "forward/logits", "pass"),
        ("softmax_affinity/gradient", "gradient/logits", "pass"),
    ],
)
def test_files_in_bfloat16_may_round_what_models_compute_with_and_nothing_else(id, result, state):
    case = BY_ID[id]
    written = StoredTensor("BF16", to_bfloat16(expected(case)[result].array))
    (found,) = check({id: {result: written}}, [case], DTYPES["bfloat16"])
    (outcome,) = [outcome for outcome in found.outcomes if outcome.state != "not implemented"]
    assert (outcome.stage, outcome.state) == (result, state)


# Choices that are too close to a tie.


@pytest.mark.parametrize(
    ("margin", "certain"),
    [(0.0, 0), (1e-16, 0), (4.4e-16, 0), (1e-14, 1), (2.4e-7, 1), (1e-5, 2), (1.6e-2, 2), (0.5, 3), (None, 3)],
)
def test_a_choice_is_certain_where_its_margin_exceeds_the_need(margin, certain):
    decision = {"margin": margin, "needed": {"float64": 4.4e-16, "float32": 2.4e-7, "bfloat16": 1.6e-2}}
    assert [certified(decision, dtype) for dtype in DTYPES.values()] == [n < certain for n in range(3)]


def compared(case, **names):
    """The result of a case in float64 on the NumPy backend with some names replaced."""
    (result,) = results_of(replaced(**names), [case])
    return result


def uncertain(case):
    decisions = {stage.name: {"margin": 0.0, "needed": dict.fromkeys(DTYPES, 1e-6)} for stage in case.stages}
    return replace(case, decisions=decisions)


@pytest.mark.parametrize("id", ["token_choice/two_choices", "softmax_token_choice/values", "token_choice/gradient"])
def test_an_uncertain_choice_is_inconclusive_and_skipped(id):
    assert compared(BY_ID[id]).state == "pass"
    result = compared(uncertain(BY_ID[id]))
    assert result.state == "inconclusive"
    assert counts([result]) == (0, 0, 1)
    assert "too close to a tie for float64" in matrix.skips(Report("target", "changed", "", [result]))[0]


def test_an_uncertain_choice_decides_nothing():
    """Where the groups exchange their routings, nothing is right."""

    def exchanged(scores, **options):
        return reference.token_choice(scores[::-1], **options)

    case = BY_ID["token_choice/two_choices"]
    assert compared(case, token_choice=exchanged).state == "fail"
    assert compared(uncertain(case), token_choice=exchanged).state == "inconclusive"


def test_an_exception_fails_whatever_is_certain():
    def broken(*arguments, **options):
        raise RuntimeError("out of slots")

    case = BY_ID["token_choice/two_choices"]
    for each in (case, uncertain(case)):
        result = compared(each, token_choice=broken)
        assert result.state == "error"
        assert "out of slots" in result.first.message
        assert counts([result]) == (0, 1, 0)


def test_a_missing_result_and_one_too_many_fail():
    def fewer(routing):
        return {name: value for name, value in reference.routing_metrics(routing).items() if name != "load"}

    def more(routing):
        return {**reference.routing_metrics(routing), "luck": 1.0}

    case = BY_ID["moe_layer/soft"]
    lost, won = compared(case, routing_metrics=fewer), compared(case, routing_metrics=more)
    assert (lost.state, lost.first.stage, lost.first.message) == ("fail", "routing_metrics/load", "missing")
    assert (won.state, won.first.stage) == ("fail", "routing_metrics/luck")


@pytest.mark.parametrize("damage", ["half", "two tokens", "weight without token", "shape", "record"])
def test_what_is_not_a_sparse_routing_is_an_error(damage):
    def token_choice(scores, **options):
        routing = reference.token_choice(scores, **options)
        dispatch, combine = (array.copy() for array in routing.dense())
        if damage == "half":
            dispatch *= 0.5
        elif damage == "two tokens":
            dispatch[:, :, 0, 0] = 1
        elif damage == "weight without token":
            combine[:, :, 0] = 0.5
        elif damage == "shape":
            combine = combine[:, :, :, :1]
        token = routing.token[..., ::-1] if damage == "record" else routing.token
        dense = SimpleNamespace(dispatch=dispatch, combine=combine)
        return SimpleNamespace(dense=lambda: dense, token=token, weight=routing.weight)

    result = compared(BY_ID["token_choice/two_choices"], token_choice=token_choice)
    assert result.state == "error"
    assert "MalformedError" in result.first.message


def test_no_outcome_is_not_a_pass():
    assert CaseResult("a/b", "token_choice", "value", "float64", "eager").state == "error"


# Error cases.

ERROR_CASES = [case for case in CASES if case.expect is not None]


def outcome(case, invalid, valid=None):
    results = [Failure.of(each) if isinstance(each, Exception) else {} for each in (invalid, valid)]
    return verdict(case, *results)[0]


@pytest.mark.parametrize("case", ERROR_CASES, ids=lambda case: case.id)
def test_an_error_case_wants_the_class_the_argument_and_a_valid_counterpart(case):
    error, argument = getattr(errors, case.expect.error), case.expect.argument
    named = f"{argument}: expected something else"
    optional = "fail" if case.expect.when == "static" else "unchecked"
    for right in (error, type("Own", (error,), {}), type(case.expect.error, (RuntimeError,), {})):
        assert outcome(case, right(named)) == "pass"
    for text in ("something is wrong", f"{argument}s: expected something else", f"my_{argument}: expected"):
        assert outcome(case, error(text)) == "fail"
    for other in (ValueError(named), TypeError(named), {}):
        assert outcome(case, other) == optional
    for raised in (error(named), RuntimeError("no memory")):
        assert outcome(case, error(named), valid=raised) == "fail"


def test_a_target_that_rejects_everything_fails():
    """Also what is valid, with an error of every class that names the argument."""
    kinds = (errors.ConfigError, errors.ShapeError, errors.DtypeError, errors.ContractError)
    everything = type("Everything", kinds, {})

    def z_loss(logits):
        raise everything("logits")

    results = results_of(replaced(z_loss=z_loss), of("z_loss", kinds=["negative"]))
    assert {result.state for result in results} == {"fail"}


def test_float16_has_not_every_number():
    half, double = ALL_DTYPES["float16"], DTYPES["float64"]
    for number, held in ((1.5, True), (2.0**-24, True), (2.0**-25, False), (65536.0, False), (1 + 2.0**-11, False)):
        assert exact(np.array([number], np.float32), half) == held
        assert exact(np.array([number], np.float32), double)
    assert exact(np.array([np.nan, np.inf], np.float32), half)
    assert exact(np.array([1 << 20]), half)
    (outcome,) = comparison.compared(
        "z_loss", {"loss": Value(np.array([1e6]), ("groups",), "float")}, {"loss": [0]}, half, True
    )
    assert outcome.state == "inconclusive"
    decision = {"margin": 1e-3, "needed": {"float64": 0.0, "float32": 1e-7, "bfloat16": 0.004}}
    assert certified(decision, half)  # an eighth of 0.004 is enough
    assert not certified({**decision, "margin": 4e-4}, half)
