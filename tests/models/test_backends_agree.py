"""One model, three backends: the same initial bits, the same outputs, and the same parameters after 20 steps.

The NumPy backend (the specification, with exact gradients) is the reference for the other two.
"""

import contextlib
import dataclasses
import functools
import importlib

import numpy as np
import pytest

import moespec.backends.numpy as reference
from moespec.backends.optimizer import OptimizerConfig
from moespec.models import mixer, sparse_mlp, vit
from moespec.models.families import family
from moespec.models.training.schedules import cosine

STEPS, IMAGES = 20, 2
OPTIMIZER = OptimizerConfig(weight_decay=0.05, clip=1.0)
TINY = {"image_size": 4, "patch_size": 2, "channels": 1, "classes": 3, "width": 4, "depth": 2, "hidden": 4, "heads": 1}


@contextlib.contextmanager
def backend(name, dtype):
    """The backend module, with float64 allowed where that needs saying."""
    module = importlib.import_module(f"moespec.backends.{name}") if name == "numpy" else _framework(name)
    if name == "jax" and dtype == "float64":
        with importlib.import_module("jax").enable_x64(True):
            yield module
    else:
        yield module


def _framework(name):
    pytest.importorskip(name, reason=f"{name} is not installed")
    return importlib.import_module(f"moespec.backends.{name}")


def compiled(B, function):
    """Compiled where that is the faster way to run something once: JAX compiles every operation in any case."""
    return B.compile(function) if B.name == "jax" else function


def flat(tree, path=()):
    for key, value in sorted(tree.items()):
        if isinstance(value, dict):
            yield from flat(value, (*path, key))
        else:
            yield "/".join((*path, key)), np.asarray(value)


def vector(tree):
    return np.concatenate([value.ravel().astype(np.float64) for _, value in flat(tree)])


def relative(tree, expected):
    """The norm of the difference of two parameter trees, relative to the norm of the second."""
    return np.linalg.norm(vector(tree) - vector(expected)) / np.linalg.norm(vector(expected))


def test_the_measure_can_fail():
    tree = {"a": np.ones(3), "b": {"c": np.zeros(1)}}
    assert relative(tree, {"a": np.ones(3), "b": {"c": np.ones(1)}}) == pytest.approx(0.5)


# -------------------------------------------------------------------------------------------------- initial values


@pytest.mark.parametrize("name", ["numpy", "jax", "torch"])
def test_the_same_seed_gives_the_same_bits(name):
    config = vit.VitConfig(**TINY, moe="last_1", experts=3, qk_norm=True, pool="map")
    params = vit.init(config, seed=7)
    with backend(name, "float32") as B:
        moved = dict(flat(B.to_numpy(B.from_numpy(params))))
    assert list(moved) == [path for path, _ in flat(params)]
    for path, value in flat(params):
        assert moved[path].astype(np.float32).tobytes() == value.tobytes(), path


# --------------------------------------------------------------------------------------------------------- forward

VARIANTS = {  # every router is in the conformance suite; these are the options of the model around them
    "class_token": {"pool": "token", "qk_norm": True, "moe": "every_2", "router": "soft_moe"},
    "map_sincos": {"pool": "map", "positions": "sincos2d", "width": 8, "heads": 2, "gelu": "erf"},
    "moco_groups": {"positions": "sincos2d_moco", "width": 8, "moe": "last_2", "router": "sinkhorn_expert_choice"},
    "token_choice": {"moe": "last_half", "router": "softmax_token_choice"},
}
MLP = {"image_size": 4, "patch_size": 2, "channels": 1, "classes": 3, "width": 4, "token_hidden": 5, "hidden": 6}
SPARSE_MLP = {
    **{**MLP, "depth": 2, "moe": "last_1", "sparse_tokens": 6, "sparse_width": 5},
    **{"token_experts": 3, "sparse_token_hidden": 4, "experts": 3, "sparse_hidden": 4},
}
CONFIGS = {
    **{name: vit.VitConfig(**{**TINY, "experts": 3, "group_images": 2, **fields}) for name, fields in VARIANTS.items()},
    "mixer": mixer.MixerConfig(**MLP, depth=2, gelu="erf"),
    "sparse_mlp": sparse_mlp.SparseMlpConfig(**SPARSE_MLP),
    "sparse_mlp_groups": sparse_mlp.SparseMlpConfig(
        **SPARSE_MLP, router="softmax_token_choice", group_size=5, group_images=1
    ),
}


@pytest.mark.parametrize("name", ["jax", "torch"])
@pytest.mark.parametrize("variant", CONFIGS)
def test_outputs(name, variant):
    """Logits, features, losses, metrics and routings in float64."""
    config = CONFIGS[variant]
    model, rng = family(config), np.random.default_rng(2)
    params = model.init(config, seed=1)
    params["head"]["kernel"] = rng.standard_normal(params["head"]["kernel"].shape)
    images = rng.standard_normal((IMAGES, 4, 4, 1))
    noise = [rng.standard_normal(noise.shape) for noise in model.moe_noise(config, IMAGES)] or None

    def run(B):
        def outputs(params, images, noise):
            output = model.forward(B, config, params, images, noise=noise, train=True)
            routings = [routing.dense()._asdict() for routing in output.routings]
            found = {"logits": output.logits, "features": output.features, "losses": output.losses}
            found |= {f"metrics{i}": metrics for i, metrics in enumerate(output.metrics)}
            return found | {f"routing{i}": routing for i, routing in enumerate(routings)}

        return dict(flat(B.to_numpy(compiled(B, outputs)(*B.from_numpy([params, images, noise], "float64")))))

    expected = run(reference)
    with backend(name, "float64") as B:
        actual = run(B)
    assert list(actual) == list(expected)
    for path, value in expected.items():
        np.testing.assert_allclose(actual[path], value, rtol=1e-10, atol=1e-12, err_msg=path)


@pytest.mark.parametrize("name", ["jax", "torch"])
def test_bfloat16_is_near_float32(name):
    config = vit.VitConfig(**{**TINY, "width": 16}, moe="last_half", experts=3, router="softmax_token_choice")
    params = vit.init(config, seed=1)
    images = np.random.default_rng(2).standard_normal((IMAGES, 4, 4, 1))
    with backend(name, "float32") as B:
        single, half = (
            compiled(B, lambda params, images, c=c: vit.forward(B, c, params, images).features)(
                *B.from_numpy([params, images], "float32")
            )
            for c in (config, dataclasses.replace(config, dtype="bfloat16"))
        )
        assert half.dtype == single.dtype
        single, half = B.to_numpy([single, half])
    assert 0 < np.linalg.norm(single - half) / np.linalg.norm(single) < 0.05


@pytest.mark.parametrize("name", ["jax", "torch"])
@pytest.mark.parametrize("router", ["softmax_token_choice", "softmax_expert_choice"])
def test_one_expert_with_room_for_all_is_the_dense_model(name, router):
    moe = vit.VitConfig(**{**TINY, "depth": 1}, moe="last_1", experts=1, router=router, group_images=2)
    dense = dataclasses.replace(moe, moe="none")
    params = vit.init(moe)
    block = dict(params["blocks"]["0"])
    block["mlp"] = {key: value[0] for key, value in block.pop("moe")["experts"].items()}
    images = np.random.default_rng(0).standard_normal((IMAGES, 4, 4, 1))
    with backend(name, "float64") as B:
        features = [
            compiled(B, lambda params, images, c=c: vit.forward(B, c, params, images).features)(
                *B.from_numpy([tree, images], "float64")
            )
            for c, tree in ((moe, params), (dense, {**params, "blocks": {"0": block}}))
        ]
        features = B.to_numpy(features)
    np.testing.assert_allclose(features[0], features[1], rtol=1e-12, atol=1e-13)


# -------------------------------------------------------------------------------------------------------- training


def config_of(router):
    options = {"choices": 2, "capacity_factor": 0.75} if router == "softmax_token_choice" else {}
    return vit.VitConfig(**TINY, moe="last_1", experts=3, router=router, router_options=options)


def batches(config):
    """Images, targets and gating noise of every step, if the router takes any."""
    rng = np.random.default_rng(5)
    wanted = vit.moe_noise(config, IMAGES)
    return [
        {
            "images": rng.standard_normal((IMAGES, 4, 4, 1)),
            "targets": np.eye(3)[rng.integers(0, 3, IMAGES)],
            "noise": [rng.standard_normal(one.shape) for one in wanted],
        }
        for _ in range(STEPS)
    ]


def trained(B, config, dtype):
    """Parameters after 20 steps and the loss of each, in NumPy."""

    def loss_function(params, batch):
        output = vit.forward(B, config, params, batch["images"], noise=batch["noise"] or None, train=True)
        loss = B.mean(B.softmax_cross_entropy(output.logits, batch["targets"]), 0)
        for term in output.losses.values():
            loss = loss + term
        return loss, {"dropped": output.metrics[0]["dropped"]}

    rate = cosine(3e-3, total=STEPS, warmup=4)
    state = B.init_state(B.from_numpy(vit.init(config, seed=3), dtype), OPTIMIZER)
    # Compiling torch takes longer than the 20 steps; the conformance suite runs it compiled.
    step = B.make_step(loss_function, OPTIMIZER, **({"compiled": False} if B.name == "torch" else {}))
    losses = []
    for n, batch in enumerate(batches(config)):
        state, metrics = step(state, B.from_numpy(batch, dtype), rate(n))
        losses.append(float(B.to_numpy(metrics["loss"])))
    return B.export_state(state)["params"], losses


@functools.cache
def expected_training(router):
    return trained(reference, config_of(router), "float64")


@pytest.mark.parametrize("router", ["soft_moe", "softmax_token_choice"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-9), ("float32", 1e-4)])
@pytest.mark.parametrize("name", ["jax", "torch"])
def test_twenty_steps_of_training(name, dtype, tolerance, router):
    with backend(name, dtype) as B:
        params, losses = trained(B, config_of(router), dtype)
    expected, expected_losses = expected_training(router)
    assert relative(expected, vit.init(config_of(router), seed=3)) > 1e-2  # something was learnt
    assert relative(params, expected) < tolerance
    np.testing.assert_allclose(losses, expected_losses, rtol=10 * tolerance)
