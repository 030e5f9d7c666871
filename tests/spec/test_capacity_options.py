"""The capacity of a router: as a number, another one at evaluation, and none; and that Sparse-MLP's gate is V-MoE's."""

import math

import numpy as np
import pytest

from moespec import spec
from moespec.spec import ROUTERS, ConfigError
from moespec.spec.examples import LOGITS, NOISE

WITH_CAPACITY = [name for name in ROUTERS if name not in ("dselect_k", "base")]
ROOMY = [name for name in WITH_CAPACITY if name != "soft_moe"]


def choices(name):
    return {"gshard": 2, "noisy_top_k": 2, "hierarchical_top_k": 2}.get(name, 1)


def slots(name, *, train=False, **options):
    """How many slots an expert has in the routing of the worked example."""
    config = ROUTERS[name].options(width=3, experts=3, tokens=6, **options)
    params = {key: value.astype(float) for key, value in ROUTERS[name].init(np.random.default_rng(0), config).items()}
    return ROUTERS[name].route(params, LOGITS, config, train=train).routing.dispatch.shape[2]


@pytest.mark.parametrize("name", WITH_CAPACITY)
def test_the_capacity_as_a_number(name):
    assert slots(name, train=True, slots_per_expert=4, capacity_factor=1.0) == 4
    at_evaluation = 6 if name == "strictly_balanced" else 4  # there tokens above a threshold find room
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


def test_slots_that_are_parameters_are_as_many_at_evaluation():
    with pytest.raises(ConfigError, match=r"eval_capacity_factor=2\.0: soft_moe does not have this option"):
        slots("soft_moe", eval_capacity_factor=2.0)


@pytest.mark.parametrize(
    ("option", "value"), [("slots_per_expert", 0), ("slots_per_expert", 1.5), ("eval_capacity_factor", 0.0)]
)
def test_out_of_range(option, value):
    with pytest.raises(ConfigError, match=f"{option}: .*{value}"):
        ROUTERS["softmax_token_choice"].options(width=3, experts=3, tokens=6, **{option: value})


def test_the_gate_of_sparse_mlp_is_that_of_v_moe():
    """SparseMLP, eq. (2): TopK of a softmax with noise of the *variance* 1 / N^2, N experts, without dividing by a sum."""
    experts = LOGITS.shape[1]
    noise = np.sqrt(1 / experts**2) * NOISE  # the standard deviation is 1 / N
    exponentials = np.exp(LOGITS + noise)
    scores = exponentials / exponentials.sum(axis=1, keepdims=True)
    gates = np.where(scores >= np.sort(scores, axis=1)[:, -2, None], scores, 0.0)
    config = ROUTERS["softmax_token_choice"].options(width=3, experts=3, tokens=6, choices=2, capacity_factor=math.inf)
    routing = (
        ROUTERS["softmax_token_choice"].route({"kernel": np.eye(3)}, LOGITS, config, noise=NOISE, train=True).routing
    )
    np.testing.assert_allclose(routing.combine.sum(axis=2), gates, rtol=1e-14)
    np.testing.assert_array_equal(spec.add_gating_noise(LOGITS, NOISE), LOGITS + NOISE / experts)
