"""Converts parameters of timm's `VisionTransformer` to ours and back, and timm's arguments to a `VitConfig`."""

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from moespec.models.vit import VitConfig
from moespec.spec.errors import ConfigError
from moespec.training.interop.arguments import Arguments
from moespec.training.interop.layouts import Convolution, Linear, Project, of_torch

__all__ = ["TIMM", "config_from_timm", "models_of_timm", "timm_arguments"]


def _check(config: VitConfig) -> None:
    if config.qk_norm and not config.qk_norm_bias:
        raise ConfigError("qk_norm_bias=False: timm normalises queries and keys with a bias; set qk_norm_bias=True")
    if config.qk_norm and config.pool == "map":
        raise ConfigError("qk_norm=True with pool='map': timm does not normalise queries and keys when pooling")


TIMM = Project(
    "timm",
    {
        r"embedding/kernel": ("patch_embed.proj.weight", Convolution()),
        r"embedding/bias": "patch_embed.proj.bias",
        r"token": "cls_token",
        r"registers": "reg_token",
        r"positions": "pos_embed",
        r"blocks/(\d+)/layer_scale([12])": r"blocks.\1.ls\2.gamma",
        r"blocks/(\d+)/mlp/w([12])": (r"blocks.\1.mlp.fc\2.weight", Linear(1)),
        r"blocks/(\d+)/mlp/b([12])": r"blocks.\1.mlp.fc\2.bias",
        r"pool/probe": "attn_pool.latent",
        r"pool/mlp/w([12])": (r"attn_pool.mlp.fc\1.weight", Linear(1)),
        r"pool/mlp/b([12])": r"attn_pool.mlp.fc\1.bias",
        **of_torch(
            {
                r"pre_norm": ("norm_pre", 0),
                r"blocks/(\d+)/norm([12])": (r"blocks.\1.norm\2", 0),
                r"blocks/(\d+)/attention/(?:query|key|value)": (r"blocks.\1.attn.qkv", 1),
                r"blocks/(\d+)/attention/(q|k)\w+_norm": (r"blocks.\1.attn.\2_norm", 0),
                r"blocks/(\d+)/attention/out": (r"blocks.\1.attn.proj", 2),
                r"norm": ("norm", 0),
                r"pool/attention/query": ("attn_pool.q", 1),
                r"pool/attention/(?:key|value)": ("attn_pool.kv", 1),
                r"pool/attention/out": ("attn_pool.proj", 2),
                r"pool/norm": ("attn_pool.norm", 0),
                r"head": ("head", 1),
            }
        ),
    },
    {
        **{"moe": ["none"], "positions": ["learned", "learned_patches"], "representation": [0]},
        **dict.fromkeys(("registers", "pre_norm", "norm_epsilon", "layer_scale", "qkv_bias")),
    },
    argument="state_dict",
    separator=".",
    extra=lambda config: of_torch({"norm": ("fc_norm", 0)}) if config.pool == "gap_norm" else {},
    check_extra=_check,
)
"""timm's `VisionTransformer`. A state dict maps names to arrays or tensors; `load_state_dict` needs tensors (`torch.from_numpy`).

timm takes images as (N, channels, height, width), moespec as (N, height, width, channels). Both compute the same function if their
settings correspond, see `config_from_timm`.

Source: timm, `timm/models/vision_transformer.py`, `timm/layers/attention.py`, `timm/layers/attention_pool.py`.
"""


def config_from_timm(arguments: Mapping[str, Any]) -> VitConfig:
    """Returns the `VitConfig` that computes the same function as timm's `VisionTransformer(**arguments)`.

    Missing arguments have timm's defaults, which include a class token and the erf form of GELU.

    | timm | ours |
    |---|---|
    | `global_pool="avg"`, by default with the last normalisation after it | pool "gap_norm" |
    | `global_pool="avg"`, `fc_norm=False` | pool "gap" |
    | `global_pool="map"` | pool "map" |
    | `qk_norm`, always with a bias | `qk_norm` and `qk_norm_bias` |
    | `reg_tokens` | `registers` |
    | `no_embed_class=True`, with a class token or a register | positions "learned_patches" |
    | `init_values` | `layer_scale` |
    | `pre_norm` | `pre_norm` |
    | `norm_layer=LayerNorm` with an `eps` | `norm_epsilon` |

    Average and attention pooling are supported only without a class token. Dropout is treated as in `config_from_vmoe`.

    Raises ConfigError for an argument or value without a counterpart.
    """
    of_timm = Arguments("arguments", arguments)
    pool = of_timm.choose("global_pool", "token", {"token": "token", "avg": "gap_norm", "map": "map"})
    class_token = of_timm.choose("class_token", True, _EITHER)
    fc_norm = of_timm.choose("fc_norm", None, {None: None, **_EITHER})
    registers, of_patches = of_timm.take("reg_tokens", 0), of_timm.choose("no_embed_class", False, _EITHER)
    if class_token != (pool == "token"):
        raise ConfigError(f"arguments.class_token={class_token!r}: expected a class token if and only if it is pooled")
    if fc_norm and pool != "gap_norm":
        raise ConfigError(f"arguments.fc_norm={fc_norm!r}: expected False, since this pooling has no normalisation")
    if fc_norm is False and pool == "gap_norm":
        pool = "gap"
    for name, value in _REQUIRED.items():
        of_timm.require(name, value)
    of_timm.skip("weight_init", "fix_init", "dynamic_img_size")  # dynamic_img_size has no effect at the configured size
    of_timm.warn_of_dropout("drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate", "attn_drop_rate")
    of_timm.warn_of_dropout("drop_path_rate")
    width, qk_norm = of_timm.count("embed_dim", 768), of_timm.take("qk_norm", False)
    config = VitConfig(
        image_size=of_timm.square("img_size", 224),
        patch_size=of_timm.square("patch_size", 16),
        channels=of_timm.take("in_chans", 3),
        classes=of_timm.take("num_classes", 1000),
        pool=pool,
        registers=registers,
        positions="learned_patches" if of_patches and (class_token or registers) else "learned",
        pre_norm=of_timm.take("pre_norm", False),
        norm_epsilon=_epsilon(of_timm),
        layer_scale=0.0 if (scale := of_timm.take("init_values", None)) is None else scale,
        qkv_bias=of_timm.take("qkv_bias", True),
        width=width,
        depth=of_timm.take("depth", 12),
        heads=of_timm.take("num_heads", 12),
        hidden=int(width * of_timm.number("mlp_ratio", 4.0)),
        qk_norm=qk_norm,
        qk_norm_bias=qk_norm,
        gelu=of_timm.choose("act_layer", None, {None: "erf", "gelu": "erf", "gelu_tanh": "tanh"}),
    )
    of_timm.finish()
    TIMM.check(config)
    return config


def _epsilon(of_timm: Arguments) -> float:
    """Returns the epsilon of the normalisations: by default 1e-6, as in timm; for "LayerNorm" without `eps` 1e-5, as in torch."""
    layer = of_timm.take("norm_layer", None) or "LayerNorm{'eps': 1e-06}"
    match = re.fullmatch(r"(?:layernorm|LayerNorm)(?:\{'eps': ([-+.e\d]+)\})?", str(layer))
    try:
        if match is not None:
            return float(match[1] or 1e-5)
    except ValueError:  # for example 1e-
        pass
    raise ConfigError(f"arguments.norm_layer={layer!r}: expected 'LayerNorm', optionally followed by {{'eps': ...}}")


_EITHER = {True: True, False: False}
"""Options of `Arguments.choose` for a boolean argument that may be true or false."""


_REQUIRED: dict[str, Any] = {
    **{"proj_bias": True, "scale_attn_norm": False, "scale_mlp_norm": False},
    **{"pos_embed": "learn", "final_norm": True, "pool_include_prefix": False, "dynamic_img_pad": False},
    "embed_norm_layer": None,
}
"""Arguments of timm for which only timm's default has a counterpart in this project."""


@cache
def models_of_timm() -> dict[str, dict[str, Any]]:
    """Returns the arguments of every `VisionTransformer` of timm 1.0.31 by model name, as `config_from_timm` expects them.

    The arguments were recorded from timm's entry points, with the image size and classes of the default weights. Arguments equal to timm's
    defaults are omitted. `config_from_timm` rejects arguments without a counterpart.
    """
    models: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "timm_models.json").read_text())
    return models


def timm_arguments(config: Mapping[str, Any]) -> dict[str, Any]:
    """Converts the `config.json` of a timm model on the Hugging Face hub to arguments for `config_from_timm`.

    Raises ConfigError for an `architecture` that is not a `VisionTransformer` of timm.
    """
    name, models = config.get("architecture"), models_of_timm()
    if name not in models:
        raise ConfigError(f"architecture={name!r}: not a VisionTransformer of timm 1.0.31")
    of_weights = {key: config[key] for key in ("num_classes", "global_pool") if key in config}
    return {**models[name], **of_weights, **config.get("model_args", {})}
