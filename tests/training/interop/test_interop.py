"""Parameters of vmoe, timm and vision_transformer convert to ours and back, and both compute the same function.

The vectors in `interop_vectors` are recorded runs of those projects in float64: parameters, images, gating noise,
logits, auxiliary loss, and the gradients of `sum(cotangent * logits) + auxiliary loss`. Each has a JSON beside it that
says which code was run, and how. Here their parameters are converted, our forward runs on each backend, and logits and
gradients, converted back, are compared in their layout.
"""

import contextlib
import importlib
import json
import re
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from moespec.models import families, mixer, vit
from moespec.models.pytrees import flatten
from moespec.spec.errors import ConfigError, DtypeError, ShapeError
from moespec.training import interop

FOLDER = Path(__file__).parent / "interop_vectors"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))
TOLERANCE = 1e-9  # of the largest value; both sides compute in float64. The two norm forms of Soft MoE differ by 5e-8
STEP = 1e-30


flat = partial(flatten, separator="/")


@dataclass
class Vector:
    """One recorded run: the other project, the config that corresponds, and all arrays by name."""

    peer: str
    config: families.Config
    tensors: dict[str, np.ndarray]

    def flat(self, kind: str) -> dict[str, np.ndarray]:
        """The parameters or the gradients, by the other project's names, in float64."""
        return {
            name.removeprefix(f"{kind}/"): value.astype(np.float64)
            for name, value in self.tensors.items()
            if name.startswith(f"{kind}/")
        }

    def to_ours(self, theirs: dict[str, Any]) -> dict[str, Any]:
        return getattr(interop, f"from_{self.peer}")(theirs, self.config)

    def to_theirs(self, ours: dict[str, Any]) -> dict[str, np.ndarray]:
        return flat(getattr(interop, f"to_{self.peer}")(ours, self.config))


def load(name: str) -> Vector:
    record = json.loads((FOLDER / f"{name}.json").read_text())
    if record["peer"] == "vmoe":
        sizes = {"image_size": record["image_size"], "channels": record["channels"]}
        config = interop.config_from_vmoe(record["model"], **sizes)
    elif record["peer"] == "timm":
        config = interop.config_from_timm(record["model"])
    else:
        model = record["model"]
        sizes = {
            "image_size": record["image_size"],
            "channels": record["channels"],
            "patch_size": model["patch_size"][0],
        }
        sizes |= {"classes": model["num_classes"], "depth": model["num_blocks"], "width": model["hidden_dim"]}
        config = mixer.MixerConfig(**sizes, token_hidden=model["tokens_mlp_dim"], hidden=model["channels_mlp_dim"])
    return Vector(record["peer"], config, load_file(FOLDER / f"{name}.safetensors"))


def objective(B, vector):
    """The scalar whose gradient was recorded, as a function of our parameters."""
    constants = {name: vector.tensors[name] for name in ("images", "cotangent")}
    constants = B.from_numpy(constants, dtype="float64")
    recorded = [vector.tensors[f"noise/{i}"] for i in range(len(vector.flat("noise")))]
    noise = B.from_numpy(recorded, dtype="float64") or None

    def evaluate(params):
        forward = families.family(vector.config).forward
        output = forward(B, vector.config, params, constants["images"], noise=noise)
        auxiliary = sum(output.losses.values(), 0.0)
        return B.sum(constants["cotangent"] * output.logits) + auxiliary, (output.logits, auxiliary)

    return evaluate


@contextlib.contextmanager
def float64(name):
    """The backend `name`, computing in float64."""
    B = importlib.import_module(f"moespec.backends.{name}")
    with importlib.import_module("jax").enable_x64(True) if name == "jax" else contextlib.nullcontext():
        yield B


def check_close(got, expected, scale, what):
    error = np.abs(np.asarray(got) - expected).max() / scale
    assert error <= TOLERANCE, f"{what}: {error:.1e} of the largest value"


QUICK = ("vmoe_soft_moe", "vmoe_token_choice_k2", "timm_avg", "vision_transformer_mixer")
"""On JAX, whose compiler takes seconds, these; the others with `pytest -m full`."""
EACH = [
    pytest.param(name, backend, marks=() if backend == "torch" or name in QUICK else pytest.mark.full)
    for name in NAMES
    for backend in ("jax", "torch")
]


@pytest.mark.parametrize(("name", "backend"), EACH)
def test_logits_and_gradients_agree(name, backend):
    vector = load(name)
    with float64(backend) as B:
        params = B.from_numpy(vector.to_ours(vector.flat("params")), dtype="float64")
        evaluate = B.value_and_grad(objective(B, vector))
        if backend == "jax":  # otherwise JAX compiles operation by operation, which takes longer
            options = {"xla_backend_optimization_level": 0}
            evaluate = B.compile(evaluate).lower(params).compile(compiler_options=options)
        (_, (logits, auxiliary)), gradients = evaluate(params)
        logits, gradients = B.to_numpy(logits), B.to_numpy(gradients)
        auxiliary = float(auxiliary)
    assert logits.dtype == np.float64
    check_close(logits, vector.tensors["logits"], np.abs(vector.tensors["logits"]).max(), "logits")
    recorded = vector.tensors.get("auxiliary_loss", np.zeros(()))
    check_close(auxiliary, recorded, max(recorded, 1e-6), "auxiliary loss")
    got, expected = vector.to_theirs(gradients), vector.flat("gradients")
    assert set(got) == set(expected)
    # Each relative to its largest value, or to 1e-3 of the largest of all: a key bias has gradient 0.
    floor = 1e-3 * max(np.abs(value).max() for value in expected.values())
    for name, value in expected.items():
        check_close(got[name], value, max(np.abs(value).max(), floor), name)


@pytest.mark.parametrize("name", NAMES)
def test_the_specification_agrees(name):
    """On the NumPy backend: logits, and the derivative along a random direction, by one complex step."""
    vector = load(name)
    generator = np.random.default_rng(0)
    expected = vector.flat("gradients")
    direction = {key: generator.standard_normal(value.shape) for key, value in expected.items()}
    moved = {key: value + 1j * STEP * direction[key] for key, value in vector.flat("params").items()}
    params = vector.to_ours(moved)
    with float64("numpy") as B:
        loss, (logits, _) = objective(B, vector)(params)
    check_close(logits.real, vector.tensors["logits"], np.abs(vector.tensors["logits"]).max(), "logits")
    if getattr(vector.config, "round_experts", False):
        return  # vmoe rounds the gradients of these models as well, which the complex step does not
    terms = [np.sum(expected[key] * direction[key]) for key in expected]
    check_close(loss.imag / STEP, sum(terms), np.abs(terms).sum(), "directional derivative")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", NAMES)
def test_a_round_trip_of_their_parameters_is_exact(name, dtype):
    vector = load(name)
    theirs = {key: value.astype(dtype) for key, value in vector.flat("params").items()}
    got = vector.to_theirs(vector.to_ours(theirs))
    assert set(got) == set(theirs)
    for key, value in theirs.items():
        assert got[key].dtype == value.dtype, key
        np.testing.assert_array_equal(got[key], value, err_msg=key)


def test_the_two_scales_of_query_and_key_are_not_swapped():
    """The logits of attention hold the product of both scales, so no output would tell."""
    vector = load("vmoe_dense_map_qk_norm")
    theirs = vector.flat("params")
    ours = flat(vector.to_ours(theirs))
    for name, other in (
        ("blocks/0", "Encoder/encoderblock_0/SelfAttention"),
        ("pool", "MapHead/MultiHeadDotProductAttention"),
    ):
        for which in ("query", "key"):
            scale = ours[f"{name}/attention/{which}_norm/scale"]
            np.testing.assert_array_equal(scale, theirs[f"{other}/{which}_ln/scale"])


@pytest.mark.parametrize("name", ["vmoe_soft_moe", "timm_map_gelu_tanh"])
def test_faults_of_parameters_are_named(name):
    vector = load(name)
    params = vector.flat("params")
    for key, value in list(params.items())[::9]:
        without = {other: params[other] for other in params if other != key}
        with pytest.raises(ConfigError, match=re.escape(f"missing {key} {value.shape}")):
            vector.to_ours(without)
        wrong = np.zeros((*value.shape, 2))
        with pytest.raises(ShapeError, match=re.escape(f"{key} has shape {wrong.shape}, expected {value.shape}")):
            vector.to_ours(params | {key: wrong})
        with pytest.raises(DtypeError, match=re.escape(f"{key}: expected a floating dtype")):
            vector.to_ours(params | {key: value.astype(np.int32)})
    with pytest.raises(ConfigError, match=re.escape("unexpected extra/bias (3,)")):
        vector.to_ours(params | {"extra/bias": np.zeros(3)})
    ours = flat(vector.to_ours(params))
    with pytest.raises(ShapeError, match=re.escape("norm/scale has shape (9,), expected (8,)")):
        vector.to_theirs(ours | {"norm/scale": np.zeros(9)})


DENSE = vit.VitConfig(image_size=8, patch_size=2, width=8, depth=2, hidden=12, heads=2, classes=5)


@pytest.mark.parametrize(
    ("peer", "fields", "fault"),
    [
        ("vmoe", {"gelu": "erf"}, "gelu='erf'"),
        ("vmoe", {"qk_norm": True, "qk_norm_bias": True}, "qk_norm_bias=True"),
        ("vmoe", {"norm_epsilon": 1e-5}, "norm_epsilon=1e-05"),
        ("big_vision", {"pool": "gap_norm", "gelu": "tanh"}, "pool='gap_norm'"),
        ("vision_transformer", {"pre_norm": True}, "pre_norm=True"),
        ("huggingface", {"layer_scale": 0.5}, "layer_scale=0.5"),
        ("timm", {"stem": 1}, "stem=1"),
        ("timm", {"moe": "last_1", "experts": 2}, "moe='last_1'"),
        ("timm", {"qk_norm": True}, "qk_norm_bias=False"),
        ("timm", {"qk_norm": True, "qk_norm_bias": True, "pool": "map"}, "qk_norm=True with pool='map'"),
    ],
)
def test_a_config_that_the_other_project_lacks_is_refused(peer, fields, fault):
    config = replace(DENSE, **fields)
    with pytest.raises(ConfigError, match=re.escape(fault)):
        getattr(interop, f"to_{peer}")(vit.init(config), config)
    with pytest.raises(ConfigError, match=re.escape(fault)):
        getattr(interop, f"from_{peer}")({}, config)


# Configurations.


def soft_moe_s16():
    """The arguments of Soft MoE S/16 with 128 experts in the public configs, for a head of 29 593 classes."""
    router = {"name": "SoftRouter", "num_slots": 1, "capacity_factor": None, "compute_similarity_metrics": False}
    moe = {"layers": range(6, 12), "num_experts": 128, "group_size": 196, "split_rngs": False, "router": router}
    encoder = {"num_layers": 12, "mlp_dim": 1536, "num_heads": 6, "attention_qk_norm": True, "moe": moe}
    model = {"name": "VisionTransformerMoe", "num_classes": 29_593, "patch_size": (16, 16), "hidden_size": 384}
    return {**model, "classifier": "gap", "head_bias_init": -10.0, "encoder": encoder}


def v_moe_b16():
    """The arguments of V-MoE B/16, 8 experts, K = 2, in the public configs, for ImageNet-21k."""
    dispatcher = {"name": "einsum", "bfloat16": True, "capacity_factor": 1.05, "batch_priority": False}
    router = {"num_selected_experts": 2, "noise_std": 1.0, "dispatcher": dispatcher}
    router |= {"importance_loss_weight": 0.005, "load_loss_weight": 0.005}
    moe = {"layers": (1, 3, 5, 7, 9, 11), "num_experts": 8, "group_size": 8 * 197, "router": router}
    encoder = {"num_layers": 12, "mlp_dim": 3072, "num_heads": 12, "moe": moe}
    return {"num_classes": 21_843, "patch_size": (16, 16), "hidden_size": 768, "encoder": encoder}


def test_published_models_of_vmoe_convert():
    config = interop.config_from_vmoe(soft_moe_s16(), image_size=224)
    assert vit.moe_blocks(config) == (6, 7, 8, 9, 10, 11)
    assert (config.router, config.expert_init, config.qk_norm) == ("soft_moe", "shared", True)
    assert vit.router_config(config).capacity() == 1
    assert vit.parameter_count(config) == 933_709_471
    config = interop.config_from_vmoe(v_moe_b16(), image_size=224)
    moe = {"moe": "every_2", "experts": 8, "expert_init": "shared", "group_images": 8, "round_experts": True}
    router = {"router": "softmax_token_choice", "router_options": config.router_options}
    assert config == vit.named("vit_b16", classes=21_843, pool="token", **moe, **router)
    assert vit.router_config(config).capacity() == 416  # ceil(2 * 1576 * 1.05 / 8) = 414, to a multiple of 4


def test_published_models_of_timm_convert():
    assert vit.parameter_count(interop.config_from_timm({})) == 86_567_656  # vit_base_patch16_224
    config = interop.config_from_timm({"patch_size": 14, "embed_dim": 1280, "depth": 32, "num_heads": 16})
    assert config == vit.named("vit_h14", pool="token", gelu="erf")


def changed(**values):
    """Our configuration of V-MoE B/16, some of whose arguments, by their paths with `__` for dots, are others."""
    model = v_moe_b16()
    for path, value in values.items():
        *parents, key = path.split("__")
        section = model
        for parent in parents:
            section = section[parent]
        if value is ...:
            del section[key]
        else:
            section[key] = value
    return interop.config_from_vmoe(model, image_size=224)


@pytest.mark.parametrize(
    ("layers", "moe"),
    [((1, 3, 5), "every_2"), ((3, 5), "every_2_last_2"), ((3, 4, 5), "last_3"), ((0, 2), "0,2"), ((), "none")],
)
def test_placements_of_vmoe(layers, moe):
    place = {"encoder__moe__layers": layers} if layers else {"encoder__moe": {"layers": ()}}
    config = changed(encoder__num_layers=6, **place)
    assert (config.moe, vit.moe_blocks(config)) == (moe, layers)


def test_a_capacity_no_noise_and_no_positions_of_vmoe():
    dispatcher = {"name": "indices", "capacity": 49}
    assert vit.router_config(changed(encoder__moe__router__dispatcher=dispatcher)).capacity() == 49
    config = changed(encoder__moe__router__noise_std=0.0, encoder__position_emb={"name": "none"})
    assert (config.router_options["noise_multiplier"], config.router_options["load_weight"]) == (0.0, 0.0)
    assert config.positions == "none"
    assert "positions" not in vit.parameter_shapes(config)


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        ("classifier", "0", "model.classifier='0'"),
        ("patch_size", (16, 14), "model.patch_size=(16, 14)"),
        ("encoder.moe.layers", (0, 99), "model.encoder.moe.layers=(0, 99)"),
        ("encoder.moe.router.name", "Unknown", "Unknown"),
        ("encoder.moe.router.dispatcher.surprise", 1, "model.encoder.moe.router.dispatcher.surprise=1"),
        ("encoder.moe.router.dispatcher.capacity", 3, "set exactly one of capacity=3 and capacity_factor=1.05"),
        ("encoder.moe.router.dispatcher", "einsum", "model.encoder.moe.router.dispatcher='einsum': expected a mapping"),
        ("encoder.moe.group_size", 0, "model.encoder.moe.group_size=0: expected an integer of at least 1"),
        ("encoder.moe.layers", (1, "x"), "model.encoder.moe.layers='x': expected an integer"),
        ("encoder.mlp_dim", ..., "model.encoder.mlp_dim is missing"),
    ],
)
def test_arguments_of_vmoe_without_counterpart_are_refused(path, value, fault):
    with pytest.raises(ConfigError, match=re.escape(fault)):
        changed(**{path.replace(".", "__"): value})


def test_the_released_v_moe_s32_converts():
    """Its config has a layer of the model's width before the head."""
    model = v_moe_b16() | {"representation_size": 512, "hidden_size": 512, "patch_size": (32, 32), "num_classes": 1000}
    model["encoder"] |= {"num_layers": 8, "mlp_dim": 2048, "num_heads": 8}
    model["encoder"]["moe"] |= {"layers": (5, 7), "group_size": 8 * 50}
    config = interop.config_from_vmoe(model, image_size=224)
    assert config.round_experts
    assert (config.representation, config.moe) == (512, "every_2_last_2")
    shapes = flat(vit.parameter_shapes(config))
    assert (shapes["representation/kernel"], shapes["head/kernel"]) == ((512, 512), (512, 1000))
    small = replace(DENSE, representation=6, gelu="tanh")
    assert flat(interop.to_vmoe(vit.init(small), small))["pre_logits/kernel"].shape == (8, 6)


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({"global_pool": "avg", "class_token": True, "fc_norm": False}, "arguments.class_token=True"),
        ({"class_token": False}, "arguments.class_token=False"),
        ({"fc_norm": True}, "arguments.fc_norm=True"),
        ({"act_layer": "relu"}, "arguments.act_layer='relu'"),
        ({"norm_layer": "RmsNorm"}, "arguments.norm_layer='RmsNorm'"),
        ({"norm_layer": "LayerNorm{'eps': 1e-}"}, "arguments.norm_layer="),
        ({"init_values": True}, "layer_scale=True"),
        ({"mlp_ratio": "4"}, "arguments.mlp_ratio='4': expected a finite number"),
        ({"qk_norm": True, "global_pool": "map", "class_token": False}, "qk_norm=True with pool='map'"),
    ],
)
def test_arguments_of_timm_without_counterpart_are_refused(arguments, fault):
    with pytest.raises(ConfigError, match=re.escape(fault)):
        interop.config_from_timm(arguments)


def test_dropout_is_warned_of():
    with pytest.warns(UserWarning, match="arguments.drop_path_rate=0.1"):
        interop.config_from_timm({"drop_path_rate": 0.1})
    with pytest.warns(UserWarning, match="model.encoder.moe.dropout_rate=0.2"):
        changed(encoder__moe__dropout_rate=0.2)
