"""Soft MoE: zero vectors, and slots that are tokens. Its formulas, vectors have."""

import numpy as np

from moespec.spec import moe_layer, slot_tokens, soft_routing
from moespec.spec.numerics import normalize_l2


def test_derivative_at_a_zero_vector():
    """The norm counts as a constant there: the derivative is that of x / epsilon."""
    direction = np.array([[3.0, -4.0]])
    derivative = normalize_l2(0 * direction + 1e-30j * direction, 1, form="paper").imag / 1e-30
    np.testing.assert_allclose(derivative, direction / 1e-6, rtol=1e-14)


def test_identity_deals_the_tokens_to_the_experts_in_turn():
    tokens, slots = np.random.default_rng(0).normal(size=(6, 5)), np.ones((5, 3, 2))
    routing = soft_routing(tokens, slots, dispatch="identity", combine="identity")
    assert slot_tokens(routing).tolist() == [[0, 3], [1, 4], [2, 5]]
    assert routing.dispatch.sum() == 6
    np.testing.assert_array_equal(routing.combine, routing.dispatch)
    np.testing.assert_array_equal(moe_layer(tokens, routing, lambda x: 2 * x), 2 * tokens)
