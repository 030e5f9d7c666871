"""The routers: their composition, losses, options and initial parameters."""

from dataclasses import replace

import numpy as np
import pytest

from moespec import spec
from moespec.spec import ROUTERS, ConfigError, slot_tokens
from moespec.spec.examples import LOGITS, NOISE
from moespec.spec.initial import lecun_normal

NAMES = [
    "softmax_token_choice",
    "sinkhorn_token_choice",
    "softmax_expert_choice",
    "sinkhorn_expert_choice",
    "sparsity_constrained_expert_choice",
    "sparsity_constrained_token_choice",
    "soft_moe",
    "importance_score",
    "hash",
]
SPARSE = NAMES[:6]
SPARSE_PLAN = ["sparsity_constrained_expert_choice", "sparsity_constrained_token_choice"]
SCORES, NOISY_SCORES = spec.softmax_affinity(LOGITS), spec.softmax_affinity(LOGITS + NOISE / 3)


def route(name, *, noise=None, tokens=LOGITS, kernel=None, **options):
    """The router on the worked example: with the identity as kernel the tokens are the logits."""
    config = ROUTERS[name].options(width=3, experts=3, tokens=6, **options)
    params = {"kernel": np.eye(3) if kernel is None else kernel}
    return ROUTERS[name].route(params, tokens, config, noise=noise)


def same(first, second):
    np.testing.assert_array_equal(first.dispatch, second.dispatch)
    np.testing.assert_array_equal(first.combine, second.combine)


@pytest.mark.parametrize("noise", [None, NOISE], ids=["clean", "noisy"])
def test_compositions(noise):
    scores = SCORES if noise is None else NOISY_SCORES
    logits = LOGITS if noise is None else LOGITS + NOISE / 3
    sinkhorn = spec.sinkhorn_affinity(logits)
    sparse = spec.sparse_transport_affinity(scores, capacity=2)
    same(route("softmax_token_choice", noise=noise).routing, spec.token_choice(scores, choices=1, capacity=2))
    same(
        route("sinkhorn_token_choice", noise=noise, choices=2).routing,
        spec.token_choice(sinkhorn, choices=2, capacity=4, combine_scores=scores),
    )
    same(route("softmax_expert_choice", noise=noise).routing, spec.expert_choice(scores, capacity=2))
    same(
        route("sinkhorn_expert_choice", noise=noise, capacity_factor=2.0).routing,
        spec.expert_choice(sinkhorn, capacity=4, combine_scores=scores),
    )
    same(
        route("sparsity_constrained_expert_choice", noise=noise, noise_multiplier=1.0).routing,
        spec.expert_choice(sparse, capacity=2, combine_scores=scores),
    )
    rows = spec.sparse_transport_affinity(scores, capacity=2, sparsity="token")
    same(
        route("sparsity_constrained_token_choice", noise=noise, noise_multiplier=1.0, choices=2).routing,
        spec.token_choice(rows, choices=2, capacity=4, combine_scores=scores),
    )


@pytest.mark.parametrize("name", SPARSE_PLAN)
def test_a_sparsity_constrained_router_is_noisy_only_if_asked(name):
    router = ROUTERS[name]
    sizes = {"width": 3, "experts": 3, "tokens": 6}
    assert router.noise(router.options(**sizes)) is None
    assert router.noise(router.options(**sizes, noise_multiplier=1.0)).shape == (6, 3)
    same(route(router.name, noise=NOISE).routing, route(router.name).routing)


@pytest.mark.parametrize("by", ["max", "sum"])
def test_batch_priority(by):
    order = spec.batch_priority(SCORES, by=by, choices=2)
    same(
        route("softmax_token_choice", choices=2, capacity_factor=0.5, batch_priority=by).routing,
        spec.token_choice(SCORES, choices=2, capacity=2, order=order),
    )


def test_the_priority_is_that_of_the_selection_scores():
    plan = spec.sinkhorn_affinity(LOGITS)
    same(
        route("sinkhorn_token_choice", batch_priority="max", capacity_factor=0.5).routing,
        spec.token_choice(plan, choices=1, capacity=1, combine_scores=SCORES, order=spec.batch_priority(plan)),
    )


def test_combine_from_clean_logits():
    routing = route("sinkhorn_token_choice", noise=NOISE, combine_from_clean_logits=True).routing
    np.testing.assert_array_equal(routing.combine, routing.dispatch * SCORES[:, :, None])
    routing = route("sinkhorn_token_choice", noise=NOISE).routing
    np.testing.assert_array_equal(routing.combine, routing.dispatch * NOISY_SCORES[:, :, None])


@pytest.mark.parametrize("name", ["sinkhorn_token_choice", "sinkhorn_expert_choice"])
def test_combine_with_the_plan(name):
    routing = route(name, combine_with="plan", sinkhorn_iterations=3).routing
    plan = spec.sinkhorn_affinity(LOGITS, iterations=3)
    np.testing.assert_array_equal(routing.combine, routing.dispatch * plan[:, :, None])
    stepped = route(name, combine_with="plan", tokens=LOGITS + 1e-30j * NOISE).routing
    assert np.any(stepped.combine.imag != 0)


@pytest.mark.parametrize(
    ("name", "options", "constraint"),
    [
        ("sparsity_constrained_expert_choice", {}, {}),
        ("sparsity_constrained_token_choice", {"choices": 2}, {"sparsity": "token"}),
    ],
)
def test_the_sparse_plan_combines_without_a_gradient(name, options, constraint):
    routing = route(name, combine_with="plan", transport_objective="dual", **options).routing
    plan = spec.sparse_transport_affinity(SCORES, capacity=2, objective="dual", **constraint)
    np.testing.assert_array_equal(routing.combine, routing.dispatch * plan[:, :, None])
    stepped = route(name, combine_with="plan", tokens=LOGITS + 1e-30j * NOISE, **options).routing
    assert np.all(np.imag(stepped.combine) == 0)


@pytest.mark.parametrize(
    "name", ["softmax_expert_choice", "sinkhorn_expert_choice", "sparsity_constrained_expert_choice"]
)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"capacity_factor": 4.0},
            r"^capacity_factor: 4\.0 gives an expert 8 slots, more than the 6 tokens of a group",
        ),
        ({"eval_capacity_factor": 4.0}, r"^eval_capacity_factor: 4\.0 gives an expert 8 slots"),
        ({"multiple_of": 8}, r"^multiple_of: 8 gives an expert 8 slots"),
        ({"slots_per_expert": 7}, r"^slots_per_expert: 7 gives an expert 7 slots"),
    ],
)
def test_more_slots_than_tokens_names_the_option(name, options, message):
    with pytest.raises(ConfigError, match=message):
        ROUTERS[name].options(width=3, experts=3, tokens=6, **options)


def test_drop_zero_plan():
    logits = np.array([[9.0, 0.0, 0.0]] * 3 + [[0.0, 9.0, 0.0]] * 3)
    options = {"tokens": logits, "capacity_factor": 2.0}
    everything = slot_tokens(route("sparsity_constrained_expert_choice", **options).routing)
    dropped = slot_tokens(route("sparsity_constrained_expert_choice", drop_zero_plan=True, **options).routing)
    assert (everything < 6).all()
    assert (dropped == 6).any()
    np.testing.assert_array_equal(dropped[dropped < 6], everything[dropped < 6])


@pytest.mark.parametrize("seed", range(5))
def test_up_to_a_factor_of_one_no_slot_needs_a_token_without_a_plan(seed):
    """With k <= T / E a column of the plan has k positive entries, so that dropping the others drops nothing."""
    options = {"tokens": np.random.default_rng(seed).normal(size=(6, 3)), "noise_multiplier": 0.0}
    name = "sparsity_constrained_expert_choice"
    same(*(route(name, drop_zero_plan=drop, **options).routing for drop in (False, True)))


ALONE = np.array([[0.0, 0.0, 9.0]] + [[9.0, 9.0, 0.0]] * 5)
"""The plan of two experts for each token gives token 0 to expert 2 alone, which no other token wants."""


@pytest.mark.parametrize(("combine_with", "weight"), [("softmax", spec.softmax_affinity(ALONE)[0, 0]), ("plan", 0.0)])
def test_a_choice_of_plan_0_is_made_like_any_other(combine_with, weight):
    """As google-research/vmoe does: token 0 chooses expert 0 besides, and gets its last slot if it has one more."""
    plan = spec.sparse_transport_affinity(spec.softmax_affinity(ALONE), capacity=2, sparsity="token")
    np.testing.assert_array_equal(plan > 0, ALONE > 0)
    options = {"tokens": ALONE, "choices": 2, "combine_with": combine_with}
    routing = route("sparsity_constrained_token_choice", slots_per_expert=6, **options).routing
    assert slot_tokens(routing).tolist() == [[1, 2, 3, 4, 5, 0], [1, 2, 3, 4, 5, 6], [0, 6, 6, 6, 6, 6]]
    assert routing.combine[0, 0, 5] == weight
    routing = route("sparsity_constrained_token_choice", slots_per_expert=5, **options).routing
    assert slot_tokens(routing).tolist() == [[1, 2, 3, 4, 5], [1, 2, 3, 4, 5], [0, 6, 6, 6, 6]]


def test_transport_steps_and_factor():
    plan = spec.sparse_transport_affinity(SCORES, capacity=4, steps=3)
    same(
        route("sparsity_constrained_expert_choice", capacity_factor=2.0, transport_steps=3).routing,
        spec.expert_choice(plan, capacity=4, combine_scores=SCORES),
    )
    plan = spec.sparse_transport_affinity(SCORES, capacity=2, steps=3, sparsity="token")
    same(
        route("sparsity_constrained_token_choice", choices=2, capacity_factor=0.5, transport_steps=3).routing,
        spec.token_choice(plan, choices=2, capacity=2, combine_scores=SCORES),
    )


def test_default_losses_of_v_moe():
    output = route("softmax_token_choice", noise=NOISE, choices=2)
    assert output.losses["importance"] == pytest.approx(0.005 * 0.1854715624109903)
    assert output.losses["load"] == pytest.approx(0.005 * 0.1401298437709097)
    assert output.metrics["importance_loss"] == pytest.approx(0.1854715624109903)
    assert output.metrics["load_loss"] == pytest.approx(0.1401298437709097)
    assert list(route("softmax_token_choice").losses) == ["importance"]
    assert list(route("softmax_token_choice", noise=NOISE, noise_multiplier=0.0).losses) == ["importance"]


@pytest.mark.parametrize("name", SPARSE)
def test_all_losses(name):
    weights = {
        "importance_weight": 0.5,
        "load_weight": 0.25,
        "balance_weight": 2.0,
        "z_weight": 3.0,
        "noise_multiplier": 1.0,
    }
    output = route(name, noise=NOISE, **weights)
    assert output.losses["importance"] == pytest.approx(0.5 * 0.1854715624109903)
    assert output.losses["load"] == pytest.approx(0.25 * 0.2046177020272181)
    assert output.losses["balance"] == pytest.approx(2 * 1.3733799500799186)
    assert output.losses["z"] == pytest.approx(3 * 4.5349617537152485)
    assert set(output.metrics) == {
        *("load", "coverage", "dropped", "entropy"),
        *("importance_loss", "load_loss", "balance_loss", "z_loss"),
    }


def test_noise_multiplier():
    output = route("softmax_token_choice", noise=NOISE, noise_multiplier=2.0)
    np.testing.assert_array_equal(
        output.routing.combine.sum(axis=2),
        output.routing.dispatch.sum(axis=2) * spec.softmax_affinity(LOGITS + 2 / 3 * NOISE),
    )
    load = spec.load_loss(LOGITS, LOGITS + 2 / 3 * NOISE, choices=1, noise_std=2 / 3)
    assert output.metrics["load_loss"] == pytest.approx(float(load), rel=1e-12)


def test_without_losses_there_are_none():
    for name in SPARSE[1:]:
        assert route(name, noise=NOISE).losses == {}


def test_soft_moe():
    config = ROUTERS["soft_moe"].options(width=3, experts=3, tokens=6, capacity_factor=0.9, dispatch="uniform")
    params = ROUTERS["soft_moe"].init(np.random.default_rng(0), config)
    output = ROUTERS["soft_moe"].route({**params, "scale": 2.0}, LOGITS, config, noise=NOISE, train=True)
    assert params["slots"].shape == (3, 3, 2)  # 1.8 rounds to 2
    same(output.routing, spec.soft_routing(LOGITS, params["slots"], scale=2.0, dispatch="uniform"))
    assert output.losses == {}
    assert set(output.metrics) == {"load", "coverage", "dropped", "entropy"}
    for options in ({"norm_form": "rsqrt"}, {"normalize": False}, {"combine": "uniform"}):
        config = ROUTERS["soft_moe"].options(width=3, experts=3, tokens=6, **options)
        same(
            ROUTERS["soft_moe"].route(params, LOGITS, config).routing,
            spec.soft_routing(LOGITS, params["slots"], **options),
        )


@pytest.mark.parametrize("name", NAMES)
def test_initial_parameters(name):
    config = ROUTERS[name].options(width=64, experts=16, tokens=64)
    params = ROUTERS[name].init(np.random.default_rng(0), config)
    again = ROUTERS[name].init(np.random.default_rng(0), config)
    assert all(value.dtype == np.float32 for value in params.values())
    assert all(np.array_equal(params[key], again[key]) for key in params)
    if name == "soft_moe":
        assert params["slots"].shape == (64, 16, 4)
        assert params["scale"].shape == ()
        assert params["scale"] == 1
        assert params["slots"].std() == pytest.approx((64 * 16) ** -0.5, rel=0.03)
    elif name == "hash":
        assert params["tables"].shape == (1, 64)
        assert set(np.unique(params["tables"])) <= set(range(16))
    else:
        assert params["kernel"].shape == (64, 16)
        assert params["kernel"].std() == pytest.approx(64**-0.5, rel=0.03)


def test_lecun_normal_is_truncated():
    draws = lecun_normal(np.random.default_rng(0), (100_000,), 4)
    bound = 2 / 0.87962566 / 2
    assert 0.99 * bound < np.max(np.abs(draws)) <= bound
    assert np.std(draws) == pytest.approx(0.5, rel=0.01)
    assert np.mean(draws) == pytest.approx(0, abs=0.01)
    assert lecun_normal(np.random.default_rng(0), (2, 3), 4).shape == (2, 3)


def test_defaults_and_overrides():
    assert ROUTERS["soft_moe"].options(width=1, experts=2, tokens=3).rounding == "round"
    assert ROUTERS["soft_moe"].options(width=1, experts=2, tokens=3, rounding="ceil").rounding == "ceil"
    config = ROUTERS["softmax_token_choice"].options(width=1, experts=2, tokens=3)
    assert (config.importance_weight, config.load_weight) == (0.005, 0.005)
    assert (
        ROUTERS["softmax_token_choice"]
        .options(width=1, experts=8, tokens=49, choices=2, capacity_factor=1.05)
        .capacity()
        == 13
    )


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


@pytest.mark.parametrize("name", ROUTERS)
def test_a_parameter_that_is_missing(name):
    router = ROUTERS[name]
    options = router.options(width=3, experts=3, tokens=6)
    needed = {"ids": np.zeros(6, int)} if router.needs else {}
    part = {"hash": "tables", "soft_moe": "slots"}.get(name, "kernel")
    with pytest.raises(ConfigError, match=f"params: {name} needs '{part}', and it is missing"):
        router.route({}, LOGITS, options, **needed)


def test_the_way_out_of_too_few_tokens_is_named():
    with pytest.raises(ConfigError, match=r"capacity_factor: 1\.0 gives 4 experts .* 1 token, .* or slots_per_expert"):
        ROUTERS["soft_moe"].options(width=3, experts=4, tokens=1)


@pytest.mark.parametrize(("name", "options"), [("softmax_token_choice", {"choices": 2}), ("switch", {})])
def test_tokens_try_other_experts_if_asked(name, options):
    choices = options.get("choices", 1)
    settings = {"slots_per_expert": 2 * choices, "tries": 3, **options}
    output = route(name, **settings)
    same(output.routing, spec.token_choice(SCORES, choices=choices, capacity=2 * choices, tries=3))
    assert output.routing.dispatch.sum() > route(name, **{**settings, "tries": None}).routing.dispatch.sum()
    with pytest.raises(ConfigError, match=r"tries: .*4 of 3"):
        route(name, **{**settings, "tries": 4})


def test_the_logits_of_losses():
    weights = {"balance_weight": 2.0, "z_weight": 3.0}
    losses = route("softmax_token_choice", noise=NOISE, balance_logits="clean", z_logits="noisy", **weights).losses
    assert losses["balance"] == pytest.approx(2 * float(spec.balance_loss(SCORES)))
    assert losses["z"] == pytest.approx(3 * float(spec.z_loss(LOGITS + NOISE / 3)))


def test_options_that_are_missing_or_of_another_router():
    with pytest.raises(ConfigError, match="tokens: switch needs this option"):
        ROUTERS["switch"].options(width=4, experts=4)
    options = ROUTERS["gshard"].options(width=3, experts=3, tokens=6)
    with pytest.raises(ConfigError, match="options: expected those of switch"):
        ROUTERS["switch"].route({"kernel": np.eye(3)}, LOGITS, options)


def test_options_are_taken_by_their_fields():
    """Those of somebody's own class, as where the file of a router was copied."""
    router = ROUTERS["switch"]
    options = router.options(width=3, experts=3, tokens=6)
    copied = replace(router, Options=type("Options", (router.Options,), {}))
    assert copied.route({"kernel": np.eye(3)}, LOGITS, options).losses.keys() == {"balance"}


def test_soft_moe_has_the_same_slots_for_groups_of_another_size():
    options = ROUTERS["soft_moe"].options(width=3, experts=2, tokens=4)
    assert options.of_tokens(9).capacity() == options.capacity() == 2
