"""The solvers of the backends on scores that a router may have: equal tokens, few kinds of them, a favourite expert, low rank.

The assignment is the best (SciPy's), and repairs are few: `T - T/E` tokens are too many on one expert at first.
"""

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from moespec.backends import jax, torch
from moespec.backends.torch import base_layers

TOKENS, EXPERTS = 448, 16


def structured(kind):
    random = np.random.default_rng(7)
    scores = random.standard_normal((TOKENS, EXPERTS))
    return {
        "equal": np.zeros_like(scores),
        "equal tokens": np.broadcast_to(scores[0], scores.shape),
        "five kinds of tokens": scores[random.integers(0, 5, TOKENS)],
        "a favourite expert": scores / 16 + np.arange(EXPERTS),
        "rank one": scores[:, :1] * scores[:1],
        "rank two": scores[:, :2] @ scores[:2],
    }[kind].astype(np.float32)


@pytest.mark.parametrize("B", [jax, torch], ids=["jax", "torch"])
@pytest.mark.parametrize(
    "kind", ["equal", "equal tokens", "five kinds of tokens", "a favourite expert", "rank one", "rank two"]
)
def test_structured_scores_have_their_best_assignment(B, kind, monkeypatch):
    scores = structured(kind)
    repairs, find = [], base_layers._shortest_paths
    monkeypatch.setattr(base_layers, "_shortest_paths", lambda *of: repairs.append(1) or find(*of))
    experts = B.to_numpy(B.base_assignment(B.from_numpy(scores[None])).expert)[0]
    assert np.bincount(experts, minlength=EXPERTS).tolist() == [TOKENS // EXPERTS] * EXPERTS
    columns = np.repeat(scores.astype(float), TOKENS // EXPERTS, axis=1)
    best = columns[linear_sum_assignment(columns, maximize=True)].sum()
    np.testing.assert_allclose(scores[np.arange(TOKENS), experts].astype(float).sum(), best, rtol=0, atol=1e-4)
    assert len(repairs) <= 5 * EXPERTS


@pytest.mark.filterwarnings("error")
def test_scores_whose_differences_are_beyond_float32_have_their_best_assignment():
    """torch: a solver in float64 has no such limit, though the prices that it starts from are float32."""
    scores = np.random.default_rng(0).uniform(-1.9, 1.9, (1, TOKENS, EXPERTS)).astype(np.float32)
    large, expected = (
        torch.base_assignment(torch.from_numpy(scores * np.float32(scale))).expert for scale in (2**127, 1)
    )
    assert large.tolist() == expected.tolist()
