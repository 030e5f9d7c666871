"""Section 6: the Sinkhorn affinity. Plans are (groups, tokens, experts)."""

import itertools

import numpy as np
from properties.implementations import holds
from properties.strategies import even_logits, integers, logits, number, orders, seeds, shuffled
from properties.wrong import favouring, restarted


def column_error(plan):
    """The L1 error of the column sums of each group."""
    tokens, experts = plan.shape[1:]
    return np.abs(plan.sum(axis=1) - tokens / experts).sum(axis=1)


def balanced(shape, seed):
    """Positive rows that sum to 1, in turn the same numbers shifted by one expert, so that columns sum to T / E."""
    groups, tokens, experts = shape
    weights = np.random.default_rng(seed).dirichlet(np.ones(experts), size=groups)
    return np.stack([np.roll(weights, token, axis=1) for token in range(tokens)], axis=1)


@holds(wrong="rows_first", logits=logits, iterations=integers(1, 20))
def test_rows_sum_to_one_after_any_number_of_iterations(B, logits, iterations):
    """And every entry is positive."""
    plan = B.sinkhorn_affinity(logits, iterations=iterations)
    assert (plan > 0).all()
    np.testing.assert_allclose(plan.sum(axis=2), 1, rtol=1e-13)


@holds(wrong=restarted, logits=logits)
def test_the_error_of_the_columns_does_not_grow(B, logits):
    errors = [column_error(B.sinkhorn_affinity(logits, iterations=n)) for n in (1, 2, 3, 5, 9, 20)]
    assert all((after <= before + 1e-12).all() for before, after in itertools.pairwise(errors))


@holds(wrong="sinkhorn_of_the_softmax", logits=logits, iterations=integers(1, 20))
def test_the_log_of_the_plan_is_the_logits_and_two_potentials(B, logits, iterations):
    """`log P - L` is a sum of a row and a column potential."""
    difference = np.log(B.sinkhorn_affinity(logits, iterations=iterations)) - logits
    potentials = difference[:, :, :1] + difference[:, :1] - difference[:, :1, :1]
    np.testing.assert_allclose(difference, potentials, atol=1e-12)


@holds(wrong="rows_first", logits=logits, iterations=integers(1, 20), seed=seeds)
def test_a_constant_added_to_a_column_changes_nothing(B, logits, iterations, seed):
    """After any number of iterations, since the first update absorbs it."""
    constants = np.random.default_rng(seed).normal(scale=4, size=(len(logits), 1, logits.shape[2]))
    shifted = B.sinkhorn_affinity(logits + constants, iterations=iterations)
    np.testing.assert_allclose(shifted, B.sinkhorn_affinity(logits, iterations=iterations), rtol=1e-11)


@holds(wrong="iterated_to_a_tolerance", logits=logits, seed=seeds)
def test_a_constant_added_to_a_row_changes_nothing_at_convergence(B, logits, seed):
    constants = np.random.default_rng(seed).normal(size=(*logits.shape[:2], 1))
    logits = logits / 4
    shifted = B.sinkhorn_affinity(logits + constants, iterations=60)
    np.testing.assert_allclose(shifted, B.sinkhorn_affinity(logits, iterations=60), rtol=1e-9)


@holds(wrong=favouring("sinkhorn_affinity", 2), logits=logits, iterations=integers(1, 20), seed=seeds)
def test_permuting_tokens_and_experts_permutes_the_plan(B, logits, iterations, seed):
    tokens, experts = orders(logits.shape[1], seed)[..., None], shuffled(logits.shape[2], seed)
    permuted = B.sinkhorn_affinity(np.take_along_axis(logits, tokens, axis=1)[:, :, experts], iterations=iterations)
    plan = np.take_along_axis(B.sinkhorn_affinity(logits, iterations=iterations), tokens, axis=1)[:, :, experts]
    np.testing.assert_allclose(permuted, plan, rtol=1e-11)


@holds(wrong="total_mass_of_one", logits=logits, iterations=integers(1, 20))
def test_equal_logits_give_equal_shares(B, logits, iterations):
    """`L = 0` gives 1 / E; with one expert that is 1."""
    plan = B.sinkhorn_affinity(0 * logits, iterations=iterations)
    np.testing.assert_allclose(plan, 1 / logits.shape[2], rtol=1e-14)


@holds(wrong="total_mass_of_one", logits=even_logits, seed=seeds, iterations=integers(1, 20))
def test_a_balanced_softmax_is_its_own_plan(B, logits, seed, iterations):
    """If the columns of the softmax sum to T / E already."""
    affinity = balanced(logits.shape, seed)
    np.testing.assert_allclose(B.sinkhorn_affinity(np.log(affinity), iterations=iterations), affinity, rtol=1e-11)


@holds(wrong="rows_alone", logits=even_logits, seed=seeds)
def test_at_convergence_the_plan_minimises_cost_minus_entropy(B, logits, seed):
    """Of all matrices with row sums 1 and column sums T / E it has the least `<P, -L> + sum P log P`."""

    def objective(plan):
        return np.sum(plan * (np.log(plan) - logits), axis=(1, 2))

    logits = logits / 4
    plan = B.sinkhorn_affinity(logits, iterations=60)
    np.testing.assert_allclose(column_error(plan), 0, atol=1e-9)
    assert (objective(plan) <= objective(balanced(logits.shape, seed)) + 1e-8).all()


@holds(wrong="tolerance_ignored", logits=logits, tolerance=number(0.05, 0.5))
def test_a_tolerance_stops_at_the_first_plan_that_is_within_it(B, logits, tolerance):
    """Each group for itself, by the largest error of a column."""
    plans = np.stack([B.sinkhorn_affinity(logits, iterations=n) for n in (1, 2, 3)])
    errors = np.abs(plans.sum(axis=2) - logits.shape[1] / logits.shape[2]).max(axis=2)  # (iterations, groups)
    errors[-1] = 0  # at the latest
    first = (errors <= tolerance).argmax(axis=0)
    stopped = B.sinkhorn_affinity(logits, iterations=3, tolerance=tolerance)
    np.testing.assert_allclose(stopped, plans[first, range(len(first))], rtol=1e-12)


@holds(wrong="sinkhorn_in_the_kernel_domain", logits=logits)
def test_large_logits_do_not_overflow(B, logits):
    """The iteration is in the log domain."""
    plan = B.sinkhorn_affinity(1000 * logits)
    np.testing.assert_allclose(plan.sum(axis=2), 1, rtol=1e-12)
