"""S-BASE: Megatron-LM's rule in training."""

import numpy as np
import pytest

from moespec.spec import ROUTERS


@pytest.mark.parametrize("seed", range(20))
def test_the_rule_of_megatron_chooses_the_same(seed):
    """Its Sinkhorn in the kernel domain: total mass 1, shares 1 / T and 1 / E, until it moves by less than 1e-9."""
    logits = np.random.default_rng(seed).normal(size=(64, 8))
    cost = np.exp(logits)
    d0, d1, moved = np.ones(64), np.ones(8), np.inf
    while moved > 1e-9:
        d0 = 1 / 64 / (cost @ d1)
        before, d1 = d1, 1 / 8 / (d0 @ cost)
        moved = np.abs(d1 - before).mean()
    plan = d1 * cost * d0[:, None]
    router, sizes = ROUTERS["s_base"], {"width": 8, "experts": 8, "tokens": 64}
    options = router.options(**sizes, combine_with="sigmoid", sinkhorn_iterations=300)
    output = router.route({"kernel": np.eye(8)}, logits, options, train=True)
    np.testing.assert_array_equal(output.routing.dispatch.sum(axis=2).argmax(axis=1), plan.argmax(axis=1))
    gate = 1 / (1 + np.exp(-logits[np.arange(64), plan.argmax(axis=1)]))
    np.testing.assert_allclose(output.routing.combine.sum(axis=(1, 2)), gate, rtol=1e-14)
