"""The layers for Flax nnx and Equinox compute what the specification does, and live with what these frameworks do to modules."""

import copy
import importlib
import pickle
import subprocess
import sys
import warnings
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from moespec.backends import numpy as reference
from moespec.backends.layer import PARTS
from moespec.spec import ConfigError, DtypeError, ShapeError

jax = pytest.importorskip("jax")
eqx = pytest.importorskip("equinox")
nnx = pytest.importorskip("flax.nnx")
for_nnx = importlib.import_module("moespec.backends.jax.nnx")
for_equinox = importlib.import_module("moespec.backends.jax.equinox")
modules = importlib.import_module("moespec.backends.jax.modules")

import jax.numpy as jnp  # noqa: E402

WIDTH, HEIGHT, TOKENS = 8, 2, 8
ROUTERS = list(reference.ROUTERS)


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.fixture
def x():
    """Images of 2 x 4 tokens, (images, height, width, channels)."""
    return jnp.asarray(np.random.default_rng(0).standard_normal((4, HEIGHT, TOKENS // HEIGHT, WIDTH)), jnp.float32)


def equinox_moe(router="softmax_token_choice", **options):
    return for_equinox.MoE(WIDTH, 16, 4, tokens=TOKENS, router=router, **options)


def nnx_moe(router="softmax_token_choice", **options):
    return for_nnx.MoE(WIDTH, 16, 4, tokens=TOKENS, router=router, **options)


def equinox_loss(moe, x, key):
    y, losses, metrics, _ = moe(x, key=key, state=moe.initial_state())
    return (y * y).mean() + sum(losses.values()), (y, losses, metrics)


def nnx_loss(moe, x):
    y, losses, metrics = nnx.capture(moe, for_nnx.AuxiliaryLoss, for_nnx.RoutingMetric)(x)
    return (y * y).mean() + for_nnx.auxiliary_loss(losses), (y, losses, metrics)


FEW = ("hash", "relu", "sigmoid_token_choice", "soft_moe", "softmax_token_choice", "variable_budget")
"""Routers with ids, noise, a state or slots; the suite checks what routers and layers compute on JAX."""


@pytest.mark.parametrize("router", FEW)
def test_equals_the_numpy_backend(router, x):
    """In training, with the noise of a key, in float64; all gradients are finite and those of the experts are not 0."""
    with jax.enable_x64(True):
        moe = jax.tree.map(
            lambda leaf: leaf.astype(float) if eqx.is_inexact_array(leaf) else leaf, equinox_moe(router, group_images=2)
        )
        key, x = jax.random.key(1), x.astype(float)
        step = eqx.filter_jit(eqx.filter_value_and_grad(equinox_loss, has_aux=True))
        (_, (y, losses, metrics)), gradients = step(moe, x, key)
        options, noise = moe.layer.options, reference.ROUTERS[router].noise(moe.layer.options)
        if noise is not None:
            shape = (2, *noise.shape)
            noise = np.array(modules._draw(replace(noise, shape=shape), key))
    params = jax.tree.map(np.asarray, {"router": moe.router, "experts": moe.experts})
    tokens = np.asarray(x).reshape(2, 2 * TOKENS, WIDTH)
    ids = {"ids": np.tile(np.arange(TOKENS), (2, 2))} if reference.ROUTERS[router].requires == "ids" else {}
    state = reference.ROUTERS[router].initial_state(options)
    output = reference.ROUTERS[router].route(
        params["router"], tokens, options, state=state, noise=noise, train=True, **ids
    )
    want = reference.moe_mlp(tokens, output.routing, params["experts"])
    np.testing.assert_allclose(np.asarray(y).reshape(want.shape), want, rtol=1e-9, atol=1e-11)
    assert set(losses) == set(output.losses)
    for got, expected in ((losses, output.losses), (metrics, output.metrics)):
        for name, value in got.items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-9, atol=1e-11, err_msg=name)
    leaves = jax.tree.leaves(gradients)
    assert leaves
    assert all(np.all(np.isfinite(leaf)) for leaf in leaves)
    assert np.any(np.asarray(gradients.experts["w1"]))


@pytest.mark.parametrize("router", ["softmax_token_choice", "hash"])
def test_both_layers_are_one(router, x):
    """The same initial values, and then the same outputs, losses and gradients, from the same key."""
    moe, other = nnx_moe(router, group_images=2, rngs=nnx.Rngs(gating=3)), equinox_moe(router, group_images=2)
    key = nnx.Rngs(gating=3).gating.fork()()
    (loss, (y, *captured)), gradients = nnx.jit(nnx.value_and_grad(nnx_loss, has_aux=True))(moe, x)
    step = eqx.filter_jit(eqx.filter_value_and_grad(equinox_loss, has_aux=True))
    (want, (want_y, *expected)), wanted = step(other, x, key)
    np.testing.assert_array_equal(y, want_y)
    assert not hasattr(moe, "__captures__")
    same = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-8)
    values = [of[name].get_value()[0] for of, name in zip(captured, ("losses", "metrics"), strict=True)]
    jax.tree.map(same, (loss, values), (want, expected))
    for part in ("router", "experts"):
        variables = {name: variable[...] for name, variable in getattr(moe, part).items()}
        jax.tree.map(np.testing.assert_array_equal, variables, getattr(other, part))
        slopes = {name: each[...] for name, each in gradients.get(part, {}).items()}
        jax.tree.map(same, slopes, {name: getattr(wanted, part)[name] for name in slopes})


KINDS = (
    {"shared_experts": 1, "shared_gate": True, "weights_on": "input"},
    {"latent_width": 3, "latent_norm": True},
    {"constant_experts": 1, "copy_experts": 1, "zero_experts": 1},
    *(
        {"expert_activation": a, "expert_bias": False, "shared_experts": 2, "bias": True}
        for a in ("swiglu", "quick_gelu", "relu2", "situglu")
    ),
)


@pytest.mark.parametrize("options", KINDS)
def test_kinds_of_experts(x, options):
    """All three layers start with the same values, and compute what the specification does."""
    torch = pytest.importorskip("torch")
    moe, other = nnx_moe(**options, deterministic=True), equinox_moe(**options, inference=True)
    layer = importlib.import_module("moespec.backends.torch.nn").MoE(
        WIDTH, 16, 4, tokens=TOKENS, router="softmax_token_choice", **options
    )
    params = {part: jax.tree.map(np.asarray, getattr(other, part)) for part in PARTS}
    for part, values in params.items():
        module = getattr(layer, part)
        assert set(values) == set({} if module is None else module.params()) == set(getattr(moe, part))
        for name, value in values.items():
            np.testing.assert_array_equal(value, module.params()[name].detach())
            np.testing.assert_array_equal(value, getattr(moe, part)[name][...])
    tokens = np.asarray(x).reshape(4, TOKENS, WIDTH)
    routing = reference.ROUTERS["softmax_token_choice"].route(params["router"], tokens, layer.options).routing
    around = {part: params[part] or None for part in PARTS[2:]}
    want = reference.moe_mlp(tokens, routing, params["experts"], **around, **other.layer.form)
    for y in (moe(x), other(x).y, layer.eval()(torch.tensor(np.asarray(x))).detach()):
        np.testing.assert_allclose(np.asarray(y).reshape(want.shape), want, rtol=1e-5, atol=1e-6)


def test_evaluation_needs_no_key(x):
    """In training a router with noise does; another key gives another result, and the same key the same."""
    moe, other = nnx_moe(), equinox_moe()
    with pytest.raises(ConfigError, match=r"rngs: softmax_token_choice needs one of them for its gating noise in"):
        moe(x)
    with pytest.raises(ConfigError, match="key or rngs"):
        other(x)
    moe.eval()
    y = moe(x)
    np.testing.assert_array_equal(y, eqx.nn.inference_mode(other)(x).y)
    np.testing.assert_array_equal(y, other(x, inference=True).y)
    first, again, second = (other(x, key=jax.random.key(seed)).y for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.any(np.asarray(first) != np.asarray(second))
    moe.train()
    np.testing.assert_array_equal(moe(x, rngs=jax.random.key(0)), first)
    assert np.any(np.asarray(moe(x, rngs=nnx.Rngs(1))) != np.asarray(first))
    np.testing.assert_array_equal(nnx_moe("soft_moe")(x), equinox_moe("soft_moe")(x).y)


def test_axes_between_the_first_and_the_last_are_tokens(x):
    """And further axes may be put around the layer by vmap."""
    moe = equinox_moe("softmax_expert_choice", inference=True)
    y = moe(x).y
    assert y.shape == x.shape
    np.testing.assert_array_equal(moe(x.reshape(4, TOKENS, WIDTH)).y.reshape(x.shape), y)
    both = jax.vmap(lambda x: moe(x).y)(jnp.stack([x, 2 * x]))
    np.testing.assert_allclose(both[0], y, rtol=1e-5, atol=1e-7)


def test_ids_of_a_hash_layer(x):
    """The tables are no parameters."""
    moe, other = nnx_moe("hash", ids=3), equinox_moe("hash", ids=3)
    assert set(nnx.to_pure_dict(nnx.state(moe, nnx.Param))) == {"experts"}
    assert not eqx.is_inexact_array(other.router["tables"])
    ids = jnp.arange(4 * TOKENS).reshape(4, HEIGHT, -1) % 3
    np.testing.assert_array_equal(moe(x, ids), other(x, ids).y)
    with pytest.raises(ShapeError, match="x: has 8 tokens, but the hash tables have only 3 ids"):
        moe(x)


LONG = [pytest.param(name, marks=[] if name == "sigmoid_token_choice" else pytest.mark.full) for name in ROUTERS]


@pytest.mark.parametrize("router", LONG)
def test_what_training_code_does_to_modules(router, x, tmp_path):
    """Copies, files, averages and checkpointing change no number; the state moves once for all parts of a batch, exactly."""
    moe, other, key = equinox_moe(router, seed=1), nnx_moe(router, seed=1), jax.random.key(0)
    eqx.tree_serialise_leaves(tmp_path / "moe.eqx", moe)
    loaded = eqx.tree_deserialise_leaves(tmp_path / "moe.eqx", equinox_moe(router, seed=2))
    graph, leaves = nnx.split(other)

    def loss(moe, x):
        y, losses, *_ = moe(x, state=moe.initial_state(), key=key)
        return (y**2).mean() + sum(losses.values())

    def loss_of_nnx(moe, x):
        y, losses = nnx.capture(moe, for_nnx.AuxiliaryLoss)(x, rngs=key)
        return (y**2).mean() + for_nnx.auxiliary_loss(losses)

    def averaged(tree):
        return jax.tree.map(lambda leaf: (leaf + leaf) / 2 if eqx.is_inexact_array(leaf) else leaf, tree)

    def derived(loss, moe):
        return eqx.filter_jit(eqx.filter_value_and_grad(loss))(moe, x)

    same = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)
    (value, gradients), run = derived(loss, moe), nnx.jit(loss_of_nnx)
    jax.tree.map(same, derived(eqx.filter_checkpoint(loss), moe), (value, gradients))
    for copied in (copy.deepcopy(moe), pickle.loads(pickle.dumps(moe)), averaged(moe), loaded):
        same(derived(loss, copied)[0], value)
    merged = (nnx.merge(graph, leaves), nnx.merge(graph, averaged(leaves)))
    for copied in (other, copy.deepcopy(other), pickle.loads(pickle.dumps(other)), nnx.clone(other), *merged):
        same(run(copied, x), value)
    same(nnx.jit(nnx.grad(nnx.remat(loss_of_nnx)))(other, x)["experts"]["w1"][...], gradients.experts["w1"])
    if state := moe.initial_state():
        whole, *parts = (moe(part, state=state, key=key).statistics for part in (x, *jnp.split(x, 4)))
        assert eqx.tree_equal(moe.update(state, whole), moe.update(state, jax.tree.map(lambda *a: sum(a), *parts)))
        rounded = jax.tree.map(lambda leaf: leaf.astype("bfloat16"), state)
        with pytest.raises(
            DtypeError, match=r"^state: .* is bfloat16, expected float32 or float64; cast only the parameters, in Flax"
        ):
            moe(x, state=rounded, key=key)


@pytest.mark.parametrize("place", ["tokens", "kernel"])
def test_the_search_for_nan_works_in_compiled_code(place, x):
    moe = equinox_moe()
    tokens = x.at[0, 0, 0].set(jnp.nan) if place == "tokens" else x
    if place == "kernel":
        moe = eqx.tree_at(lambda m: m.router["kernel"], moe, jnp.full_like(moe.router["kernel"], jnp.nan))
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match="nan"):
        eqx.filter_jit(lambda m, x: m(x, inference=True).y)(moe, tokens)


def test_logical_axes():
    specs = nnx.to_pure_dict(nnx.get_partition_spec(nnx.state(nnx_moe(shared_experts=1), nnx.Param)))
    assert specs["experts"] == {
        **{"w1": jax.P("expert", "embed", "mlp"), "b1": jax.P("expert", "mlp")},
        **{"w2": jax.P("expert", "mlp", "embed"), "b2": jax.P("expert", "embed")},
    }
    assert specs["shared"]["w1"] == jax.P("embed", "mlp")
    assert specs["router"] == {"kernel": jax.P()}


def test_arguments_are_checked(x):
    for make in (nnx_moe, equinox_moe):
        with pytest.raises(ConfigError, match="choices=7: soft_moe does not have this option"):
            make("soft_moe", choices=7)
        with pytest.raises(ConfigError, match="gelu"):
            make(gelu="none")
        with pytest.raises(ConfigError, match=r"^router='top_k': expected one of"):
            make("top_k")
        for name, value in {"expert_activation": "silu", "expert_bias": 1, "shared_experts": -1, "seed": -1}.items():
            with pytest.raises(ConfigError, match=rf"^{name}\b.*expected.*"):
                make(**{name: value})
        with pytest.raises(ConfigError, match=r"hashes: .* got 2"):
            make("hash", hashes=2)
    moe = equinox_moe(group_images=3, inference=True)
    with pytest.raises(ShapeError, match="x: 4 images cannot be split into groups of group_images=3"):
        moe(x)
    with pytest.raises(ShapeError, match=r"x: axis 2 has 4 entries, expected 8 \(the width of the layer\)"):
        moe(x[0][..., :4])
    with pytest.raises(ShapeError, match="x: expected the axes"):
        moe(x[0, 0])


def test_frameworks_are_imported_where_they_are_used():
    code = "import sys, moespec.backends.jax; print({'flax', 'equinox'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
