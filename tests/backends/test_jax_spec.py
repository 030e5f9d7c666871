"""Every function of the JAX backend against the specification, group by group, under `jax.jit`."""

import importlib
from functools import partial
from itertools import product

import numpy as np
import pytest
import router_inputs

from moespec import spec
from moespec.spec import Routing
from moespec.spec.examples import LOGITS as LOGITS_G1

jax = pytest.importorskip("jax")
B = importlib.import_module("moespec.backends.jax")

GROUPS, TOKENS, EXPERTS, CAPACITY, WIDTH, HIDDEN = 3, 12, 5, 4, 6, 7
TOLERANCE = {"float64": 1e-12, "float32": 2e-5}


def draw(*shape, seed=0, scale=1.0):
    """Normal draws that float32 represents exactly, so that both sides see the same numbers."""
    values = np.random.default_rng((seed, *shape)).normal(size=shape) * scale
    return values.astype(np.float32).astype(np.float64)


LOGITS = draw(GROUPS, TOKENS, EXPERTS, scale=2.0)
NOISE = draw(GROUPS, TOKENS, EXPERTS, seed=1)
SCORES = spec.softmax_affinity(LOGITS.reshape(-1, EXPERTS)).reshape(LOGITS.shape).astype(np.float32).astype(np.float64)
TIES = np.random.default_rng(2).integers(0, 3, LOGITS.shape) / 4 - 0.25
X = draw(GROUPS, TOKENS, WIDTH)
KERNEL = draw(WIDTH, EXPERTS)
SLOTS = draw(WIDTH, EXPERTS, CAPACITY)
ALPHA = draw(GROUPS, TOKENS, seed=3, scale=0.3)
BETA = draw(GROUPS, EXPERTS, seed=4, scale=0.3)
ORDER = np.stack([np.random.default_rng(g).permutation(TOKENS) for g in range(GROUPS)])
ONE_HOT = np.eye(EXPERTS)[np.random.default_rng(5).integers(0, EXPERTS, (GROUPS, TOKENS))]
RESCALE = {
    "token_kernel": draw(TOKENS, 5),
    "token_bias": draw(5),
    "channel_kernel": draw(WIDTH, 3),
    "channel_bias": draw(3),
}
MLP = {
    "w1": draw(EXPERTS, WIDTH, HIDDEN),
    "b1": draw(EXPERTS, HIDDEN),
    "w2": draw(EXPERTS, HIDDEN, WIDTH),
    "b2": draw(EXPERTS, WIDTH),
}
HEADS = draw(GROUPS, TOKENS, 2, 4), draw(GROUPS, TOKENS, 2, 4, seed=1), draw(GROUPS, TOKENS, 2, 4, seed=2)

# name, batched arguments, arguments shared by the groups, options. A loss is the mean over groups of the spec's.
CASES = [
    ("router_logits", (X,), (KERNEL,), {}),
    ("add_gating_noise", (LOGITS, NOISE), (), {"multiplier": 0.5}),
    ("softmax_affinity", (LOGITS,), (), {}),
    ("sinkhorn_affinity", (LOGITS,), (), {}),
    ("sinkhorn_affinity", (LOGITS,), (), {"iterations": 1}),
    ("sinkhorn_affinity", (LOGITS,), (), {"iterations": 50, "tolerance": 1e-2}),
    ("project_simplex", (ALPHA,), (), {"mass": 2.0}),
    ("project_sparse_simplex", (ALPHA,), (), {"nonzeros": 3}),
    ("project_sparse_simplex", (TIES[:, :, 0],), (), {"nonzeros": 5, "mass": 0.5}),
    ("transport_semi_dual", (ALPHA, SCORES), (), {"capacity": 3}),
    ("transport_semi_dual", (ALPHA, SCORES), (), {"capacity": TOKENS, "regularization": 0.5}),
    ("transport_dual", (ALPHA, BETA, SCORES), (), {"capacity": 3}),
    ("sparse_transport_affinity", (SCORES,), (), {"capacity": 3}),
    ("sparse_transport_affinity", (SCORES,), (), {"capacity": 2, "sparsity": "token"}),
    ("sparse_transport_affinity", (SCORES,), (), {"capacity": 3, "sparsity": "none", "steps": 3}),
    ("sparse_transport_affinity", (SCORES,), (), {"capacity": 4, "tolerance": 4.4, "regularization": 0.3}),
    ("batch_priority", (SCORES,), (), {}),
    ("batch_priority", (TIES,), (), {"by": "sum", "choices": 2}),
    ("token_choice", (SCORES,), (), {"choices": 1, "capacity": 2}),
    ("token_choice", (TIES,), (), {"choices": 2, "capacity": 3}),
    ("token_choice", (TIES,), (), {"choices": EXPERTS, "capacity": TOKENS + 1}),
    ("importance_score_order", (TIES,), (), {"drop": 0.3}),
    ("importance_score_choice", (SCORES,), (), {"choices": 1, "capacity": 2, "drop": 0.3}),
    ("importance_score_choice", (TIES,), (), {"choices": 2, "capacity": 3, "drop": 0.5}),
    ("importance_score_choice", (TIES,), (), {"choices": EXPERTS, "capacity": TOKENS, "drop": 0.0}),
    ("expert_choice", (SCORES,), (), {"capacity": 1}),
    ("expert_choice", (TIES,), (), {"capacity": CAPACITY}),
    ("expert_choice", (TIES,), (), {"capacity": TOKENS, "drop_zero": True}),
    ("soft_routing", (X,), (SLOTS,), {"scale": 1.5}),
    ("soft_routing", (X,), (SLOTS,), {"norm_form": "rsqrt"}),
    ("soft_routing", (X,), (SLOTS,), {"normalize": False}),
    ("soft_routing", (X,), (SLOTS,), {"dispatch": "uniform"}),
    ("soft_routing", (X,), (SLOTS,), {"combine": "uniform"}),
    ("soft_routing", (X,), (SLOTS,), {"dispatch": "uniform", "combine": "uniform"}),
    ("soft_routing", (X,), (draw(WIDTH, 4, 3),), {"dispatch": "identity", "combine": "identity"}),
    ("importance_loss", (SCORES,), (), {}),
    ("load_loss", (LOGITS, LOGITS + NOISE / EXPERTS), (), {"choices": 2, "noise_std": 1 / EXPERTS}),
    ("balance_loss", (SCORES,), (), {}),
    ("z_loss", (LOGITS,), (), {}),
    ("expert_mlp", (draw(GROUPS, EXPERTS, CAPACITY, WIDTH),), (MLP,), {}),
    ("expert_mlp", (draw(GROUPS, EXPERTS, CAPACITY, WIDTH),), (MLP,), {"gelu": "erf"}),
    ("gelu", (LOGITS,), (), {}),
    ("gelu", (LOGITS,), (), {"form": "erf"}),
    ("layer_norm", (X,), (KERNEL[:, 0], KERNEL[:, 1]), {}),
    ("layer_norm", (X,), (KERNEL[:, 0],), {"epsilon": 0.1}),
    ("attention", HEADS, (), {}),
    ("patch_embed", (draw(GROUPS, 4, 6, 3),), (draw(2, 2, 3, WIDTH), draw(WIDTH)), {}),
    ("rescale", (X,), (RESCALE,), {}),
    ("rescale", (X,), ({name: RESCALE[name] for name in ("token_kernel", "token_bias")},), {}),
    ("softmax_cross_entropy", (LOGITS, ONE_HOT), (), {}),
    ("sigmoid_cross_entropy", (LOGITS, ONE_HOT), (), {}),
]
MEANS = {"importance_loss", "load_loss", "balance_loss", "z_loss"}


def identify(value):
    """The readable part of a parameter, for the name of its test."""
    if isinstance(value, dict):
        return ",".join(f"{key}={option}" for key, option in value.items())
    if isinstance(value, tuple) and value and isinstance(value[0], str):
        return value[0]
    return value if isinstance(value, str) else ""


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


def by_group(function, batched, shared, options):
    """The specification applied to each group, stacked."""
    results = [function(*(array[g] for array in batched), *shared, **options) for g in range(GROUPS)]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *results)


def dense(result):
    return result.dense() if hasattr(result, "dense") else result


def compare(name, batched, shared, options, dtype):
    want = by_group(getattr(spec, name), batched, shared, options)
    if name in MEANS:
        want = np.mean(want)
    function = jax.jit(partial(getattr(B, name), **options))
    got = dense(function(*B.from_numpy((*batched, *shared), dtype)))
    for leaf in jax.tree.leaves(got):
        assert leaf.dtype in (dtype, "int32")
    check(got, want, TOLERANCE[dtype])


@pytest.mark.parametrize(("name", "batched", "shared", "options"), CASES, ids=identify)
def test_equals_the_specification(name, batched, shared, options):
    with jax.enable_x64(True):
        compare(name, batched, shared, options, "float64")


@pytest.mark.parametrize("case", {case[0]: case for case in reversed(CASES)}.values(), ids=identify)
def test_equals_the_specification_in_float32(case):
    compare(*case, "float32")


@pytest.mark.parametrize(("choices", "capacity"), [(1, 2), (2, 3), (3, 9)])
def test_token_choice_in_an_order(choices, capacity):
    options = {"choices": choices, "capacity": capacity}
    allocate = jax.jit(partial(B.token_choice, **options))
    for scores, order in product((SCORES, TIES), (None, ORDER)):
        want = [
            spec.token_choice(scores[g], combine_scores=LOGITS[g], order=None if order is None else order[g], **options)
            for g in range(GROUPS)
        ]
        routing = allocate(B.from_numpy(scores), combine_scores=B.from_numpy(LOGITS), order=order)
        check(routing.dense(), jax.tree.map(lambda *leaves: np.stack(leaves), *want), 0)
        # `slot` is the same map from the other end.
        token, slot = (np.asarray(array).reshape(GROUPS, -1) for array in (routing.token, routing.slot))
        for g, request in np.argwhere(slot < EXPERTS * capacity):
            assert token[g, slot[g, request]] == request // choices
        assert (slot < EXPERTS * capacity).sum() == (token < TOKENS).sum()


def test_worked_example():
    @jax.jit
    def allocate(logits):
        scores = B.softmax_affinity(logits)
        return (
            B.token_choice(scores, choices=2, capacity=3).token[0],
            B.token_choice(scores, choices=1, capacity=2, order=B.batch_priority(scores)).token[0],
            B.expert_choice(B.sparse_transport_affinity(scores, capacity=2), capacity=2, combine_scores=scores).token[
                0
            ],
        )

    assert [buffers.tolist() for buffers in allocate(np.array(LOGITS_G1)[None])] == [
        [[0, 1, 4], [2, 5, 0], [3, 4, 6]],
        [[4, 1], [5, 2], [3, 6]],
        [[4, 1], [5, 2], [3, 2]],
    ]


def test_zeros_of_both_signs_are_equal_scores():
    scores = np.array([[[-0.0, 0.0, -1.0], [0.0, -0.0, -1.0]]])
    assert B.token_choice(scores, choices=1, capacity=2).token[0].tolist() == [[0, 1], [2, 2], [2, 2]]
    assert B.expert_choice(scores, capacity=1).token[0].tolist() == [[0], [0], [0]]
    assert B.batch_priority(scores).tolist() == [[0, 1]]


ROUTERS = [
    ("softmax_token_choice", {"choices": 2, "batch_priority": "max", "balance_weight": 0.01, "z_weight": 0.001}),
    ("sinkhorn_token_choice", {"choices": 2, "combine_from_clean_logits": True}),
    ("sinkhorn_token_choice", {"combine_with": "plan", "batch_priority": "sum"}),
    ("importance_score", {"choices": 2, "drop": 0.3}),
    ("softmax_expert_choice", {"capacity_factor": 2.0, "importance_weight": 0.1}),
    ("sinkhorn_expert_choice", {"combine_with": "plan"}),
    ("sparsity_constrained_expert_choice", {"capacity_factor": 2.0, "drop_zero_plan": True}),
    ("soft_moe", {"capacity_factor": 2.0}),
]


@pytest.mark.parametrize(("name", "options"), ROUTERS, ids=identify)
def test_layer_of_each_router_and_its_gradient(name, options):
    """Values against the specification, gradients against its complex step along one direction."""
    router = spec.ROUTERS[name]
    config = router.configure(width=WIDTH, experts=EXPERTS, tokens=TOKENS, **options)
    params = {"router": router.init(np.random.default_rng(0), config), "experts": MLP}
    params["router"] = {key: value.astype(np.float64) * 3 for key, value in params["router"].items()}
    noise = None if name == "soft_moe" else NOISE
    weights = draw(GROUPS, TOKENS, WIDTH, seed=7)

    def reference(params, x):
        total, outputs = 0.0, []
        for g in range(GROUPS):
            out = router.route(params["router"], x[g], config, noise=None if noise is None else noise[g])
            y = spec.moe_layer(x[g], out.routing, partial(spec.expert_mlp, params=params["experts"]))
            outputs.append((y, out.losses, out.metrics))
            total = total + np.sum(y * weights[g]) + sum(out.losses.values()) / GROUPS
        return total, outputs

    def loss(params, x, noise):
        out = B.ROUTERS[name].route(params["router"], x, config, noise=noise)
        y = B.moe_layer(x, out.routing, partial(B.expert_mlp, params=params["experts"]))
        return B.sum(y * B.from_numpy(weights)) + sum(out.losses.values()), (y, out.losses, out.metrics)

    _, outputs = reference(params, X)
    want = jax.tree.map(lambda *leaves: np.stack(leaves), *outputs)
    want = (want[0], *(jax.tree.map(lambda leaf: leaf.mean(axis=0), tree) for tree in want[1:]))
    rng = np.random.default_rng(9)
    direction = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), (params, X))
    step = jax.tree.map(lambda leaf, v: leaf + 1e-30j * v, (params, X), direction)
    slope = reference(*step)[0].imag / 1e-30

    with jax.enable_x64(True):
        gradient = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
        (_, got), gradients = gradient(*B.from_numpy((params, X, noise), "float64"))
    check(got, want, 1e-12)
    products = jax.tree.map(lambda leaf, v: np.sum(leaf * v), B.to_numpy(gradients), direction)
    assert sum(jax.tree.leaves(products)) == pytest.approx(slope, rel=1e-11)


@pytest.mark.parametrize("name", list(spec.ROUTERS))
def test_bfloat16_layer(name):
    """Tokens and experts in bfloat16: routing in float32, output in bfloat16 and near the specification's."""
    config = spec.ROUTERS[name].configure(width=WIDTH, experts=EXPERTS, tokens=TOKENS)
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


def test_metrics():
    """With tokens that are dropped, that sit in several slots, and with soft weights."""
    routings = {
        "token_choice": (SCORES, {"choices": 2, "capacity": 2}),
        "expert_choice": (TIES, {"capacity": 2, "drop_zero": True}),
        "soft_routing": (X, {"slots": SLOTS, "scale": 2.0}),
    }
    for name, (array, options) in routings.items():
        metrics = [spec.routing_metrics(getattr(spec, name)(group, **options)) for group in array]
        want = {key: np.mean([group[key] for group in metrics], axis=0) for key in metrics[0]}
        got = jax.jit(lambda x, name=name, options=options: B.routing_metrics(getattr(B, name)(x, **options)))(array)
        check(got, want, 1e-5)
        assert name == "soft_routing" or 0 < float(got["dropped"]) < 1


def test_soft_routing_at_zero_tokens_has_finite_gradients():
    def total(tokens, slots):
        routing = B.soft_routing(tokens, slots)
        return B.sum(routing.combine[..., 0] * 2.0 + routing.dispatch[..., 1])

    gradients = jax.jit(jax.grad(total, argnums=(0, 1)))(
        np.zeros((1, 4, 3), np.float32), np.zeros((3, 2, 2), np.float32)
    )
    assert all(np.isfinite(leaf).all() for leaf in gradients)


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
    config = spec.ROUTERS[name].configure(width=WIDTH, experts=4, tokens=TOKENS, choices=router_inputs.choices(name))
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
    choices = router_inputs.choices(name)
    config = spec.ROUTERS[name].configure(
        width=WIDTH, experts=EXPERTS, tokens=TOKENS, choices=choices, balance_weight=0.1
    )
    rng = np.random.default_rng(0)
    params = B.from_numpy(B.ROUTERS[name].init(rng, config))
    drawn = router_inputs.noise(rng, name, config, GROUPS)

    def layer(x, noise, experts):
        out = B.ROUTERS[name].route(params, x, config, noise=noise)
        return B.moe_layer(x, out.routing, partial(B.expert_mlp, params=experts))

    with jax.numpy_dtype_promotion("strict"):
        jax.eval_shape(layer, B.from_numpy(X, "bfloat16"), drawn, B.from_numpy(MLP, "float32"))
