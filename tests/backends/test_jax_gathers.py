"""The permutations of the JAX backend: what the compiled program holds, and that its two forms agree."""

import importlib
import re
from functools import partial

import numpy as np
import pytest
import router_inputs

from moespec import spec

jax = pytest.importorskip("jax")
B = importlib.import_module("moespec.backends.jax")
allocations = importlib.import_module("moespec.backends.jax.allocations")

GROUPS, TOKENS, EXPERTS, WIDTH, HIDDEN = 2, 24, 3, 8, 5


def layer(name, **options):
    """The loss of one MoE layer with a router, and its arguments."""
    config = router_inputs.options(name, width=WIDTH, experts=EXPERTS, tokens=TOKENS, **options)
    rng = np.random.default_rng(0)
    params = {
        "router": B.ROUTERS[name].init(rng, config),
        "experts": {
            "w1": rng.normal(size=(EXPERTS, WIDTH, HIDDEN)).astype(np.float32),
            "b1": rng.normal(size=(EXPERTS, HIDDEN)).astype(np.float32),
            "w2": rng.normal(size=(EXPERTS, HIDDEN, WIDTH)).astype(np.float32),
            "b2": rng.normal(size=(EXPERTS, WIDTH)).astype(np.float32),
        },
    }
    x = rng.normal(size=(GROUPS, TOKENS, WIDTH)).astype(np.float32)
    noise = router_inputs.noise(rng, name, config, GROUPS)

    def loss(params, x, noise):
        out = B.ROUTERS[name].route(params["router"], x, config, noise=noise)
        y = B.moe_layer(x, out.routing, partial(B.expert_mlp, params=params["experts"]))
        return B.sum(y * y) + sum(out.losses.values()), out.metrics

    return loss, (params, x, noise)


def equations(jaxpr):
    """All equations of a jaxpr and of those inside it."""
    for equation in jaxpr.eqns:
        yield equation
        for parameter in jax.tree.leaves(equation.params, is_leaf=lambda leaf: hasattr(leaf, "eqns")):
            if hasattr(parameter, "eqns") or hasattr(parameter, "jaxpr"):
                yield from equations(getattr(parameter, "jaxpr", parameter))


def floating_scatters(jaxpr):
    """The primitives that write floats by index, but for plain writes of scalars at indices promised to be unique."""
    return [
        equation.primitive.name
        for equation in equations(jaxpr)
        if equation.primitive.name.startswith("scatter")
        and equation.outvars[0].aval.dtype.kind == "f"
        and not (equation.primitive.name == "scatter" and equation.params["unique_indices"])
    ]


SPARSE = [name for name in spec.ROUTERS if name != "soft_moe"]


@pytest.mark.parametrize("name", SPARSE)
def test_forward_and_backward_are_gathers(name):
    """Nothing floating is added by a scatter, and nothing has the size tokens x experts x capacity."""
    loss, arguments = layer(name, batch_priority="max", capacity_factor=0.9)
    capacity = spec.expert_capacity(TOKENS, EXPERTS, 0.9, choices=2 if "token_choice" in name else 1)
    if name in ("dselect_k", "base", "strictly_balanced"):
        capacity = TOKENS  # by definition, for the last two without `train`
    jaxpr = jax.make_jaxpr(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(*arguments).jaxpr
    assert sum(1 for _ in equations(jaxpr)) > 200
    assert floating_scatters(jaxpr) == []
    if "token_choice" in name:
        assert {e.outvars[0].aval.dtype.kind for e in equations(jaxpr) if "scatter" in e.primitive.name} <= {"i", "b"}
    largest = max(variable.aval.size for equation in equations(jaxpr) for variable in equation.outvars)
    assert largest < GROUPS * TOKENS * EXPERTS * capacity


def test_the_search_for_scatters_finds_one():
    gather = jax.jit(jax.grad(lambda x, i: (x[i] ** 2).sum()))
    assert floating_scatters(jax.make_jaxpr(gather)(np.ones(3), np.arange(2)).jaxpr) != []


def test_the_program_has_no_dense_routing_tensor():
    """The same in the lowered text, by shape: neither (G, T, E, C) nor its transposes."""
    loss, arguments = layer("softmax_token_choice", choices=1, capacity_factor=0.9)
    text = jax.jit(jax.grad(loss, has_aux=True)).lower(*arguments).as_text()
    shapes = {tuple(map(int, found.split("x")[:-1])) for found in re.findall(r"tensor<((?:\d+x)+[a-z]\w*)>", text)}
    capacity = spec.expert_capacity(TOKENS, EXPERTS, 0.9)
    assert (GROUPS, TOKENS, WIDTH) in shapes
    assert (GROUPS, EXPERTS, capacity, WIDTH) in shapes
    dense = sorted((GROUPS, TOKENS, EXPERTS, capacity))
    assert not [shape for shape in shapes if sorted(shape) == dense]


@pytest.mark.parametrize(("experts", "count"), [(1, 7), (5, 64), (32, 200), (40, 333)])
def test_positions_by_sum_and_by_sort_are_equal(experts, count):
    requests = np.random.default_rng(experts).integers(0, experts, (3, count)).astype(np.int32)
    by_sum = jax.jit(partial(allocations.position_by_sum, experts=experts))(requests)
    by_sort = jax.jit(partial(allocations.position_by_sort, experts=experts))(requests)
    want = [[(row[:n] == row[n]).sum() for n in range(count)] for row in requests]
    np.testing.assert_array_equal(by_sum, want)
    np.testing.assert_array_equal(by_sort, want)
    assert by_sum.dtype == by_sort.dtype == np.int32


def test_many_experts_route_as_the_specification():
    experts, tokens = 40, 60
    scores = np.random.default_rng(0).integers(0, 9, (2, tokens, experts)).astype(np.float32)
    routing = jax.jit(partial(B.token_choice, choices=3, capacity=4))(scores)
    for g in range(2):
        want = spec.slot_tokens(spec.token_choice(scores[g], choices=3, capacity=4))
        np.testing.assert_array_equal(routing.token[g], want)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["softmax_token_choice", "softmax_expert_choice"])
def test_gathers_equal_the_dense_layer(name, dtype):
    """Output and gradients of `moe_layer` by slots and by the dense tensors, at a size with drops and repeats."""
    rng = np.random.default_rng(0)
    tokens = B.from_numpy(rng.normal(size=(2, 64, 16)), dtype)
    scores = B.softmax_affinity(B.from_numpy(rng.normal(size=(2, 64, 6))))
    allocate = partial(B.token_choice, choices=2) if "token" in name else B.expert_choice

    def total(layer, tokens, scores):
        y = layer(tokens, allocate(scores, capacity=15), lambda x: B.cast(x * x, dtype))
        return B.sum(B.cast(y, "float32") ** 2), y

    def dense_layer(tokens, routing, experts):
        dispatch, combine = routing.dense()
        outputs = experts(B.einsum("gtec,gtd->gecd", B.cast(dispatch, dtype), tokens))
        return B.cast(B.einsum("gtec,gecd->gtd", combine, B.cast(outputs, "float32")), dtype)

    both = [
        B.to_numpy(jax.jit(jax.value_and_grad(partial(total, f), argnums=(0, 1), has_aux=True))(tokens, scores))
        for f in (B.moe_layer, dense_layer)
    ]
    tolerance = 1e-5 if dtype == "float32" else 2e-2
    for got, want in zip(*map(jax.tree.leaves, both), strict=True):
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * np.abs(want).max())


def test_routing_passes_through_jit_and_keeps_its_tokens_static():
    scores = np.random.default_rng(0).random((2, 6, 3)).astype(np.float32)
    routing = jax.jit(lambda s: B.token_choice(s, choices=1, capacity=2))(scores)
    assert isinstance(routing, B.SlotRouting)
    assert routing.tokens == 6
    assert routing.token.dtype == routing.slot.dtype == np.int32
    again = jax.jit(lambda routing: routing)(B.expert_choice(scores, capacity=2))
    assert again.slot is None
