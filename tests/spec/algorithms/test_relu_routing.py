"""ReLU routing against eqs. (7)-(11) of Wang et al. 2024, sum by sum."""

import numpy as np
import pytest
from hypothesis import strategies as st
from properties import holds
from strategies import seeds

TOKENS, WIDTH, EXPERTS, ALPHA = 5, 2, 3, 1.25


def trained(B, kernel, x, penalty, choices):
    """The weights of tokens and experts, the loss of the step, and the penalty after it."""
    router, sizes = B.ROUTERS["relu"], {"width": WIDTH, "experts": EXPERTS, "tokens": TOKENS}
    of = router.options(**sizes, penalty_multiplier=ALPHA, choices=choices)
    output = router.route({"kernel": kernel}, x, of, state=penalty, train=True)
    new = router.update(of, penalty, output.statistics)
    return {"weights": output.routing.dense().combine.sum(-1), "loss": output.losses["relu"], **new}


@holds(wrong="loss_without_load", seed=seeds, choices=st.integers(1, EXPERTS))
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
