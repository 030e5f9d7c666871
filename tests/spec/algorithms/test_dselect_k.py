"""DSelect-k: the step of the paper, selectors digit by digit, codes without an expert, initial values."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import strategies as st
from properties import holds
from strategies import GROUPS, one_of, seeds

from moespec import spec
from moespec.spec import ROUTERS

TOKENS, CHOICES = 3, 2


def codes():
    """(experts, codes) on a grid of sixteenths, some at or beyond the ends of a step of width 1."""

    def values(experts):
        shape = (GROUPS, TOKENS, CHOICES, math.ceil(math.log2(experts)))
        return seeds.map(lambda seed: (experts, np.random.default_rng(seed).integers(-10, 11, shape) / 16))

    return st.sampled_from((2, 3, 4, 5, 6, 8, 11)).flatmap(values)


def by_polynomial(z, gamma):
    """The step as the paper prints it."""
    inside = -2 / gamma**3 * z**3 + 3 / (2 * gamma) * z + 0.5
    return np.where(z <= -gamma / 2, 0, np.where(z >= gamma / 2, 1, inside))


def by_characters(z, experts, gamma):
    """The selectors of codes (..., bits), expert by expert, from the text of its number in base two."""
    bits, step = z.shape[-1], by_polynomial(z, gamma)
    selectors = np.ones((*z.shape[:-1], experts))
    for place, expert in itertools.product(np.ndindex(z.shape[:-1]), range(experts)):
        for digit, share in zip(format(expert, "b").rjust(bits, "0")[:bits], step[place], strict=True):
            selectors[(*place, expert)] *= share if digit == "1" else 1 - share
    return selectors


@holds(wrong="step_is_linear", z=st.floats(-1, 1), gamma=one_of(0.5, 1.0, 2.0))
def test_the_step_is_the_cubic_and_odd_around_one_half(B, z, gamma):
    value, mirrored = B.smooth_step(np.array([z, -z]), gamma=gamma)
    np.testing.assert_allclose(value, by_polynomial(z, gamma), atol=1e-15)
    np.testing.assert_allclose(value + mirrored, 1, rtol=1e-15)


@holds(wrong=("selectors_renormalised", "least_significant_digit_first"), problem=codes(),
       gamma=one_of(1.0, 0.5, 2.0))  # fmt: skip
def test_selectors_are_products_over_the_digits_of_a_number(B, problem, gamma):
    experts, z = problem
    selectors = B.dselect_k_selectors(z, experts=experts, gamma=gamma)
    np.testing.assert_allclose(selectors, by_characters(z, experts, gamma), rtol=1e-12, atol=1e-15)


def test_a_code_without_an_expert_has_no_mass():
    selectors = spec.dselect_k_selectors([[9.0, 9.0]], experts=3)
    assert selectors.tolist() == [[0.0, 0.0, 0.0]]
    assert spec.dselect_k_reachability(selectors) == pytest.approx(1e6)
    assert spec.dselect_k_reachability(selectors + 1e-30j).imag == 0
    few = spec.dselect_k_selectors([[9.0, 9.0], [0.25, 9.0]], experts=3)
    assert spec.dselect_k_reachability(few) == pytest.approx(1e6 + 1 / few[1].sum())


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
