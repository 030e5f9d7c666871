"""Explanations: each relation is said of a target that has it."""

from functools import partial

import numpy as np
import pytest
from committed import BY_ID, replaced, results_of

import moespec.backends.numpy as numpy
from moespec.conformance.author.variant import chosen_mask
from moespec.conformance.check.explain import explain_failures


def first_choices_alone(scores, *, choices, **options):
    return numpy.token_choice(scores, choices=1, **options)


def weighted(factor, scores, **options):
    routing = numpy.token_choice(scores, **options)
    return routing._replace(weight=routing.weight * factor(routing))


def second_choices_detached(scores, **options):
    return numpy.token_choice(scores, combine_scores=np.where(chosen_mask(scores, 1), scores, scores.real), **options)


def divisor_detached(logits):
    return np.exp(logits) / np.exp(logits.real).sum(axis=2, keepdims=True)


def reversed_slots(scores, **options):
    routing = numpy.expert_choice(scores, **options)
    return routing._replace(token=routing.token[..., ::-1], weight=routing.weight[..., ::-1])


FIRST, CUT = "token_choice/first_choices_first", "gradient/scores wrong: it is 0 where it differs, at 2nd choices alone"
SAID = [
    (FIRST, first_choices_alone, "token_choice/slots wrong: experts lack tokens, 2nd choices alone, and have none"),
    (FIRST, partial(weighted, lambda routing: 3), "slots right; token_choice/weights wrong: it is 3 times what"),
    (FIRST, partial(weighted, lambda routing: 1 + routing.token), "the weights of a token are off by one factor"),
    ("token_choice/gradient", second_choices_detached, f"token_choice/slots, token_choice/weights right; {CUT}"),
    ("softmax_affinity/gradient", divisor_detached, "right; gradient/logits wrong: all values are right, so a part of"),
    ("expert_choice/two_slots", reversed_slots, "the right tokens are in other slots"),
    ("z_loss/values", lambda logits: 6 * numpy.z_loss(logits), ""),
    ("z_loss/one_expert", lambda logits: numpy.z_loss(logits[:1]), ""),
]


@pytest.mark.parametrize(("id", "function", "said"), SAID)
def test_what_is_wrong_is_said(id, function, said):
    (result,) = explain_failures(results_of(replaced(**{id.partition("/")[0]: function}), [BY_ID[id]]), [BY_ID[id]])
    assert said in result.explanation
    assert bool(result.explanation) == bool(said)


def test_a_slot_is_named_with_the_choice_that_is_expected_in_it():
    (result,) = explain_failures(results_of(replaced(token_choice=first_choices_alone), [BY_ID[FIRST]]), [BY_ID[FIRST]])
    assert result.first.message.endswith("; group 0, expert 2, slot 0: empty, expected token 2 (its 2nd choice)")


@pytest.mark.parametrize(
    ("factor", "said"),
    [
        (lambda scores: 3, "it is 3 times what is expected"),
        (lambda scores: scores.shape[2], "it is multiplied by the number of experts"),
        (lambda scores: 2 + scores.max(), ""),
    ],
)
def test_a_factor_is_said_that_all_cases_have(factor, said):
    cases = [BY_ID[f"balance_loss/{name}"] for name in ("collapsed", "four_experts")]
    wrong = replaced(balance_loss=lambda scores, **how: factor(scores) * numpy.balance_loss(scores, **how))
    results = explain_failures(results_of(wrong, cases), cases)
    assert {result.explanation.partition("wrong: ")[2] for result in results} == {said}
