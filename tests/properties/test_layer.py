"""Section 1: the layer that all routers share, and the metrics of a routing."""

import numpy as np
from properties.implementations import holds
from properties.strategies import one_of, seeds, slots

WIDTH, HIDDEN = 4, 3
ALLOCATIONS = one_of("token_choice", "expert_choice", "soft_routing")


def experts_of(experts, seed, *, equal=False):
    """Parameters of expert MLPs with biases."""
    random = np.random.default_rng(seed)
    shapes = {"w1": (WIDTH, HIDDEN), "b1": (HIDDEN,), "w2": (HIDDEN, WIDTH), "b2": (WIDTH,)}
    each = 1 if equal else experts
    drawn = {name: random.normal(size=(each, *shape)) for name, shape in shapes.items()}
    return {name: np.repeat(array, experts // each, axis=0) for name, array in drawn.items()}


def tokens_of(problem, seed):
    """(groups, tokens, width)."""
    return np.random.default_rng(seed + 1).normal(size=(len(problem.scores), problem.tokens, WIDTH))


def layer(module, tokens, scores, experts, *, allocation, **options):
    """The layer with its routing, and the metrics of the routing. `scores` are the slots of soft routing."""
    given = (tokens, scores) if allocation == "soft_routing" else (scores,)
    routing = getattr(module, allocation)(*given, **options)
    output = module.moe_layer(tokens, routing, lambda inputs: module.expert_mlp(inputs, experts))
    dense = routing.dense()
    return {"output": output, "dispatch": dense.dispatch, "combine": dense.combine, **module.routing_metrics(routing)}


def applied(B, problem, seed, allocation, *, equal=False, **options):
    """`layer` on random tokens, by default with the choices and the capacity of the problem."""
    scores = B.softmax_affinity(problem.scores)
    if allocation == "soft_routing":
        scores = np.random.default_rng(seed).normal(size=(WIDTH, problem.experts, problem.capacity))
    if allocation == "token_choice":
        options = {"choices": problem.choices, "capacity": problem.capacity, **options}
    if allocation == "expert_choice":
        options = {"capacity": problem.capacity, **options}
    experts = experts_of(problem.experts, seed, equal=equal)
    tokens = tokens_of(problem, seed)
    return B.run(layer, tokens=tokens, scores=scores, experts=experts, allocation=allocation, **options)


@holds(wrong="weights_before_experts", problem=slots, seed=seeds, allocation=ALLOCATIONS)
def test_the_layer_is_dispatch_experts_combine(B, problem, seed, allocation):
    """`Y[t] = sum C[t, e, c] f_e(sum_t' D[t', e, c] X[t'])`, whatever record of the routing is used."""
    found = applied(B, problem, seed, allocation)
    inputs = np.einsum("gtec,gtd->gecd", found["dispatch"], tokens_of(problem, seed))
    outputs = B.expert_mlp(inputs, experts_of(problem.experts, seed))
    expected = np.einsum("gtec,gecd->gtd", found["combine"], outputs)
    np.testing.assert_allclose(found["output"], expected, rtol=1e-12, atol=1e-12)


@holds(wrong="dropped_tokens_pass", problem=slots, seed=seeds, allocation=one_of("token_choice", "expert_choice"))
def test_a_token_without_a_slot_gets_zero(B, problem, seed, allocation):
    found = applied(B, problem, seed, allocation)
    without = ~found["dispatch"].any(axis=(2, 3))
    assert (found["output"][without] == 0).all()


@holds(wrong="empty_slots_reach_the_last_token", problem=slots, seed=seeds)
def test_empty_slots_do_no_harm(B, problem, seed):
    """Two slots more than tokens change nothing, although the experts have biases."""
    enough = applied(B, problem, seed, "token_choice", capacity=problem.tokens)["output"]
    spare = applied(B, problem, seed, "token_choice", capacity=problem.tokens + 2)["output"]
    np.testing.assert_allclose(spare, enough, rtol=1e-12, atol=1e-13)


@holds(wrong="outputs_averaged", problem=slots, seed=seeds, allocation=one_of("token_choice", "expert_choice"))
def test_equal_experts_are_the_dense_layer_times_the_combine_mass(B, problem, seed, allocation):
    """So with `sum C D = 1` for each token it is the dense layer."""
    found = applied(B, problem, seed, allocation, equal=True)
    tokens = tokens_of(problem, seed)
    dense = B.expert_mlp(tokens[:, None], experts_of(1, seed, equal=True))[:, 0]
    mass = found["combine"].sum(axis=(2, 3))[..., None]
    np.testing.assert_allclose(found["output"], mass * dense, rtol=1e-12, atol=1e-12)


@holds(wrong="combine_over_experts", problem=slots, seed=seeds)
def test_outputs_lie_between_the_outputs_of_the_slots(B, problem, seed):
    """In their convex hull, so within their range in every coordinate."""
    found = applied(B, problem, seed, "soft_routing")
    inputs = np.einsum("gtec,gtd->gecd", found["dispatch"], tokens_of(problem, seed))
    outputs = B.expert_mlp(inputs, experts_of(problem.experts, seed))
    assert (found["output"] <= outputs.max(axis=(1, 2))[:, None] + 1e-12).all()
    assert (found["output"] >= outputs.min(axis=(1, 2))[:, None] - 1e-12).all()


@holds(wrong="load_of_filled_slots", problem=slots, seed=seeds, allocation=ALLOCATIONS)
def test_metrics_count_what_the_dispatch_shows(B, problem, seed, allocation):
    """Means over groups of the load, the coverage and what is dropped."""
    found = applied(B, problem, seed, allocation)
    dispatch = found["dispatch"]
    np.testing.assert_allclose(found["load"], dispatch.sum(axis=(1, 3)).mean(axis=0) / problem.tokens, rtol=1e-12)
    np.testing.assert_allclose(found["coverage"], (dispatch > 0).any(axis=(2, 3)).mean(), rtol=1e-12)
    np.testing.assert_allclose(found["coverage"] + found["dropped"], 1, rtol=1e-14)


@holds(wrong="entropy_in_bits", problem=slots, seed=seeds)
def test_the_entropy_of_a_token_is_at_most_that_of_equal_shares(B, problem, seed):
    """From 0 to log K nats, and log K when the K experts have equal weights."""
    found = applied(B, problem, seed, "token_choice")
    assert -1e-12 <= found["entropy"] <= np.log(problem.choices) + 1e-12
    equal = problem._replace(scores=np.zeros(problem.scores.shape))
    found = applied(B, equal, seed, "token_choice", capacity=problem.tokens)
    np.testing.assert_allclose(found["entropy"], np.log(problem.choices), rtol=1e-12, atol=1e-12)
