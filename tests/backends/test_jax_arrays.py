"""What the conformance suite does not check of the JAX backend: dtypes, zeros, promotion, moving arrays."""

import importlib
from functools import partial

import numpy as np
import pytest
import router_inputs

from moespec import spec
from moespec.spec import Routing

jax = pytest.importorskip("jax")
B = importlib.import_module("moespec.backends.jax")

GROUPS, TOKENS, EXPERTS, CAPACITY, WIDTH, HIDDEN = 3, 12, 5, 4, 6, 7


def draw(*shape, seed=0, scale=1.0):
    """Normal draws that float32 represents exactly, so that both sides see the same numbers."""
    values = np.random.default_rng((seed, *shape)).normal(size=shape) * scale
    return values.astype(np.float32).astype(np.float64)


LOGITS = draw(GROUPS, TOKENS, EXPERTS, scale=2.0)
SCORES = spec.softmax_affinity(LOGITS.reshape(-1, EXPERTS)).reshape(LOGITS.shape).astype(np.float32).astype(np.float64)
X = draw(GROUPS, TOKENS, WIDTH)
SLOTS = draw(WIDTH, EXPERTS, CAPACITY)
MLP = {
    "w1": draw(EXPERTS, WIDTH, HIDDEN),
    "b1": draw(EXPERTS, HIDDEN),
    "w2": draw(EXPERTS, HIDDEN, WIDTH),
    "b2": draw(EXPERTS, WIDTH),
}


def check(got, want, tolerance):
    """Equal structure; integers equal, floats within the tolerance."""
    got, want = jax.tree.leaves(got), jax.tree.leaves(want)
    assert len(got) == len(want)
    for one, other in zip(got, want, strict=True):
        one, other = np.asarray(one), np.asarray(other)
        assert one.shape == other.shape
        if other.dtype.kind in "iu":
            np.testing.assert_array_equal(one, other)
        else:
            np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def test_zeros_of_both_signs_are_equal_scores():
    scores = np.array([[[-0.0, 0.0, -1.0], [0.0, -0.0, -1.0]]])
    assert B.token_choice(scores, choices=1, capacity=2).token[0].tolist() == [[0, 1], [2, 2], [2, 2]]
    assert B.expert_choice(scores, capacity=1).token[0].tolist() == [[0], [0], [0]]
    assert B.batch_priority(scores).tolist() == [[0, 1]]


@pytest.mark.parametrize("name", list(spec.ROUTERS))
def test_bfloat16_layer(name):
    """Tokens and experts in bfloat16: routing in float32, output in bfloat16 and near the specification's."""
    config = router_inputs.options(name, width=WIDTH, experts=EXPERTS, tokens=TOKENS)
    params = spec.ROUTERS[name].init(np.random.default_rng(0), config)
    x, experts = B.from_numpy((X, MLP), "bfloat16")

    def total(x, params, experts):
        out = B.ROUTERS[name].route(params, x, config)
        assert {leaf.dtype for leaf in jax.tree.leaves(out.routing)} <= {np.dtype("float32"), np.dtype("int32")}
        y = B.moe_layer(x, out.routing, partial(B.expert_mlp, params=experts))
        return B.sum(B.cast(y, "float32")), y

    (_, got), gradient = jax.jit(jax.value_and_grad(total, has_aux=True))(x, B.from_numpy(params), experts)
    x, experts = B.to_numpy((x, experts))
    routings = [spec.ROUTERS[name].route(params, group, config).routing for group in x]
    want = [spec.moe_layer(x[g], routings[g], partial(spec.expert_mlp, params=experts)) for g in range(GROUPS)]
    assert (got.dtype, gradient.dtype) == ("bfloat16", "bfloat16")
    np.testing.assert_allclose(B.to_numpy(got), want, atol=0.03 * np.abs(want).max())
    assert np.isfinite(B.to_numpy(gradient)).all()


def test_soft_routing_at_zero_tokens_has_finite_gradients():
    def total(tokens, slots):
        routing = B.soft_routing(tokens, slots)
        return B.sum(routing.combine[..., 0] * 2.0 + routing.dispatch[..., 1])

    gradients = jax.jit(jax.grad(total, argnums=(0, 1)))(
        np.zeros((1, 4, 3), np.float32), np.zeros((3, 2, 2), np.float32)
    )
    assert all(np.isfinite(leaf).all() for leaf in gradients)


def test_soft_routing_of_bfloat16_tokens_has_derivatives_in_both_directions():
    tokens, slots = B.from_numpy((X, SLOTS), "bfloat16")
    slots = B.cast(slots, "float32")

    def combined(slots):
        return B.soft_routing(tokens, slots).combine[0, 0, 0, 0]

    forward, backward = jax.jacfwd(combined)(slots), jax.jacrev(combined)(slots)
    assert np.abs(backward).max() > 0
    np.testing.assert_allclose(forward, backward, atol=1e-5 * np.abs(backward).max())
    assert np.isfinite(jax.hessian(combined)(slots)).all()


def test_dense_returns_the_record_of_the_specification():
    assert isinstance(jax.eval_shape(lambda s: B.expert_choice(s, capacity=2).dense(), SCORES), Routing)
    assert isinstance(jax.eval_shape(lambda x, s: B.soft_routing(x, s).dense(), X, SLOTS), Routing)


def test_array_operations():
    x = B.from_numpy(LOGITS, "float32")
    assert B.concatenate([x, x], 1).shape == (GROUPS, 2 * TOKENS, EXPERTS)
    assert B.broadcast_to(x[:1], x.shape).shape == x.shape
    assert B.transpose(x, (0, 2, 1)).shape == (GROUPS, EXPERTS, TOKENS)
    check(
        (B.mean(x, 1), B.mean(x, (0, 1)), B.sum(x), B.sum(x, 2), B.sum(x, (0, 2)), B.tanh(x), B.softmax(x, 1)),
        (
            LOGITS.mean(1),
            LOGITS.mean((0, 1)),
            LOGITS.sum(),
            LOGITS.sum(2),
            LOGITS.sum((0, 2)),
            np.tanh(LOGITS),
            np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True),
        ),
        1e-5,
    )
    assert B.cast(x, "bfloat16").dtype == "bfloat16"
    tree = {"a": [np.arange(3), None], "b": (np.float32(1.5), np.ones(2, np.float64))}
    moved = B.to_numpy(B.from_numpy(tree, "bfloat16"))
    assert moved["a"][1] is None
    assert moved["a"][0].dtype.kind == "i"
    assert moved["b"][0] == 1.5
    assert moved["b"][1].dtype == np.float32
    original = np.ones(3, np.float32)
    copied = B.from_numpy(original)
    original[0] = 2
    assert copied[0] == 1


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("name", list(spec.ROUTERS))
def test_float32_where_float64_is_allowed(name, train):
    """What sums integers, for one, must not become wider than what it is compared with."""
    config = router_inputs.options(name, width=WIDTH, experts=4, tokens=TOKENS)
    rng = np.random.default_rng(0)
    params, noise = B.ROUTERS[name].init(rng, config), router_inputs.noise(rng, name, config, GROUPS)

    def layer(params, x, noise):
        return B.ROUTERS[name].route(params, x, config, noise=noise, train=train).routing

    narrow = jax.jit(layer)(params, X.astype(np.float32), noise)
    with jax.enable_x64(True):
        routing = jax.jit(layer)(params, X.astype(np.float32), noise)
    for got, want in zip(jax.tree.leaves(routing), jax.tree.leaves(narrow), strict=True):
        assert got.dtype == want.dtype or got.dtype.kind == "i"
        np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("name", list(spec.ROUTERS))
def test_layer_traces_under_strict_promotion(name):
    config = router_inputs.options(name, width=WIDTH, experts=EXPERTS, tokens=TOKENS, balance_weight=0.1)
    rng = np.random.default_rng(0)
    params = B.from_numpy(B.ROUTERS[name].init(rng, config))
    drawn = router_inputs.noise(rng, name, config, GROUPS)

    def layer(x, noise, experts):
        out = B.ROUTERS[name].route(params, x, config, noise=noise)
        return B.moe_layer(x, out.routing, partial(B.expert_mlp, params=experts))

    with jax.numpy_dtype_promotion("strict"):
        jax.eval_shape(layer, B.from_numpy(X, "bfloat16"), drawn, B.from_numpy(MLP, "float32"))
