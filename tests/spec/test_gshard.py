"""GShard's top-2 against Algorithm 1 of its paper as loops, the random second expert, and renormalised weights."""

import numpy as np
import pytest

from moespec import spec
from moespec.spec import ROUTERS, ConfigError, ContractError, DtypeError, ShapeError, gshard_keep, normalize_selected
from moespec.spec.examples import LOGITS


def algorithm_1(gates, capacity, draws):
    """GShard, Algorithm 1, lines 6-19: who gets which slot with which gate; None for draws keeps every second expert."""
    tokens, experts = gates.shape
    combine, count = np.zeros((tokens, experts, capacity)), np.zeros(experts, int)
    best = [sorted(range(experts), key=lambda e, t=t: -gates[t, e])[:2] for t in range(tokens)]
    for t, (first, second) in enumerate(best):
        g1 = gates[t, first] / (gates[t, first] + gates[t, second])
        if count[first] < capacity:
            combine[t, first, count[first]] = g1
            count[first] += 1
    for t, (first, second) in enumerate(best):
        g2 = gates[t, second] / (gates[t, first] + gates[t, second])
        if count[second] < capacity and (draws is None or 2 * g2 > draws[t]):
            combine[t, second, count[second]] = g2
            count[second] += 1
    return combine


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
def test_against_algorithm_1(seed, factor):
    random = np.random.default_rng(seed)
    tokens, kernel, draws = random.normal(size=(20, 4)), random.normal(size=(4, 5)), random.uniform(size=20)
    config = ROUTERS["gshard"].options(width=4, experts=5, tokens=20, capacity_factor=factor)
    for noise in (None, draws):
        output = ROUTERS["gshard"].route({"kernel": kernel}, tokens, config, noise=noise, train=noise is not None)
        scores = spec.softmax_affinity(tokens @ kernel)
        expected = algorithm_1(scores, int(2 * 20 * factor / 5), noise)
        np.testing.assert_allclose(output.routing.combine, expected, rtol=1e-13)
        np.testing.assert_array_equal(output.routing.dispatch, expected > 0)
        assert output.losses == {"balance": pytest.approx(0.01 * float(spec.balance_loss(scores)), rel=1e-13)}


def test_the_chance_of_the_second_expert():
    gates = np.array([[0.5, 0.5, 0.0], [0.7, 0.0, 0.3], [0.1, 0.9, 0.0]])
    draws = np.random.default_rng(0).uniform(size=(100_000, 3))
    shares = np.mean([gshard_keep(gates, row)[:, 1] for row in draws[:20_000]], axis=0)
    np.testing.assert_allclose(shares, [1.0, 0.6, 0.2], atol=0.0105)  # 3 standard errors
    assert gshard_keep(gates, draws[0])[:, 0].all()


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


def test_a_choice_that_is_not_made_takes_no_slot():
    keep = np.array([[True, False], [False, True], [True, True]])
    scores = np.array([[0.5, 0.25], [0.5, 0.25], [0.5, 0.25]])
    routing = spec.token_choice(scores, choices=2, capacity=2, keep=keep)
    assert spec.slot_tokens(routing).tolist() == [[0, 2], [1, 2]]
    routing = spec.token_choice(scores, choices=2, capacity=2, keep=np.ones((3, 2), bool), order=[2, 1, 0])
    assert spec.slot_tokens(routing).tolist() == [[2, 1], [2, 1]]


def test_defaults_and_errors():
    router = ROUTERS["gshard"]
    config = router.options(width=3, experts=4, tokens=6)
    assert (config.choices, config.normalize_selected, config.balance_weight) == (2, True, 0.01)
    assert (router.noise(config).shape, router.noise(config).interval) == ((6,), (0.0, 1.0))
    with pytest.raises(ConfigError, match=r"choices: a token cannot choose 2 of 1 experts"):
        router.options(width=3, experts=1, tokens=6)
    with pytest.raises(ShapeError, match=r"noise: .*5"):
        gshard_keep(np.ones((6, 3)), np.ones(5))
    with pytest.raises(ContractError, match=r"combine_scores: .* sum 0"):
        normalize_selected(np.ones((2, 2)), np.zeros((2, 2)), choices=1)
    with pytest.raises(DtypeError, match=r"keep: .*float64"):
        spec.token_choice(np.ones((2, 2)), choices=1, capacity=1, keep=np.ones((2, 1)))
    with pytest.raises(ShapeError, match=r"keep: .*\(2, 1\)"):
        spec.token_choice(np.ones((2, 2)), choices=1, capacity=1, keep=np.ones((1, 2), bool))
