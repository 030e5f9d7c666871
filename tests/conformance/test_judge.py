"""Comparators are distrusted: each is shown to fail on what is just wrong, and to pass on what is just right."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import moespec.backends.numpy as reference
from moespec.conformance import matrix, report, suite
from moespec.conformance.format import Value
from moespec.conformance.judge import CONSTANTS, LANES, certified, compare, tolerance
from moespec.conformance.negatives import verdict
from moespec.conformance.results import CaseResult, Outcome
from moespec.conformance.runner import run_lane
from moespec.conformance.target import Target
from moespec.spec import ALGORITHMS, errors

CASES = suite.load()
BY_ID = {case.id: case for case in CASES}
ROUNDOFF = {"f64": 2.0**-53, "f32": 2.0**-24, "bf16": 2.0**-8}
TINY = {"f64": 2.0**-1022, "f32": 2.0**-126, "bf16": 2.0**-126}


def values(algorithm, kind):
    for case in CASES:
        if case.algorithm == algorithm:
            for stage in case.stages:
                yield from ((f"{case.id} {stage.name}/{n}", v) for n, v in stage.outputs.items() if v.kind == kind)
            if case.gradients is not None:
                yield from ((f"{case.id} d/d{n}", v) for n, v in case.gradients.wrt.items() if v.kind == kind)


def bound(value, lane):
    """The tolerance, written again."""
    scale = np.abs(value.array) if isinstance(value.scale, str) else value.scale
    return CONSTANTS[value.constant][0] * ROUNDOFF[lane] * scale + TINY[lane]


def around(want, size, sign):
    """Results off by 0.99 and by 1.01 of the bound; in double precision by the next number on the right side of it."""
    inside, outside = want + 0.99 * sign * size, want + 1.01 * sign * size
    inside = np.where(np.abs(inside - want) > size, np.nextafter(inside, want), inside)
    return inside, np.where(np.abs(outside - want) <= size, np.nextafter(outside, sign * math.inf), outside)


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_float_of_every_vector_has_a_sharp_bound(algorithm, lane):
    for name, value in values(algorithm, "float"):
        size = bound(value, lane)
        np.testing.assert_allclose(size, tolerance(value, LANES[lane]), rtol=1e-15, err_msg=name)
        inside, outside = zip(*(around(value.array, size, sign) for sign in (1, -1)), strict=True)
        for got in inside:
            found = compare(value, got, LANES[lane])
            assert found.passed, (name, found.message)
            assert found.share > (0.66 if lane == "f64" else 0.98)  # in f64, two of nearly three numbers
        for number, index in enumerate(np.ndindex(value.array.shape)):
            got = value.array.copy()
            got[index] = outside[number % 2][index]
            found = compare(value, got, LANES[lane])
            assert not found.passed, (name, index)
            assert found.share > 1, (name, index)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_integer_of_every_vector_is_exact(algorithm):
    for name, value in values(algorithm, "int"):
        assert compare(value, value.array, LANES["bf16"]).passed, name
        assert compare(value, value.array.astype(np.int64), LANES["bf16"]).passed, name
        for number, index in enumerate(np.ndindex(value.array.shape)):
            got = value.array.copy()
            got[index] += 1 if number % 2 else -1
            assert not compare(value, got, LANES["bf16"]).passed, (name, index)


FLOAT = Value(np.array([[1.0, 0.0, -2.0]]), ("rows", "n"), "float", np.array([[4.0, 1.0, 2.0]]))
COPIED = Value(np.array([[1.0, 0.0, -2.0]]), ("rows", "n"), "float", "magnitude")
INTEGER = Value(np.array([[1, 0, 2]], np.int32), ("rows", "n"), "int")


@pytest.mark.parametrize("lane", LANES.values())
@pytest.mark.parametrize("value", [FLOAT, COPIED])
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_fails(value, lane, number):
    for index in np.ndindex(value.array.shape):
        got = value.array.copy()
        got[index] = number
        found = compare(value, got, lane)
        assert not found.passed
        assert "not finite" in found.message


@pytest.mark.parametrize("value", [FLOAT, COPIED, INTEGER])
def test_another_shape_fails(value):
    for got in (value.array[0], value.array.T, value.array[..., None], value.array[:, :2], value.array[0, 0], []):
        found = compare(value, got, LANES["bf16"])
        assert not found.passed
        assert "shape" in found.message
    one = Value(np.float64(1.0), (), "float", np.float64(1.0))
    assert not compare(one, [1.0], LANES["f64"]).passed


@pytest.mark.parametrize("dtype", [np.int32, bool, complex, object, str])
def test_a_float_of_another_dtype_fails(dtype):
    found = compare(COPIED, COPIED.array.astype(dtype), LANES["bf16"])
    assert not found.passed
    assert "dtype" in found.message


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_any_width_of_float_is_a_float(dtype):
    assert compare(COPIED, COPIED.array.astype(dtype), LANES["f64"]).passed


@pytest.mark.parametrize("dtype", [float, bool, complex, object, str])
def test_an_integer_of_another_dtype_fails(dtype):
    found = compare(INTEGER, INTEGER.array.astype(dtype), LANES["f64"])
    assert not found.passed
    assert "dtype" in found.message


def test_copies_of_zero_are_zero():
    assert compare(COPIED, [[1.0, -0.0, -2.0]], LANES["f64"]).passed
    assert not compare(COPIED, [[1.0, 1e-40, -2.0]], LANES["f64"]).passed
    assert compare(COPIED, [[1.0, 1e-40, -2.0]], LANES["f32"]).passed  # below the smallest normal number
    assert not compare(COPIED, [[1.0, 1e-37, -2.0]], LANES["f32"]).passed


def test_the_message_has_place_error_and_bound():
    got = FLOAT.array.copy()
    got[0, 2] = -2.5
    found = compare(FLOAT, got, LANES["f64"])
    assert found.share == pytest.approx(0.5 / (4 * 2.0**-53 * 2), rel=1e-12)
    for text in ("1 of 3 entries", "[0, 2]", "got -2.5", "expected -2", "error 0.5", "bound 8.88e-16"):
        assert text in found.message


def test_the_share_is_that_of_the_worst_entry():
    got = FLOAT.array + np.array([[0.5, 0.25, 0.125]]) * 4 * 2.0**-24 * FLOAT.scale
    assert compare(FLOAT, got, LANES["f32"]).share == pytest.approx(0.5, rel=1e-6)
    assert compare(FLOAT, FLOAT.array, LANES["f32"]).share == 0


# Choices that are too close to a tie.


@pytest.mark.parametrize(
    ("margin", "lanes"),
    [(0.0, []), (1e-16, []), (1e-14, ["f64"]), (1e-5, ["f64", "f32"]), (0.5, ["f64", "f32", "bf16"]), (None, [*LANES])],
)
def test_a_choice_is_certain_where_its_margin_exceeds_the_need(margin, lanes):
    decision = {"margin": margin, "needed": {"f64": 4.4e-16, "f32": 2.4e-7, "bf16": 1.6e-2}}
    assert [name for name, lane in LANES.items() if certified(decision, lane)] == lanes
    assert certified(None, LANES["bf16"])


def test_a_margin_that_is_just_needed_is_not_enough():
    assert not certified({"margin": 1e-3, "needed": {"f64": 1e-3}}, LANES["f64"])


def judged(case, **changed):
    """The result of a case in f64 on the numpy backend with some names replaced."""
    module = SimpleNamespace(**{**vars(reference), **changed})
    (result,) = run_lane(Target("changed", LANES["f64"], module), [case], "eager")
    return result


def uncertain(case):
    decisions = {stage.name: {"margin": 0.0, "needed": dict.fromkeys(LANES, 1e-6)} for stage in case.stages}
    return replace(case, decisions=decisions)


def rotated(scores, **options):
    """Wrong everywhere: the groups exchange their routings."""
    return reference.token_choice(scores[::-1], **options)


@pytest.mark.parametrize("id", ["token_choice/two_choices", "softmax_token_choice/values", "token_choice/gradient"])
def test_an_uncertain_choice_is_inconclusive_and_skipped(id):
    assert judged(BY_ID[id]).state == "pass"
    result = judged(uncertain(BY_ID[id]))
    assert result.state == "inconclusive"
    assert report.counts([result]) == (0, 0, 1)
    assert "too close to a tie for f64" in matrix.skips(report.Report("target", "changed", "", [result]))[0]


def test_an_uncertain_choice_decides_nothing():
    case = BY_ID["token_choice/two_choices"]
    assert judged(case, token_choice=rotated).state == "fail"
    assert judged(uncertain(case), token_choice=rotated).state == "inconclusive"


def test_an_exception_fails_whatever_is_certain():
    case = BY_ID["token_choice/two_choices"]

    def broken(*arguments, **options):
        raise RuntimeError("out of slots")

    for wanted in (case, uncertain(case)):
        result = judged(wanted, token_choice=broken)
        assert result.state == "error"
        assert "out of slots" in result.first.message
        assert report.counts([result]) == (0, 1, 0)


def test_a_result_that_is_missing_or_too_much_fails():
    case = BY_ID["moe_layer/soft"]

    def metrics(routing, change):
        found = reference.routing_metrics(routing)
        return change(found)

    fewer = judged(case, routing_metrics=lambda r: metrics(r, lambda f: {n: f[n] for n in f if n != "load"}))
    more = judged(case, routing_metrics=lambda r: metrics(r, lambda f: {**f, "luck": f["entropy"]}))
    assert (fewer.state, fewer.first.stage, fewer.first.message) == ("fail", "metrics/metrics/load", "missing")
    assert (more.state, more.first.stage) == ("fail", "metrics/metrics/luck")


@pytest.mark.parametrize("damage", ["half", "two tokens", "weight without token", "shape", "record"])
def test_what_is_no_sparse_routing_is_an_error(damage):
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

    result = judged(BY_ID["token_choice/two_choices"], token_choice=token_choice)
    assert result.state == "error"
    assert "MalformedError" in result.first.message


def test_states_count_as_passed_failed_or_skipped():
    states = {"pass": 0, "fail": 1, "error": 1, "not implemented": 2, "inconclusive": 2, "unchecked": 2}
    for state, place in states.items():
        result = CaseResult("a/b", "token_choice", "value", "f64", "eager", [Outcome("stage", state)])
        assert report.counts([result]) == tuple(int(place == i) for i in range(3))
        worst = replace(result, outcomes=[Outcome("one", "pass"), Outcome("two", state)])
        assert worst.state == state


def test_nothing_judged_is_no_pass():
    assert CaseResult("a/b", "token_choice", "value", "f64", "eager").state == "error"


# Negatives.

NEGATIVES = [case for case in CASES if case.kind == "negative"]
STATIC = [case for case in NEGATIVES if case.expect.when == "static"]


def outcome(case, fault, twin=None):
    return verdict(case, fault, {} if twin is None else twin)[0]


@pytest.mark.parametrize("case", NEGATIVES, ids=lambda case: case.id)
def test_a_negative_wants_the_class_the_argument_and_a_twin_that_works(case):
    error, argument = getattr(errors, case.expect.error), case.expect.argument
    named = f"{argument}: expected something else"
    optional = "fail" if case.expect.when == "static" else "unchecked"
    assert outcome(case, error(named)) == "pass"
    assert outcome(case, type("Own", (error,), {})(named)) == "pass"
    assert outcome(case, type(case.expect.error, (RuntimeError,), {})(named)) == "pass"
    assert outcome(case, error("something is wrong")) == "fail"
    assert outcome(case, error(f"{argument}s: expected something else")) == "fail"
    assert outcome(case, error(f"my_{argument}: expected something else")) == "fail"
    assert outcome(case, ValueError(named)) == optional
    assert outcome(case, TypeError(named)) == optional
    assert outcome(case, {}) == optional
    assert outcome(case, error(named), twin=error(named)) == "fail"
    assert outcome(case, error(named), twin=RuntimeError("no memory")) == "fail"


def states_of_negatives(function, **attributes):
    """The states of all negatives for a numpy backend whose every function is what `function` makes of it."""
    changed = {name: function(item) for name, item in vars(reference).items() if callable(item) and name.islower()}
    for untouched in ("from_numpy", "to_numpy", "compile"):
        del changed[untouched]
    changed["CAPACITY_RULES"] = {name: function(rule) for name, rule in reference.CAPACITY_RULES.items()}
    changed["ROUTERS"] = {n: replace(r, route=function(r.route)) for n, r in reference.ROUTERS.items()}
    module = SimpleNamespace(**{**vars(reference), **changed, **attributes})
    return {r.id: r.state for r in run_lane(Target("changed", LANES["f64"], module), NEGATIVES, "eager")}


def test_the_specification_passes_every_negative():
    assert set(states_of_negatives(lambda item: item).values()) == {"pass"}


def test_a_target_that_refuses_everything_fails():
    arguments = " ".join({case.expect.argument for case in NEGATIVES})
    kinds = (errors.ConfigError, errors.ShapeError, errors.DtypeError, errors.ContractError)
    everything = type("Everything", kinds, {})

    def refuse(*positional, **options):
        raise everything(arguments)

    # What is checked before the target is reached cannot be refused by it: the configuration of a router.
    assert set(states_of_negatives(lambda item: refuse).values()) == {"fail"}


def test_a_target_that_raises_another_class_fails():
    def rename(item):
        def call(*positional, **options):
            try:
                return item(*positional, **options)
            except errors.SpecError as error:
                raise ValueError(str(error)) from error

        return call

    runtime = [case for case in NEGATIVES if case.expect.when == "runtime"]
    direct = [case for case in STATIC if not case.id.startswith(tuple(reference.ROUTERS))]
    for promised, expected in ((False, "unchecked"), (True, "fail")):
        states = states_of_negatives(rename, checks_values=promised)
        assert {states[case.id] for case in direct} == {"fail"}
        assert {states[case.id] for case in runtime} == {expected}


def test_a_target_that_does_not_name_the_argument_fails():
    def silence(item):
        def call(*positional, **options):
            try:
                return item(*positional, **options)
            except errors.SpecError as error:
                raise type(error)("invalid") from error

        return call

    states = states_of_negatives(silence)
    assert {states[case.id] for case in NEGATIVES if not case.id.startswith(tuple(reference.ROUTERS))} == {"fail"}
