"""GShard's top-2 against Algorithm 1 of its paper, line by line, the random second expert, and renormalised weights."""

import itertools
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from implementations import holds
from strategies import logits, seeds, slots

from moespec import spec
from moespec.spec import ROUTERS, ConfigError, normalize_selected
from moespec.spec.examples import LOGITS


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


def routed(problem, T, E, factor, *, noisy=True, **options):
    """The routing of a random problem, its gates, its draws, and the capacity."""
    random = np.random.default_rng(problem)
    tokens, kernel, draws = random.normal(size=(T, 4)), random.normal(size=(4, E)), random.uniform(size=T)
    config = ROUTERS["gshard"].options(width=4, experts=E, tokens=T, capacity_factor=factor, **options)
    output = ROUTERS["gshard"].route({"kernel": kernel}, tokens, config, noise=draws if noisy else None, train=noisy)
    return output, spec.softmax_affinity(tokens @ kernel), draws if noisy else np.full(T, -1.0), config.capacity()


def check(output, gates, capacity, expected):
    weights, position = expected
    np.testing.assert_allclose(output.routing.combine.sum(axis=2), weights, rtol=1e-13)
    np.testing.assert_array_equal(output.routing.dispatch, position[:, :, None] == np.arange(capacity))
    assert output.losses == {"balance": pytest.approx(0.01 * float(spec.balance_loss(gates)), rel=1e-13)}


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
def test_against_algorithm_1(factor):
    for problem in range(300):
        output, gates, draws, capacity = routed(problem, 12, 4, factor)
        check(output, gates, capacity, algorithm_1(gates, capacity, draws))


def test_five_experts_and_evaluation():
    for problem, noisy in itertools.product(range(20), (True, False)):
        output, gates, draws, capacity = routed(problem, 20, 5, 0.75, noisy=noisy)
        check(output, gates, capacity, algorithm_1(gates, capacity, draws))


def test_the_reading_of_mesh_tensorflow():
    differ = 0
    for problem in range(300):
        output, gates, draws, capacity = routed(problem, 12, 4, 1.0, hold_unkept=False)
        check(output, gates, capacity, algorithm_1(gates, capacity, draws, raised_always=False))
        held, *_ = routed(problem, 12, 4, 1.0)
        differ += not np.array_equal(held.routing.combine.sum(axis=2), output.routing.combine.sum(axis=2))
    assert differ > 100


def test_a_second_expert_that_is_not_kept_uses_up_its_place():
    logits = np.array([[2.0, 1.0, 0.0], [3.0, 0.0, -1.0], [2.0, 1.0, 0.0]])
    config = ROUTERS["gshard"].options(width=3, experts=3, tokens=3, slots_per_expert=2)
    route = partial(ROUTERS["gshard"].route, {"kernel": np.eye(3)}, logits, noise=np.array([0.1, 0.9, 0.1]))
    routing = route(config).routing
    assert spec.slot_tokens(routing).tolist() == [[0, 1], [0, 3], [3, 3]]
    free = route(replace(config, hold_unkept=False)).routing
    assert spec.slot_tokens(free).tolist() == [[0, 1], [0, 2], [3, 3]]


@holds(wrong="selected_not_normalised", problem=slots)
def test_weights_are_divided_by_the_sum_of_the_chosen(B, problem):
    """The experts that Token Choice chooses, ties included, whatever the weights are."""
    weights = B.softmax_affinity(problem.scores[..., ::-1])
    rank = np.argsort(np.argsort(-problem.scores, axis=2, kind="stable"), axis=2)
    total = np.where(rank < problem.choices, weights, 0).sum(axis=2, keepdims=True)
    divided = B.normalize_selected(problem.scores, weights, choices=problem.choices)
    np.testing.assert_allclose(divided, weights / total, rtol=1e-13)


@holds(wrong="second_kept_if_small", logits=logits, seed=seeds)
def test_the_second_expert_is_kept_by_twice_its_gate(B, logits, seed):
    """If `2 g2` is above the draw; the first always."""
    if logits.shape[2] < 2:
        return
    gates = B.normalize_selected(B.softmax_affinity(logits), choices=2)
    draws = np.random.default_rng(seed).uniform(size=logits.shape[:2])
    keep = B.gshard_keep(gates, draws)
    assert keep[..., 0].all()
    np.testing.assert_array_equal(keep[..., 1], 2 * np.sort(gates, axis=2)[..., -2] > draws)


def test_weights_sum_to_one_unless_something_is_dropped():
    config = ROUTERS["gshard"].options(width=3, experts=3, tokens=6, capacity_factor=float("inf"))
    routing = ROUTERS["gshard"].route({"kernel": np.eye(3)}, LOGITS, config).routing
    np.testing.assert_allclose(routing.combine.sum(axis=(1, 2)), 1, rtol=1e-15)


@pytest.mark.parametrize("name", ["softmax_token_choice", "sinkhorn_token_choice", "switch", "noisy_top_k", "s_base"])
def test_other_routers_renormalise_if_asked(name):
    options = {"width": 3, "experts": 3, "tokens": 6, "capacity_factor": float("inf")}
    if name not in ("switch", "s_base"):
        options["choices"] = 2
    params = {"kernel": np.eye(3), "noise_kernel": np.zeros((3, 3))}
    router = ROUTERS[name]
    plain = router.route(params, LOGITS, router.options(**options)).routing
    divided = router.route(params, LOGITS, router.options(normalize_selected=True, **options)).routing
    np.testing.assert_array_equal(divided.dispatch, plain.dispatch)
    totals = plain.combine.sum(axis=(1, 2), keepdims=True)
    np.testing.assert_allclose(divided.combine, plain.combine / totals, rtol=1e-14)


def test_it_is_before_drops():
    config = ROUTERS["softmax_token_choice"].options(
        width=3, experts=3, tokens=6, choices=2, capacity_factor=0.5, normalize_selected=True
    )
    routing = ROUTERS["softmax_token_choice"].route({"kernel": np.eye(3)}, LOGITS, config).routing
    expected = normalize_selected(spec.softmax_affinity(LOGITS), choices=2)
    np.testing.assert_allclose(routing.combine, routing.dispatch * expected[:, :, None], rtol=1e-15)
    assert (routing.combine.sum(axis=(1, 2)) < 1 - 1e-6).any()


def test_the_gates_of_noisy_top_k_are_the_renormalised_softmax():
    gates = spec.noisy_top_k_affinity(LOGITS, choices=2)
    divided = normalize_selected(spec.softmax_affinity(LOGITS), choices=2)
    np.testing.assert_allclose(gates, np.where(gates > 0, divided, 0), rtol=1e-14)


def test_defaults_and_errors():
    router = ROUTERS["gshard"]
    config = router.options(width=3, experts=4, tokens=6)
    assert (config.choices, config.normalize_selected, config.balance_weight) == (2, True, 0.01)
    assert (router.noise(config).shape, router.noise(config).interval) == ((6,), (0.0, 1.0))
    with pytest.raises(ConfigError, match=r"choices: a token cannot choose 2 of 1 experts"):
        router.options(width=3, experts=1, tokens=6)
