"""The routers: their options and initial parameters. What they compute, vectors have."""

from dataclasses import replace

import numpy as np
import pytest

from moespec.spec import ROUTERS, ConfigError
from moespec.spec.examples import LOGITS
from moespec.spec.initial import lecun_normal

SIZES = {"width": 3, "experts": 3, "tokens": 6}


VARIANCES = {
    **{"soft_moe": ("slots", 1 / (64 * 16)), "switch": ("kernel", 0.1 / 64)},
    **dict.fromkeys(("noisy_top_k", "hierarchical_top_k"), ("kernel", 0.0)),
}
"""Of the initial parameter of a router, of width 64 and 16 experts; of the others it is that of `lecun_normal`."""


@pytest.mark.parametrize(
    "name", [name for name in ROUTERS if name not in ("hash", "cosine_token_choice", "dselect_k", "base")]
)
def test_initial_parameters(name):
    config = ROUTERS[name].options(width=64, experts=16, tokens=64)
    params, again = (ROUTERS[name].init(np.random.default_rng(0), config) for _ in range(2))
    assert all(value.dtype == np.float32 for value in params.values())
    assert all(np.array_equal(params[key], again[key]) for key in params)
    param, variance = VARIANCES.get(name, ("kernel", 1 / 64))
    assert params[param].std() == pytest.approx(variance**0.5, rel=0.03)


def test_lecun_normal_is_truncated():
    draws = lecun_normal(np.random.default_rng(0), (100_000,), 4)
    bound = 2 / 0.87962566 / 2
    assert 0.99 * bound < np.max(np.abs(draws)) <= bound
    assert np.std(draws) == pytest.approx(0.5, rel=0.01)
    assert np.mean(draws) == pytest.approx(0, abs=0.01)
    assert lecun_normal(np.random.default_rng(0), (2, 3), 4).shape == (2, 3)


@pytest.mark.parametrize("name", ROUTERS)
def test_an_option_of_another_router_is_an_error(name):
    router = ROUTERS[name]
    others = {
        (option, getattr(options, option))
        for other in ROUTERS.values()
        for options in [other.options(width=4, experts=4, tokens=8)]
        for option in vars(options)
    }
    own = vars(router.options(width=4, experts=4, tokens=8))
    for option, value in others:
        if option not in own:
            with pytest.raises(ConfigError, match=f"{option}=.*: {name} does not have this option; it has .*tokens"):
                router.options(width=4, experts=4, tokens=8, **{option: value})
    option = next(iter(own))
    with pytest.raises(ConfigError, match=f"did you mean .*{option}"):
        router.options(width=4, experts=4, tokens=8, **{f"{option}s": 1})


@pytest.mark.parametrize("name", ROUTERS)
def test_a_parameter_that_is_missing(name):
    router = ROUTERS[name]
    options = router.options(**SIZES)
    needed = {"ids": np.zeros(6, int)} if router.requires else {}
    part = {"cosine_token_choice": "projection_bias", "hash": "tables", "soft_moe": "slots"}.get(name, "kernel")
    with pytest.raises(ConfigError, match=f"params: {name} needs '{part}', got only"):
        router.route({}, LOGITS, options, state=router.initial_state(options), **needed)


def test_the_way_out_of_too_few_tokens_is_named():
    with pytest.raises(ConfigError, match=r"capacity_factor: 1\.0 gives 4 experts .* 1 token, .*; or set slots_per_"):
        ROUTERS["soft_moe"].options(width=3, experts=4, tokens=1)


def test_options_that_are_missing_or_of_another_router():
    with pytest.raises(ConfigError, match="tokens: missing; switch needs this option"):
        ROUTERS["switch"].options(width=4, experts=4)
    options = ROUTERS["gshard"].options(**SIZES)
    with pytest.raises(ConfigError, match=r"options: expected ROUTERS\['switch'\].options\(...\), got"):
        ROUTERS["switch"].route({"kernel": np.eye(3)}, LOGITS, options)


def test_options_are_taken_by_their_fields():
    """Those of somebody's own class, as where the file of a router was copied."""
    router = ROUTERS["switch"]
    options = router.options(**SIZES)
    copied = replace(router, Options=type("Options", (router.Options,), {}))
    assert copied.route({"kernel": np.eye(3)}, LOGITS, options).losses.keys() == {"balance"}


def test_soft_moe_has_the_same_slots_for_groups_of_another_size():
    options = ROUTERS["soft_moe"].options(width=3, experts=2, tokens=4)
    assert options.of_tokens(9).capacity() == options.capacity() == 2
