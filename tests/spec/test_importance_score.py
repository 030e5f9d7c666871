"""Importance-score routing against its definition, one token after the other, and against its limits."""

import math

import numpy as np
import pytest

from moespec import spec
from moespec.spec import ROUTERS, importance_score_choice, importance_score_order, slot_tokens
from moespec.spec.importance_score import surviving_tokens

SHAPES = [(1, 1), (1, 4), (5, 1), (10, 3), (12, 4), (21, 5)]


def random_scores(seed, tokens, experts):
    """Scores on a coarse grid, so that ties are frequent."""
    return np.random.default_rng(seed).integers(0, 6, (tokens, experts)) / 8


def one_by_one(scores, choices, capacity, drop):
    """The tokens in the slots, by the words of the paper."""
    tokens, experts = scores.shape
    importance = {token: max(scores[token]) for token in range(tokens)}
    line = sorted(importance, key=lambda token: (-importance[token], token))
    for _ in range(int(drop * tokens)):
        line.pop()
    buffers = [[] for _ in range(experts)]
    for choice in range(choices):
        for token in line:
            expert = sorted(range(experts), key=lambda e: (-scores[token, e], e))[choice]
            if len(buffers[expert]) < capacity:
                buffers[expert].append(token)
    return line, [buffer + [tokens] * (capacity - len(buffer)) for buffer in buffers]


@pytest.mark.parametrize(("tokens", "experts"), SHAPES)
@pytest.mark.parametrize("drop", [0, 0.1, 0.25, 0.5, 0.99])
@pytest.mark.parametrize("seed", [0, 1])
def test_definition(tokens, experts, drop, seed):
    scores = random_scores(seed, tokens, experts)
    weights = np.random.default_rng(seed).normal(size=scores.shape)
    for choices in range(1, experts + 1):
        for capacity in (1, 2, tokens):
            line, buffers = one_by_one(scores, choices, capacity, drop)
            assert importance_score_order(scores, drop=drop).tolist() == line
            routing = importance_score_choice(
                scores, choices=choices, capacity=capacity, drop=drop, combine_scores=weights
            )
            assert slot_tokens(routing).tolist() == buffers
            np.testing.assert_array_equal(routing.combine, weights[:, :, None] * routing.dispatch)


@pytest.mark.parametrize("tokens", [1, 9, 10, 11, 19, 20, 196, 384, 1000, 1572864])
def test_a_tenth_is_rounded_down(tokens):
    assert surviving_tokens(tokens, 0.1) == tokens - tokens // 10
    assert surviving_tokens(tokens, 0.5) == math.ceil(tokens / 2)


def test_the_router_takes_its_capacity_from_those_that_are_left():
    tokens = np.random.default_rng(0).normal(size=(40, 3))
    router = ROUTERS["importance_score"]
    for drop, left in ((0.0, 40), (0.1, 36), (0.5, 20)):
        config = router.options(width=3, experts=4, tokens=40, choices=2, capacity_factor=1.05, drop=drop)
        routing = router.route({"kernel": np.eye(3, 4)}, tokens, config).routing
        assert routing.dispatch.shape[2] == math.ceil(2 * left * 1.05 / 4)
        assert (routing.dispatch.sum(axis=(1, 2)) > 0).sum() <= left
        scores = spec.softmax_affinity(tokens @ np.eye(3, 4))
        expected = importance_score_choice(scores, choices=2, capacity=routing.dispatch.shape[2], drop=drop)
        np.testing.assert_array_equal(routing.combine, expected.combine)


def test_the_router_removes_in_evaluation_too_and_has_the_losses_of_v_moe():
    router = ROUTERS["importance_score"]
    config = router.options(width=3, experts=3, tokens=6, drop=0.5)
    noise = np.random.default_rng(1).normal(size=(6, 3))
    for train in (False, True):
        output = router.route({"kernel": np.eye(3)}, spec.examples.LOGITS, config, noise=noise, train=train)
        assert set(output.losses) == {"importance", "load"}
        noisy = spec.softmax_affinity(spec.examples.LOGITS + noise / 3)
        removed = np.setdiff1d(np.arange(6), importance_score_order(noisy, drop=0.5))
        assert not output.routing.combine[removed].any()
