"""Capacity: the formula, its rounding, the rules of public implementations."""

import math
from fractions import Fraction

import pytest

from moespec.spec import CAPACITY_RULES, ConfigError, expert_capacity

# Rule -> slots for (tokens, experts, choices, factor).
CASES = ((196, 32, 1, 1.0), (196, 32, 2, 1.0), (1568, 32, 2, 1.0), (196, 128, 1, 1.0))
TABLE = {
    "vmoe": (8, 16, 100, 4),
    "vmoe_expert_choice": (6, 6, 49, 2),
    "megablocks": (6, 12, 98, 1),
    "tutel": (7, 14, 98, 2),
    "deepspeed": (8, 13, 98, 8),
    "megatron": (7, 13, 98, 2),
    "mesh_tensorflow": (6, 6, 49, 4),
    "st_moe": (6, 6, 49, 4),
    "maxtext": (7, 13, 98, 2),
}


def test_every_rule_is_in_the_table():
    assert list(CAPACITY_RULES) == list(TABLE)


@pytest.mark.parametrize("name", TABLE)
def test_rules_of_public_implementations(name):
    slots = tuple(CAPACITY_RULES[name](tokens, experts, factor, choices) for tokens, experts, choices, factor in CASES)
    assert slots == TABLE[name]
    assert all(type(number) is int for number in slots)


def test_choices_of_a_rule_default_to_one():
    assert CAPACITY_RULES["tutel"](196, 32, 1.0) == 7
    assert CAPACITY_RULES["tutel"](196, 32, 1.0, choices=2) == 14


def test_a_rule_with_a_minimum_never_goes_below_it():
    assert CAPACITY_RULES["deepspeed"](4, 64, 1.0) == 8
    assert CAPACITY_RULES["st_moe"](4, 64, 1.0) == 4


def test_the_rule_of_vmoe_is_ours_with_multiples_of_four():
    for tokens, experts, choices, factor in [*CASES, (50, 8, 1, 1.05), (197, 32, 2, 0.5), (1568, 32, 2, 4.0)]:
        ours = expert_capacity(tokens, experts, factor, choices=choices, multiple_of=4)
        assert CAPACITY_RULES["vmoe"](tokens, experts, factor, choices) == ours


@pytest.mark.parametrize("tokens", [1, 7, 49, 196, 197, 256, 784, 1568])
@pytest.mark.parametrize("experts", [1, 3, 8, 32])
@pytest.mark.parametrize("factor", [0.5, 1.0, 1.25, 2.0])
@pytest.mark.parametrize("choices", [1, 2])
def test_exact_arithmetic(tokens, experts, factor, choices):
    exact = Fraction(choices * tokens) * Fraction(factor) / experts  # these factors are exact in binary
    if exact > 0.5:
        assert expert_capacity(tokens, experts, factor, choices=choices) == math.ceil(exact)
        rounded = round(exact)  # half to even, like the float
        assert expert_capacity(tokens, experts, factor, choices=choices, rounding="round") == rounded
        raised = expert_capacity(tokens, experts, factor, choices=choices, multiple_of=4)
        assert raised % 4 == 0
        assert 0 <= raised - math.ceil(exact) < 4


def test_half_is_rounded_to_even():
    assert expert_capacity(5, 2, 1.0, rounding="round") == 2
    assert expert_capacity(7, 2, 1.0, rounding="round") == 4


def test_the_product_is_evaluated_before_the_quotient():
    assert expert_capacity(20, 3, 1.05) == math.ceil(20 * 1.05 / 3) == 7
    assert CAPACITY_RULES["megatron"](20, 3, 1.05) == math.ceil(20 / 3 * 1.05) == 8


def test_below_one_is_an_error_before_the_multiple():
    with pytest.raises(ConfigError, match=r"factor: 0\.01"):
        expert_capacity(10, 8, 0.01, rounding="round", multiple_of=4)
    with pytest.raises(ConfigError, match="factor: 1"):
        expert_capacity(1, 4, 1.0, rounding="round")
    with pytest.raises(ConfigError, match="factor"):
        CAPACITY_RULES["megablocks"](1, 4, 1.0)
    assert expert_capacity(1, 4, 0.01) == 1
