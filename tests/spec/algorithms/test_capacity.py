"""Capacity: its rounding, the rules of public implementations; and of a router as a number, another one at evaluation, and
none."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import strategies as st
from properties import holds

from moespec.spec import CAPACITY_RULES, ROUTERS, ConfigError
from moespec.spec.examples import LOGITS


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


def test_every_rule_is_in_the_table():
    assert list(CAPACITY_RULES) == list(TABLE)


@pytest.mark.parametrize("name", TABLE)
def test_rules_of_public_implementations(name):
    slots = tuple(CAPACITY_RULES[name](tokens, experts, factor, choices) for tokens, experts, choices, factor in CASES)
    assert slots == TABLE[name]
    assert all(type(number) is int for number in slots)


WITH_CAPACITY = [name for name in ROUTERS if name not in ("dselect_k", "base")]
ROOMY = [name for name in WITH_CAPACITY if name != "soft_moe"]


def choices(name):
    return {"gshard": 2, "noisy_top_k": 2, "hierarchical_top_k": 2, "sigmoid_token_choice": 2}.get(name, 1)


def slots(name, *, train=False, **options):
    """How many slots an expert has in the routing of the worked example."""
    config = ROUTERS[name].options(width=3, experts=3, tokens=6, **options)
    params = {key: value.astype(float) for key, value in ROUTERS[name].init(np.random.default_rng(0), config).items()}
    state = ROUTERS[name].initial_state(config)
    return ROUTERS[name].route(params, LOGITS, config, state=state, train=train).routing.dispatch.shape[2]


@pytest.mark.parametrize("name", WITH_CAPACITY)
def test_the_capacity_as_a_number(name):
    assert slots(name, train=True, slots_per_expert=4, capacity_factor=1.0) == 4
    at_evaluation = (
        6 if name in ("strictly_balanced", "batch_expert_choice") else 4
    )  # there tokens above a threshold find room
    assert slots(name, slots_per_expert=4, capacity_factor=1.0) == at_evaluation


@pytest.mark.parametrize("name", ROOMY)
def test_another_factor_at_evaluation(name):
    options = {"capacity_factor": 1.0, "eval_capacity_factor": 2.0}
    training, evaluation = 2 * choices(name), 4 * choices(name)
    assert (slots(name, train=True, **options), slots(name, **options)) == (training, evaluation)
    assert slots(name, slots_per_expert=5, **options) == evaluation
    assert slots(name, train=True, slots_per_expert=5, **options) == 5


@pytest.mark.parametrize("name", WITH_CAPACITY)
def test_an_infinite_factor_is_room_for_every_token(name):
    assert slots(name, train=True, capacity_factor=math.inf) == 6


@pytest.mark.parametrize(
    ("option", "value"), [("slots_per_expert", 0), ("slots_per_expert", 1.5), ("eval_capacity_factor", 0.0)]
)
def test_out_of_range(option, value):
    with pytest.raises(ConfigError, match=f"{option}: .*{value}"):
        ROUTERS["softmax_token_choice"].options(width=3, experts=3, tokens=6, **{option: value})
