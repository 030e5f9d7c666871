"""Section 1: the capacity."""

import math
from fractions import Fraction

import pytest
from hypothesis import strategies as st
from properties.implementations import holds

from moespec.spec import ConfigError


def sizes(few):
    """tokens, experts, factor and choices, with quotients that are halves and integers."""
    factors = st.sampled_from([0.5, 1.0, 1.05, 1.25, 2.0])
    tokens, experts = st.integers(1, 20) | st.integers(1, 2000), st.sampled_from([2, 4, 8]) | st.integers(1, 64)
    return st.tuples(tokens, experts, factors, st.integers(1, 4))


def multiples(few):
    """What the capacity is a multiple of."""
    return st.integers(1, 8)


@holds(wrong="choices_not_counted", sizes=sizes)
def test_rounded_up_every_item_has_room(B, sizes):
    """`(C - 1) E < K T factor <= C E`, up to the rounding of the product."""
    tokens, experts, factor, choices = sizes
    capacity = B.module.expert_capacity(tokens, experts, factor, choices=choices)
    items = choices * tokens * factor
    assert (capacity - 1) * experts < items <= capacity * experts * (1 + 1e-15)


@holds(wrong="halves_rounded_up", sizes=sizes)
def test_rounded_to_the_nearest_half_goes_to_even(B, sizes):
    """Exactly, where the product is; a capacity below 1 is an error that names the factor."""
    tokens, experts, factor, choices = sizes
    quotient = Fraction(choices * tokens * factor) / experts
    expected = round(quotient)
    if not expected:
        with pytest.raises(ConfigError, match="factor"):
            B.module.expert_capacity(tokens, experts, factor, choices=choices, rounding="round")
    elif float(quotient) == quotient or abs(quotient % 1 - Fraction(1, 2)) > 1e-9:
        assert B.module.expert_capacity(tokens, experts, factor, choices=choices, rounding="round") == expected


@holds(wrong="multiples_ignored", sizes=sizes, multiple=multiples)
def test_a_multiple_is_the_next_one(B, sizes, multiple):
    tokens, experts, factor, choices = sizes
    capacity = B.module.expert_capacity(tokens, experts, factor, choices=choices)
    raised = B.module.expert_capacity(tokens, experts, factor, choices=choices, multiple_of=multiple)
    assert raised == math.ceil(capacity / multiple) * multiple


@holds(wrong="choices_not_counted", sizes=sizes)
def test_choices_count_like_tokens(B, sizes):
    """`n = K T` items are distributed."""
    tokens, experts, factor, choices = sizes
    capacity = B.module.expert_capacity
    assert capacity(tokens, experts, factor, choices=choices) == capacity(choices * tokens, experts, factor)
