"""Soft MoE: by its definition with both norms, and the ablations by the words of the paper."""

import numpy as np
import pytest
from hypothesis import strategies as st
from implementations import holds
from strategies import GROUPS, grid, one_of, seeds
from wrong import norms_apart

from moespec.spec import moe_layer, slot_tokens, soft_routing
from moespec.spec.numerics import normalize_l2

RANDOM = np.random.default_rng(0)
TOKENS = RANDOM.normal(size=(7, 5))
SLOTS = RANDOM.normal(size=(5, 3, 2))


def tokens(few):
    """(groups, tokens, width) on a grid, also vectors of norm 0."""
    shapes = st.sampled_from([(6, 4)] if few else [(1, 2), (4, 3), (6, 4)])
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
    "exchanged",
    "combine_over_experts",
    norms_apart,
)


@holds(wrong=WRONG, tokens=tokens, seed=seeds, scale=one_of(-2.0, 0.5, 4.0), form=one_of("paper", "rsqrt", None))
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


@holds(wrong="ablations_ignored", tokens=tokens, seed=seeds)
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
