"""The invariants of every algorithm, on many small problems.

Logits lie on a grid of quarters: where ties are allowed they are frequent and meant; where a property needs distinct
values, each value gets a rank of its own.
"""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from moespec import spec
from moespec.spec import slot_tokens

EXAMPLES = settings(derandomize=True, deadline=None, max_examples=40, database=None)

SHAPES = st.sampled_from([(1, 1), (1, 3), (4, 1), (4, 2), (6, 3), (8, 4), (5, 6)])
SEEDS = st.integers(0, 2**16)


def grid(shape, low=-12, high=12):
    return arrays(np.int64, shape, elements=st.integers(low, high)).map(lambda values: values / 4)


LOGITS = SHAPES.flatmap(grid)
DISTINCT = SHAPES.flatmap(lambda shape: st.permutations(range(shape[0] * shape[1])).map(
    lambda order: np.array(order).reshape(shape) / 4
))  # fmt: skip


@st.composite
def token_choice_problems(draw, logits=LOGITS):
    """Logits, choices and capacity."""
    values = draw(logits)
    return values, draw(st.integers(1, values.shape[1])), draw(st.integers(1, values.shape[0] + 1))


@st.composite
def expert_choice_problems(draw, logits=LOGITS):
    """Logits and capacity."""
    values = draw(logits)
    return values, draw(st.integers(1, values.shape[0]))


def permutation(size, seed):
    return np.random.default_rng(seed).permutation(size)


def assert_hard(routing, scores):
    """What holds for every sparse routing."""
    dispatch, combine = routing
    capacity = dispatch.shape[2]
    assert set(np.unique(dispatch)) <= {0, 1}
    assert (dispatch.sum(axis=0) <= 1).all()  # a slot holds at most one token
    assert (dispatch.sum(axis=2) <= 1).all()  # a token enters an expert at most once
    assert (dispatch.sum(axis=(0, 2)) <= capacity).all()
    np.testing.assert_array_equal(combine, dispatch * scores[:, :, None])


# Token Choice (section 3)


@EXAMPLES
@given(token_choice_problems())
def test_token_choice_serves_as_many_as_fit(problem):
    logits, choices, capacity = problem
    scores = spec.softmax_affinity(logits)
    routing = spec.token_choice(scores, choices=choices, capacity=capacity)
    assert_hard(routing, scores)
    requests = np.zeros(logits.shape[1], int)
    for row in scores:
        for expert in np.argsort(-row, kind="stable")[:choices]:
            requests[expert] += 1
    filled = routing.dispatch.sum(axis=(0, 2))
    np.testing.assert_array_equal(filled, np.minimum(requests, capacity))
    for expert, count in enumerate(filled.astype(int)):  # a prefix of the slots
        assert routing.dispatch[:, expert, :count].sum() == count
    assert (routing.dispatch.sum(axis=(1, 2)) <= choices).all()


@EXAMPLES
@given(token_choice_problems())
def test_token_choice_combines_at_most_one(problem):
    logits, choices, capacity = problem
    routing = spec.token_choice(spec.softmax_affinity(logits), choices=choices, capacity=capacity)
    mass, kept = routing.combine.sum(axis=(1, 2)), routing.dispatch.sum(axis=(1, 2))
    assert (mass <= 1 + 1e-12).all()
    np.testing.assert_array_equal(mass > 1 - 1e-9, kept == logits.shape[1])


@EXAMPLES
@given(token_choice_problems(DISTINCT), SEEDS)
def test_token_choice_commutes_with_permuting_experts(problem, seed):
    logits, choices, capacity = problem
    order = permutation(logits.shape[1], seed)
    routing = spec.token_choice(logits, choices=choices, capacity=capacity)
    permuted = spec.token_choice(logits[:, order], choices=choices, capacity=capacity)
    np.testing.assert_array_equal(permuted.dispatch, routing.dispatch[:, order])
    np.testing.assert_array_equal(permuted.combine, routing.combine[:, order])


@EXAMPLES
@given(token_choice_problems(), SEEDS)
def test_with_one_choice_the_filled_slots_ignore_the_order(problem, seed):
    logits, _, capacity = problem
    order = permutation(logits.shape[0], seed)
    routing = spec.token_choice(logits, choices=1, capacity=capacity)
    permuted = spec.token_choice(logits, choices=1, capacity=capacity, order=order)
    np.testing.assert_array_equal(permuted.dispatch.sum(axis=(0, 2)), routing.dispatch.sum(axis=(0, 2)))


@EXAMPLES
@given(token_choice_problems(), SEEDS)
def test_an_order_is_a_permutation_of_the_tokens(problem, seed):
    logits, choices, capacity = problem
    order = permutation(logits.shape[0], seed)
    routing = spec.token_choice(logits, choices=choices, capacity=capacity, order=order)
    permuted = spec.token_choice(logits[order], choices=choices, capacity=capacity)
    np.testing.assert_array_equal(permuted.dispatch, routing.dispatch[order])


@EXAMPLES
@given(token_choice_problems())
def test_more_capacity_removes_no_assignment(problem):
    logits, choices, capacity = problem
    routing = spec.token_choice(logits, choices=choices, capacity=capacity)
    wider = spec.token_choice(logits, choices=choices, capacity=capacity + 1)
    np.testing.assert_array_equal(wider.dispatch[:, :, :capacity], routing.dispatch)


@EXAMPLES
@given(token_choice_problems())
def test_with_room_for_all_nothing_is_dropped(problem):
    logits, choices, _ = problem
    routing = spec.token_choice(logits, choices=choices, capacity=logits.shape[0])
    np.testing.assert_array_equal(routing.dispatch.sum(axis=(1, 2)), choices)


@EXAMPLES
@given(token_choice_problems())
def test_first_choices_ignore_second_choices(problem):
    logits, choices, capacity = problem
    routing = spec.token_choice(logits, choices=choices, capacity=capacity)
    alone = spec.token_choice(logits, choices=1, capacity=capacity)
    assert (routing.dispatch >= alone.dispatch).all()


# Batch priority (section 4)


@EXAMPLES
@given(token_choice_problems(DISTINCT), SEEDS, st.sampled_from(["max", "sum"]))
def test_batch_priority_commutes_with_permuting_tokens(problem, seed, by):
    logits, choices, capacity = problem
    scores = logits + np.arange(logits.shape[0])[:, None] / 1024  # no two sums are equal
    order = permutation(logits.shape[0], seed)

    def routed(values):
        priority = spec.batch_priority(values, by=by, choices=choices)
        return spec.token_choice(values, choices=choices, capacity=capacity, order=priority)

    np.testing.assert_array_equal(routed(scores[order]).dispatch, routed(scores).dispatch[order])


@EXAMPLES
@given(token_choice_problems())
def test_with_batch_priority_an_expert_keeps_its_best(problem):
    logits, _, capacity = problem
    scores = spec.softmax_affinity(logits)
    priority = spec.batch_priority(scores)
    routing = spec.token_choice(scores, choices=1, capacity=capacity, order=priority)
    favourite = np.argsort(-scores, axis=1, kind="stable")[:, 0]
    for expert in range(logits.shape[1]):
        requests = [t for t in priority if favourite[t] == expert]
        kept = [int(t) for t in slot_tokens(routing)[expert] if t < len(logits)]
        assert kept == requests[:capacity]


@EXAMPLES
@given(token_choice_problems(), SEEDS)
def test_batch_priority_keeps_the_most_first_choice_mass(problem, seed):
    logits, _, capacity = problem
    scores = spec.softmax_affinity(logits)
    best = spec.token_choice(scores, choices=1, capacity=capacity, order=spec.batch_priority(scores))
    other = spec.token_choice(scores, choices=1, capacity=capacity, order=permutation(len(scores), seed))
    assert best.combine.sum() >= other.combine.sum() - 1e-12


@EXAMPLES
@given(token_choice_problems())
def test_without_drops_batch_priority_changes_only_slots(problem):
    logits, choices, _ = problem
    plain = spec.token_choice(logits, choices=choices, capacity=len(logits))
    priority = spec.token_choice(logits, choices=choices, capacity=len(logits), order=spec.batch_priority(logits))
    np.testing.assert_array_equal(priority.dispatch.sum(axis=2), plain.dispatch.sum(axis=2))


# Expert Choice (section 5)


@EXAMPLES
@given(expert_choice_problems())
def test_expert_choice_fills_every_slot(problem):
    logits, capacity = problem
    scores = spec.softmax_affinity(logits)
    routing = spec.expert_choice(scores, capacity=capacity)
    assert_hard(routing, scores)
    assert (routing.dispatch.sum(axis=0) == 1).all()
    assert (routing.combine.sum(axis=(1, 2)) <= 1 + 1e-12).all()
    for expert in range(logits.shape[1]):
        chosen = scores[slot_tokens(routing)[expert], expert]
        assert (np.diff(chosen) <= 0).all()
        assert np.sort(scores[:, expert])[-capacity] == chosen[-1]


@EXAMPLES
@given(expert_choice_problems(DISTINCT), SEEDS)
def test_expert_choice_commutes_with_permutations(problem, seed):
    logits, capacity = problem
    routing = spec.expert_choice(logits, capacity=capacity)
    tokens, experts = permutation(logits.shape[0], seed), permutation(logits.shape[1], seed + 1)
    permuted = spec.expert_choice(logits[tokens][:, experts], capacity=capacity)
    np.testing.assert_array_equal(permuted.dispatch, routing.dispatch[tokens][:, experts])


@EXAMPLES
@given(expert_choice_problems())
def test_drop_zero_only_empties_slots(problem):
    logits, capacity = problem
    routing = spec.expert_choice(logits, capacity=capacity)
    dropped = spec.expert_choice(logits, capacity=capacity, drop_zero=True)
    np.testing.assert_array_equal(dropped.dispatch, routing.dispatch * (logits > 0)[:, :, None])


# Softmax (section 2)


@EXAMPLES
@given(LOGITS, SEEDS)
def test_softmax(logits, seed):
    affinity = spec.softmax_affinity(logits)
    assert (affinity > 0).all()
    np.testing.assert_allclose(affinity.sum(axis=1), 1, rtol=1e-14)
    row = np.random.default_rng(seed).normal(size=(logits.shape[0], 1))
    np.testing.assert_allclose(spec.softmax_affinity(logits + row), affinity, rtol=1e-13)
    order = permutation(logits.shape[1], seed)
    np.testing.assert_allclose(spec.softmax_affinity(logits[:, order]), affinity[:, order], rtol=1e-14)


# Sinkhorn (section 6)


@EXAMPLES
@given(LOGITS, st.integers(1, 25))
def test_sinkhorn_rows_are_exact(logits, iterations):
    plan = spec.sinkhorn_affinity(logits, iterations=iterations)
    assert (plan > 0).all()
    np.testing.assert_allclose(plan.sum(axis=1), 1, rtol=1e-13)


def column_error(plan):
    return np.sum(np.abs(plan.sum(axis=0) - len(plan) / plan.shape[1]))


@EXAMPLES
@given(LOGITS)
def test_sinkhorn_columns_improve(logits):
    errors = [column_error(spec.sinkhorn_affinity(logits, iterations=n)) for n in range(1, 12)]
    assert all(after <= before + 1e-12 for before, after in itertools.pairwise(errors))


@EXAMPLES
@given(LOGITS, st.integers(1, 5), SEEDS)
def test_sinkhorn_ignores_column_constants(logits, iterations, seed):
    column = np.random.default_rng(seed).normal(size=logits.shape[1])
    shifted = spec.sinkhorn_affinity(logits + column, iterations=iterations)
    np.testing.assert_allclose(shifted, spec.sinkhorn_affinity(logits, iterations=iterations), rtol=1e-12)


@EXAMPLES
@given(LOGITS, st.integers(1, 5), SEEDS)
def test_sinkhorn_commutes_with_permutations(logits, iterations, seed):
    tokens, experts = permutation(logits.shape[0], seed), permutation(logits.shape[1], seed + 1)
    permuted = spec.sinkhorn_affinity(logits[tokens][:, experts], iterations=iterations)
    plan = spec.sinkhorn_affinity(logits, iterations=iterations)
    np.testing.assert_allclose(permuted, plan[tokens][:, experts], rtol=1e-12)


@EXAMPLES
@given(SHAPES, st.integers(1, 3))
def test_sinkhorn_of_nothing_is_uniform(shape, iterations):
    plan = spec.sinkhorn_affinity(np.zeros(shape), iterations=iterations)
    np.testing.assert_allclose(plan, 1 / shape[1], rtol=1e-14)


# Sparsity-constrained transport (section 8)


@EXAMPLES
@given(expert_choice_problems(), SEEDS, st.sampled_from([0.25, 1.0, 4.0]))
def test_columns_of_the_plan_are_exact_for_every_potential(problem, seed, gamma):
    logits, capacity = problem
    tokens, experts = logits.shape
    alpha = np.random.default_rng(seed).normal(size=tokens)
    utility = spec.softmax_affinity(logits)
    plan = spec.transport_semi_dual(alpha, utility, capacity=capacity, regularization=gamma).plan
    assert (plan >= 0).all()
    np.testing.assert_allclose(plan.sum(axis=0), tokens / experts, rtol=1e-12)
    assert (np.count_nonzero(plan, axis=0) <= capacity).all()


@EXAMPLES
@given(expert_choice_problems(), SEEDS)
def test_weak_duality(problem, seed):
    logits, capacity = problem
    tokens, experts = logits.shape
    random = np.random.default_rng(seed)
    utility, alpha, beta = spec.softmax_affinity(logits), random.normal(size=tokens), random.normal(size=experts)
    semi = spec.transport_semi_dual(alpha, utility, capacity=capacity).value
    assert spec.transport_dual(alpha, beta, utility, capacity=capacity).value <= semi + 1e-12
    if tokens % experts == 0 and capacity >= tokens // experts:  # a balanced assignment is feasible
        plan = np.eye(experts)[random.permutation(np.arange(tokens) % experts)]
        assert semi <= np.sum(plan**2) / 2 - np.sum(plan * utility) + 1e-12


@EXAMPLES
@given(expert_choice_problems(), SEEDS)
def test_the_semi_dual_is_concave(problem, seed):
    logits, capacity = problem
    random = np.random.default_rng(seed)
    one, other = random.normal(size=(2, len(logits)))
    utility = spec.softmax_affinity(logits)
    values = [spec.transport_semi_dual(a, utility, capacity=capacity).value for a in (one, (one + other) / 2, other)]
    assert values[1] >= (values[0] + values[2]) / 2 - 1e-12


@EXAMPLES
@given(expert_choice_problems(), SEEDS)
def test_the_sparse_plan_commutes_with_permutations(problem, seed):
    logits, capacity = problem
    utility = np.random.default_rng(seed).random(logits.shape)
    tokens, experts = permutation(logits.shape[0], seed), permutation(logits.shape[1], seed + 1)
    plan = spec.sparse_transport_affinity(utility, capacity=capacity, steps=5)
    permuted = spec.sparse_transport_affinity(utility[tokens][:, experts], capacity=capacity, steps=5)
    np.testing.assert_allclose(permuted, plan[tokens][:, experts], atol=1e-9)


@EXAMPLES
@given(LOGITS)
def test_the_quadratic_optimum_has_no_gap(logits):
    utility = spec.softmax_affinity(logits)
    plan = spec.sparse_transport_affinity(utility, capacity=1, sparsity="none", solver="lbfgs")
    np.testing.assert_allclose(plan.sum(axis=1), 1, atol=1e-7)
    other = spec.sinkhorn_affinity(logits, iterations=400)
    if column_error(other) < 1e-9:  # feasible, hence no better
        value = [np.sum(p * utility) - np.sum(p * p) / 2 for p in (plan, other)]
        assert value[0] >= value[1] - 1e-7


# Soft MoE (section 9)

TOKENS = st.sampled_from([(1, 2), (4, 3), (6, 4)]).flatmap(grid)


def slots_for(tokens, seed, shape=(3, 2)):
    return np.random.default_rng(seed).normal(size=(tokens.shape[1], *shape))


@EXAMPLES
@given(TOKENS, SEEDS, st.sampled_from([-2.0, 0.5, 1.0, 4.0]), st.sampled_from(["paper", "rsqrt"]))
def test_soft_routing_sums_and_bounds(tokens, seed, scale, form):
    routing = spec.soft_routing(tokens, slots_for(tokens, seed), scale=scale, norm_form=form)
    np.testing.assert_allclose(routing.dispatch.sum(axis=0), 1, rtol=1e-13)
    np.testing.assert_allclose(routing.combine.sum(axis=(1, 2)), 1, rtol=1e-13)
    others, bound = len(tokens) - 1, np.exp(2 * abs(scale))
    assert (routing.dispatch >= 1 / (1 + others * bound) - 1e-12).all()
    assert (routing.dispatch <= 1 / (1 + others / bound) + 1e-12).all()
    assert (routing.combine > 0).all()


@EXAMPLES
@given(TOKENS, SEEDS)
def test_soft_routing_commutes_with_permutations(tokens, seed):
    slots = slots_for(tokens, seed)
    routing = spec.soft_routing(tokens, slots)
    t, e, c = permutation(len(tokens), seed), permutation(3, seed), permutation(2, seed)
    permuted = spec.soft_routing(tokens[t], slots[:, e][:, :, c])
    for got, want in zip(permuted, routing, strict=True):
        np.testing.assert_allclose(got, want[t][:, e][:, :, c], rtol=1e-12)


@EXAMPLES
@given(TOKENS, SEEDS)
def test_soft_routing_at_scale_zero_is_uniform(tokens, seed):
    slots = slots_for(tokens, seed)
    routing = spec.soft_routing(tokens, slots, scale=0.0)
    uniform = spec.soft_routing(tokens, slots, dispatch="uniform", combine="uniform")
    np.testing.assert_allclose(routing.dispatch, uniform.dispatch, rtol=1e-14)
    np.testing.assert_allclose(routing.combine, uniform.combine, rtol=1e-14)


@EXAMPLES
@given(TOKENS, SEEDS)
def test_soft_routing_ignores_the_length_of_tokens(tokens, seed):
    slots = slots_for(tokens, seed)
    lengths = 1 + np.random.default_rng(seed).random((len(tokens), 1)) * 9
    routing, scaled = spec.soft_routing(tokens, slots), spec.soft_routing(lengths * tokens, slots)
    np.testing.assert_allclose(scaled.dispatch, routing.dispatch, rtol=1e-4)
    np.testing.assert_allclose(scaled.combine, routing.combine, rtol=1e-4)


@EXAMPLES
@given(TOKENS, SEEDS)
def test_soft_outputs_lie_between_the_slot_outputs(tokens, seed):
    routing = spec.soft_routing(tokens, slots_for(tokens, seed))
    outputs = np.random.default_rng(seed).normal(size=(3, 2, tokens.shape[1]))
    result = spec.moe_layer(tokens, routing, lambda inputs: outputs)
    assert (result <= outputs.max(axis=(0, 1)) + 1e-12).all()
    assert (result >= outputs.min(axis=(0, 1)) - 1e-12).all()


# Auxiliary losses (section 10) and metrics


@EXAMPLES
@given(LOGITS, SEEDS)
def test_losses(logits, seed):
    tokens, experts = logits.shape
    scores = spec.softmax_affinity(logits)
    noisy = logits + np.random.default_rng(seed).normal(size=logits.shape) / experts
    t, e = permutation(tokens, seed), permutation(experts, seed + 1)

    def losses(logits, noisy):
        scores = spec.softmax_affinity(logits)
        load = spec.load_loss(logits, noisy, choices=experts, noise_std=1 / experts)
        return np.array([spec.importance_loss(scores), load, spec.z_loss(logits)])

    values = losses(logits, noisy)
    assert (values >= 0).all()
    assert (values[:2] <= experts - 1 + 1e-12).all()
    np.testing.assert_allclose(losses(logits[t][:, e], noisy[t][:, e]), values, rtol=1e-9, atol=1e-13)
    np.testing.assert_allclose(spec.importance_loss(7 * scores), values[0], rtol=1e-9, atol=1e-14)
    assert 0 < spec.balance_loss(scores) <= experts + 1e-12


@EXAMPLES
@given(SHAPES)
def test_losses_of_uniform_and_collapsed_scores(shape):
    tokens, experts = shape
    uniform, collapsed = np.full(shape, 1 / experts), np.eye(experts)[np.zeros(tokens, int)]
    np.testing.assert_allclose(spec.importance_loss(uniform), 0, atol=1e-28)
    np.testing.assert_allclose(spec.importance_loss(collapsed), experts - 1, rtol=1e-13)
    np.testing.assert_allclose(spec.balance_loss(uniform), 1, rtol=1e-14)
    np.testing.assert_allclose(spec.balance_loss(collapsed), experts, rtol=1e-14)
    np.testing.assert_allclose(spec.load_loss(uniform, uniform, choices=1, noise_std=1.0), 0, atol=1e-28)


@EXAMPLES
@given(token_choice_problems())
def test_metrics(problem):
    logits, choices, capacity = problem
    routing = spec.token_choice(spec.softmax_affinity(logits), choices=choices, capacity=capacity)
    metrics = spec.routing_metrics(routing)
    np.testing.assert_allclose(metrics["load"] * len(logits), routing.dispatch.sum(axis=(0, 2)))
    assert metrics["coverage"] + metrics["dropped"] == 1
    assert 0 <= metrics["entropy"] <= np.log(choices) + 1e-12
    if capacity >= len(logits):
        assert metrics["dropped"] == 0


# Capacity (section 1)


@EXAMPLES
@given(st.integers(1, 2000), st.integers(1, 64), st.sampled_from([0.5, 1.0, 1.05, 2.0]), st.integers(1, 4))
def test_capacity_has_room_for_the_factor(tokens, experts, factor, choices):
    capacity = spec.expert_capacity(tokens, experts, factor, choices=choices)
    assert capacity * experts >= choices * tokens * factor * (1 - 1e-15)
    assert (capacity - 1) * experts < choices * tokens * factor
    assert spec.expert_capacity(tokens, experts, factor, choices=choices, multiple_of=capacity) == capacity
