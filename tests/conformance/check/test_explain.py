"""Explanations: each relation is said of a target that has it, in the words of a table."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from committed import BY_ID, of, replaced, results_of

import moespec.backends.numpy as numpy
from moespec.conformance.author.variant import chosen_mask, module_of
from moespec.conformance.cases import variants
from moespec.conformance.check.explain import explain_failures
from moespec.conformance.check.match_variant import Known, match_variants
from moespec.conformance.check.results import CaseResult, with_other_runs
from moespec.conformance.compare import Outcome


def explained(module, ids):
    """The explanations of the failures of a module in a case, or in those of an algorithm."""
    cases = [BY_ID[ids]] if "/" in ids else [case for case in of(ids) if case.expect is None]
    results = explain_failures(results_of(module, cases), Known(cases))
    return [result.explanation for result in results if result.state != "pass"]


def after(name, change):
    """A function of the NumPy backend with something done to its result."""
    return {name: lambda *arrays, **options: change(getattr(numpy, name)(*arrays, **options))}


def weighted(factor):
    """Token choice whose weights are multiplied."""

    def routed(scores, **options):
        routing = numpy.token_choice(scores, **options)
        return routing._replace(weight=routing.weight * factor(routing, options))

    return {"token_choice": routed}


def second_choices_detached(scores, **options):
    return numpy.token_choice(scores, combine_scores=np.where(chosen_mask(scores, 1), scores, scores.real), **options)


def reordered(slots):
    def routed(scores, **options):
        routing = numpy.expert_choice(scores, **options)
        order = slots(routing.token)
        parts = (np.take_along_axis(x, order, axis=2) for x in (routing.token, routing.weight))
        return routing._replace(**dict(zip(("token", "weight"), parts, strict=True)), slot=None)

    return {"expert_choice": routed}


def last_place(axis, index, x):
    """A copy of an array whose last place on an axis is that of an index, or 0."""
    made, at = np.moveaxis(x.copy(), axis, 0), -1
    made[at] = 0 if index is None else made[index]
    return np.moveaxis(made, 0, axis)


def rounded(n, x):
    """Numbers with a significand of n bits."""
    fraction, exponent = np.frexp(x.real)
    return np.ldexp(np.round(fraction * 2.0**n), exponent - n) + (x - x.real)


affinity, z_loss = partial(after, "softmax_affinity"), partial(after, "z_loss")
NOISE = np.random.default_rng(0).normal(size=4096)
CUT = "it is 0 where it differs, only at 2nd choices: part of the gradient path is cut"
FIRST, FIRST_ALONE = (
    "token_choice/first_choices_first",
    {"token_choice": lambda scores, *, choices, **o: numpy.token_choice(scores, choices=1, **o)},
)
BALANCE = {"balance_loss": lambda scores, **options: numpy.balance_loss(scores, **options) / scores.shape[2]}
SIGMOID = {
    "sigmoid_loss": lambda first, second, log_scale, bias: numpy.sigmoid_loss(first, second, log_scale, 0 * bias)
}
HALVED = {"softmax_affinity": lambda logits: numpy.softmax_affinity(logits / 2)}
WRONG = [
    (FIRST, FIRST_ALONE, "token_choice/slots wrong: experts lack tokens, only 2nd choices"),
    (FIRST, weighted(lambda r, options: 3), "slots right; token_choice/weights wrong: it is 3 times the"),
    (FIRST, weighted(lambda r, options: 1 + r.token), "the weights of a token are off by one factor"),
    ("token_choice", weighted(lambda r, options: 1 / options["choices"]), "it is 1/choices times the expected value"),
    ("token_choice/gradient", {"token_choice": second_choices_detached}, CUT),
    ("expert_choice/two_slots", reordered(lambda t: np.argsort(t)[..., ::-1]), "the correct tokens are in other slots"),
    ("expert_choice", reordered(np.argsort), "the correct tokens are in other slots, by index"),
    ("softmax_affinity", affinity(partial(rounded, 8)), "it is the expected value rounded to bfloat16"),
    ("softmax_affinity", affinity(partial(rounded, 24)), "it is the expected value rounded to float32"),
    (
        "softmax_affinity",
        affinity(lambda x: x + 2.0**-12 * x * np.resize(NOISE, x.shape)),
        "its errors are as large as those of float16 or TF32: 2^-1",
    ),
    ("softmax_affinity", affinity(lambda x: 0.996 * x), "it is 0.996 times the expected value"),
    ("softmax_affinity", affinity(partial(last_place, 0, 0)), "group 1 has the expected values of group 0"),
    ("softmax_affinity", affinity(partial(last_place, 1, None)), "it is 0 where it differs, only in token "),
    ("softmax_affinity", affinity(lambda x: x[..., ::-1]), "it is in reverse order along experts"),
    ("softmax_affinity/values", affinity(lambda x: np.where(x > 0.5, np.nan, x)), "it is NaN in"),
    (
        "softmax_affinity",
        {"softmax_affinity": lambda logits: np.exp(logits)},
        "off by its own factor: its sums over experts are not 1",
    ),
    ("softmax_affinity", HALVED, "it is the expected result with logits divided by 2"),
    ("z_loss", z_loss(lambda x: x / np.log(2) ** 2), "it is 2.081 times the expected value (1/(ln 2)^2 here)"),
    ("z_loss", z_loss(lambda x: 2 * x - x.real), "z_loss/loss right; gradient/logits wrong: it is 2 times the"),
    ("z_loss", z_loss(np.real), "z_loss/loss right; gradient/logits wrong: no gradient reaches logits"),
    ("z_loss/values", z_loss(lambda x: 1.37 * x), "it is too large by 37 % of the expected value"),
    ("balance_loss", BALANCE, "it is 1/experts times the expected value"),
    ("balance_loss", after("balance_loss", lambda x: x - 1), "it is the expected value minus 1"),
    ("importance_loss", after("importance_loss", np.sqrt), "it is the square root of the expected value"),
    ("balance_bias", {"balance_bias": lambda bias, load, **options: bias}, "it is the same as bias"),
    ("sigmoid_loss", SIGMOID, "it is the expected result with bias = 0"),
    ("batch_priority", after("batch_priority", lambda x: x[:, ::-1]), "it is in reverse order along tokens"),
]


@pytest.mark.parametrize(("ids", "functions", "said"), WRONG)
def test_what_is_wrong_is_said(ids, functions, said):
    """In half of the failures or more; and in none that a result is once what is expected."""
    texts = explained(replaced(**functions), ids)
    assert 2 * sum(said in text for text in texts) >= len(texts) > 0
    assert not [text for text in texts if "is 1 times" in text]


def test_a_slot_is_named_with_the_choice_that_is_expected_in_it():
    (result,) = results_of(replaced(**WRONG[0][1]), [BY_ID[FIRST]])
    (result,) = explain_failures([result], Known([BY_ID[FIRST]]))
    assert result.first.message.endswith("; group 0, expert 2, slot 0: empty, expected token 2 (its 2nd choice)")


@pytest.mark.parametrize(
    ("other", "note"),
    [
        (("float32", "eager", "pass"), "correct on contiguous arrays, wrong on strided ones"),
        (("float64", "strided", "pass"), "correct in float64, wrong in float32"),
        (("float32", "eager", "fail"), ""),
    ],
)
def test_where_the_same_case_is_right_is_said(other, note):
    def result(dtype, mode, state):
        return CaseResult("a/b", "a", "value", dtype, mode, [Outcome("a/x", state)], explanation="a/x wrong: it is 0")

    _, wrong = with_other_runs([result(*other), result("float32", "strided", "fail")])
    assert wrong.explanation == "; ".join(["a/x wrong: it is 0", *filter(None, [note])])


def test_a_variant_of_a_smaller_part_is_not_named():
    """Twice the loss where two experts count is not the sum over two groups."""
    wrong = module_of({"balance_loss": lambda B, s, **o: B.balance_loss(s, **o) * o.get("choices", 1)})
    cases = [replace(case, gradients=None) for case in of("balance_loss") if case.expect is None]
    assert not match_variants(results_of(wrong, cases), Known(cases))
    assert "losses_summed_over_groups" in variants()
