"""Soft MoE: the published listing, both norm forms, the ablations."""

import numpy as np
import pytest

from moespec.spec import ConfigError, ShapeError, moe_layer, slot_tokens, soft_routing
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


def test_identity_deals_the_tokens_to_the_experts_in_turn():
    routing = soft_routing(TOKENS[:6], SLOTS, dispatch="identity", combine="identity")
    assert slot_tokens(routing).tolist() == [[0, 3], [1, 4], [2, 5]]
    assert routing.dispatch.sum() == 6
    np.testing.assert_array_equal(routing.combine, routing.dispatch)
    np.testing.assert_array_equal(moe_layer(TOKENS[:6], routing, lambda x: 2 * x), 2 * TOKENS[:6])


def test_errors_of_the_ablations():
    with pytest.raises(ConfigError, match="dispatch: 'identity'"):
        soft_routing(TOKENS, SLOTS, dispatch="identity")
    with pytest.raises(ConfigError, match="combine='identity'"):
        soft_routing(TOKENS, SLOTS, combine="identity")
    with pytest.raises(ShapeError, match=r"slots: .*3 x 2"):
        soft_routing(TOKENS, SLOTS, dispatch="identity", combine="identity")


def section_3_6(tokens, slots, ablation):
    """The output tokens of the ablations of section 3.6 and appendix A, sentence by sentence.

    Expert i multiplies what it processes by i + 2 and adds i.
    """
    m, (_, n, p) = len(tokens), slots.shape
    experts = [lambda x, i=i: (i + 2) * x + i for i in range(n)]

    # "The first token in the sequence is processed by the first expert, the second token by the second expert, and so
    # on in a round robin fashion."
    if ablation == "Identity":
        outputs, expert = [], 0
        for token in tokens:
            outputs.append(experts[expert](token))
            expert = expert + 1 if expert + 1 < n else 0
        return np.array(outputs)

    logits = np.array([[[token @ slots[:, i, j] for j in range(p)] for i in range(n)] for token in tokens])
    learned_dispatch = [
        [[np.exp(logits[t, i, j]) / sum(np.exp(logits[:, i, j])) for j in range(p)] for i in range(n)] for t in range(m)
    ]
    learned_combine = [
        [[np.exp(logits[t, i, j]) / np.exp(logits[t]).sum() for j in range(p)] for i in range(n)] for t in range(m)
    ]
    # "Every input slot is filled with a uniform average of all input tokens": "values 1 / m in all elements".
    uniform_dispatch = [[[1 / m] * p] * n] * m
    # "Every output token is a uniform average of all output slots": "values 1 / (n p) in all elements".
    uniform_combine = [[[1 / (n * p)] * p] * n] * m
    dispatch, combine = {
        "Soft": (learned_dispatch, learned_combine),
        "Uniform": (uniform_dispatch, uniform_combine),
        "Uniform / Soft": (uniform_dispatch, learned_combine),
        "Soft / Uniform": (learned_dispatch, uniform_combine),
    }[ablation]
    output_slots = [
        [experts[i](sum(dispatch[t][i][j] * tokens[t] for t in range(m))) for j in range(p)] for i in range(n)
    ]
    return np.array([sum(combine[t][i][j] * output_slots[i][j] for i in range(n) for j in range(p)) for t in range(m)])


ABLATIONS = {
    "Soft": ("soft", "soft"),
    "Identity": ("identity", "identity"),
    "Uniform": ("uniform", "uniform"),
    "Uniform / Soft": ("uniform", "soft"),
    "Soft / Uniform": ("soft", "uniform"),
}


def test_the_ablations_agree_with_the_words_of_the_paper():
    """On 300 random problems, of 1 to 4 experts with 1 to 3 slots each."""
    random = np.random.default_rng(1)
    for problem in range(300):
        name = list(ABLATIONS)[problem % 5]
        experts, capacity, width = random.integers(1, 5), random.integers(1, 4), random.integers(1, 4)
        count = experts * capacity if name == "Identity" else random.integers(1, 7)
        tokens = random.normal(size=(count, width))
        slots = random.normal(size=(width, experts, capacity))
        dispatch, combine = ABLATIONS[name]
        routing = soft_routing(tokens, slots, normalize=False, dispatch=dispatch, combine=combine)
        number = np.arange(experts)[:, None, None]
        result = moe_layer(tokens, routing, lambda inputs, number=number: (number + 2) * inputs + number)
        np.testing.assert_allclose(result, section_3_6(tokens, slots, name), rtol=1e-11, atol=1e-12)
