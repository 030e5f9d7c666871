"""Hugging Face transformers: parameters and configuration of its `ViTForImageClassification` and `ViTModel`, and back.

The names are those of its files, which its version 5 still writes, though its modules are called otherwise now.
"""

from collections.abc import Mapping
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

__all__ = ["config_from_huggingface", "config_to_huggingface", "from_huggingface", "to_huggingface"]


def from_huggingface(state_dict: Mapping[str, Any], config: VitConfig) -> Params:
    """Our parameters from the state dict of `ViTForImageClassification`, or of `ViTModel` where `classes` is 0.

    The pooler of a `ViTModel`, a linear map with tanh, is our `representation`. Raises ConfigError when transformers has
    no model like `config`, or a parameter is missing or unexpected; ShapeError and DtypeError as `from_timm` does.
    Source: huggingface/transformers, `src/transformers/models/vit/modeling_vit.py`.
    """
    _check(config)
    return nested(to_ours("state_dict", flatten(unwrapped(state_dict), "."), entries(config, _names(config))))


def to_huggingface(params: Params, config: VitConfig) -> dict[str, Array]:
    """The state dict from ours: the inverse of `from_huggingface`, with its errors."""
    _check(config)
    return to_theirs("params", flatten(params), entries(config, _names(config)))


def _check(config: VitConfig) -> None:
    check_lacking("the ViT of transformers", config, "norm_epsilon", "qkv_bias")
    if config.moe != "none":
        raise ConfigError(f"moe={config.moe!r}: the ViT of transformers is dense")
    for name, value in {"pool": "token", "positions": "learned", "qk_norm": False}.items():
        if getattr(config, name) != value:
            raise ConfigError(f"{name}={getattr(config, name)!r}: the ViT of transformers has {value!r} only")
    if config.representation and (config.classes or config.representation != config.width):
        raise ConfigError(
            f"representation={config.representation!r}: the ViT of transformers has that layer where there is no head, of "
            f"the width of the model, which is {config.width}"
        )


def _names(config: VitConfig) -> dict[str, tuple[str, Layout]]:
    model = "vit." if config.classes else ""
    block = rf"{model}encoder.layer.\1"
    table: dict[str, tuple[str, Layout]] = {
        r"embedding/kernel": (f"{model}embeddings.patch_embeddings.projection.weight", Convolution()),
        r"embedding/bias": (f"{model}embeddings.patch_embeddings.projection.bias", SAME),
        r"token": (f"{model}embeddings.cls_token", SAME),
        r"positions": (f"{model}embeddings.position_embeddings", SAME),
        r"representation/kernel": ("pooler.dense.weight", Linear(1)),
        r"representation/bias": ("pooler.dense.bias", SAME),
        r"head/kernel": ("classifier.weight", Linear(1)),
        r"head/bias": ("classifier.bias", SAME),
        r"norm/scale": (f"{model}layernorm.weight", SAME),
        r"norm/bias": (f"{model}layernorm.bias", SAME),
        r"blocks/(\d+)/attention/(query|key|value)/kernel": (rf"{block}.attention.attention.\2.weight", Linear(1)),
        r"blocks/(\d+)/attention/(query|key|value)/bias": (rf"{block}.attention.attention.\2.bias", Linear(0)),
        r"blocks/(\d+)/attention/out/kernel": (rf"{block}.attention.output.dense.weight", Linear(2)),
        r"blocks/(\d+)/attention/out/bias": (rf"{block}.attention.output.dense.bias", SAME),
    }
    for ours, theirs in (("1", "before"), ("2", "after")):
        table[rf"blocks/(\d+)/norm{ours}/scale"] = (rf"{block}.layernorm_{theirs}.weight", SAME)
        table[rf"blocks/(\d+)/norm{ours}/bias"] = (rf"{block}.layernorm_{theirs}.bias", SAME)
    for ours, theirs in (("1", "intermediate"), ("2", "output")):
        table[rf"blocks/(\d+)/mlp/w{ours}"] = (rf"{block}.{theirs}.dense.weight", Linear(1))
        table[rf"blocks/(\d+)/mlp/b{ours}"] = (rf"{block}.{theirs}.dense.bias", SAME)
    return table


def config_from_huggingface(config: Mapping[str, Any], *, classes: int, representation: int = 0) -> VitConfig:
    """The `VitConfig` of the `config.json` of a ViT with so many classes (0: a `ViTModel`).

    What it leaves out has the default of transformers.

    Raises ConfigError for a value that has no counterpart.
    """
    given = Arguments("config", config)
    given.require("model_type", "vit")
    given.require("pooler_act", "tanh")
    given.warn_of_dropout("hidden_dropout_prob", "attention_probs_dropout_prob")
    width = given.take("hidden_size", 768)
    found = VitConfig(
        image_size=given.square("image_size", 224),
        patch_size=given.square("patch_size", 16),
        channels=given.take("num_channels", 3),
        classes=classes,
        pool="token",
        width=width,
        depth=given.take("num_hidden_layers", 12),
        heads=given.take("num_attention_heads", 12),
        norm_epsilon=given.take("layer_norm_eps", 1e-12),
        qkv_bias=given.take("qkv_bias", True),
        hidden=given.take("intermediate_size", 3072),
        representation=representation,
        gelu=given.choose("hidden_act", "gelu", _GELU),
    )
    _check(found)
    return found


_GELU = {"gelu": "erf", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh"}


def config_to_huggingface(config: VitConfig) -> dict[str, Any]:
    """What `config.json` says of a model like `config`. Raises ConfigError when transformers has none."""
    _check(config)
    return {
        "architectures": ["ViTForImageClassification" if config.classes else "ViTModel"],
        "model_type": "vit",
        "image_size": config.image_size,
        "patch_size": config.patch_size,
        "num_channels": config.channels,
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "intermediate_size": config.hidden,
        "hidden_act": {"erf": "gelu", "tanh": "gelu_pytorch_tanh"}[config.gelu],
        "layer_norm_eps": config.norm_epsilon,
        "qkv_bias": config.qkv_bias,
        **({"num_labels": config.classes} if config.classes else {}),
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
