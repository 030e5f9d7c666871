"""Parameters of other projects' vision transformers, to ours and back: google-research/vmoe and timm.

    from_vmoe(params, config) -> params        to_vmoe(params, config) -> params
    from_timm(state_dict, config) -> params    to_timm(params, config) -> state dict
    config_from_vmoe(model, ...) -> VitConfig  config_from_timm(arguments) -> VitConfig

A conversion renames and reorders; it changes no value and no dtype, so the two directions are exact inverses, and
gradients convert as parameters do. Every parameter is accounted for: one that is missing, unexpected or of another
shape is an error that names it.

Letters of the shape comments: D width, H hidden, E experts, p patch size, S tokens of one image. Both projects use
pre-norm blocks with a normalisation epsilon of 1e-6, as we do.
"""

import math
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moespec.models.vit import VitConfig, parameter_shapes
from moespec.spec.checks import check_floating, check_option
from moespec.spec.errors import ConfigError, ShapeError
from moespec.spec.routing import Params

__all__ = ["config_from_timm", "config_from_vmoe", "from_timm", "from_vmoe", "to_timm", "to_vmoe"]

Array = NDArray[Any]
Shape = tuple[int, ...]


# ----------------------------------------------------------------------------------------------------- conversions


def from_vmoe(params: Mapping[str, Any], config: VitConfig) -> Params:
    """Our parameters from the parameter tree of vmoe's `VisionTransformerMoe`, a nested mapping of arrays.

    The layouts differ in names only: in both, kernels have their inputs first, attention kernels are
    `(D, heads, D/heads)` and `(heads, D/heads, D)`, and experts are stacked on a leading axis E. What vmoe calls
    `Router/mu` are our slots.

    Both compute the same function when the settings correspond, see `config_from_vmoe`. The arrays returned may share
    memory with `params`.

    Raises ConfigError when vmoe has no model like `config`, or when a parameter is missing or unexpected; ShapeError
    when one has another shape; DtypeError when one is not floating.
    Source: google-research/vmoe, `vmoe/nn/vit_moe.py`, `vmoe/nn/routing.py`, `vmoe/projects/soft_moe/router.py`.
    """
    _check_vmoe(config)
    return _nested(_to_ours("params", _flat(params, "/"), _entries(config, _VMOE)))


def to_vmoe(params: Params, config: VitConfig) -> Params:
    """The parameter tree of vmoe's `VisionTransformerMoe` from ours: the inverse of `from_vmoe`, with its errors."""
    _check_vmoe(config)
    return _nested(_to_theirs("params", _flat(params, "/"), _entries(config, _VMOE)))


def from_timm(state_dict: Mapping[str, Any], config: VitConfig) -> Params:
    """Our parameters from the state dict of timm's `VisionTransformer`, a mapping of arrays or of CPU tensors.

    | timm | ours |
    |---|---|
    | weights of linear layers, outputs first | kernels, inputs first |
    | `patch_embed.proj.weight` (D, channels, p, p) | (p, p, channels, D) |
    | `attn.qkv.weight` (3 D, D): queries, keys, values | three kernels (D, heads, D/heads) |
    | `attn.proj.weight` (D, D) | (heads, D/heads, D) |
    | `attn_pool.latent`, `.q`, `.kv` (2 D, D), `.proj`, `.norm`, `.mlp` | `pool` |

    timm takes images as (N, channels, height, width), we as (N, height, width, channels).

    Both compute the same function when the settings correspond, see `config_from_timm`. The arrays returned may share
    memory with `state_dict`.

    Raises ConfigError when timm has no model like `config`, or when a parameter is missing or unexpected; ShapeError
    when one has another shape; DtypeError when one is not floating.
    Source: timm, `timm/models/vision_transformer.py`, `timm/layers/attention.py`, `timm/layers/attention_pool.py`.
    """
    _check_timm(config)
    return _nested(_to_ours("state_dict", _flat(state_dict, "."), _entries(config, _TIMM)))


def to_timm(params: Params, config: VitConfig) -> dict[str, Array]:
    """The state dict of timm's `VisionTransformer` from ours: the inverse of `from_timm`, with its errors.

    The values are NumPy arrays; `load_state_dict` takes them through `torch.from_numpy`.
    """
    _check_timm(config)
    return _to_theirs("params", _flat(params, "/"), _entries(config, _TIMM))


def _check_vmoe(config: VitConfig) -> None:
    if config.gelu != "tanh":
        raise ConfigError(f"gelu={config.gelu!r}: vmoe has the tanh form only")
    if config.positions not in ("learned", "sincos2d"):
        raise ConfigError(f"positions={config.positions!r}: vmoe has learned and sincos2d positions only")
    if config.qk_norm_bias:
        raise ConfigError("qk_norm_bias=True: vmoe normalises queries and keys without a bias")


def _check_timm(config: VitConfig) -> None:
    if config.moe != "none":
        raise ConfigError(f"moe={config.moe!r}: timm has dense models only")
    if config.positions != "learned":
        raise ConfigError(f"positions={config.positions!r}: timm has learned positions only")
    if config.qk_norm and not config.qk_norm_bias:
        raise ConfigError(
            "qk_norm_bias=False: timm normalises queries and keys with a bias (a bias of 0 makes the function the same)"
        )
    if config.qk_norm and config.pool == "map":
        raise ConfigError("qk_norm=True with pool='map': timm does not normalise the query and keys of the pooling")


# ------------------------------------------------------------------------------------------------ names and layouts


class _Layout:
    """How a parameter of theirs holds ours: one of ours, as it is, unless a subclass says otherwise."""

    def shape(self, shapes: list[Shape]) -> Shape:
        return shapes[0]

    def pack(self, arrays: list[Array]) -> Array:
        return arrays[0]

    def unpack(self, array: Array, shapes: list[Shape]) -> list[Array]:
        return [array]


class _Convolution(_Layout):
    """The kernel of the patch embedding, with its outputs and channels in front: (p, p, channels, D) reordered."""

    def shape(self, shapes: list[Shape]) -> Shape:
        return tuple(shapes[0][axis] for axis in (3, 2, 0, 1))

    def pack(self, arrays: list[Array]) -> Array:
        return arrays[0].transpose(3, 2, 0, 1)

    def unpack(self, array: Array, shapes: list[Shape]) -> list[Array]:
        return [array.transpose(2, 3, 1, 0)]


class _Linear(_Layout):
    """A linear layer, outputs first and its axes flattened; several of ours are stacked along the outputs.

    inputs: how many leading axes of our kernel are inputs; 0 for a bias.
    """

    def __init__(self, inputs: int) -> None:
        self.inputs = inputs

    def shape(self, shapes: list[Shape]) -> Shape:
        rows = sum(math.prod(shape[self.inputs :]) for shape in shapes)
        return (rows, math.prod(shapes[0][: self.inputs])) if self.inputs else (rows,)

    def pack(self, arrays: list[Array]) -> Array:
        return np.concatenate([a.reshape(self._matrix(a.shape)).T for a in arrays])

    def unpack(self, array: Array, shapes: list[Shape]) -> list[Array]:
        ends = np.cumsum([math.prod(shape[self.inputs :]) for shape in shapes])[:-1]
        return [rows.T.reshape(shape) for rows, shape in zip(np.split(array, ends), shapes, strict=True)]

    def _matrix(self, shape: Shape) -> Shape:
        """(inputs, outputs), or (outputs,) of a bias."""
        return (math.prod(shape[: self.inputs]), -1) if self.inputs else (-1,)


_SAME = _Layout()

# Our name, as a pattern -> their name, and how their parameter holds ours. Ours that share a name of theirs are stacked
# in the order of `parameter_shapes`: query, key, value.
_VMOE: dict[str, tuple[str, _Layout]] = {
    r"(embedding|head)/(kernel|bias)": (r"\1/\2", _SAME),
    r"token": (r"cls", _SAME),
    r"positions": (r"Encoder/posembed_input/pos_embedding", _SAME),
    r"blocks/(\d+)/norm1/(\w+)": (r"Encoder/encoderblock_\1/LayerNorm_0/\2", _SAME),
    r"blocks/(\d+)/norm2/(\w+)": (r"Encoder/encoderblock_\1/LayerNorm_1/\2", _SAME),
    r"blocks/(\d+)/attention/(query|key|value|out)/(\w+)": (r"Encoder/encoderblock_\1/SelfAttention/\2/\3", _SAME),
    r"blocks/(\d+)/attention/(query|key)_norm/scale": (r"Encoder/encoderblock_\1/SelfAttention/\2_ln/scale", _SAME),
    r"blocks/(\d+)/mlp/w1": (r"Encoder/encoderblock_\1/Mlp/Dense_0/kernel", _SAME),
    r"blocks/(\d+)/mlp/b1": (r"Encoder/encoderblock_\1/Mlp/Dense_0/bias", _SAME),
    r"blocks/(\d+)/mlp/w2": (r"Encoder/encoderblock_\1/Mlp/Dense_1/kernel", _SAME),
    r"blocks/(\d+)/mlp/b2": (r"Encoder/encoderblock_\1/Mlp/Dense_1/bias", _SAME),
    r"blocks/(\d+)/moe/experts/w1": (r"Encoder/encoderblock_\1/Moe/Mlp/Dense_0/kernel", _SAME),
    r"blocks/(\d+)/moe/experts/b1": (r"Encoder/encoderblock_\1/Moe/Mlp/Dense_0/bias", _SAME),
    r"blocks/(\d+)/moe/experts/w2": (r"Encoder/encoderblock_\1/Moe/Mlp/Dense_1/kernel", _SAME),
    r"blocks/(\d+)/moe/experts/b2": (r"Encoder/encoderblock_\1/Moe/Mlp/Dense_1/bias", _SAME),
    r"blocks/(\d+)/moe/router/kernel": (r"Encoder/encoderblock_\1/Moe/Router/dense/kernel", _SAME),
    r"blocks/(\d+)/moe/router/slots": (r"Encoder/encoderblock_\1/Moe/Router/mu", _SAME),
    r"blocks/(\d+)/moe/router/scale": (r"Encoder/encoderblock_\1/Moe/Router/scale", _SAME),
    r"norm/(\w+)": (r"Encoder/encoder_norm/\1", _SAME),
    r"pool/probe": (r"MapHead/probe", _SAME),
    r"pool/attention/(query|key|value|out)/(\w+)": (r"MapHead/MultiHeadDotProductAttention/\1/\2", _SAME),
    r"pool/attention/(query|key)_norm/scale": (r"MapHead/MultiHeadDotProductAttention/\1_ln/scale", _SAME),
    r"pool/norm/(\w+)": (r"MapHead/LayerNorm/\1", _SAME),
    r"pool/mlp/w1": (r"MapHead/Mlp/Dense_0/kernel", _SAME),
    r"pool/mlp/b1": (r"MapHead/Mlp/Dense_0/bias", _SAME),
    r"pool/mlp/w2": (r"MapHead/Mlp/Dense_1/kernel", _SAME),
    r"pool/mlp/b2": (r"MapHead/Mlp/Dense_1/bias", _SAME),
}

_TIMM: dict[str, tuple[str, _Layout]] = {
    r"embedding/kernel": (r"patch_embed.proj.weight", _Convolution()),
    r"embedding/bias": (r"patch_embed.proj.bias", _SAME),
    r"token": (r"cls_token", _SAME),
    r"positions": (r"pos_embed", _SAME),
    r"blocks/(\d+)/norm([12])/scale": (r"blocks.\1.norm\2.weight", _SAME),
    r"blocks/(\d+)/norm([12])/bias": (r"blocks.\1.norm\2.bias", _SAME),
    r"blocks/(\d+)/attention/(query|key|value)/kernel": (r"blocks.\1.attn.qkv.weight", _Linear(1)),
    r"blocks/(\d+)/attention/(query|key|value)/bias": (r"blocks.\1.attn.qkv.bias", _Linear(0)),
    r"blocks/(\d+)/attention/(q|k)\w+_norm/scale": (r"blocks.\1.attn.\2_norm.weight", _SAME),
    r"blocks/(\d+)/attention/(q|k)\w+_norm/bias": (r"blocks.\1.attn.\2_norm.bias", _SAME),
    r"blocks/(\d+)/attention/out/kernel": (r"blocks.\1.attn.proj.weight", _Linear(2)),
    r"blocks/(\d+)/attention/out/bias": (r"blocks.\1.attn.proj.bias", _SAME),
    r"blocks/(\d+)/mlp/w([12])": (r"blocks.\1.mlp.fc\2.weight", _Linear(1)),
    r"blocks/(\d+)/mlp/b([12])": (r"blocks.\1.mlp.fc\2.bias", _SAME),
    r"norm/scale": (r"norm.weight", _SAME),
    r"norm/bias": (r"norm.bias", _SAME),
    r"pool/probe": (r"attn_pool.latent", _SAME),
    r"pool/attention/query/kernel": (r"attn_pool.q.weight", _Linear(1)),
    r"pool/attention/query/bias": (r"attn_pool.q.bias", _Linear(0)),
    r"pool/attention/(key|value)/kernel": (r"attn_pool.kv.weight", _Linear(1)),
    r"pool/attention/(key|value)/bias": (r"attn_pool.kv.bias", _Linear(0)),
    r"pool/attention/out/kernel": (r"attn_pool.proj.weight", _Linear(2)),
    r"pool/attention/out/bias": (r"attn_pool.proj.bias", _SAME),
    r"pool/norm/scale": (r"attn_pool.norm.weight", _SAME),
    r"pool/norm/bias": (r"attn_pool.norm.bias", _SAME),
    r"pool/mlp/w([12])": (r"attn_pool.mlp.fc\1.weight", _Linear(1)),
    r"pool/mlp/b([12])": (r"attn_pool.mlp.fc\1.bias", _SAME),
    r"head/kernel": (r"head.weight", _Linear(1)),
    r"head/bias": (r"head.bias", _SAME),
}


class _Entry(NamedTuple):
    """One parameter of theirs: its name, how it holds ours, and the names and shapes of ours, in order."""

    theirs: str
    layout: _Layout
    ours: list[str]
    shapes: list[Shape]


def _entries(config: VitConfig, table: Mapping[str, tuple[str, _Layout]]) -> list[_Entry]:
    """The parameters that the other project has for a model like `config`."""
    entries: dict[str, _Entry] = {}
    for ours, shape in _flat(parameter_shapes(config), "/").items():
        theirs, layout = _counterpart(ours, table)
        entry = entries.setdefault(theirs, _Entry(theirs, layout, [], []))
        entry.ours.append(ours)
        entry.shapes.append(shape)
    return list(entries.values())


def _counterpart(ours: str, table: Mapping[str, tuple[str, _Layout]]) -> tuple[str, _Layout]:
    for pattern, (theirs, layout) in table.items():
        if match := re.fullmatch(pattern, ours):
            return match.expand(theirs), layout
    raise ConfigError(f"{ours}: the other project has no such parameter")


def _to_ours(argument: str, arrays: Mapping[str, Any], entries: Sequence[_Entry]) -> dict[str, Array]:
    given = _checked(argument, arrays, {entry.theirs: entry.layout.shape(entry.shapes) for entry in entries})
    return {
        name: np.asarray(array, order="C")
        for entry in entries
        for name, array in zip(entry.ours, entry.layout.unpack(given[entry.theirs], entry.shapes), strict=True)
    }


def _to_theirs(argument: str, arrays: Mapping[str, Any], entries: Sequence[_Entry]) -> dict[str, Array]:
    expected = {name: shape for entry in entries for name, shape in zip(entry.ours, entry.shapes, strict=True)}
    given = _checked(argument, arrays, expected)
    return {
        entry.theirs: np.asarray(entry.layout.pack([given[name] for name in entry.ours]), order="C")
        for entry in entries
    }


def _checked(argument: str, arrays: Mapping[str, Any], expected: Mapping[str, Shape]) -> dict[str, Array]:
    """The arrays as NumPy arrays, after a look at every name, shape and dtype."""
    given = {name: np.asarray(value) for name, value in arrays.items()}
    faults = [f"missing {name} {shape}" for name, shape in expected.items() if name not in given]
    faults += [f"unexpected {name} {array.shape}" for name, array in given.items() if name not in expected]
    if faults:
        raise ConfigError(f"{argument} does not fit the config: {'; '.join(faults)}")
    faults = [
        f"{name} has shape {given[name].shape}, expected {shape}"
        for name, shape in expected.items()
        if given[name].shape != shape
    ]
    if faults:
        raise ShapeError(f"{argument} does not fit the config: {'; '.join(faults)}")
    for name, array in given.items():
        check_floating(f"{argument}: {name}", array)
    return given


def _flat(tree: Mapping[str, Any], separator: str, prefix: str = "") -> dict[str, Any]:
    """A nested mapping as a flat one: `{"a": {"b": 1}}` -> `{"a/b": 1}`."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, separator, f"{prefix}{key}{separator}")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _nested(flat: Mapping[str, Array]) -> Params:
    """The inverse of `_flat` for names separated by "/"."""
    tree: Params = {}
    for name, value in flat.items():
        *parents, leaf = name.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = value
    return tree


# --------------------------------------------------------------------------------------------------- configurations


def config_from_vmoe(model: Mapping[str, Any], *, image_size: int, channels: int = 3) -> VitConfig:
    """The `VitConfig` that computes what vmoe's `VisionTransformerMoe` computes with the arguments `model`.

    `model` is the nested mapping that vmoe's configurations call `config.model`. What it leaves out has vmoe's default:
    capacities are rounded up to a multiple of 4, and auxiliary losses have weight 1.

    | vmoe | ours |
    |---|---|
    | `NoisyTopExpertsPerItemRouter` | router "softmax_token_choice" |
    | `NoisyTopItemsPerExpertRouter` | router "softmax_expert_choice" |
    | `SoftRouter` | router "soft_moe" with `norm_form="rsqrt"` |
    | `batch_priority=True` | `batch_priority="max"` |
    | `noise_std` | `noise_multiplier`: both are divided by the number of experts |
    | `capacity` or `num_slots`, absolute | the `capacity_factor` that gives it, rounded to the nearest |
    | `group_size`, in tokens | `group_images`; it must be a multiple of S |
    | `split_rngs` | `expert_init` |
    | `deterministic`, not in `model` | `forward` without `noise` |

    What is read over because it does not change the function: which dispatcher computes it, its precision and its
    partitions, and its rounding of expert inputs and outputs to bfloat16 (`SoftRouter` always rounds). We have no
    dropout: a rate above 0 gets a warning, since training then differs while evaluation agrees.

    Raises ConfigError for an argument, or a value of one, that has no counterpart.
    """
    arguments = _Arguments("model", model)
    arguments.require("name", "VisionTransformerMoe")
    arguments.require("representation_size", None)
    arguments.require("head_kernel_zero_init", True)
    encoder = arguments.section("encoder")
    encoder.warn_of_dropout("dropout_rate", "attention_dropout_rate")
    position = encoder.section("position_emb")
    position.require("temperature", 10_000)
    moe = encoder.section("moe")
    layers = tuple(sorted(moe.take("layers", ())))
    dense = VitConfig(
        image_size=image_size,
        channels=channels,
        patch_size=arguments.square("patch_size"),
        width=arguments.take("hidden_size"),
        classes=arguments.take("num_classes") or 0,
        head_bias=arguments.take("head_bias_init", 0.0),
        pool=arguments.choose("classifier", "token", {"gap": "gap", "token": "token", "map": "map"}),
        depth=encoder.take("num_layers"),
        hidden=encoder.take("mlp_dim"),
        heads=encoder.take("num_heads"),
        qk_norm=encoder.take("attention_qk_norm", False),
        positions=position.choose("name", "learned", {"learned": "learned", "sincos2d": "sincos2d"}),
    )
    fields = _moe_fields(moe, layers, dense) if layers else {}
    for section in (arguments, encoder, position, moe):
        section.finish()
    return replace(dense, **fields)


def _moe_fields(moe: "_Arguments", layers: tuple[int, ...], dense: VitConfig) -> dict[str, Any]:
    """The fields of `VitConfig` that concern its MoE blocks."""
    moe.warn_of_dropout("dropout_rate")
    experts, group_size = moe.take("num_experts"), moe.take("group_size")
    if group_size % dense.sequence:
        raise ConfigError(
            f"model.encoder.moe.group_size={group_size!r}: groups are whole images here, of {dense.sequence} tokens"
        )
    split = moe.take("split_rngs", False)
    router = moe.section("router")
    name = router.take("name", "NoisyTopExpertsPerItemRouter").rpartition(".")[2]
    read = {
        "NoisyTopExpertsPerItemRouter": _token_choice_options,
        "NoisyTopItemsPerExpertRouter": _expert_choice_options,
        "SoftRouter": _soft_options,
    }
    check_option("model.encoder.moe.router.name", name, read)
    ours, options = read[name](router, group_size, experts)
    router.finish()
    return {
        "moe": _placement(layers, dense.depth),
        "router": ours,
        "experts": experts,
        "router_options": options,
        "expert_init": "independent" if split is True or (split and "params" in split) else "shared",
        "group_images": group_size // dense.sequence,
    }


def _placement(layers: tuple[int, ...], depth: int) -> str:
    odd, count = tuple(range(1, depth, 2)), len(layers)
    if layers == odd:
        return "every_2"
    if layers == tuple(range(depth))[-count:]:
        return f"last_{count}"
    if layers == odd[-count:]:
        return f"every_2_last_{count}"
    raise ConfigError(f"model.encoder.moe.layers={layers!r}: expected the last blocks, or the last of 1, 3, 5, ...")


def _token_choice_options(router: "_Arguments", tokens: int, experts: int) -> tuple[str, dict[str, Any]]:
    choices, noise = router.take("num_selected_experts", 1), router.take("noise_std", 1.0)
    load_weight = router.take("load_loss_weight", 1.0)
    dispatcher = router.section("dispatcher")
    options = {
        "choices": choices,
        "noise_multiplier": noise,
        "batch_priority": dispatcher.choose("batch_priority", False, {False: "none", True: "max"}),
        "importance_weight": router.take("importance_loss_weight", 1.0),
        "load_weight": load_weight if noise else 0.0,  # without noise there is no load loss
        "balance_weight": router.take("gshard_loss_weight", 0.0),
        **_capacity_options(dispatcher, choices * tokens, experts),
    }
    return "softmax_token_choice", options


def _expert_choice_options(router: "_Arguments", tokens: int, experts: int) -> tuple[str, dict[str, Any]]:
    capacity = _capacity_options(router.section("dispatcher"), tokens, experts)
    return "softmax_expert_choice", {"noise_multiplier": router.take("noise_std", 1.0), **capacity}


def _soft_options(router: "_Arguments", tokens: int, experts: int) -> tuple[str, dict[str, Any]]:
    router.require("noise_std", 0.0)
    router.skip("compute_similarity_metrics", "partition_spec", "precision")
    factor, slots = router.take("capacity_factor", 1.0), router.take("num_slots", None)
    return "soft_moe", {
        "norm_form": "rsqrt",
        "capacity_factor": factor if slots is None else slots * experts / tokens,
        "rounding": "round",
        "multiple_of": 1,
    }


def _capacity_options(dispatcher: "_Arguments", items: int, experts: int) -> dict[str, Any]:
    dispatcher.skip("name", "bfloat16", "partition_spec", "einsum_precision")
    capacity, factor = dispatcher.take("capacity", None), dispatcher.take("capacity_factor", None)
    rounding, multiple = dispatcher.take("capacity_ceil_or_round", "ceil"), dispatcher.take("capacity_multiple_of", 4)
    dispatcher.finish()
    if (capacity is None) == (factor is None):
        raise ConfigError(f"{dispatcher.name}: expected one of capacity={capacity!r} and capacity_factor={factor!r}")
    if factor is None:
        return {"capacity_factor": capacity * experts / items, "rounding": "round", "multiple_of": 1}
    return {"capacity_factor": factor, "rounding": rounding, "multiple_of": multiple or 1}


def config_from_timm(arguments: Mapping[str, Any]) -> VitConfig:
    """The `VitConfig` that computes what timm's `VisionTransformer(**arguments)` computes.

    What `arguments` leave out has timm's default, among others a class token and the erf form of GELU. timm's `qk_norm`
    has a bias, so it is our `qk_norm_bias`.

    Averaging (`global_pool="avg"`, our "gap") and attention pooling ("map") correspond when there is no class token and
    when the last normalisation comes before the pooling: `class_token=False, fc_norm=False`. timm's default for "avg"
    is to normalise after it. Dropout is treated as in `config_from_vmoe`.

    Raises ConfigError for an argument, or a value of one, that has no counterpart.
    """
    given = _Arguments("arguments", arguments)
    pool = given.choose("global_pool", "token", {"token": "token", "avg": "gap", "map": "map"})
    class_token, fc_norm = given.take("class_token", True), given.take("fc_norm", None)
    if class_token != (pool == "token"):
        raise ConfigError(
            f"arguments.class_token={class_token!r}: a class token is there to be the pooled one, or not at all"
        )
    if fc_norm or (fc_norm is None and pool == "gap"):
        raise ConfigError(f"arguments.fc_norm={fc_norm!r}: the last normalisation comes before the pooling here: False")
    for name, value in _TIMM_REQUIRED.items():
        given.require(name, value)
    given.skip("weight_init", "fix_init")
    given.warn_of_dropout("drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate", "attn_drop_rate")
    given.warn_of_dropout("drop_path_rate")
    width, qk_norm = given.take("embed_dim", 768), given.take("qk_norm", False)
    config = VitConfig(
        image_size=given.square("img_size", 224),
        patch_size=given.square("patch_size", 16),
        channels=given.take("in_chans", 3),
        classes=given.take("num_classes", 1000),
        pool=pool,
        width=width,
        depth=given.take("depth", 12),
        heads=given.take("num_heads", 12),
        hidden=int(width * given.take("mlp_ratio", 4.0)),
        qk_norm=qk_norm,
        qk_norm_bias=qk_norm,
        gelu=given.choose("act_layer", None, {None: "erf", "gelu": "erf", "gelu_tanh": "tanh"}),
    )
    given.finish()
    _check_timm(config)
    return config


_TIMM_REQUIRED: dict[str, Any] = {
    **{"qkv_bias": True, "proj_bias": True, "scale_attn_norm": False, "scale_mlp_norm": False, "init_values": None},
    **{"pos_embed": "learn", "no_embed_class": False, "reg_tokens": 0, "pre_norm": False, "final_norm": True},
    **{"pool_include_prefix": False, "dynamic_img_size": False, "dynamic_img_pad": False},
    **{"embed_norm_layer": None, "norm_layer": None},
}
"""The arguments of timm that have one value, its default, with a counterpart here."""


class _Arguments:
    """A mapping of another project's arguments, read so that none is passed over."""

    def __init__(self, name: str, values: Mapping[str, Any]) -> None:
        self.name, self._rest = name, dict(values)

    def take(self, key: str, *default: Any) -> Any:
        """The value of `key`, or the default; ConfigError if there is neither."""
        if key not in self._rest and not default:
            raise ConfigError(f"{self.name}.{key} is missing")
        return self._rest.pop(key, *default)

    def section(self, key: str) -> "_Arguments":
        """A nested mapping; empty if there is none."""
        return _Arguments(f"{self.name}.{key}", self.take(key, None) or {})

    def choose(self, key: str, default: Any, options: Mapping[Any, Any]) -> Any:
        """Our name for the value of `key`."""
        value = self.take(key, default)
        if value not in options:
            raise ConfigError(f"{self.name}.{key}={value!r}: expected one of {', '.join(map(repr, options))}")
        return options[value]

    def require(self, key: str, expected: Any) -> None:
        """Refuses every value of `key` but one, which is also its default."""
        value = self.take(key, expected)
        if value != expected:
            raise ConfigError(f"{self.name}.{key}={value!r}: only {expected!r} has a counterpart here")

    def square(self, key: str, *default: Any) -> int:
        """A size, or a pair of equal sizes."""
        value = self.take(key, *default)
        sizes = set(value) if isinstance(value, Sequence) else {value}
        if len(sizes) != 1:
            raise ConfigError(f"{self.name}.{key}={value!r}: images and patches are square here")
        return int(sizes.pop())

    def skip(self, *keys: str) -> None:
        """Reads over arguments that do not change the function."""
        for key in keys:
            self._rest.pop(key, None)

    def warn_of_dropout(self, *keys: str) -> None:
        for key in keys:
            if rate := self.take(key, 0.0):
                warnings.warn(f"{self.name}.{key}={rate!r}: there is no dropout here; training differs", stacklevel=3)

    def finish(self) -> None:
        """ConfigError if an argument was not read."""
        for key, value in self._rest.items():
            raise ConfigError(f"{self.name}.{key}={value!r} has no counterpart here")
