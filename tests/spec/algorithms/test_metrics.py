"""The statistics of routings and slots, written as loops."""

import numpy as np

from moespec.spec import (
    collapse_metrics,
    cumulative_dispatch,
    expert_choice,
    experts_per_token,
    slot_similarity,
    soft_routing,
    summed_dispatch,
)

RANDOM = np.random.default_rng(0)
TOKENS, SLOTS = RANDOM.normal(size=(7, 5)), RANDOM.normal(size=(5, 3, 2))
SOFT = soft_routing(TOKENS, SLOTS, scale=4.0)


def test_average_maximum_weights():
    slots = [max(SOFT.dispatch[:, e, c]) for e in range(3) for c in range(2)]
    tokens = [max(SOFT.combine[t].ravel()) for t in range(7)]
    metrics = collapse_metrics(SOFT)
    np.testing.assert_allclose([metrics["dispatch_max"], metrics["combine_max"]], [np.mean(slots), np.mean(tokens)])


def test_contributions_of_tokens():
    np.testing.assert_allclose(summed_dispatch(SOFT), [SOFT.dispatch[t].sum() for t in range(7)])
    assert np.isclose(summed_dispatch(SOFT).sum(), 6)  # slots


def test_cumulative_weight_of_the_top_tokens():
    curves = [np.cumsum(sorted(SOFT.dispatch[:, e, c])[::-1]) for e in range(3) for c in range(2)]
    np.testing.assert_allclose(cumulative_dispatch(SOFT), np.mean(curves, axis=0))
    uniform = soft_routing(TOKENS, SLOTS, dispatch="uniform")
    np.testing.assert_allclose(cumulative_dispatch(uniform), np.arange(1, 8) / 7)


def test_experts_per_token():
    routing = expert_choice(RANDOM.random((9, 5)), capacity=4)
    count = [sum(routing.dispatch[t, e].any() for e in range(5)) for t in range(9)]
    counts = experts_per_token(routing)
    assert (counts["experts_min"], counts["experts_max"]) == (min(count), max(count))
    for n in (1, 2, 4):
        assert counts[f"at_least_{n}"] == np.mean([c >= n for c in count])


def test_similarity_of_slots():
    similarity = slot_similarity(SLOTS)
    for i in range(6):
        for j in range(6):
            a, b = SLOTS[:, i // 2, i % 2], SLOTS[:, j // 2, j % 2]
            assert abs(similarity[i, j] - a @ b / np.linalg.norm(a) / np.linalg.norm(b)) < 1e-5
