"""Mixture-of-Depths against eq. (1) of Raposo et al. 2024: what the layer adds to the tokens above a percentile of the weights."""

import numpy as np
from hypothesis import strategies as st
from properties import holds
from strategies import one_of, seeds

TOKENS, WIDTH = 8, 3


def routing(B, params, x, capacity, weights):
    router = B.ROUTERS["mixture_of_depths"]
    options = router.options(width=WIDTH, experts=1, tokens=TOKENS, slots_per_expert=capacity, weights=weights)
    return router.route(params, x, options).routing


@holds(
    wrong={"sigmoid_affinity": lambda B, logits: logits},
    seed=seeds,
    capacity=st.integers(1, TOKENS - 1),
    weights=one_of("raw", "sigmoid"),
)
def test_equation_1(B, seed, capacity, weights):
    """The block is the constant f = 1, so that the layer adds the weight; it sees as many tokens as the capacity."""
    random = np.random.default_rng(seed)
    x, w = random.normal(size=(2, TOKENS, WIDTH)), random.normal(size=(WIDTH, 1))
    dispatch, combine = B.run(routing, params={"kernel": w}, x=x, capacity=capacity, weights=weights)
    for sample, seen, added in zip(x, dispatch.sum(axis=(2, 3)), combine.sum(axis=(2, 3)), strict=True):
        r = sample @ w[:, 0]
        percentile = np.quantile(r, 1 - capacity / TOKENS, method="higher")
        expected = r if weights == "raw" else 1 / (1 + np.exp(-r))
        np.testing.assert_array_equal(seen, r >= percentile)
        np.testing.assert_allclose(added, np.where(r >= percentile, expected, 0), rtol=1e-9, atol=1e-12)
