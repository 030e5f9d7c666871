"""The NumPy backend: the specification group by group, exact gradients, and AdamW as written down."""

import math

import numpy as np
import pytest
import router_inputs

import moespec.backends.numpy as B
from moespec import spec
from moespec.backends.optimizer import OptimizerConfig
from moespec.spec.errors import ConfigError, ContractError, DtypeError, ShapeError

G, T, E, D, C = 3, 6, 4, 5, 2


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def assert_same(actual, expected):
    np.testing.assert_array_equal(actual, expected)


# ------------------------------------------------------------------------------------- the specification by group


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("softmax_affinity", {}),
        ("sinkhorn_affinity", {"iterations": 5}),
        ("sinkhorn_affinity", {"tolerance": 0.1}),
        ("sparse_transport_affinity", {"capacity": 2}),
        ("sparse_transport_affinity", {"capacity": 2, "solver": "lbfgs"}),
        ("batch_priority", {"by": "sum", "choices": 2}),
        ("add_gating_noise", {"noise": None}),
        ("importance_score_order", {"drop": 0.4}),
    ],
)
def test_functions_of_one_array_are_those_of_each_group(rng, name, options):
    scores = spec.softmax_affinity(rng.standard_normal((G * T, E))).reshape(G, T, E)
    batched = getattr(B, name)(scores, **options)
    assert_same(batched, np.stack([getattr(spec, name)(group, **options) for group in scores]))


@pytest.mark.parametrize(
    ("name", "options"), [("importance_loss", {}), ("balance_loss", {}), ("z_loss", {}), ("load_loss", {"choices": 2})]
)
def test_losses_are_means_over_groups(rng, name, options):
    arrays = [rng.standard_normal((G, T, E)) for _ in range(2 if name == "load_loss" else 1)]
    options = {**options, "noise_std": 0.3} if name == "load_loss" else options
    each = [getattr(spec, name)(*group, **options) for group in zip(*arrays, strict=True)]
    assert getattr(B, name)(*arrays, **options) == pytest.approx(np.mean(each), rel=1e-15)


def test_transport_duals_have_a_groups_axis(rng):
    utility, alpha, beta = rng.random((G, T, E)), rng.random((G, T)), rng.random((G, E))
    semi = B.transport_semi_dual(alpha, utility, capacity=2)
    dual = B.transport_dual(alpha, beta, utility, capacity=2)
    assert semi.value.shape == dual.value.shape == (G,)
    for g in range(G):
        for field, expected in spec.transport_semi_dual(alpha[g], utility[g], capacity=2)._asdict().items():
            assert_same(getattr(semi, field)[g], expected)
        for field, expected in spec.transport_dual(alpha[g], beta[g], utility[g], capacity=2)._asdict().items():
            assert_same(getattr(dual, field)[g], expected)


def test_projections_work_along_the_last_axis(rng):
    values = rng.standard_normal((2, 3, 5))
    projected, sparse = B.project_simplex(values, mass=2.0), B.project_sparse_simplex(values, nonzeros=2)
    for i in np.ndindex(2, 3):
        assert_same(projected[i], spec.project_simplex(values[i], mass=2.0))
        assert_same(sparse[i], spec.project_sparse_simplex(values[i], nonzeros=2))


@pytest.mark.parametrize("choices", [1, 2])
def test_token_choice_by_slot(rng, choices):
    scores, combine = rng.random((G, T, E)), rng.random((G, T, E))
    order = np.stack([rng.permutation(T) for _ in range(G)])
    routing = B.token_choice(scores, choices=choices, capacity=C, combine_scores=combine, order=order)
    assert routing.token.dtype == routing.slot.dtype == np.int32
    dense = routing.dense()
    for g in range(G):
        expected = spec.token_choice(scores[g], choices=choices, capacity=C, combine_scores=combine[g], order=order[g])
        assert_same(dense.dispatch[g], expected.dispatch)
        assert_same(dense.combine[g], expected.combine)
        for t in range(T):
            chosen = np.argsort(-scores[g, t])[:choices]
            for expert, slot in zip(chosen, routing.slot[g, t], strict=True):
                held = np.flatnonzero(expected.dispatch[t, expert])
                assert slot == (expert * C + held[0] if len(held) else E * C)


def test_importance_score_choice_by_slot(rng):
    scores, combine = rng.random((G, T, E)), rng.random((G, T, E))
    options = {"choices": 2, "capacity": C, "drop": 0.4}
    routing = B.importance_score_choice(scores, combine_scores=combine, **options)
    dense = routing.dense()
    for g in range(G):
        expected = spec.importance_score_choice(scores[g], combine_scores=combine[g], **options)
        assert_same(dense.dispatch[g], expected.dispatch)
        assert_same(dense.combine[g], expected.combine)
        for t in np.setdiff1d(np.arange(T), spec.importance_score_order(scores[g], drop=0.4)):
            assert (routing.slot[g, t] == E * C).all()


def test_expert_choice_by_slot(rng):
    scores = np.maximum(rng.standard_normal((G, T, E)), 0)
    routing = B.expert_choice(scores, capacity=4, drop_zero=True)
    assert (routing.token == T).any()
    assert (routing.weight[routing.token == T] == 0).all()
    dense = routing.dense()
    for g in range(G):
        expected = spec.expert_choice(scores[g], capacity=4, drop_zero=True)
        assert_same(dense.dispatch[g], expected.dispatch)
        assert_same(dense.combine[g], expected.combine)


def test_soft_routing_metrics_and_layer(rng):
    tokens, slots = rng.standard_normal((G, T, D)), rng.standard_normal((D, E, C))
    weights = {
        "w1": rng.standard_normal((E, D, 7)),
        "b1": rng.standard_normal((E, 7)),
        "w2": rng.standard_normal((E, 7, D)),
        "b2": rng.standard_normal((E, D)),
    }
    hard = B.token_choice(B.softmax_affinity(rng.standard_normal((G, T, E))), choices=1, capacity=C)
    for routing in (B.soft_routing(tokens, slots, scale=2.0), hard):
        outputs = B.moe_layer(tokens, routing, lambda inputs: B.expert_mlp(inputs, weights, gelu="erf"))
        metrics = B.routing_metrics(routing)
        each = [spec.Routing(*pair) for pair in zip(*routing.dense(), strict=True)]
        for g in range(G):
            expected = spec.moe_layer(tokens[g], each[g], lambda inputs: spec.expert_mlp(inputs, weights, gelu="erf"))
            np.testing.assert_allclose(outputs[g], expected, rtol=1e-14, atol=1e-14)
        for name, value in metrics.items():
            np.testing.assert_allclose(value, np.mean([spec.routing_metrics(r)[name] for r in each], axis=0))


@pytest.mark.parametrize("name", B.ROUTERS)
def test_routers_are_the_specifications(rng, name):
    options = {"choices": router_inputs.choices(name), "z_weight": 0.1, "batch_priority": "max"}
    config = spec.ROUTERS[name].configure(width=D, experts=E, tokens=T, **options)
    params = spec.ROUTERS[name].init(rng, config)
    tokens, noise = rng.standard_normal((G, T, D)), router_inputs.noise(rng, name, config, G)
    train = name != "base"  # which in training needs a number of tokens that the experts divide
    output = B.ROUTERS[name].route(params, tokens, config, noise=noise, train=train)
    each = [
        spec.ROUTERS[name].route(params, tokens[g], config, noise=None if noise is None else noise[g], train=train)
        for g in range(G)
    ]
    assert isinstance(output.routing, B.SoftRouting if name == "soft_moe" else B.SlotRouting)
    dense = output.routing.dense()
    for g in range(G):
        assert_same(dense.dispatch[g], each[g].routing.dispatch)
        assert_same(dense.combine[g], each[g].routing.combine)
    for mine, theirs in (("losses", "losses"), ("metrics", "metrics")):
        values = getattr(output, mine)
        assert sorted(values) == sorted(getattr(each[0], theirs))
        for key, value in values.items():
            np.testing.assert_allclose(value, np.mean([getattr(one, theirs)[key] for one in each], axis=0))


def test_images_are_independent_in_attention_and_patches(rng):
    query, key, value = (rng.standard_normal((G, n, 2, 3)) for n in (4, 5, 5))
    together = B.attention(query, key, value)
    images, kernel, bias = rng.standard_normal((G, 4, 6, 2)), rng.standard_normal((2, 2, 2, 3)), rng.standard_normal(3)
    patches = B.patch_embed(images, kernel, bias)
    for g in range(G):
        np.testing.assert_allclose(together[g], spec.attention(query[g], key[g], value[g]), rtol=1e-13, atol=1e-14)
        np.testing.assert_allclose(patches[g], spec.patch_embed(images[g], kernel, bias), rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: B.softmax_affinity(np.zeros((T, E))), ShapeError),
        (lambda: B.softmax_affinity(np.zeros((0, T, E))), ShapeError),
        (lambda: B.softmax_affinity(np.zeros((G, T, E), int)), DtypeError),
        (lambda: B.softmax_affinity(np.full((G, T, E), np.nan)), ContractError),
        (lambda: B.add_gating_noise(np.zeros((G, T, E)), np.zeros((2, T, E))), ShapeError),
        (lambda: B.token_choice(np.zeros((G, T, E)), choices=E + 1, capacity=1), ConfigError),
        (lambda: B.token_choice(np.zeros((G, T, E)), choices=1, capacity=0), ConfigError),
        (lambda: B.expert_choice(np.zeros((G, T, E)), capacity=T + 1), ConfigError),
        (lambda: B.attention(np.zeros((2, 3, 1, 4)), np.zeros((3, 3, 1, 4)), np.zeros((3, 3, 1, 4))), ShapeError),
        (lambda: B.patch_embed(np.zeros((2, 5, 4, 1)), np.zeros((2, 2, 1, 3)), np.zeros(3)), ShapeError),
        (lambda: B.from_numpy(np.zeros(2), "float32"), ConfigError),
        (lambda: B.cast(np.zeros(2), "bfloat16"), ConfigError),
    ],
)
def test_errors(call, error):
    with pytest.raises(error):
        call()


def test_from_numpy():
    tree = {"a": np.ones(2, np.float32), "b": [np.arange(2), None], "c": (np.ones(1, complex), 1.5)}
    moved = B.from_numpy(tree)
    assert moved["a"].dtype == moved["c"][1].dtype == np.float64
    assert moved["b"][0].dtype == np.int64
    assert moved["b"][1] is None
    assert moved["c"][0].dtype == np.complex128


# ------------------------------------------------------------------------------------------- gradients and training


def loss_of_a_layer(params, batch):
    """A router, experts and a loss: everything a model differentiates through."""
    config = B.ROUTERS["softmax_token_choice"].configure(width=D, experts=E, tokens=T, choices=2)
    output = B.ROUTERS["softmax_token_choice"].route(params["router"], batch["tokens"], config, noise=batch["noise"])
    y = B.moe_layer(batch["tokens"], output.routing, lambda inputs: B.expert_mlp(inputs, params["experts"]))
    loss = B.mean(y * y) + sum(output.losses.values())
    return loss, {"load": output.metrics["load"]}


@pytest.fixture
def layer(rng):
    params = {
        "router": {"kernel": rng.standard_normal((D, E))},
        "experts": {
            "w1": rng.standard_normal((E, D, 2)),
            "b1": rng.standard_normal((E, 2)),
            "w2": rng.standard_normal((E, 2, D)),
            "b2": rng.standard_normal((E, D)),
        },
    }
    return params, {"tokens": rng.standard_normal((4, T, D)), "noise": rng.standard_normal((4, T, E))}


def test_gradient_is_that_of_central_differences(layer):
    params, batch = layer
    (loss, aux), gradient = B.value_and_grad(loss_of_a_layer)(params, batch)
    assert np.isrealobj(loss)
    assert aux["load"].shape == (E,)
    for path in (("router", "kernel"), ("experts", "w1"), ("experts", "b2")):
        leaf, derivative = params[path[0]][path[1]], gradient[path[0]][path[1]]
        assert np.isrealobj(derivative)
        for index in list(np.ndindex(leaf.shape))[::3]:
            value, step, sides = leaf[index], 1e-5, []
            for side in (1, -1):
                leaf[index] = value + side * step
                sides.append(loss_of_a_layer(params, batch)[0])
            leaf[index] = value
            assert derivative[index] == pytest.approx((sides[0] - sides[1]) / (2 * step), rel=1e-5, abs=1e-8)


def test_step_is_adamw_as_written_down(rng):
    target = rng.standard_normal((2, 3))
    optimizer = OptimizerConfig(b1=0.8, b2=0.9, epsilon=1e-3, weight_decay=0.1, clip=0.5)
    params = {"layer": {"kernel": rng.standard_normal((2, 3)), "bias": rng.standard_normal(())}}

    def loss(params, batch):
        error = params["layer"]["kernel"] + params["layer"]["bias"] - batch
        return B.sum(error * error), {}

    step, state = B.make_step(loss, optimizer), B.init_state(params, optimizer)
    p, bias = params["layer"]["kernel"], params["layer"]["bias"]
    mu, nu, bias_mu, bias_nu = 0.0, 0.0, 0.0, 0.0
    for n in (1, 2, 3):
        state, metrics = step(state, target, 0.01 * n)
        error = p + bias - target
        gradient, bias_gradient = 2 * error, 2 * error.sum()
        norm = math.sqrt((gradient**2).sum() + bias_gradient**2)
        assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-12)
        assert metrics["loss"] == pytest.approx((error**2).sum(), rel=1e-12)
        scale = min(1, 0.5 / norm)
        mu, nu = 0.8 * mu + 0.2 * scale * gradient, 0.9 * nu + 0.1 * (scale * gradient) ** 2
        bias_mu = 0.8 * bias_mu + 0.2 * scale * bias_gradient
        bias_nu = 0.9 * bias_nu + 0.1 * (scale * bias_gradient) ** 2
        update = mu / (1 - 0.8**n) / (np.sqrt(nu / (1 - 0.9**n)) + 1e-3)
        bias_update = bias_mu / (1 - 0.8**n) / (np.sqrt(bias_nu / (1 - 0.9**n)) + 1e-3)
        p, bias = p - 0.01 * n * (update + 0.1 * p), bias - 0.01 * n * bias_update
        np.testing.assert_allclose(B.state_params(state)["layer"]["kernel"], p, rtol=1e-12)
        np.testing.assert_allclose(B.state_params(state)["layer"]["bias"], bias, rtol=1e-12)
    assert state["step"] == 3


def test_accumulation_averages_equal_parts(layer):
    params, batch = layer
    optimizer = OptimizerConfig()
    results = []
    for accumulate in (1, 2, 4):
        step = B.make_step(loss_of_a_layer, optimizer, accumulate=accumulate)
        results.append(step(B.init_state(params, optimizer), batch, 0.1))
    for state, metrics in results[1:]:
        assert metrics["loss"] == pytest.approx(results[0][1]["loss"], rel=1e-12)
        np.testing.assert_allclose(metrics["load"], results[0][1]["load"], rtol=1e-12)
        np.testing.assert_allclose(state["mu"]["router"]["kernel"], results[0][0]["mu"]["router"]["kernel"], atol=1e-12)
    with pytest.raises(ShapeError, match="accumulate=3"):
        B.make_step(loss_of_a_layer, optimizer, accumulate=3)(B.init_state(params, optimizer), batch, 0.1)
    with pytest.raises(ConfigError, match="accumulate=0"):
        B.make_step(loss_of_a_layer, optimizer, accumulate=0)


def test_a_state_survives_its_export_bit_for_bit(layer):
    params, batch = layer
    optimizer = OptimizerConfig(weight_decay=0.1)
    step = B.make_step(loss_of_a_layer, optimizer)
    state, _ = step(B.init_state(params, optimizer), batch, 0.1)
    exported = B.export_state(state)
    continued, _ = step(state, batch, 0.1)
    resumed, _ = step(B.import_state(exported, optimizer), batch, 0.1)
    assert resumed["step"] == 2
    assert_same(resumed["params"]["experts"]["w1"], continued["params"]["experts"]["w1"])
    assert_same(resumed["nu"]["router"]["kernel"], continued["nu"]["router"]["kernel"])
    exported["params"]["router"]["kernel"][:] = 0
    assert B.state_params(state)["router"]["kernel"].any()
