"""Soft MoE by its definition with both norms, its ablations, and zero vectors."""

import numpy as np
from hypothesis import strategies as st
from properties import holds
from strategies import GROUPS, grid, one_of, seeds

from moespec.spec import moe_layer, slot_tokens, soft_routing
from moespec.spec.numerics import normalize_l2

RANDOM = np.random.default_rng(0)
TOKENS = RANDOM.normal(size=(7, 5))
SLOTS = RANDOM.normal(size=(5, 3, 2))


def token_grids():
    """(groups, tokens, width) on a grid, also vectors of norm 0."""
    shapes = st.sampled_from([(1, 2), (4, 3), (6, 4)])
    return shapes.flatmap(lambda shape: grid(GROUPS, *shape))


def normalised(x, axis, form):
    """Divided by the norm, to which the paper adds 1e-6; the authors' code to its square."""
    square = (x**2).sum(axis=axis, keepdims=True)
    return x / (np.sqrt(square) + 1e-6) if form == "paper" else x / np.sqrt(square + 1e-6)


def softmax(logits, axis):
    return np.exp(logits) / np.exp(logits).sum(axis=axis, keepdims=True)


WRONG = (
    "scale_of_one",
    "slots_dealt_round_robin",
    "combine_over_experts",
)


@holds(wrong=WRONG, tokens=token_grids(), seed=seeds, scale=one_of(-2.0, 0.5, 4.0), form=one_of("paper", "rsqrt", None))
def test_by_definition(B, tokens, seed, scale, form):
    """Softmaxes over tokens and over all slots, of logits of normalised tokens and slots; without a form neither is
    normalised, and there is no scale."""
    slots, tokens = np.random.default_rng(seed).normal(size=(tokens.shape[2], 3, 2)), tokens / 4
    options = {"normalize": False} if form is None else {"norm_form": form}
    routing = B.soft_routing(tokens, slots, scale=np.array(scale), **options)
    x, phi = tokens, slots
    if form is not None:
        x, phi = normalised(tokens, 2, form), scale * normalised(slots, 0, form)
    logits = np.einsum("gtd,dec->gtec", x, phi)
    np.testing.assert_allclose(routing.dispatch, softmax(logits, 1), rtol=1e-10)
    np.testing.assert_allclose(routing.combine, softmax(logits, (2, 3)), rtol=1e-10)


@holds(wrong="ablations_ignored", tokens=token_grids(), seed=seeds)
def test_an_ablation_replaces_one_tensor(B, tokens, seed):
    """What stays soft is as without the ablation; 1 / T and 1 / (E C) elsewhere."""
    slots = np.random.default_rng(seed).normal(size=(tokens.shape[2], 3, 2))
    soft = B.soft_routing(tokens, slots)
    one = B.soft_routing(tokens, slots, dispatch="uniform")
    other = B.soft_routing(tokens, slots, combine="uniform")
    np.testing.assert_allclose(one.dispatch, 1 / tokens.shape[1], rtol=1e-14)
    np.testing.assert_allclose(other.combine, 1 / 6, rtol=1e-14)
    np.testing.assert_array_equal(one.combine, soft.combine)
    np.testing.assert_array_equal(other.dispatch, soft.dispatch)


def test_derivative_at_a_zero_vector():
    """The norm counts as a constant there: the derivative is that of x / epsilon."""
    direction = np.array([[3.0, -4.0]])
    derivative = normalize_l2(0 * direction + 1e-30j * direction, 1, form="paper").imag / 1e-30
    np.testing.assert_allclose(derivative, direction / 1e-6, rtol=1e-14)


def test_identity_deals_the_tokens_to_the_experts_in_turn():
    routing = soft_routing(TOKENS[:6], SLOTS, dispatch="identity", combine="identity")
    assert slot_tokens(routing).tolist() == [[0, 3], [1, 4], [2, 5]]
    assert routing.dispatch.sum() == 6
    np.testing.assert_array_equal(routing.combine, routing.dispatch)
    np.testing.assert_array_equal(moe_layer(TOKENS[:6], routing, lambda x: 2 * x), 2 * TOKENS[:6])
