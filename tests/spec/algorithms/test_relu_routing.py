"""ReLU routing against eqs. (7)-(11) of Wang et al. 2024, sum by sum, and the sparsity that its penalty leads to."""

import numpy as np
import pytest
from hypothesis import strategies as st
from properties import holds
from strategies import seeds

from moespec.spec import ROUTERS

TOKENS, WIDTH, EXPERTS, ALPHA = 5, 2, 3, 1.25
ROUTER = ROUTERS["relu"]


def options(**more):
    return ROUTER.options(width=WIDTH, experts=EXPERTS, tokens=TOKENS, penalty_multiplier=ALPHA, **more)


def trained(B, kernel, x, penalty, choices):
    """The weights of tokens and experts, the loss of the step, and the penalty after it."""
    router, of = B.ROUTERS["relu"], options(choices=choices)
    output = router.route({"kernel": kernel}, x, of, state=penalty, train=True)
    new = router.update(of, penalty, output.statistics)
    return {"weights": output.routing.dense().combine.sum(-1), "loss": output.losses["relu"], **new}


@holds(
    wrong="loss_without_load",
    seed=seeds,
    choices=st.integers(1, EXPERTS),
)
def test_the_equations_of_the_paper(B, seed, choices):
    random = np.random.default_rng(seed)
    x, kernel = random.normal(size=(2, TOKENS, WIDTH)), random.normal(size=(WIDTH, EXPERTS))
    found = B.run(trained, kernel=kernel, x=x, penalty={"penalty": np.array(0.5)}, choices=choices)
    gates, losses = np.zeros((2, TOKENS, EXPERTS)), []
    for group in range(2):
        for t in range(TOKENS):
            for e in range(EXPERTS):
                gates[group, t, e] = max(0.0, sum(x[group, t, d] * kernel[d, e] for d in range(WIDTH)))
        f = [EXPERTS / (choices * TOKENS) * sum(gates[group, :, e] > 0) for e in range(EXPERTS)]
        losses.append(sum(f[e] * gates[group, t, e] for t in range(TOKENS) for e in range(EXPERTS)) / TOKENS)
    np.testing.assert_allclose(found["weights"], gates, rtol=1e-9, atol=1e-12)
    assert found["loss"] == pytest.approx(0.5 * np.mean(losses), rel=1e-9, abs=1e-12)
    active = np.count_nonzero(gates)  # S < 1 - k / E, in whole numbers
    exponent = np.sign(active - choices * 2 * TOKENS)
    assert found["penalty"] == pytest.approx(0.5 * ALPHA**exponent, rel=1e-6)


def test_the_penalty_holds_the_number_of_experts():
    """Gates that are fitted to what they are at the start, 1.9 for a token, become those of one expert for each of 64 tokens."""
    random = np.random.default_rng(0)
    x, kernel = random.normal(size=(64, 8)), random.normal(size=(8, 4))
    x[:, 0] = 2  # by which all logits can be below 0
    of = ROUTER.options(width=8, experts=4, tokens=64, initial_penalty=1e-3)
    state, counts, wanted = ROUTER.initial_state(of), [], x @ kernel
    for _ in range(300):
        output = ROUTER.route({"kernel": kernel}, x, of, state=state, train=True)
        gates = output.routing.combine.sum(axis=2)
        active = gates > 0
        slope = (gates - wanted) / 64 + state["penalty"] * active.mean(axis=0) * 4 / 64
        kernel = kernel - 0.1 * x.T @ np.where(active, slope, 0)
        state = ROUTER.update(of, state, output.statistics)
        counts.append(active.sum() / 64)
    assert counts[0] > 1.8
    assert np.mean(counts[-100:]) == pytest.approx(1, abs=0.05)
