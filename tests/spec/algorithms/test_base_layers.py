"""BASE layers: the best assignment and the proof of it, and the shards of the router."""

import itertools

import numpy as np
import pytest
from properties import holds
from strategies import GROUPS, even_logits

from moespec import spec
from moespec.spec import ROUTERS, ConfigError, ShapeError
from moespec.spec.examples import LOGITS

WRONG = ("assignment_is_greedy", "assignment_in_turn")


def balanced(tokens, experts):
    """Every balanced assignment (of few tokens), or some."""
    even = np.repeat(np.arange(experts), tokens // experts)
    if tokens <= 6:
        return {tuple(a) for a in itertools.permutations(even.tolist())}
    return {tuple(np.random.default_rng(seed).permutation(even).tolist()) for seed in range(200)}


def totals(scores, expert):
    """The total score of the assignment of each group."""
    return np.take_along_axis(scores, np.asarray(expert)[..., None].astype(int), axis=2).sum(axis=(1, 2))


@holds(wrong=WRONG, scores=even_logits)
def test_no_balanced_assignment_has_a_larger_total(B, scores):
    """Every expert has T / E tokens, whatever the ties. The dual has the same value, so that the gap is 0."""
    tokens, experts = scores.shape[1:]
    best = B.base_assignment(scores)
    for group in best.expert:
        assert np.bincount(group, minlength=experts).tolist() == [tokens // experts] * experts
    np.testing.assert_allclose(best.objective, totals(scores, best.expert), atol=1e-12)
    np.testing.assert_allclose(best.gap, 0, atol=1e-12)
    for assignment in balanced(tokens, experts):
        assert (totals(scores, np.tile(assignment, (GROUPS, 1))) <= best.objective + 1e-12).all()


def test_gap_bounds_what_is_missing_for_any_assignment():
    """The dual bound holds for assignments that are not the best: `gap >= best - total`."""
    from moespec.spec.algorithms.balanced_assignment import _gap

    scores = np.random.default_rng(1).normal(size=(6, 3))
    best = spec.base_assignment(scores).objective
    for assignment in itertools.islice(balanced(6, 3), 40):
        expert = np.array(assignment)
        assert _gap(scores, expert) >= best - scores[range(6), expert].sum() - 1e-12


@pytest.mark.parametrize(("width", "experts"), [(8, 3), (3, 8), (4, 4)])
def test_initial_embeddings_are_orthogonal_with_the_gain(width, experts):
    config = ROUTERS["base"].options(width=width, experts=experts, tokens=experts)
    kernel = ROUTERS["base"].init(np.random.default_rng(0), config)["kernel"].astype(np.float64)
    gram = kernel.T @ kernel if width >= experts else kernel @ kernel.T
    assert kernel.shape == (width, experts)
    np.testing.assert_allclose(gram, 0.01 * np.eye(min(width, experts)), atol=1e-8)


def test_a_group_must_split_into_shards():
    with pytest.raises(
        ShapeError, match="scores: 6 tokens cannot be divided evenly among 3 experts in each of 4 shards"
    ):
        spec.base_assignment(LOGITS, shards=4)
    with pytest.raises(ShapeError, match="scores: 1 token cannot be divided evenly among 2 experts"):
        spec.base_assignment(np.zeros((1, 2)))
    options = ROUTERS["base"].options(width=3, experts=3, tokens=6, shards=4)
    with pytest.raises(ConfigError, match="shards=4 does not divide the 6 tokens of a group"):
        options.check_training()
    with pytest.raises(ConfigError, match="experts=3 does not divide the 6 tokens of a group in 6 shards"):
        ROUTERS["base"].options(width=3, experts=3, tokens=6, shards=6).check_training()
