"""The layer, its experts, and the metrics of a routing, by their definitions."""

import numpy as np
import pytest
from properties import holds
from strategies import one_of, seeds, slots

from moespec.spec import (
    ConfigError,
    ShapeError,
    expert_choice,
    expert_mlp,
    gelu,
    moe_layer,
    moe_mlp,
    routing_metrics,
    softmax_affinity,
    token_choice,
)
from moespec.spec.examples import LOGITS

RANDOM = np.random.default_rng(0)
TOKENS = RANDOM.normal(size=(6, 4))
WIDTH, HIDDEN = 4, 3
ALLOCATIONS = one_of("token_choice", "expert_choice", "soft_routing")


def parameters(experts, seed):
    """Of expert MLPs with biases."""
    random = np.random.default_rng(seed)
    shapes = {"w1": (WIDTH, HIDDEN), "b1": (HIDDEN,), "w2": (HIDDEN, WIDTH), "b2": (WIDTH,)}
    return {name: random.normal(size=(experts, *shape)) for name, shape in shapes.items()}


def layer(module, tokens, scores, experts, *, allocation, **options):
    """The layer with its routing, and the metrics of the routing. `scores` are the slots of soft routing."""
    arrays = (tokens, scores) if allocation == "soft_routing" else (scores,)
    routing = getattr(module, allocation)(*arrays, **options)
    output = module.moe_layer(tokens, routing, lambda inputs: module.expert_mlp(inputs, experts))
    dense = routing.dense()
    return {"output": output, "dispatch": dense.dispatch, "combine": dense.combine, **module.routing_metrics(routing)}


def applied(B, problem, seed, allocation, *, spare=0):
    """`layer` on random tokens, which also come back, and the parameters of the experts; `spare` slots more."""
    random = np.random.default_rng(seed)
    tokens = random.normal(size=(len(problem.scores), problem.tokens, WIDTH))
    scores, options = B.softmax_affinity(problem.scores), {"capacity": problem.capacity}
    if allocation == "soft_routing":
        scores, options = random.normal(size=(WIDTH, problem.experts, problem.capacity)), {}
    if allocation == "token_choice":
        options = {"choices": problem.choices, "capacity": problem.capacity + spare}
    experts = parameters(problem.experts, seed)
    return (
        tokens,
        experts,
        B.run(layer, tokens=tokens, scores=scores, experts=experts, allocation=allocation, **options),
    )


WRONG = ("weights_before_experts", "dropped_tokens_pass")


@holds(wrong=WRONG, problem=slots, seed=seeds, allocation=ALLOCATIONS, spare=one_of(0, 8))
def test_the_layer_is_dispatch_experts_combine(B, problem, seed, allocation, spare):
    """`Y[t] = sum C[t, e, c] f_e(sum_t' D[t', e, c] X[t'])`, whatever record of the routing is used, and although the experts
    of empty slots have biases; a token without a slot gets zero."""
    tokens, experts, result = applied(B, problem, seed, allocation, spare=spare)
    inputs = np.einsum("gtec,gtd->gecd", result["dispatch"], tokens)
    hidden = np.einsum("gecd,edh->gech", inputs, experts["w1"]) + experts["b1"][:, None]
    outputs = np.einsum("gech,ehd->gecd", gelu(hidden), experts["w2"]) + experts["b2"][:, None]
    expected = np.einsum("gtec,gecd->gtd", result["combine"], outputs)
    np.testing.assert_allclose(result["output"], expected, rtol=1e-12, atol=1e-12)
    assert (result["output"][~result["dispatch"].any(axis=(2, 3))] == 0).all()


@holds(wrong="entropy_in_bits", problem=slots, seed=seeds, allocation=ALLOCATIONS)
def test_metrics_count_what_the_dispatch_shows(B, problem, seed, allocation):
    """Means over groups of the load, the coverage and what is dropped, and of the entropy of a token's shares of the experts."""
    _, _, result = applied(B, problem, seed, allocation)
    dispatch, shares = result["dispatch"], result["combine"].sum(axis=3)
    covered = (dispatch > 0).any(axis=(2, 3))
    np.testing.assert_allclose(result["load"], dispatch.sum(axis=(1, 3)).mean(axis=0) / problem.tokens, rtol=1e-12)
    np.testing.assert_allclose(
        [result["coverage"], result["dropped"]], [covered.mean(), 1 - covered.mean()], atol=1e-14
    )
    shares = shares / np.where(covered, shares.sum(axis=2), 1)[..., None]
    entropy = -np.sum(shares * np.log(np.where(shares > 0, shares, 1)), axis=2).mean()
    np.testing.assert_allclose(result["entropy"], entropy, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"w2": None}, "params: w2 is missing"),
        ({"b3": np.ones((3, HIDDEN))}, "params: w3 is missing"),
        ({"w4": np.ones((3, WIDTH, HIDDEN))}, "params: w4 is not one of w1, b1, w3"),
    ],
)
def test_expert_mlp_knows_its_parameters(change, message):
    params = {name: array for name, array in {**parameters(3, 0), **change}.items() if array is not None}
    with pytest.raises(ConfigError, match=message):
        expert_mlp(np.zeros((3, 1, WIDTH)), params)


@pytest.mark.parametrize(
    "shared", [{"w1": np.ones((WIDTH, 2))}, {"w1": np.ones((WIDTH, 2)), "w2": np.ones((3, WIDTH))}]
)
def test_a_shared_expert_is_checked_like_the_others(shared):
    routing = expert_choice(softmax_affinity(LOGITS), capacity=2)
    with pytest.raises((ConfigError, ShapeError), match="w2"):
        moe_mlp(TOKENS, routing, parameters(3, 0), shared=shared)


def test_several_shared_experts_are_one_of_their_joint_width():
    """Their hidden units beside each other, and the sum of their last biases."""
    routing, one, two = expert_choice(softmax_affinity(LOGITS), capacity=2), parameters(1, 1), parameters(1, 2)
    alone = [{name: value[0] for name, value in each.items()} for each in (one, two)]
    joint = {name: np.concatenate([each[name] for each in alone], -1) for name in ("w1", "b1")}
    joint |= {"w2": np.concatenate([each["w2"] for each in alone]), "b2": alone[0]["b2"] + alone[1]["b2"]}
    result, first, second = (
        moe_mlp(TOKENS, routing, parameters(3, 0), shared=shared, activation="silu") for shared in (joint, *alone)
    )
    without = moe_mlp(TOKENS, routing, parameters(3, 0), activation="silu")
    np.testing.assert_allclose(result - without, first - without + second - without, rtol=1e-12)


def test_layer_may_change_the_width():
    routing = expert_choice(softmax_affinity(LOGITS), capacity=2)
    assert moe_layer(TOKENS, routing, lambda x: x[:, :, :3]).shape == (6, 3)


@pytest.mark.parametrize("shape", [(3, 2), (2, 2, 4), (3, 3, 4)])
def test_experts_must_keep_their_slots(shape):
    routing = expert_choice(softmax_affinity(LOGITS), capacity=2)
    with pytest.raises(ShapeError, match=r"^experts: "):
        moe_layer(TOKENS, routing, lambda x: np.zeros(shape))


def test_metrics_are_real():
    routing = token_choice(softmax_affinity(LOGITS + 1e-30j), choices=2, capacity=2)
    assert all(value.dtype == np.float64 for value in routing_metrics(routing).values())
