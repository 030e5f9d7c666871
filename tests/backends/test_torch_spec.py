"""Every function of the torch backend against the specification, group by group: values, gradients, dtypes, faults."""

import importlib

import numpy as np
import pytest

from moespec import spec
from moespec.spec import RouterConfig, Routing

torch = pytest.importorskip("torch")
B = importlib.import_module("moespec.backends.torch")

GROUPS, TOKENS, EXPERTS, WIDTH, HIDDEN = 3, 12, 5, 6, 7
TOLERANCE = {"float64": 1e-12, "float32": 2e-5}


def draw(*shape, seed=0, scale=1.0):
    """Normal draws that float32 represents exactly, so that both sides see the same numbers."""
    return rounded(np.random.default_rng((seed, *shape)).normal(size=shape) * scale)


def rounded(values):
    return values.astype(np.float32).astype(np.float64)


def grouped(function, *arrays):
    """`function` of each group of the arrays."""
    return [function(*(array[group] for array in arrays)) for group in range(GROUPS)]


LOGITS = draw(GROUPS, TOKENS, EXPERTS, scale=2.0)
NOISE = draw(GROUPS, TOKENS, EXPERTS, seed=1)
SCORES = rounded(np.stack(grouped(spec.softmax_affinity, LOGITS)))
TIES = np.random.default_rng(2).integers(0, 3, LOGITS.shape) / 4 - 0.25
X, KERNEL, SLOTS = draw(GROUPS, TOKENS, WIDTH), draw(WIDTH, EXPERTS), draw(WIDTH, EXPERTS, 4)
ALPHA, BETA = draw(GROUPS, TOKENS, seed=3, scale=0.3), draw(GROUPS, EXPERTS, seed=4, scale=0.3)
ORDER = np.stack([np.random.default_rng(group).permutation(TOKENS) for group in range(GROUPS)])
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
HEADS = [draw(GROUPS, TOKENS, 2, 4, seed=seed) for seed in range(3)]

# name, arguments with a groups axis, arguments without, options
FUNCTIONS = [
    ("router_logits", (X,), (KERNEL,), {}),
    ("add_gating_noise", (LOGITS, NOISE), (), {"multiplier": 0.5}),
    ("softmax_affinity", (LOGITS,), (), {}),
    ("sinkhorn_affinity", (LOGITS,), (), {}),
    ("sinkhorn_affinity", (LOGITS,), (), {"iterations": 1}),
    ("sinkhorn_affinity", (LOGITS * np.array([1.0, 0.2, 0.01])[:, None, None],), (), {"tolerance": 1e-4}),
    ("project_simplex", (ALPHA,), (), {"mass": 2.0}),
    ("project_sparse_simplex", (ALPHA,), (), {"nonzeros": 3}),
    ("project_sparse_simplex", (TIES[:, :, 0],), (), {"nonzeros": 5, "mass": 0.5}),
    ("transport_semi_dual", (ALPHA, SCORES), (), {"capacity": 3}),
    ("transport_semi_dual", (ALPHA, SCORES), (), {"capacity": TOKENS, "regularization": 0.5}),
    ("transport_dual", (ALPHA, BETA, SCORES), (), {"capacity": 3, "regularization": 0.7}),
    ("sparse_transport_affinity", (SCORES,), (), {"capacity": 3}),
    ("sparse_transport_affinity", (SCORES,), (), {"capacity": 2, "sparsity": "token"}),
    ("sparse_transport_affinity", (SCORES,), (), {"capacity": 3, "sparsity": "none", "regularization": 0.3}),
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
    ("rescale", (draw(GROUPS, TOKENS, WIDTH),), (RESCALE,), {}),
    (
        "rescale",
        (draw(GROUPS, TOKENS, WIDTH),),
        ({name: RESCALE[name] for name in ("token_kernel", "token_bias")},),
        {},
    ),
    ("expert_choice", (TIES,), (), {"capacity": 4}),
    ("expert_choice", (TIES,), (), {"capacity": TOKENS, "drop_zero": True}),
    ("soft_routing", (X,), (SLOTS,), {"scale": 1.5}),
    ("soft_routing", (X * np.arange(TOKENS)[:, None],), (SLOTS,), {"norm_form": "rsqrt"}),
    ("soft_routing", (X,), (SLOTS,), {"normalize": False, "scale": 3.0}),
    ("soft_routing", (X,), (SLOTS,), {"dispatch": "uniform"}),
    ("soft_routing", (X,), (SLOTS,), {"combine": "uniform"}),
    ("soft_routing", (X,), (draw(WIDTH, 4, 3),), {"dispatch": "identity", "combine": "identity"}),
    ("importance_loss", (SCORES,), (), {}),
    ("load_loss", (LOGITS, LOGITS + NOISE / EXPERTS), (), {"choices": 2, "noise_std": 1 / EXPERTS}),
    ("balance_loss", (TIES + 0.5,), (), {}),
    ("z_loss", (LOGITS,), (), {}),
    ("expert_mlp", (draw(GROUPS, EXPERTS, 4, WIDTH),), (MLP,), {}),
    ("expert_mlp", (draw(GROUPS, EXPERTS, 4, WIDTH),), (MLP,), {"gelu": "erf"}),
    ("gelu", (X,), (), {}),
    ("gelu", (X,), (), {"form": "erf"}),
    ("layer_norm", (X,), (draw(WIDTH), draw(WIDTH, seed=1)), {}),
    ("layer_norm", (X,), (draw(WIDTH),), {"epsilon": 1e-2}),
    ("attention", HEADS, (), {}),
    ("patch_embed", (draw(GROUPS, 4, 6, 2),), (draw(2, 2, 2, 5), draw(5)), {}),
    ("softmax_cross_entropy", (LOGITS * 10, ONE_HOT), (), {}),
    ("sigmoid_cross_entropy", (LOGITS * 10, ONE_HOT), (), {}),
]
LOSSES = ("importance_loss", "load_loss", "balance_loss", "z_loss")


def as_tuple(result):
    """The arrays of a result of either side; a routing as its dense tensors."""
    if hasattr(result, "dense"):
        result = result.dense()
    if isinstance(result, dict):
        return tuple(result.values())
    return tuple(result) if isinstance(result, tuple) else (result,)


def assert_close(got, want, tolerance):
    got, want = np.asarray(B.to_numpy(got)), np.asarray(want)
    assert got.shape == want.shape
    if got.dtype.kind == "i":
        np.testing.assert_array_equal(got, want)
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("name", "batched", "shared", "options"), FUNCTIONS)
def test_equals_the_specification(name, batched, shared, options, dtype):
    arguments = B.from_numpy((*batched, *shared), dtype)
    got = as_tuple(getattr(B, name)(*arguments, **options))
    groups = [as_tuple(getattr(spec, name)(*(a[g] for a in batched), *shared, **options)) for g in range(GROUPS)]
    wants = [np.stack(parts) for parts in zip(*groups, strict=True)]
    if name in LOSSES:
        wants = [want.mean() for want in wants]
    for result, want in zip(got, wants, strict=True):
        assert result.dtype in (getattr(torch, dtype), torch.int32)
        assert_close(result, want, TOLERANCE[dtype])


@pytest.mark.parametrize("by", ["max", "sum"])
def test_an_order_of_the_tokens(by):
    """Batch priority, and any permutation, serve the tokens in that order."""
    orders = [np.stack(grouped(lambda a: spec.batch_priority(a, by=by, choices=2), SCORES)), ORDER]
    for order in orders:
        got = B.token_choice(*B.from_numpy((SCORES,)), choices=2, capacity=3, order=B.from_numpy(order)).dense()
        for group in range(GROUPS):
            want = spec.token_choice(SCORES[group], choices=2, capacity=3, order=order[group])
            np.testing.assert_array_equal(B.to_numpy(got.dispatch[group]), want.dispatch)
            np.testing.assert_array_equal(B.to_numpy(got.combine[group]), want.combine)


def routings():
    """Routings of every kind, by a name."""
    scores, ties, x, slots = B.from_numpy((SCORES, TIES, X, SLOTS))
    return {
        "token choice": B.token_choice(scores, choices=2, capacity=3),
        "token choice, in an order": B.token_choice(ties, choices=3, capacity=4, order=B.from_numpy(ORDER)),
        "importance": B.importance_score_choice(scores, choices=2, capacity=3, drop=0.3),
        "one choice": B.token_choice(scores, choices=1, capacity=5),
        "expert choice": B.expert_choice(scores, capacity=4),
        "expert choice with empty slots": B.expert_choice(ties, capacity=9, combine_scores=scores, drop_zero=True),
        "soft": B.soft_routing(x, slots, scale=2.0),
        "dense": B.expert_choice(scores, capacity=4).dense(),
    }


@pytest.mark.parametrize("kind", list(routings()))
def test_the_layer_and_the_metrics_of_every_routing(kind):
    routing = routings()[kind]
    dense = B.to_numpy(Routing(*as_tuple(routing)))
    got = B.moe_layer(B.from_numpy(X), routing, lambda inputs: B.expert_mlp(inputs, B.from_numpy(MLP)))
    metrics = B.routing_metrics(routing)
    wanted_metrics = []
    for group in range(GROUPS):
        one = Routing(dense.dispatch[group], dense.combine[group])
        assert_close(got[group], spec.moe_layer(X[group], one, lambda inputs: spec.expert_mlp(inputs, MLP)), 1e-12)
        wanted_metrics.append(spec.routing_metrics(one))
    for name, value in metrics.items():
        assert_close(value, np.mean([want[name] for want in wanted_metrics], axis=0), 1e-12)


ROUTERS = {
    "softmax_token_choice": {"choices": 2, "capacity_factor": 0.7, "batch_priority": "max", "z_weight": 0.1},
    "sinkhorn_token_choice": {"combine_with": "plan", "balance_weight": 0.1},
    "importance_score": {"choices": 2, "drop": 0.3},
    "softmax_expert_choice": {"capacity_factor": 1.5, "z_weight": 0.1},
    "sinkhorn_expert_choice": {"combine_from_clean_logits": True},
    "sparsity_constrained_expert_choice": {"drop_zero_plan": True, "importance_weight": 0.3},
    "soft_moe": {},
}


@pytest.mark.parametrize("name", list(ROUTERS))
def test_layer_and_gradient_of_every_router(name):
    """Output, losses and the derivative along a direction, which the specification takes by the complex step."""
    config = spec.ROUTERS[name].configure(width=WIDTH, experts=EXPERTS, tokens=TOKENS, **ROUTERS[name])
    initial = spec.ROUTERS[name].init(np.random.default_rng(0), config)
    params = {key: np.asarray(value, np.float64) * 2 for key, value in initial.items()}
    values = {"x": X, **{f"router {key}": value for key, value in params.items()}, **MLP}
    direction = {key: draw(*value.shape, seed=7) for key, value in values.items()}
    weights = draw(GROUPS, TOKENS, WIDTH, seed=8)

    def objective(route, layer, mlp, values, tokens, noise, weights):
        own = {key.removeprefix("router "): value for key, value in values.items() if key.startswith("router ")}
        output = route(own, tokens, config, noise=noise, train=True)
        y = layer(tokens, output.routing, lambda inputs: mlp(inputs, {key: values[key] for key in MLP}))
        return (y * weights).sum() / GROUPS + sum(output.losses.values()), y

    step = 1e-30
    moved = {key: value + 1j * step * direction[key] for key, value in values.items()}
    route = spec.ROUTERS[name].route
    parts = [
        objective(route, spec.moe_layer, spec.expert_mlp, moved, moved["x"][g], NOISE[g], weights[g])
        for g in range(GROUPS)
    ]
    mean_losses = sum(part[0] - (part[1] * weights[g]).sum() / GROUPS for g, part in enumerate(parts)) / GROUPS
    want = sum((part[1] * weights[g]).sum() / GROUPS for g, part in enumerate(parts)) + mean_losses

    leaves = {key: value.requires_grad_() for key, value in B.from_numpy(values).items()}
    noise, tensor_weights = B.from_numpy((NOISE, weights))
    got, y = objective(B.ROUTERS[name].route, B.moe_layer, B.expert_mlp, leaves, leaves["x"], noise, tensor_weights)
    assert_close(y, np.stack([part[1].real for part in parts]), 1e-11)
    assert_close(got, want.real, 1e-11)
    got.backward()
    slope = sum((leaf.grad * B.from_numpy(direction[key])).sum().item() for key, leaf in leaves.items())
    assert slope == pytest.approx(want.imag / step, rel=1e-10)


def test_sixteen_bits():
    """Affinities, weights and losses stay in float32; the layer returns the dtype of the tokens."""
    x, kernel, mlp = B.from_numpy((X, KERNEL, MLP), "bfloat16")
    logits = B.router_logits(x, kernel)
    scores = B.softmax_affinity(logits)
    plan = B.sparse_transport_affinity(scores.bfloat16(), capacity=3)
    for tensor in (logits, scores, plan, B.sinkhorn_affinity(logits.bfloat16()), B.z_loss(logits.bfloat16())):
        assert tensor.dtype == torch.float32
    for routing in (
        B.token_choice(scores.bfloat16(), choices=2, capacity=3),
        B.expert_choice(scores.bfloat16(), capacity=3),
        B.soft_routing(x, B.from_numpy(SLOTS, "bfloat16")),
    ):
        weights = routing.combine if hasattr(routing, "combine") else routing.weight
        assert weights.dtype == torch.float32
        y = B.moe_layer(x, routing, lambda inputs: B.expert_mlp(inputs, mlp))
        assert y.dtype == torch.bfloat16
        wide = B.moe_layer(x.double(), routing, lambda inputs: B.expert_mlp(inputs, mlp))
        torch.testing.assert_close(y.double(), wide, rtol=3e-2, atol=3e-2)


def test_sixteen_bit_outputs_are_weighted_and_summed_in_float32():
    """So that the result is rounded once, whatever cancels in the sum."""
    scores = B.softmax_affinity(B.from_numpy(LOGITS, "float32"))
    x = B.from_numpy(X, "bfloat16")
    signs = B.from_numpy(np.array([1.0, -1.0, 1.0, -1.0, 1.0]), "bfloat16")[:, None, None]
    for routing in (B.token_choice(scores, choices=3, capacity=9), B.expert_choice(scores, capacity=9)):
        got, want = (B.moe_layer(tokens, routing, lambda inputs: inputs * signs) for tokens in (x, x.double()))
        assert ((got.double() - want).abs() <= 2**-8 * want.abs()).all()


def test_autocast_does_not_lower_the_precision_of_routing():
    x, kernel, slots, mlp = B.from_numpy((X, KERNEL, SLOTS, MLP), "float32")

    def compute():
        logits = B.router_logits(x, kernel)
        soft = B.soft_routing(x, slots)
        y = B.moe_layer(x, soft, lambda inputs: B.expert_mlp(inputs, mlp))
        return [logits, B.softmax_affinity(logits), B.sinkhorn_affinity(logits), B.z_loss(logits), *soft], y

    exact, y = compute()
    with torch.autocast(B.default_device().type, torch.bfloat16):
        cast, y_cast = compute()
    for want, got in zip(exact, cast, strict=True):
        assert torch.equal(want, got)
    assert y_cast.dtype == torch.float32
    assert not torch.equal(y, y_cast)
    torch.testing.assert_close(y, y_cast, rtol=5e-2, atol=5e-2)


def test_zero_tokens_have_a_gradient():
    """The norm of a zero vector counts as a constant."""
    x = torch.zeros(1, 3, 2, dtype=torch.float64, requires_grad=True)
    B.soft_routing(x, torch.ones(2, 2, 1, dtype=torch.float64)).dispatch.square().sum().backward()
    assert torch.isfinite(x.grad).all()


SOME = torch.rand(2, 4, 3, generator=torch.Generator().manual_seed(0))
ROUTED = B.token_choice(SOME, choices=1, capacity=2)
BAD_MLP = {"w1": torch.ones(3, 5, 6), "b1": torch.ones(3, 6), "w2": torch.ones(3, 4, 5), "b2": torch.ones(3, 5)}

FAULTS = [
    (spec.ConfigError, "choices", lambda: B.token_choice(SOME, choices=4, capacity=1)),
    (spec.ConfigError, "choices", lambda: B.load_loss(SOME, SOME, choices=0, noise_std=1.0)),
    (spec.ConfigError, "capacity", lambda: B.token_choice(SOME, choices=1, capacity=0)),
    (spec.ConfigError, "capacity", lambda: B.expert_choice(SOME, capacity=5)),
    (spec.ConfigError, "by", lambda: B.batch_priority(SOME, by="min")),
    (spec.ConfigError, "solver", lambda: B.sparse_transport_affinity(SOME, capacity=2, solver="lbfgs")),
    (spec.ConfigError, "sparsity", lambda: B.sparse_transport_affinity(SOME, capacity=2, sparsity="rows")),
    (spec.ConfigError, "iterations", lambda: B.sinkhorn_affinity(SOME, iterations=0)),
    (spec.ConfigError, "multiplier", lambda: B.add_gating_noise(SOME, SOME, multiplier=-1.0)),
    (spec.ConfigError, "nonzeros", lambda: B.project_sparse_simplex(SOME, nonzeros=4)),
    (spec.ConfigError, "norm_form", lambda: B.soft_routing(SOME, torch.ones(3, 2, 2), norm_form="l1")),
    (spec.ConfigError, "dispatch", lambda: B.soft_routing(SOME, torch.ones(3, 2, 2), dispatch="identity")),
    (spec.ConfigError, "form", lambda: B.gelu(SOME, form="quick")),
    (spec.ConfigError, "dtype", lambda: B.from_numpy(X, "float8")),
    (spec.ShapeError, "logits", lambda: B.softmax_affinity(SOME[0])),
    (spec.ShapeError, "kernel", lambda: B.router_logits(SOME, torch.ones(4, 3))),
    (spec.ShapeError, "order", lambda: B.token_choice(SOME, choices=1, capacity=1, order=torch.zeros(2, 3).int())),
    (spec.ShapeError, "combine_scores", lambda: B.expert_choice(SOME, capacity=1, combine_scores=SOME[:, :, :2])),
    (spec.ShapeError, "potential", lambda: B.transport_semi_dual(torch.ones(2, 3), SOME, capacity=2)),
    (spec.ShapeError, "scale", lambda: B.soft_routing(SOME, torch.ones(3, 2, 2), scale=torch.ones(1))),
    (spec.ShapeError, "w2", lambda: B.expert_mlp(torch.ones(2, 3, 4, 5), BAD_MLP)),
    (spec.ShapeError, "images", lambda: B.patch_embed(torch.ones(2, 5, 4, 3), torch.ones(2, 2, 3, 7), torch.ones(7))),
    (spec.ShapeError, "value", lambda: B.attention(SOME[None], SOME[None], SOME[None, :, :2])),
    (spec.ShapeError, "routing.tokens", lambda: B.moe_layer(SOME[:, :3], ROUTED, lambda x: x)),
    (spec.ShapeError, "experts", lambda: B.moe_layer(SOME, ROUTED, lambda x: x[:, :, :1])),
    (spec.DtypeError, "scores", lambda: B.token_choice(SOME.int(), choices=1, capacity=1)),
    (spec.DtypeError, "order", lambda: B.token_choice(SOME, choices=1, capacity=1, order=torch.ones(2, 4))),
]


@pytest.mark.parametrize(("error", "argument", "call"), FAULTS)
def test_a_static_fault_names_its_argument(error, argument, call):
    with pytest.raises(error, match=f"^{argument}:"):
        call()


def test_routers_check_their_configuration():
    config = RouterConfig(width=3, experts=3, tokens=5)
    with pytest.raises(spec.ShapeError, match=r"config\.tokens"):
        B.ROUTERS["softmax_expert_choice"].route({"kernel": torch.rand(3, 3)}, torch.rand(2, 4, 3), config)
