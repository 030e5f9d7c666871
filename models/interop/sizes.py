"""The sizes of a model, read off the shapes of another project's parameters.

What shapes do not show, such as the number of heads where heads are not an axis, is left out: the user says it.
"""

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from moespec.spec.errors import ConfigError

__all__ = ["mixer_sizes", "vit_sizes"]

Shapes = Mapping[str, tuple[int, ...]]


class _Names(NamedTuple):
    """Where a project's parameters show the sizes of a ViT; `out` is the axis of outputs of a matrix."""

    kernel: str
    positions: str
    token: str
    block: str
    hidden: str
    map: str
    head: str
    representation: str
    out: int = -1
    token_has_position: bool = True
    query: str = ""
    gelu: str = "tanh"


_BLOCK = r"Transformer/encoderblock_(\d+)/"
PROJECTS: Mapping[str, _Names] = {
    "timm": _Names(
        *("patch_embed.proj.weight", "pos_embed", "cls_token", r"blocks\.(\d+)\.", "blocks.0.mlp.fc1.weight"),
        *("attn_pool.latent", "head.weight", ""),
        out=0,
        gelu="erf",
    ),
    "vmoe": _Names(
        *("embedding/kernel", "Encoder/posembed_input/pos_embedding", "cls", r"Encoder/encoderblock_(\d+)/"),
        *("Encoder/encoderblock_0/Mlp/Dense_0/kernel", "MapHead/probe", "head/kernel", "pre_logits/kernel"),
        query="Encoder/encoderblock_0/SelfAttention/query/kernel",
    ),
    "big_vision": _Names(
        *("embedding/kernel", "pos_embedding", "cls", _BLOCK, "Transformer/encoderblock_0/MlpBlock_0/Dense_0/kernel"),
        *("MAPHead_0/probe", "head/kernel", "pre_logits/kernel"),
        token_has_position=False,
        query="Transformer/encoderblock_0/MultiHeadDotProductAttention_0/query/kernel",
    ),
    "vision_transformer": _Names(
        *("embedding/kernel", "Transformer/posembed_input/pos_embedding", "cls", _BLOCK),
        *("Transformer/encoderblock_0/MlpBlock_3/Dense_0/kernel", "", "head/kernel", "pre_logits/kernel"),
        query="Transformer/encoderblock_0/MultiHeadDotProductAttention_1/query/kernel",
    ),
}


def vit_sizes(project: str, shapes: Shapes) -> dict[str, Any]:
    """The fields of `VitConfig` that a project's parameters show: "timm", "vmoe", "big_vision", "vision_transformer".

    Raises ConfigError, naming the parameter, where one that every model has is missing or cannot be one of a ViT.
    """
    names = PROJECTS[project]
    kernel = _shape(shapes, names.kernel, 4)
    torch = names.out == 0
    width, channels, patch = (kernel[0], kernel[1], kernel[2]) if torch else (kernel[3], kernel[2], kernel[0])
    token = names.token in shapes
    found: dict[str, Any] = {
        "patch_size": patch,
        "channels": channels,
        "width": width,
        "depth": _depth(shapes, names.block),
        "hidden": _shape(shapes, names.hidden, 2)[names.out],
        "pool": "token" if token else "map" if names.map in shapes else "gap",
        "classes": _shape(shapes, names.head, 2)[names.out] if names.head in shapes else 0,
        "gelu": names.gelu,
    }
    if names.representation in shapes:
        found["representation"] = _shape(shapes, names.representation, 2)[names.out]
    if "reg_token" in shapes:
        found["registers"] = _shape(shapes, "reg_token", 3)[1]
    prefix = token + found.get("registers", 0)
    if names.positions in shapes:
        places = _shape(shapes, names.positions, 3)[1]
        of_all = places - (prefix if names.token_has_position else 0)
        of_patches = bool(prefix) and torch and _is_square(places)
        if not (of_patches and _is_square(of_all)):  # else the user says which
            found["image_size"] = patch * _side(names.positions, places if of_patches else of_all)
            found["positions"] = "learned_patches" if of_patches else "learned"
    if names.query in shapes:
        found["heads"] = _shape(shapes, names.query, 3)[1]
    if torch:
        found |= {"pre_norm": "norm_pre.weight" in shapes, "qkv_bias": "blocks.0.attn.qkv.bias" in shapes}
        found["layer_scale"] = 1e-5 if "blocks.0.ls1.gamma" in shapes else 0.0
        if "fc_norm.weight" in shapes:
            if token:
                raise ConfigError(
                    f"fc_norm.weight beside {names.token}: an average beside a class token is not pooled here"
                )
            found["pool"] = "gap_norm"
    if "blocks.0.attn.q_norm.weight" in shapes:
        found |= {"qk_norm": True, "qk_norm_bias": True}
        found["heads"] = width // _shape(shapes, "blocks.0.attn.q_norm.weight", 1)[0]
    if "Encoder/encoderblock_0/SelfAttention/query_ln/scale" in shapes:
        found["qk_norm"] = True
    return found


def mixer_sizes(shapes: Shapes) -> dict[str, Any]:
    """The fields of `MixerConfig`, all of which the parameters of vision_transformer's MLP-Mixer show."""
    patch, _, channels, width = _shape(shapes, "stem/kernel", 4)
    name = "MixerBlock_0/token_mixing/Dense_0/kernel"
    places, token_hidden = _shape(shapes, name, 2)
    return {
        "image_size": patch * _side(name, places),
        "patch_size": patch,
        "channels": channels,
        "width": width,
        "depth": _depth(shapes, r"MixerBlock_(\d+)/"),
        "token_hidden": token_hidden,
        "hidden": _shape(shapes, "MixerBlock_0/channel_mixing/Dense_0/kernel", 2)[1],
        "classes": _shape(shapes, "head/kernel", 2)[1] if "head/kernel" in shapes else 0,
    }


def _shape(shapes: Shapes, name: str, axes: int) -> tuple[int, ...]:
    if name not in shapes:
        raise ConfigError(f"{name} is missing, by which the sizes of the model are told")
    if len(shapes[name]) != axes or not all(shapes[name]):
        raise ConfigError(f"{name} has shape {shapes[name]}, expected {axes} axes")
    return shapes[name]


def _depth(shapes: Shapes, block: str) -> int:
    return 1 + max((int(match[1]) for name in shapes if (match := re.match(block, name))), default=-1)


def _side(name: str, places: int) -> int:
    if not _is_square(places):
        raise ConfigError(f"{name} has places for {places} patches, which are not a square")
    return math.isqrt(places)


def _is_square(places: int) -> bool:
    return places > 0 and math.isqrt(places) ** 2 == places
