"""The Sinkhorn affinity: against the iteration in the kernel domain, as a minimum, and where it stops."""

import numpy as np
from hypothesis import strategies as st
from properties import holds
from strategies import even_logits, logits, one_of, seeds

from moespec.spec import sinkhorn_affinity


def column_error(plan):
    """The largest error of the column sums of each group."""
    tokens, experts = plan.shape[-2:]
    return np.abs(plan.sum(axis=-2) - tokens / experts).max(axis=-1)


WRONG = ("rows_first", "rows_alone", "sinkhorn_of_the_softmax", "iterated_to_a_tolerance", "total_mass_of_one")


@holds(wrong=WRONG, logits=logits, iterations=st.integers(1, 20))
def test_the_iteration_in_the_kernel_domain(B, logits, iterations):
    """Columns are scaled to sums of T / E, then rows to sums of 1."""
    groups, tokens, experts = logits.shape
    kernel, u = np.exp(logits), np.ones((groups, tokens, 1))
    for _ in range(iterations):
        v = tokens / experts / (kernel * u).sum(axis=1, keepdims=True)
        u = 1 / (kernel * v).sum(axis=2, keepdims=True)
    np.testing.assert_allclose(B.sinkhorn_affinity(logits, iterations=iterations), u * kernel * v, rtol=1e-11)


def balanced(shape, seed):
    """Positive rows that sum to 1, in turn the same numbers shifted by one expert, so that columns sum to T / E."""
    groups, tokens, experts = shape
    weights = np.random.default_rng(seed).dirichlet(np.ones(experts), size=groups)
    return np.stack([np.roll(weights, token, axis=1) for token in range(tokens)], axis=1)


@holds(wrong="rows_alone", logits=even_logits, seed=seeds)
def test_at_convergence_the_plan_minimises_cost_minus_entropy(B, logits, seed):
    """Of all matrices with row sums 1 and column sums T / E it has the least `<P, -L> + sum P log P`."""

    def objective(plan):
        return np.sum(plan * (np.log(plan) - logits), axis=(1, 2))

    logits = logits / 4
    plan = B.sinkhorn_affinity(logits, iterations=60)
    np.testing.assert_allclose(column_error(plan), 0, atol=1e-9)
    assert (objective(plan) <= objective(balanced(logits.shape, seed)) + 1e-8).all()


@holds(wrong="tolerance_ignored", logits=logits, tolerance=one_of(0.05, 0.5))
def test_a_tolerance_stops_at_the_first_plan_that_is_within_it(B, logits, tolerance):
    """Each group for itself, by the largest error of a column, too many tokens or too few."""
    plans = np.stack([B.sinkhorn_affinity(logits, iterations=n) for n in (1, 2, 3)])
    errors = column_error(plans)  # (iterations, groups)
    errors[-1] = 0  # at the latest
    first = (errors <= tolerance).argmax(axis=0)
    stopped = B.sinkhorn_affinity(logits, iterations=3, tolerance=tolerance)
    np.testing.assert_allclose(stopped, plans[first, range(len(first))], rtol=1e-12)


def test_the_numbers_of_iterations_in_the_documentation_suffice():
    values = np.random.default_rng(3).normal(size=(256, 32))
    assert column_error(sinkhorn_affinity(values)) / 8 < 1e-14
    assert column_error(sinkhorn_affinity(4 * values)) / 8 > 1e-8
