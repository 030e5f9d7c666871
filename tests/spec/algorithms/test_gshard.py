"""GShard's top-2 against Algorithm 1 of its paper, line by line, with its random second expert."""

import numpy as np
import pytest

from moespec import spec
from moespec.spec import ROUTERS


def algorithm_1(g, C, rnd, raised_always=True):
    """GShard, Algorithm 1, as it is printed but for the loss: the weights G and the position of each in its expert.

    raised_always: line 22 as printed; otherwise the count of the second expert rises only if the token gets it, which is
    what code does that drops the choice before it counts.
    """
    S, E = g.shape
    G, position = np.zeros((S, E)), np.full((S, E), -1)
    c_E = [0] * E  # line 1
    for s in range(S):
        e1, e2 = sorted(range(E), key=lambda e, s=s: -g[s, e])[:2]  # line 5
        g1, g2 = g[s, e1], g[s, e2]
        g1 = g1 / (g1 + g2)  # line 6
        c = c_E[e1]  # line 7
        if c < C:  # line 8
            G[s, e1], position[s, e1] = g1, c  # line 9
        c_E[e1] = c + 1  # line 11
    for s in range(S):
        e1, e2 = sorted(range(E), key=lambda e, s=s: -g[s, e])[:2]  # line 15
        g1, g2 = g[s, e1], g[s, e2]
        g2 = g2 / (g1 + g2)  # line 16
        c = c_E[e2]  # line 18
        if c < C and 2 * g2 > rnd[s]:  # line 19
            G[s, e2], position[s, e2] = g2, c  # line 20
        if raised_always or 2 * g2 > rnd[s]:
            c_E[e2] = c + 1  # line 22
    return G, position


def routed(problem, T, E, factor, **options):
    """The routing of a random problem, its gates, its draws, and the capacity."""
    random = np.random.default_rng(problem)
    tokens, kernel, draws = random.normal(size=(T, 4)), random.normal(size=(4, E)), random.uniform(size=T)
    config = ROUTERS["gshard"].options(width=4, experts=E, tokens=T, capacity_factor=factor, **options)
    output = ROUTERS["gshard"].route({"kernel": kernel}, tokens, config, noise=draws, train=True)
    return output, spec.softmax_affinity(tokens @ kernel), draws, config.capacity()


@pytest.mark.parametrize(("factor", "hold"), [(0.5, True), (1.0, True), (2.0, True), (1.0, False)])
def test_against_algorithm_1(factor, hold):
    """hold: as printed, or as Mesh TensorFlow reads it."""
    for problem in range(300):
        output, gates, draws, capacity = routed(problem, 12, 4, factor, hold_unkept=hold)
        weights, position = algorithm_1(gates, capacity, draws, raised_always=hold)
        np.testing.assert_allclose(output.routing.combine.sum(axis=2), weights, rtol=1e-13)
        np.testing.assert_array_equal(output.routing.dispatch, position[:, :, None] == np.arange(capacity))
        assert output.losses == {"balance": pytest.approx(0.01 * float(spec.balance_loss(gates)), rel=1e-13)}
