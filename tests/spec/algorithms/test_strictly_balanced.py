"""Strictly balanced gating against eqs. (15)-(20) of Shazeer et al. 2017, sum by sum, and against what the paper says of it."""

import math

import numpy as np
import pytest

from moespec import spec
from moespec.spec import ROUTERS


def literal(x, kernel, m, thresholds):
    """The masks, the gates by each and the loss: eqs. (15), (16), (18), (19) and (20), written out."""
    count, n = len(x), kernel.shape[1]
    gates = []  # X in eqs. (18)-(20): G_sigma of the batch
    for j in range(count):
        powers = [math.exp(sum(x[j][d] * kernel[d][i] for d in range(len(kernel)))) for i in range(n)]
        gates.append([power / sum(powers) for power in powers])
    batchwise = [[0] * n for _ in range(count)]
    for i in range(n):
        for j in sorted(range(count), key=lambda j: (-gates[j][i], j))[:m]:
            batchwise[j][i] = 1
    threshold = [[1 if gates[j][i] > thresholds[i] else 0 for i in range(n)] for j in range(count)]

    def normalised(mask):
        rows = []
        for j in range(count):
            total = sum(gates[j][i] * mask[j][i] for i in range(n))
            rows.append([gates[j][i] * mask[j][i] / total if total else 0.0 for i in range(n)])
        return rows

    loss = sum(
        (threshold[j][i] - batchwise[j][i]) * (gates[j][i] - thresholds[i]) for j in range(count) for i in range(n)
    )
    return batchwise, threshold, normalised(batchwise), normalised(threshold), loss


@pytest.mark.parametrize("seed", range(300))
def test_the_words_of_the_paper(seed):
    random = np.random.default_rng(seed)
    count, n, width = random.integers(1, [12, 7, 5])
    x, kernel = random.normal(size=(count, width)), random.normal(size=(width, n))
    m, thresholds = int(random.integers(1, count + 1)), random.uniform(0, 2 / n, n)
    batchwise, threshold, trained, evaluated, loss = literal(x, kernel, m, thresholds)
    gates = spec.softmax_affinity(x @ kernel)
    assert spec.batchwise_mask(gates, capacity=m).astype(int).tolist() == batchwise
    assert spec.threshold_mask(gates, thresholds).astype(int).tolist() == threshold
    assert spec.threshold_loss(gates, thresholds, capacity=m) == pytest.approx(loss, rel=1e-12, abs=1e-14)

    router = ROUTERS["strictly_balanced"]
    options = router.options(width=int(width), experts=int(n), tokens=int(count), slots_per_expert=m)
    for train, expected in ((True, trained), (False, evaluated)):
        output = router.route({"kernel": kernel, "thresholds": thresholds}, x, options, train=train)
        np.testing.assert_allclose(output.routing.combine.sum(axis=2), expected, rtol=1e-12, atol=1e-15)
        np.testing.assert_array_equal(output.routing.dispatch.sum(axis=2) > 0, np.array(expected) > 0)
        assert output.routing.dispatch.shape[2] == (m if train else count)
        expected_losses = {"threshold": 0.001 * loss} if train else {}
        assert output.losses == pytest.approx(expected_losses, rel=1e-12, abs=1e-15)
