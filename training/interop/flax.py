"""Converts parameters of the ViT and MLP-Mixer of google-research/big_vision and google-research/vision_transformer, and back.

Flax stores parameters in the same layouts as this project: kernels have input axes first, and attention kernels are `(D, heads, D/heads)`
and `(heads, D/heads, D)`. Names differ. big_vision has no position embedding for a class token; here, this embedding is 0.

Sources: `big_vision/models/vit.py`; google-research/vision_transformer, `vit_jax/models_vit.py` and `vit_jax/models_mixer.py`.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from moespec.models.mixer import MixerConfig
from moespec.models.vit import VitConfig
from moespec.spec.errors import ConfigError
from moespec.training.interop.layouts import Array, Has, Layout, Project, Shape, Table

__all__ = ["BIG_VISION", "VISION_TRANSFORMER", "flax", "mlp_names", "renumbered", "unstacked"]


def flax(
    encoder: str, positions: str, pool: str, attention: str, norm2: str, mlp: str, *, of_pool: tuple[str, str, str]
) -> Table:
    """Returns the parameter names of a flax ViT with these module names. of_pool: the attention, norm and MLP modules for pooling."""
    block, (pool_attention, pool_norm, pool_mlp) = rf"{encoder}/encoderblock_\1", of_pool
    return {
        r"(embedding|head)/(kernel|bias)": r"\1/\2",
        r"representation/(kernel|bias)": r"pre_logits/\1",
        r"token": r"cls",
        r"positions": positions,
        r"blocks/(\d+)/norm1/(\w+)": rf"{block}/LayerNorm_0/\2",
        r"blocks/(\d+)/norm2/(\w+)": rf"{block}/{norm2}/\2",
        r"blocks/(\d+)/attention/(query|key|value|out)/(\w+)": rf"{block}/{attention}/\2/\3",
        **mlp_names(r"blocks/(\d+)/mlp", rf"{block}/{mlp}"),
        r"norm/(\w+)": rf"{encoder}/encoder_norm/\1",
        r"pool/probe": f"{pool}/probe",
        r"pool/attention/(query|key|value|out)/(\w+)": rf"{pool}/{pool_attention}/\1/\2",
        r"pool/norm/(\w+)": rf"{pool}/{pool_norm}/\1",
        **mlp_names("pool/mlp", f"{pool}/{pool_mlp}"),
    }


def mlp_names(ours: str, theirs: str) -> Table:
    """Returns a table that maps our parameter names of an MLP to their parameter names."""
    layers = (("w1", "Dense_0/kernel"), ("b1", "Dense_0/bias"), ("w2", "Dense_1/kernel"), ("b2", "Dense_1/bias"))
    return {f"{ours}/{own}": f"{theirs}/{other}" for own, other in layers}


def unstacked(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Splits the stacked parameters of all blocks: `Transformer/encoderblock/x` (L, ...) becomes `Transformer/encoderblock_0/x`, ..."""
    apart: dict[str, Any] = {}
    for name, value in flat.items():
        if name.startswith("Transformer/encoderblock/") and np.ndim(value):
            apart |= {name.replace("block/", f"block_{block}/", 1): value[block] for block in range(len(value))}
        else:
            apart[name] = value
    return apart


def renumbered(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Renames parameters of vision_transformer so that the modules of a block are numbered as in the released files.

    Released files number all modules of a block together (`LayerNorm_0`, `MultiHeadDotProductAttention_1`, `LayerNorm_2`, `MlpBlock_3`);
    the current code numbers each kind of module separately (see flax's `convert_pre_linen`).
    """
    if not any("/MlpBlock_0/" in name for name in flat):
        return dict(flat)
    numbers = {"LayerNorm_1": "LayerNorm_2", "MultiHeadDotProductAttention_0": "MultiHeadDotProductAttention_1"}
    numbers["MlpBlock_0"] = "MlpBlock_3"
    pattern = re.compile("|".join(numbers))
    return {
        pattern.sub(lambda part: numbers[part[0]], name) if name.startswith("Transformer/") else name: value
        for name, value in flat.items()
    }


class _WithoutToken(Layout):
    """Stores the position embeddings of patches. Omits the position embedding of the class token, which must be 0."""

    def shape(self, shapes: list[Shape]) -> Shape:
        return (1, shapes[0][1] - 1, shapes[0][2])

    def pack(self, arrays: list[Array]) -> Array:
        if arrays[0][:, 0].any():
            raise ConfigError("positions: expected 0 for the class token, since big_vision gives it no position")
        return arrays[0][:, 1:]

    def unpack(self, array: Array, shapes: list[Shape]) -> list[Array]:
        return [np.concatenate([np.zeros_like(array[:, :1]), array], axis=1)]


_DENSE: Has = {"gelu": ["tanh"], "moe": ["none"], "qk_norm": [False]}
_POOL = ("MultiHeadDotProductAttention_0", "LayerNorm_0", "MlpBlock_0")

BIG_VISION = Project(
    "big_vision",
    flax(
        *("Transformer", "pos_embedding", "MAPHead_0", "MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0"),
        of_pool=_POOL,
    ),
    {**_DENSE, "positions": ["learned", "sincos2d"], "pool": ["gap", "token", "map"]},
    extra=lambda config: {"positions": ("pos_embedding", _WithoutToken())} if config.pool == "token" else {},
    prepared=unstacked,
    token_has_position=False,
)
"""The ViT of big_vision, with or without scanned blocks."""

VISION_TRANSFORMER = Project(
    "google-research/vision_transformer",
    flax(
        *("Transformer", "Transformer/posembed_input/pos_embedding", "MAPHead_0"),
        *("MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3"),
        of_pool=_POOL,
    ),
    {**_DENSE, "positions": ["learned"], "pool": ["gap", "token"]},
    kinds=(VitConfig, MixerConfig),
    extra=lambda config: _MIXER if isinstance(config, MixerConfig) else {},
    prepared=renumbered,
)
"""The ViT of vision_transformer, with the parameter names of the released files, and the MLP-Mixer of vision_transformer."""

_MIXER: Table = {
    r"embedding/(\w+)": r"stem/\1",
    r"blocks/(\d+)/norm1/(\w+)": r"MixerBlock_\1/LayerNorm_0/\2",
    r"blocks/(\d+)/norm2/(\w+)": r"MixerBlock_\1/LayerNorm_1/\2",
    **mlp_names(r"blocks/(\d+)/(token|channel)_mlp", r"MixerBlock_\1/\2_mixing"),
    r"norm/(\w+)": r"pre_head_layer_norm/\1",
}
