"""The softmax as the minimum of an objective."""

import numpy as np
from properties import holds
from strategies import logits, seeds


@holds(wrong="softmax_over_tokens", logits=logits, seed=seeds)
def test_the_affinity_minimises_cost_minus_entropy(B, logits, seed):
    """Of all matrices with rows that sum to 1 it has the least `<A, -L> + sum A log A`, minus the logsumexp of the rows."""

    def objective(affinity):
        return np.sum(affinity * (np.log(affinity) - logits), axis=2)

    least = objective(B.softmax_affinity(logits))
    np.testing.assert_allclose(least, -np.logaddexp.reduce(logits, axis=2), rtol=1e-12, atol=1e-12)
    other = np.random.default_rng(seed).dirichlet(np.ones(logits.shape[2]), size=logits.shape[:2]) + 1e-300
    assert (objective(other) >= least - 1e-12).all()
