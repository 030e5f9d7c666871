"""Replay of recorded choices, token by token, as Megatron-LM's RouterReplay computes it: a gather from the current scores."""

import numpy as np
import pytest

from moespec.spec import ROUTERS, ConfigError, ContractError, ShapeError, softmax_affinity

T, E, D = 12, 6, 4
RANDOM = np.random.default_rng(0)
TOKENS, KERNEL = RANDOM.normal(size=(T, D)), RANDOM.normal(size=(D, E))
RECORDED = np.stack([RANDOM.permutation(E)[:3] for _ in range(T)])
REPLAYING = {"gshard": 2, "switch": 1, "s_base": 1, "softmax_token_choice": 3, "cosine_token_choice": 3}
REPLAYING |= dict.fromkeys(("image_choice", "sigmoid_token_choice", "sinkhorn_token_choice"), 3)
REPLAYING["sparsity_constrained_token_choice"] = 3
"""The number of choices by router."""


def routed(name, recorded, **options):
    router = ROUTERS[name]
    options = router.options(width=D, experts=E, tokens=T, **options)
    state = {"state": router.initial_state(options)} if router.stateful else {}
    params = {**router.init(np.random.default_rng(1), options), "kernel": KERNEL}
    return router.route(params, TOKENS, options, choices=recorded, **state)


@pytest.mark.parametrize("divided", [False, True])
def test_weights_are_the_current_scores_of_the_recorded_experts(divided):
    options = {"choices": 3, "slots_per_expert": T, "normalize_selected": divided}
    combine = routed("softmax_token_choice", RECORDED, **options).routing.combine.sum(axis=2)
    scores = softmax_affinity(TOKENS @ KERNEL)
    for t, experts in enumerate(RECORDED):
        expected = np.zeros(E)
        expected[experts] = scores[t, experts] / (scores[t, experts].sum() if divided else 1)
        np.testing.assert_allclose(combine[t], expected, rtol=1e-12)


@pytest.mark.parametrize(("name", "choices"), REPLAYING.items())
def test_a_router_that_replays_its_own_choices_computes_the_same(name, choices):
    options = {"slots_per_expert": T} | ({"choices": choices} if choices == 3 else {})
    live = routed(name, None, **options)
    own = np.argsort(-live.routing.dispatch.sum(axis=2), axis=1, kind="stable")[:, :choices]
    replayed = routed(name, own, **options)
    np.testing.assert_allclose(replayed.routing.combine.sum(axis=2), live.routing.combine.sum(axis=2), rtol=1e-12)
    for kind in ("losses", "statistics"):
        for key, value in getattr(live, kind).items():
            np.testing.assert_allclose(getattr(replayed, kind)[key], value, rtol=1e-12, err_msg=key)


@pytest.mark.parametrize("name", sorted(ROUTERS.keys() - REPLAYING.keys()))
def test_other_routers_say_that_they_cannot_replay(name):
    assert not ROUTERS[name].replays
    with pytest.raises(ConfigError, match=f"choices: {name} cannot replay"):
        routed(name, RECORDED, **({"ids": T} if name == "hash" else {}))


@pytest.mark.parametrize(
    ("recorded", "error", "words"),
    [
        (np.where(RECORDED == 0, E, RECORDED), ContractError, "choices: expected integers from -1 to 5, got 6"),
        (np.where(RECORDED == 0, -2, RECORDED), ContractError, "choices: expected integers from -1 to 5, got -2"),
        (np.where(RECORDED >= 0, 4, 4), ContractError, "choices: .* token 0 has expert 4 twice"),
        (RECORDED[:, :2], ShapeError, "choices: axis -1 has 2 entries, expected 3"),
        (RECORDED[:-1], ShapeError, "choices: axis 0 has 11 entries, expected 12"),
        (RECORDED.tolist()[0], ShapeError, "choices"),
    ],
)
def test_what_was_not_recorded_by_a_router(recorded, error, words):
    with pytest.raises(error, match=words):
        routed("softmax_token_choice", recorded, choices=3)
