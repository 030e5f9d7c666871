"""The permutations of the JAX backend: what the compiled program holds, and that its two forms agree."""

import importlib
from functools import partial

import numpy as np
import pytest
import router_inputs
from programs import equations

from moespec import spec

jax = pytest.importorskip("jax")
B = importlib.import_module("moespec.backends.jax")
places = importlib.import_module("moespec.backends.jax.positions_in_expert")

GROUPS, TOKENS, EXPERTS, WIDTH, HIDDEN = 2, 24, 3, 8, 5


def layer(name, of=None, **options):
    """The loss of one MoE layer with a router, and its arguments. of: `moe_mlp`, or None for the layer by slots."""
    config = router_inputs.options(name, width=WIDTH, experts=EXPERTS, tokens=TOKENS, **options)
    rng = np.random.default_rng(0)

    def draw(*shape):
        return rng.normal(size=shape).astype(np.float32)

    params = {
        "router": B.ROUTERS[name].init(rng, config),
        "experts": router_inputs.perceptrons(draw, EXPERTS, WIDTH, HIDDEN),
    }
    x = draw(GROUPS, TOKENS, WIDTH)
    noise = router_inputs.noise(rng, name, config, GROUPS)

    def loss(params, x, noise):
        state = B.ROUTERS[name].initial_state(config)
        out = B.ROUTERS[name].route(params["router"], x, config, state=state, noise=noise)
        experts = params["experts"]
        y = of(x, out.routing, experts) if of else B.moe_layer(x, out.routing, partial(B.expert_mlp, params=experts))
        y = y.astype(jax.numpy.promote_types(y.dtype, "float32"))
        return B.sum(y * y) + sum(out.losses.values()), out.metrics

    return loss, (params, x, noise)


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
    loss, arguments = layer(name, batch_priority="max", capacity_factor=0.9, dimensions=16)
    capacity = spec.expert_capacity(TOKENS, EXPERTS, 0.9, choices=2 if "token_choice" in name else 1)
    if name in ("dselect_k", "base", "strictly_balanced", "batch_expert_choice"):
        capacity = TOKENS  # by definition, for the last three without `train`
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


@pytest.mark.parametrize(("experts", "count"), [(1, 7), (5, 64), (32, 200), (40, 333)])
def test_positions_by_sum_and_by_sort_are_equal(experts, count):
    requests = np.random.default_rng(experts).integers(0, experts, (3, count)).astype(np.int32)
    by_sum = jax.jit(partial(places.position_by_sum, experts=experts))(requests)
    by_sort = jax.jit(partial(places.position_by_sort, experts=experts))(requests)
    want = [[(row[:n] == row[n]).sum() for n in range(count)] for row in requests]
    np.testing.assert_array_equal(by_sum, want)
    np.testing.assert_array_equal(by_sort, want)
    assert by_sum.dtype == by_sort.dtype == np.int32


def test_routing_passes_through_jit_and_keeps_its_tokens_static():
    scores = np.random.default_rng(0).random((2, 6, 3)).astype(np.float32)
    routing = jax.jit(lambda s: B.token_choice(s, choices=1, capacity=2))(scores)
    assert isinstance(routing, B.SlotRouting)
    assert routing.tokens == 6
    assert routing.token.dtype == routing.slot.dtype == np.int32
    again = jax.jit(lambda routing: routing)(B.expert_choice(scores, capacity=2))
    assert again.slot is None


@pytest.mark.parametrize("router", ["softmax_token_choice", "gshard", "softmax_expert_choice"])
def test_products_of_a_tpu_in_place_of_gathers(router, monkeypatch):
    """Values and gradients of a layer whose tokens are bfloat16, in groups that are small: one slot a token, two, and any number."""
    one_hot = importlib.import_module("moespec.backends.jax.one_hot")
    loss, (params, x, noise) = layer(router, of=B.moe_mlp)
    half = partial(jax.tree.map, lambda leaf: jax.numpy.asarray(leaf, "bfloat16"))
    arguments = half(params), half(x), noise

    def run():
        return jax.jit(lambda *of: jax.value_and_grad(loss, (0, 1), has_aux=True)(*of))(*arguments)

    want, calls = run(), []
    jax.clear_caches()

    def product(by_product, by_gather, *arrays):
        calls.append(by_product)
        return by_product(*arrays)

    monkeypatch.setattr(one_hot, "_of_device", product)
    got = run()
    assert {getattr(each, "func", each).__name__ for each in calls} == {"_rows", "_weighted", "_tokens"}
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        a, b = (np.asarray(each, np.float64) for each in (a, b))
        np.testing.assert_allclose(a, b, atol=2**-8 * np.abs(b).max())


def slope(f, point, direction):
    return sum(map(jax.numpy.vdot, jax.tree.leaves(jax.grad(f, (0, 1))(*point)), jax.tree.leaves(direction)))


def jvp(f, point, direction):
    return jax.jvp(f, point, direction)[1]


def then(outer, inner):
    return lambda f, point, direction: outer(lambda *at: inner(f, at, direction), point, direction)


def mapped(derivative):
    """By a map over one point."""
    return lambda f, point, to: jax.vmap(lambda at: derivative(f, at, to))(jax.tree.map(lambda x: x[None], point))[0]


def scanned(f):
    return lambda *at: jax.lax.scan(lambda total, _: (total + jax.checkpoint(f)(*at) / 2, None), 0.0, None, length=2)[0]


HESSIAN = then(jvp, slope)
DERIVATIVES = {
    **{"jvp": jvp, "jvp of grad": HESSIAN, "grad of grad": then(slope, slope), "grad of jvp": then(slope, jvp)},
    **{"vmap of jvp of grad": mapped(HESSIAN), "jvp of grad of scan": lambda f, *at: HESSIAN(scanned(f), *at)},
}
QUICK = {("softmax_expert_choice", "jvp of grad"), ("sigmoid_token_choice", "jvp of grad")}
CASES = [
    pytest.param(name, each, marks=() if (name, each) in QUICK else pytest.mark.full)
    for name in spec.ROUTERS
    for each in DERIVATIVES
]
FEW = ("softmax_token_choice", "softmax_expert_choice", "sigmoid_token_choice", "batch_expert_choice")


def at_a_point(name):
    """The loss of tokens and experts, these, and a direction."""
    loss, (params, x, noise) = layer(name, of=B.moe_mlp, dimensions=16)
    params, x = jax.tree.map(lambda leaf: leaf.astype(float) if leaf.dtype.kind == "f" else leaf, (params, x))
    point = x, params["experts"]
    direction = jax.tree.map(lambda leaf: np.random.default_rng(leaf.size).normal(size=leaf.shape), point)
    return lambda x, experts: loss({**params, "experts": experts}, x, noise)[0], point, direction


@pytest.mark.parametrize("name", [pytest.param(r, marks=() if r in FEW else pytest.mark.full) for r in spec.ROUTERS])
def test_second_derivatives_are_traced(name):
    with B.with_dtype("float64"):
        f, *at = at_a_point(name)
        jax.make_jaxpr(partial(HESSIAN, f))(*at)


@pytest.mark.parametrize(("name", "derivative"), CASES)
def test_derivatives_are_finite_differences(name, derivative):
    with B.with_dtype("float64"):
        f, point, direction = at_a_point(name)
        got = float(jax.jit(partial(DERIVATIVES[derivative], f))(point, direction))
        of = jax.jit(f if derivative == "jvp" else lambda *at: slope(f, at, direction))
        above, below = (
            of(*jax.tree.map(lambda x, to, step=step: x + step * to, point, direction)) for step in (1e-5, -1e-5)
        )
    assert abs(got) > 1e-2
    np.testing.assert_allclose(got, float(above - below) / 2e-5, rtol=1e-6)
