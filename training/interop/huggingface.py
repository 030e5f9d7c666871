"""Converts parameters and configurations of transformers' `ViTForImageClassification` and `ViTModel` (Hugging Face) to ours and back.

Parameters have the names used in weight files. Version 5 of transformers still writes these names, but has renamed the modules.
"""

from collections.abc import Mapping
from typing import Any

from moespec.models.vit import VitConfig
from moespec.spec.errors import ConfigError
from moespec.training.interop.arguments import Arguments
from moespec.training.interop.layouts import Convolution, Linear, Project, Table, of_torch

__all__ = ["HUGGINGFACE", "config_from_huggingface", "config_to_huggingface"]


def _check(config: VitConfig) -> None:
    if config.representation and (config.classes or config.representation != config.width):
        raise ConfigError(f"representation={config.representation!r}: expected 0, or {config.width} without a head")


def _names(config: VitConfig) -> Table:
    """Returns parameter names of `ViTForImageClassification` or, without classes, of `ViTModel`, whose pooler is our `representation`."""
    model = "vit." if config.classes else ""
    block = rf"{model}encoder.layer.\1"
    embeddings, attention = f"{model}embeddings", rf"{block}.attention.attention.\2"
    return {
        r"embedding/kernel": (f"{embeddings}.patch_embeddings.projection.weight", Convolution()),
        r"embedding/bias": f"{embeddings}.patch_embeddings.projection.bias",
        r"token": f"{embeddings}.cls_token",
        r"positions": f"{embeddings}.position_embeddings",
        r"blocks/(\d+)/mlp/w1": (rf"{block}.intermediate.dense.weight", Linear(1)),
        r"blocks/(\d+)/mlp/b1": rf"{block}.intermediate.dense.bias",
        r"blocks/(\d+)/mlp/w2": (rf"{block}.output.dense.weight", Linear(1)),
        r"blocks/(\d+)/mlp/b2": rf"{block}.output.dense.bias",
        **of_torch(
            {
                r"blocks/(\d+)/norm1": (rf"{block}.layernorm_before", 0),
                r"blocks/(\d+)/norm2": (rf"{block}.layernorm_after", 0),
                r"blocks/(\d+)/attention/(query|key|value)": (attention, 1),
                r"blocks/(\d+)/attention/out": (rf"{block}.attention.output.dense", 2),
                r"norm": (f"{model}layernorm", 0),
                r"representation": ("pooler.dense", 1),
                r"head": ("classifier", 1),
            }
        ),
    }


HUGGINGFACE = Project(
    "Hugging Face transformers",
    {},
    {
        **{"moe": ["none"], "pool": ["token"], "positions": ["learned"], "qk_norm": [False]},
        **{"norm_epsilon": None, "qkv_bias": None},
    },
    argument="state_dict",
    separator=".",
    extra=_names,
    check_extra=_check,
)
"""The state dict of a ViT of transformers. Source: huggingface/transformers, `src/transformers/models/vit/modeling_vit.py`."""


def config_from_huggingface(config: Mapping[str, Any], *, classes: int, representation: int = 0) -> VitConfig:
    """Returns the `VitConfig` for the `config.json` of a ViT with this number of classes (0 for a `ViTModel`).

    Missing entries have the defaults of transformers.

    Raises ConfigError for a value without a counterpart.
    """
    theirs = Arguments("config", config)
    theirs.require("model_type", "vit")
    theirs.require("pooler_act", "tanh")
    theirs.warn_of_dropout("hidden_dropout_prob", "attention_probs_dropout_prob")
    sizes = {ours: theirs.take(name, default) for name, (ours, default) in _FIELDS.items()}
    square: dict[str, Any] = {
        f"{name}_size": theirs.square(f"{name}_size", size) for name, size in (("image", 224), ("patch", 16))
    }
    gelu = theirs.choose("hidden_act", "gelu", _GELU)
    ours = VitConfig(**square, **sizes, classes=classes, pool="token", representation=representation, gelu=gelu)
    HUGGINGFACE.check(ours)
    return ours


_FIELDS: dict[str, tuple[str, Any]] = {
    "num_channels": ("channels", 3),
    "hidden_size": ("width", 768),
    "num_hidden_layers": ("depth", 12),
    "num_attention_heads": ("heads", 12),
    "intermediate_size": ("hidden", 3072),
    "layer_norm_eps": ("norm_epsilon", 1e-12),
    "qkv_bias": ("qkv_bias", True),
}
"""Name in `config.json` -> the field of `VitConfig`, and the default of transformers."""
_GELU = {"gelu": "erf", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh"}


def config_to_huggingface(config: VitConfig) -> dict[str, Any]:
    """Returns the content of `config.json` for the model `config`. Raises ConfigError if transformers has no such model."""
    HUGGINGFACE.check(config)
    return {
        "architectures": ["ViTForImageClassification" if config.classes else "ViTModel"],
        "model_type": "vit",
        "image_size": config.image_size,
        "patch_size": config.patch_size,
        **{name: getattr(config, ours) for name, (ours, _) in _FIELDS.items()},
        "hidden_act": {"erf": "gelu", "tanh": "gelu_pytorch_tanh"}[config.gelu],
        **({"num_labels": config.classes} if config.classes else {}),
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
