"""Capacity: its rounding, the rules of public implementations, and room for every token."""

import math
from fractions import Fraction

import pytest
from hypothesis import strategies as st
from properties import holds

from moespec.spec import CAPACITY_RULES, ROUTERS, ConfigError


def sizes():
    """tokens, experts, factor and choices, with quotients that are halves and integers."""
    factors = st.sampled_from([0.5, 1.0, 1.05, 1.25, 2.0])
    tokens, experts = st.integers(1, 20) | st.integers(1, 2000), st.sampled_from([2, 4, 8]) | st.integers(1, 64)
    return st.tuples(tokens, experts, factors, st.integers(1, 4))


@holds(wrong=("choices_not_counted", "halves_rounded_up", "multiples_ignored"), sizes=sizes(),
       multiple=st.integers(1, 8))  # fmt: skip
def test_the_items_of_each_expert_are_rounded(B, sizes, multiple):
    """`K T factor / E` up, or to the nearest, a half to even, up to the rounding of the product; then up to a multiple. A
    capacity below 1 is an error that names the factor."""
    tokens, experts, factor, choices = sizes
    capacity, options = B.module.expert_capacity, {"choices": choices}
    items = choices * tokens * factor
    up = capacity(tokens, experts, factor, **options)
    assert (up - 1) * experts < items <= up * experts * (1 + 1e-15)
    raised = capacity(tokens, experts, factor, multiple_of=multiple, **options)
    assert raised == math.ceil(up / multiple) * multiple
    quotient = Fraction(items) / experts
    nearest = round(quotient)
    if not nearest:
        with pytest.raises(ConfigError, match="factor"):
            capacity(tokens, experts, factor, rounding="round", **options)
    elif float(quotient) == quotient or abs(quotient % 1 - Fraction(1, 2)) > 1e-9:
        assert capacity(tokens, experts, factor, rounding="round", **options) == nearest


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


@pytest.mark.parametrize("name", {**CAPACITY_RULES, **TABLE})
def test_rules_of_public_implementations(name):
    slots = tuple(CAPACITY_RULES[name](tokens, experts, factor, choices) for tokens, experts, choices, factor in CASES)
    assert slots == TABLE[name]
    assert all(type(number) is int for number in slots)


@pytest.mark.parametrize("name", [name for name in ROUTERS if name not in ("dselect_k", "base")])
def test_an_infinite_factor_is_room_for_every_token(name):
    assert ROUTERS[name].options(width=3, experts=3, tokens=6, capacity_factor=math.inf).capacity() == 6
