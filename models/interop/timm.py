"""timm: parameters and arguments of its `VisionTransformer`, to ours and back.

Letters of the shape comments: D width, p patch size.
"""

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from moespec.models.interop.arguments import Arguments
from moespec.models.interop.layouts import (
    SAME,
    Array,
    Convolution,
    Layout,
    Linear,
    check_lacking,
    entries,
    to_ours,
    to_theirs,
    unwrapped,
)
from moespec.models.trees import flatten, nested
from moespec.models.vit import VitConfig
from moespec.spec.errors import ConfigError
from moespec.spec.routing import Params

__all__ = ["config_from_timm", "from_timm", "models_of_timm", "timm_arguments", "to_timm"]


def from_timm(state_dict: Mapping[str, Any], config: VitConfig) -> Params:
    """Our parameters from the state dict of timm's `VisionTransformer`, a mapping of arrays or of tensors.

    A checkpoint that has it under `state_dict` is taken as well.

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
    _check(config)
    return nested(to_ours("state_dict", flatten(unwrapped(state_dict), "."), entries(config, _names(config))))


def to_timm(params: Params, config: VitConfig) -> dict[str, Array]:
    """The state dict of timm's `VisionTransformer` from ours: the inverse of `from_timm`, with its errors.

    The values are NumPy arrays; `load_state_dict` takes them through `torch.from_numpy`.
    """
    _check(config)
    return to_theirs("params", flatten(params), entries(config, _names(config)))


def _check(config: VitConfig) -> None:
    check_lacking("timm", config, "registers", "pre_norm", "norm_epsilon", "layer_scale", "qkv_bias")
    if config.moe != "none":
        raise ConfigError(f"moe={config.moe!r}: timm has dense models only")
    if not config.positions.startswith("learned"):
        raise ConfigError(f"positions={config.positions!r}: timm has learned positions only")
    if config.representation:
        raise ConfigError(f"representation={config.representation!r}: timm has no layer between pooling and head")
    if config.qk_norm and not config.qk_norm_bias:
        raise ConfigError(
            "qk_norm_bias=False: timm normalises queries and keys with a bias (a bias of 0 makes the function the same)"
        )
    if config.qk_norm and config.pool == "map":
        raise ConfigError("qk_norm=True with pool='map': timm does not normalise the query and keys of the pooling")


def _names(config: VitConfig) -> dict[str, tuple[str, Layout]]:
    norm = "fc_norm" if config.pool == "gap_norm" else "norm"
    return {**_NAMES, r"norm/scale": (f"{norm}.weight", SAME), r"norm/bias": (f"{norm}.bias", SAME)}


_NAMES: dict[str, tuple[str, Layout]] = {
    r"embedding/kernel": (r"patch_embed.proj.weight", Convolution()),
    r"embedding/bias": (r"patch_embed.proj.bias", SAME),
    r"token": (r"cls_token", SAME),
    r"positions": (r"pos_embed", SAME),
    r"blocks/(\d+)/norm([12])/scale": (r"blocks.\1.norm\2.weight", SAME),
    r"blocks/(\d+)/norm([12])/bias": (r"blocks.\1.norm\2.bias", SAME),
    r"blocks/(\d+)/attention/(query|key|value)/kernel": (r"blocks.\1.attn.qkv.weight", Linear(1)),
    r"blocks/(\d+)/attention/(query|key|value)/bias": (r"blocks.\1.attn.qkv.bias", Linear(0)),
    r"blocks/(\d+)/attention/(q|k)\w+_norm/scale": (r"blocks.\1.attn.\2_norm.weight", SAME),
    r"blocks/(\d+)/attention/(q|k)\w+_norm/bias": (r"blocks.\1.attn.\2_norm.bias", SAME),
    r"blocks/(\d+)/attention/out/kernel": (r"blocks.\1.attn.proj.weight", Linear(2)),
    r"blocks/(\d+)/attention/out/bias": (r"blocks.\1.attn.proj.bias", SAME),
    r"blocks/(\d+)/mlp/w([12])": (r"blocks.\1.mlp.fc\2.weight", Linear(1)),
    r"blocks/(\d+)/mlp/b([12])": (r"blocks.\1.mlp.fc\2.bias", SAME),
    r"registers": (r"reg_token", SAME),
    r"pre_norm/scale": (r"norm_pre.weight", SAME),
    r"pre_norm/bias": (r"norm_pre.bias", SAME),
    r"blocks/(\d+)/layer_scale([12])": (r"blocks.\1.ls\2.gamma", SAME),
    r"pool/probe": (r"attn_pool.latent", SAME),
    r"pool/attention/query/kernel": (r"attn_pool.q.weight", Linear(1)),
    r"pool/attention/query/bias": (r"attn_pool.q.bias", Linear(0)),
    r"pool/attention/(key|value)/kernel": (r"attn_pool.kv.weight", Linear(1)),
    r"pool/attention/(key|value)/bias": (r"attn_pool.kv.bias", Linear(0)),
    r"pool/attention/out/kernel": (r"attn_pool.proj.weight", Linear(2)),
    r"pool/attention/out/bias": (r"attn_pool.proj.bias", SAME),
    r"pool/norm/scale": (r"attn_pool.norm.weight", SAME),
    r"pool/norm/bias": (r"attn_pool.norm.bias", SAME),
    r"pool/mlp/w([12])": (r"attn_pool.mlp.fc\1.weight", Linear(1)),
    r"pool/mlp/b([12])": (r"attn_pool.mlp.fc\1.bias", SAME),
    r"head/kernel": (r"head.weight", Linear(1)),
    r"head/bias": (r"head.bias", SAME),
}


def config_from_timm(arguments: Mapping[str, Any]) -> VitConfig:
    """The `VitConfig` that computes what timm's `VisionTransformer(**arguments)` computes.

    What `arguments` leave out has timm's default, among others a class token and the erf form of GELU.

    | timm | ours |
    |---|---|
    | `global_pool="avg"`, by default with the last normalisation after it | pool "gap_norm" |
    | `global_pool="avg"`, `fc_norm=False` | pool "gap" |
    | `global_pool="map"` | pool "map" |
    | `qk_norm`, which has a bias | `qk_norm` and `qk_norm_bias` |
    | `reg_tokens` | `registers` |
    | `no_embed_class=True`, where there is a class token or a register | positions "learned_patches" |
    | `init_values` | `layer_scale` |
    | `pre_norm` | `pre_norm` |
    | `norm_layer=LayerNorm` with an `eps` | `norm_epsilon` |

    Averages and attention pooling correspond where there is no class token. Dropout is treated as in `config_from_vmoe`.

    Raises ConfigError for an argument, or a value of one, that has no counterpart.
    """
    given = Arguments("arguments", arguments)
    pool = given.choose("global_pool", "token", {"token": "token", "avg": "gap_norm", "map": "map"})
    class_token, fc_norm = (
        given.choose("class_token", True, _EITHER),
        given.choose("fc_norm", None, {None: None, **_EITHER}),
    )
    registers, of_patches = given.take("reg_tokens", 0), given.choose("no_embed_class", False, _EITHER)
    if class_token != (pool == "token"):
        raise ConfigError(
            f"arguments.class_token={class_token!r}: a class token is there to be the pooled one, or not at all"
        )
    if fc_norm and pool != "gap_norm":
        raise ConfigError(f"arguments.fc_norm={fc_norm!r}: after such a pooling there is no normalisation here: False")
    if fc_norm is False and pool == "gap_norm":
        pool = "gap"
    for name, value in _REQUIRED.items():
        given.require(name, value)
    given.skip("weight_init", "fix_init", "dynamic_img_size")  # the last changes nothing at the size that is given
    given.warn_of_dropout("drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate", "attn_drop_rate")
    given.warn_of_dropout("drop_path_rate")
    width, qk_norm = given.count("embed_dim", 768), given.take("qk_norm", False)
    config = VitConfig(
        image_size=given.square("img_size", 224),
        patch_size=given.square("patch_size", 16),
        channels=given.take("in_chans", 3),
        classes=given.take("num_classes", 1000),
        pool=pool,
        registers=registers,
        positions="learned_patches" if of_patches and (class_token or registers) else "learned",
        pre_norm=given.take("pre_norm", False),
        norm_epsilon=_epsilon(given),
        layer_scale=0.0 if (scale := given.take("init_values", None)) is None else scale,
        qkv_bias=given.take("qkv_bias", True),
        width=width,
        depth=given.take("depth", 12),
        heads=given.take("num_heads", 12),
        hidden=int(width * given.number("mlp_ratio", 4.0)),
        qk_norm=qk_norm,
        qk_norm_bias=qk_norm,
        gelu=given.choose("act_layer", None, {None: "erf", "gelu": "erf", "gelu_tanh": "tanh"}),
    )
    given.finish()
    _check(config)
    return config


def _epsilon(given: Arguments) -> float:
    """That of the normalisations: timm's default is 1e-6, and that of "LayerNorm", which is torch's, 1e-5."""
    layer = given.take("norm_layer", None) or "LayerNorm{'eps': 1e-06}"
    match = re.fullmatch(r"(?:layernorm|LayerNorm)(?:\{'eps': ([-+.e\d]+)\})?", str(layer))
    try:
        if match is not None:
            return float(match[1] or 1e-5)
    except ValueError:  # 1e-, say
        pass
    raise ConfigError(f"arguments.norm_layer={layer!r}: expected 'LayerNorm', maybe with {{'eps': ...}} after it")


_EITHER = {True: True, False: False}
"""What an argument that is true or false becomes."""


_REQUIRED: dict[str, Any] = {
    **{"proj_bias": True, "scale_attn_norm": False, "scale_mlp_norm": False},
    **{"pos_embed": "learn", "final_norm": True, "pool_include_prefix": False, "dynamic_img_pad": False},
    "embed_norm_layer": None,
}
"""The arguments of timm that have one value, its default, with a counterpart here."""


@cache
def models_of_timm() -> dict[str, dict[str, Any]]:
    """Name -> arguments of every `VisionTransformer` of timm 1.0.31, as `config_from_timm` takes them.

    Written from timm's own entry points, with the image size and the classes of each name's default weights; what has
    timm's default is left out. Not all have a counterpart here: `config_from_timm` says what is in the way.
    """
    found: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "timm_models.json").read_text())
    return found


def timm_arguments(config: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of the model that timm's `config.json` on the hub describes, for `config_from_timm`.

    Raises ConfigError for an `architecture` that is not a `VisionTransformer` of timm.
    """
    name, models = config.get("architecture"), models_of_timm()
    if name not in models:
        raise ConfigError(f"architecture={name!r}: not a VisionTransformer of timm 1.0.31")
    given = {key: config[key] for key in ("num_classes", "global_pool") if key in config}
    return {**models[name], **given, **config.get("model_args", {})}
