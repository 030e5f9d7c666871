"""Soft MoE: the published listing, both norm forms, the ablations."""

import numpy as np
import pytest

from moespec.spec import ConfigError, ShapeError, moe_layer, soft_routing
from moespec.spec.numerics import normalize_l2

RANDOM = np.random.default_rng(0)
TOKENS = RANDOM.normal(size=(7, 5))
SLOTS = RANDOM.normal(size=(5, 3, 2))


def softmax_by_definition(logits, axis):
    return np.exp(logits) / np.exp(logits).sum(axis=axis, keepdims=True)


@pytest.mark.parametrize("form", ["paper", "rsqrt"])
@pytest.mark.parametrize("scale", [1.0, 2.5, -1.0])
def test_by_definition(form, scale):
    if form == "paper":
        x = TOKENS / (np.linalg.norm(TOKENS, axis=1, keepdims=True) + 1e-6)
        phi = SLOTS / (np.linalg.norm(SLOTS, axis=0, keepdims=True) + 1e-6)
    else:
        x = TOKENS / np.sqrt((TOKENS**2).sum(axis=1, keepdims=True) + 1e-6)
        phi = SLOTS / np.sqrt((SLOTS**2).sum(axis=0, keepdims=True) + 1e-6)
    logits = (x @ (scale * phi).reshape(5, 6)).reshape(7, 3, 2)
    routing = soft_routing(TOKENS, SLOTS, scale=scale, norm_form=form)
    np.testing.assert_allclose(routing.dispatch, softmax_by_definition(logits, 0), rtol=1e-12)
    np.testing.assert_allclose(routing.combine, softmax_by_definition(logits, (1, 2)), rtol=1e-12)


def test_without_normalisation_there_is_no_scale():
    logits = np.einsum("td,dec->tec", TOKENS, SLOTS)
    routing = soft_routing(TOKENS, SLOTS, scale=7.0, normalize=False)
    np.testing.assert_allclose(routing.dispatch, softmax_by_definition(logits, 0), rtol=1e-12)
    np.testing.assert_allclose(routing.combine, softmax_by_definition(logits, (1, 2)), rtol=1e-12)


def test_the_algorithm_of_the_paper():
    """Its three einsums with the subscripts that were meant, and the un-normalised tokens in the slots."""
    routing = soft_routing(TOKENS, SLOTS)
    x = TOKENS / (np.linalg.norm(TOKENS, axis=1, keepdims=True) + 1e-6)
    phi = SLOTS / (np.linalg.norm(SLOTS, axis=0, keepdims=True) + 1e-6)
    logits = np.einsum("md,dnp->mnp", x, phi)
    inputs = np.einsum("md,mnp->npd", TOKENS, softmax_by_definition(logits, 0))
    outputs = np.einsum("npd,mnp->md", np.tanh(inputs), softmax_by_definition(logits, (1, 2)))
    np.testing.assert_allclose(moe_layer(TOKENS, routing, np.tanh), outputs, rtol=1e-12)


def test_the_two_forms_of_the_norm():
    small = np.array([[1e-4, 0.0]])
    assert np.linalg.norm(normalize_l2(small, 1, form="paper")) == pytest.approx(0.990099, abs=1e-6)
    assert np.linalg.norm(normalize_l2(small, 1, form="rsqrt")) == pytest.approx(0.0995037, abs=1e-6)
    paper, rsqrt = soft_routing(TOKENS, SLOTS), soft_routing(TOKENS, SLOTS, norm_form="rsqrt")
    difference = np.max(np.abs(paper.dispatch - rsqrt.dispatch))
    assert 1e-9 < difference < 1e-5


@pytest.mark.parametrize("form", ["paper", "rsqrt"])
def test_zero_vectors(form):
    tokens = np.vstack([np.zeros(5), TOKENS])
    routing = soft_routing(tokens, SLOTS, norm_form=form)
    np.testing.assert_allclose(routing.combine[0], 1 / 6, rtol=1e-14)
    stepped = soft_routing(tokens + 1e-30j * np.ones_like(tokens), SLOTS, norm_form=form)
    assert np.isfinite(stepped.combine).all()


def test_derivative_at_a_zero_vector():
    """The norm counts as a constant there: the derivative is that of x / epsilon."""
    direction = np.array([[3.0, -4.0]])
    derivative = normalize_l2(0 * direction + 1e-30j * direction, 1, form="paper").imag / 1e-30
    np.testing.assert_allclose(derivative, direction / 1e-6, rtol=1e-14)


@pytest.mark.parametrize(
    ("dispatch", "combine"), [("soft", "soft"), ("soft", "uniform"), ("uniform", "soft"), ("uniform", "uniform")]
)
def test_ablations(dispatch, combine):
    soft = soft_routing(TOKENS, SLOTS)
    routing = soft_routing(TOKENS, SLOTS, dispatch=dispatch, combine=combine)
    np.testing.assert_array_equal(routing.dispatch, soft.dispatch if dispatch == "soft" else np.full((7, 3, 2), 1 / 7))
    np.testing.assert_array_equal(routing.combine, soft.combine if combine == "soft" else np.full((7, 3, 2), 1 / 6))


def test_identity_sends_token_t_to_flattened_slot_t():
    routing = soft_routing(TOKENS[:6], SLOTS, dispatch="identity", combine="identity")
    for t in range(6):
        assert routing.dispatch[t, t // 2, t % 2] == 1
    assert routing.dispatch.sum() == 6
    np.testing.assert_array_equal(routing.combine, routing.dispatch)
    np.testing.assert_array_equal(moe_layer(TOKENS[:6], routing, lambda x: 2 * x), 2 * TOKENS[:6])


def test_uniform_gives_every_token_the_same_update():
    routing = soft_routing(TOKENS, SLOTS, dispatch="uniform", combine="uniform")
    result = moe_layer(TOKENS, routing, lambda x: x * np.arange(1.0, 4.0)[:, None, None])
    np.testing.assert_allclose(result, np.broadcast_to(2 * TOKENS.mean(axis=0), (7, 5)), rtol=1e-13)


def test_errors_of_the_ablations():
    with pytest.raises(ConfigError, match="dispatch: 'identity'"):
        soft_routing(TOKENS, SLOTS, dispatch="identity")
    with pytest.raises(ConfigError, match="combine='identity'"):
        soft_routing(TOKENS, SLOTS, combine="identity")
    with pytest.raises(ShapeError, match=r"slots: .*3 x 2"):
        soft_routing(TOKENS, SLOTS, dispatch="identity", combine="identity")
