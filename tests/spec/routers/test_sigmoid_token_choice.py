"""Sigmoid Token Choice by a loop over tokens and experts, and the next bias."""

import itertools

import numpy as np
import pytest
from properties import holds
from strategies import one_of, seeds

from moespec.spec import ROUTERS, ConfigError

ROUTER = ROUTERS["sigmoid_token_choice"]
T, E, D = 7, 8, 5
AFFINITIES = {
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "sqrt_softplus": lambda x: np.sqrt(np.log1p(np.exp(x))),
    "softmax": lambda x: np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True),
}
OPTIONS = (
    {},
    {"affinity": "sqrt_softplus", "choices": 3, "scale": 2.5},
    {"affinity": "softmax", "normalize_selected": False, "scale": 16.0},
    {"expert_groups": 4, "chosen_groups": 2, "choices": 3},
    {"expert_groups": 2, "group_score": "top_k_over_m", "choices": 3, "outside": "zero"},
    {"expert_groups": 4, "chosen_groups": 3, "group_score": "max", "group_bias": False, "choices": 4},
)


def configured(number):
    return ROUTER.options(width=D, experts=E, tokens=T, **OPTIONS[number])


def gates(logits, bias, options):
    """The gates of one token by expert, from the sums of all sets of experts in a group."""
    scores = AFFINITIES[options.affinity](logits)
    selecting, size = scores + bias, E // options.expert_groups
    best = {"top_2": 2, "top_k_over_m": options.choices // options.chosen_groups, "max": 1}[options.group_score]
    of_groups = []
    for group in range(options.expert_groups if options.expert_groups > 1 else 0):
        members = (selecting if options.group_bias else scores)[group * size : (group + 1) * size]
        of_groups.append(max(sum(some) for some in itertools.combinations(members, best)))
    reached = sorted(range(len(of_groups)), key=lambda g: -of_groups[g])[: options.chosen_groups]
    if of_groups:
        other = 0.0 if options.outside == "zero" else -np.inf
        selecting = np.array([selecting[e] if e // size in reached else other for e in range(E)])
    chosen = sorted(range(E), key=lambda e: -selecting[e])[: options.choices]
    found = np.zeros(E)
    for e in chosen:
        found[e] = options.scale * scores[e]
        if options.normalize_selected:
            found[e] /= sum(scores[i] for i in chosen) + options.epsilon
    return found, chosen


def routed(module, params, tokens, bias, *, number):
    output = module.ROUTERS[ROUTER.name].route(params, tokens, configured(number), state={"bias": bias}, train=True)
    return {"combine": output.routing.dense().combine, "load": output.statistics["load"]}


@holds(wrong=("bias_in_the_gate", "group_score_is_best"),
       number=one_of(*range(len(OPTIONS))), seed=seeds)  # fmt: skip
def test_it_is_the_router_of_the_papers(B, number, seed):
    random = np.random.default_rng(seed)
    tokens, kernel, bias = random.normal(size=(2, T, D)), random.normal(size=(D, E)), random.normal(size=E)
    found = B.run(routed, params={"kernel": kernel}, tokens=tokens, bias=bias, number=number)
    expected = [[gates(logits, bias, configured(number)) for logits in group] for group in tokens @ kernel]
    combine = np.array([[weights for weights, _ in group] for group in expected])
    np.testing.assert_allclose(found["combine"].sum(axis=3), combine, rtol=1e-9, atol=1e-12)
    chosen = [e for group in expected for _, each in group for e in each]
    np.testing.assert_array_equal(found["load"], np.bincount(chosen, minlength=E))


@holds(wrong="cutoff_without_bias", seed=seeds)
def test_the_next_bias_would_have_balanced_each_expert(B, seed):
    """Up to a bin it is the K T / E-th smallest of what the tokens require, recentred."""
    random = np.random.default_rng(seed)
    scores, bias = random.uniform(size=(2, 3, 4)), random.uniform(-1, 1, size=4)
    counts = B.required_biases(scores, bias, choices=2, bins=2000)
    cutoff = np.sort(scores + bias)[..., 1:2]
    exact = np.sort((cutoff - scores).reshape(6, 4), axis=0)[2]
    np.testing.assert_allclose(B.quantile_bias(bias, counts, choices=2), exact - exact.mean(), rtol=0, atol=0.005)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"bias_update": "quantile", "choices": 8}, "^choices: 8 is more than the 7 other experts"),
        ({"bias_update": "quantile", "affinity": "sqrt_softplus"}, "^bias_update='quantile' needs scores"),
        ({"bias_update": "quantile", "expert_groups": 2}, "^bias_update='quantile' needs scores"),
        ({"expert_groups": 3}, "^expert_groups: 8 experts cannot be divided into 3"),
        ({"chosen_groups": 2}, "^chosen_groups=2: expected 1 when expert_groups=1"),
        ({"expert_groups": 4, "chosen_groups": 5}, "^chosen_groups: 5 is more than the 4 groups"),
        ({"expert_groups": 8, "chosen_groups": 4}, "^group_score: 2 is more than the 1 experts in a group"),
        ({"expert_groups": 4, "choices": 3}, "^choices: a token cannot choose 3 of 2 experts"),
        ({"expert_groups": 4, "chosen_groups": 2, "choices": 3, "group_score": "top_k_over_m"}, "^chosen_groups=2 does"),
    ],
)  # fmt: skip
def test_options_that_do_not_fit(given, message):
    with pytest.raises(ConfigError, match=message):
        ROUTER.options(width=D, experts=E, tokens=T, **given)
