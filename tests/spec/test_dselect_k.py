"""DSelect-k: worked numbers, limits, and independent definitions."""

import itertools
import math

import numpy as np
import pytest

from moespec import spec
from moespec.spec import ROUTERS, ShapeError
from moespec.spec.dselect_k_codes import code_bits

RANDOM = np.random.default_rng(0)
CODES, LOGITS = np.array([[0.25, -0.1], [-0.3, 0.6]]), np.array([0.0, 1.0])


def by_polynomial(z, gamma):
    """The step as the paper prints it."""
    inside = -2 / gamma**3 * z**3 + 3 / (2 * gamma) * z + 0.5
    return np.where(z <= -gamma / 2, 0, np.where(z >= gamma / 2, 1, inside))


def by_characters(z, experts, gamma):
    """The selectors of codes (choices, bits), expert by expert, from the text of its number in base two."""
    bits, step = z.shape[1], by_polynomial(z, gamma)
    selectors = np.ones((len(z), experts))
    for n, expert in itertools.product(range(len(z)), range(experts)):
        for digit, share in zip(format(expert, "b").rjust(bits, "0")[:bits], step[n], strict=True):
            selectors[n, expert] *= share if digit == "1" else 1 - share
    return selectors


def routed(params, tokens, **options):
    config = ROUTERS["dselect_k"].options(tokens=len(tokens), width=tokens.shape[1], **options)
    return ROUTERS["dselect_k"].route(params, tokens, config)


def test_worked_numbers():
    selectors = spec.dselect_k_selectors(CODES, experts=4)
    np.testing.assert_allclose(spec.smooth_step(CODES), [[0.84375, 0.352], [0.104, 1]], rtol=1e-15)
    np.testing.assert_allclose(selectors[0], [0.10125, 0.055, 0.54675, 0.297], rtol=1e-14)
    np.testing.assert_allclose(selectors[1], [0, 0.896, 0, 0.104], rtol=1e-14)
    gate = spec.dselect_k_gate(selectors, LOGITS)
    np.testing.assert_allclose(gate, [0.0272303189, 0.6698202646, 0.1470437221, 0.1559056943], atol=1e-10)
    assert float(spec.dselect_k_entropy(selectors)) == pytest.approx(1.4158528226939677, rel=1e-14)


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("experts", [1, 2, 3, 4, 5, 6, 8, 11, 16])
def test_selectors_are_products_over_the_digits_of_a_number(experts, gamma):
    for choices in (1, 2, 3):
        z = RANDOM.normal(size=(choices, math.ceil(math.log2(experts)))) * gamma / 2
        np.testing.assert_allclose(
            spec.dselect_k_selectors(z, experts=experts, gamma=gamma), by_characters(z, experts, gamma), atol=1e-15
        )


def test_bits():
    assert [code_bits(e) for e in range(1, 10)] == [0, 1, 2, 2, 3, 3, 3, 3, 4]


def test_step_is_smooth_and_odd_around_its_middle():
    z = np.linspace(-0.7, 0.7, 57)
    np.testing.assert_allclose(spec.smooth_step(z), by_polynomial(z, 1.0), atol=1e-15)
    np.testing.assert_allclose(spec.smooth_step(z) + spec.smooth_step(-z), 1, rtol=1e-15)
    slope = np.imag(spec.smooth_step(z + 1e-30j)) / 1e-30
    np.testing.assert_allclose(slope, np.where(abs(z) < 0.5, 1.5 - 6 * z**2, 0), atol=1e-14)


def test_step_is_not_negative_where_the_polynomial_cancels():
    z = -0.5 + np.float64(2.0) ** -np.arange(20, 50)
    assert (spec.smooth_step(z) > 0).all()


def test_a_code_without_an_expert_has_no_mass():
    selectors = spec.dselect_k_selectors([[9.0, 9.0]], experts=3)
    assert selectors.tolist() == [[0.0, 0.0, 0.0]]
    assert spec.dselect_k_reachability(selectors) == pytest.approx(1e6)
    assert spec.dselect_k_reachability(selectors + 1e-30j).imag == 0
    few = spec.dselect_k_selectors([[9.0, 9.0], [0.25, 9.0]], experts=3)
    assert spec.dselect_k_reachability(few) == pytest.approx(1e6 + 1 / few[1].sum())


def test_a_gate_by_token_without_its_kernel_is_the_static_one():
    tokens, bias = RANDOM.normal(size=(5, 3)), RANDOM.normal(size=6) / 4
    static = routed({"bias": bias}, tokens, experts=4, selector_gate="static")
    token = routed({"bias": bias, "kernel": np.zeros((3, 6))}, tokens, experts=4)
    np.testing.assert_array_equal(static.routing.combine, token.routing.combine)
    assert token.losses["selector_entropy"] == pytest.approx(5 * static.losses["selector_entropy"])


@pytest.mark.parametrize(("experts", "losses"), [(4, {"selector_entropy"}), (5, {"selector_entropy", "reachability"})])
def test_reachability_counts_only_where_a_code_has_no_expert(experts, losses):
    tokens = RANDOM.normal(size=(5, 3))
    columns = 2 * (code_bits(experts) + 1)
    output = routed({"bias": np.zeros(columns), "kernel": np.zeros((3, columns))}, tokens, experts=experts)
    assert set(output.losses) == losses
    assert {f"{name}_loss" for name in losses} <= set(output.metrics)


@pytest.mark.parametrize("gate", ["token", "static"])
def test_initial_values(gate):
    config = ROUTERS["dselect_k"].options(
        width=64, tokens=8, experts=16, choices=4, selector_gate=gate, selector_gamma=2.0
    )
    params = ROUTERS["dselect_k"].init(np.random.default_rng(0), config)
    assert set(params) == ({"bias"} if gate == "static" else {"bias", "kernel"})
    for array in params.values():
        assert array.dtype == np.float32
        assert array.shape[-1] == 4 * 5
        assert 0.016 < abs(array[..., :16]).max() <= 0.02
        assert 0.025 < abs(array[..., 16:]).max() <= 0.05


def test_codes_must_have_the_bits_of_the_experts():
    with pytest.raises(ShapeError, match="codes"):
        spec.dselect_k_selectors(CODES, experts=5)
    with pytest.raises(ShapeError, match="codes"):
        spec.dselect_k_selectors(0.25, experts=2)
