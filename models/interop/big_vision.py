"""google-research/big_vision and google-research/vision_transformer: parameters of their ViT and MLP-Mixer, and back.

Both are flax modules with the layouts of ours: kernels have their inputs first, attention kernels are
`(D, heads, D/heads)` and `(heads, D/heads, D)`. What differs are names, and the class token, which has a position in
vision_transformer and none in big_vision.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from moespec.models.families import Config
from moespec.models.interop.layouts import (
    SAME,
    Array,
    Layout,
    Shape,
    check_lacking,
    entries,
    to_ours,
    to_theirs,
    unwrapped,
)
from moespec.models.mixer import MixerConfig
from moespec.models.trees import flatten, nested
from moespec.models.vit import VitConfig
from moespec.spec.errors import ConfigError
from moespec.spec.routing import Params

__all__ = [
    "from_big_vision",
    "from_vision_transformer",
    "renumbered",
    "to_big_vision",
    "to_vision_transformer",
    "unstacked",
]


def from_big_vision(params: Mapping[str, Any], config: VitConfig) -> Params:
    """Our parameters from the tree of big_vision's ViT, `big_vision/models/vit.py`, also of one that scans its blocks.

    Its class token has no position: ours gets the position 0. Raises ConfigError, ShapeError and DtypeError as
    `from_vmoe` does.
    """
    _check("big_vision", config)
    return nested(to_ours("params", unstacked(flatten(unwrapped(params))), entries(config, _big_vision(config))))


def to_big_vision(params: Params, config: VitConfig) -> Params:
    """The tree of big_vision's ViT from ours. Raises ConfigError for a class token with a position that is not 0."""
    _check("big_vision", config)
    return nested(to_theirs("params", flatten(params), entries(config, _big_vision(config))))


def from_vision_transformer(params: Mapping[str, Any], config: VitConfig | MixerConfig) -> Params:
    """Our parameters from the tree of vision_transformer's ViT or MLP-Mixer.

    Sources: google-research/vision_transformer, `vit_jax/models_vit.py` and `vit_jax/models_mixer.py`. Raises
    ConfigError, ShapeError and DtypeError as `from_vmoe` does.
    """
    _check("vision_transformer", config)
    return nested(
        to_ours("params", renumbered(flatten(unwrapped(params))), entries(config, _vision_transformer(config)))
    )


def to_vision_transformer(params: Params, config: VitConfig | MixerConfig) -> Params:
    """The tree of vision_transformer's ViT or MLP-Mixer from ours, with the names of its released files."""
    _check("vision_transformer", config)
    return nested(to_theirs("params", flatten(params), entries(config, _vision_transformer(config))))


def unstacked(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters by name, with those of blocks that are stacked along a leading axis taken apart.

    `Transformer/encoderblock/x` (L, ...) becomes `Transformer/encoderblock_0/x` and so on.
    """
    found: dict[str, Any] = {}
    for name, value in flat.items():
        if re.match(r"Transformer/encoderblock/", name) and np.ndim(value):
            apart = {
                name.replace("encoderblock/", f"encoderblock_{block}/", 1): value[block] for block in range(len(value))
            }
            found |= apart
        else:
            found[name] = value
    return found


def renumbered(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of vision_transformer by name, with the modules of a block numbered as in its released files.

    They are numbered through there (`LayerNorm_0`, `MultiHeadDotProductAttention_1`, `LayerNorm_2`, `MlpBlock_3`), and by
    kind in a tree of its present code, which renumbers the files when it reads them (flax's `convert_pre_linen`).
    """
    if not any("/MlpBlock_0/" in name for name in flat):
        return dict(flat)
    numbers = {"LayerNorm_1": "LayerNorm_2", "MultiHeadDotProductAttention_0": "MultiHeadDotProductAttention_1"}
    numbers["MlpBlock_0"] = "MlpBlock_3"
    return {
        "/".join(
            numbers.get(part, part) if name.startswith("Transformer/") else part for part in name.split("/")
        ): value
        for name, value in flat.items()
    }


def _check(project: str, config: Config) -> None:
    if not isinstance(config, VitConfig | MixerConfig) or (
        project == "big_vision" and not isinstance(config, VitConfig)
    ):
        raise ConfigError(f"{type(config).__name__}: {project} has no such model")
    if config.gelu != "tanh":
        raise ConfigError(f"gelu={config.gelu!r}: {project} has the tanh form only")
    if isinstance(config, MixerConfig):
        return
    check_lacking(project, config)
    if config.moe != "none":
        raise ConfigError(f"moe={config.moe!r}: {project} has dense models only")
    if config.qk_norm:
        raise ConfigError(f"qk_norm=True: {project} does not normalise queries and keys")
    positions = ("learned", "sincos2d") if project == "big_vision" else ("learned",)
    if config.positions not in positions:
        raise ConfigError(f"positions={config.positions!r}: {project} has {' and '.join(positions)} positions only")
    if config.pool == "gap_norm":
        raise ConfigError(f"pool='gap_norm': {project} normalises before the pooling")
    if project == "vision_transformer" and config.pool == "map":
        raise ConfigError("pool='map': vision_transformer has a class token or an average only")


class _WithoutToken(Layout):
    """The positions of the patches alone; that of the class token, which comes first, is 0."""

    def shape(self, shapes: list[Shape]) -> Shape:
        return (1, shapes[0][1] - 1, shapes[0][2])

    def pack(self, arrays: list[Array]) -> Array:
        if arrays[0][:, 0].any():
            raise ConfigError("positions: that of the class token is not 0, and big_vision has none there")
        return arrays[0][:, 1:]

    def unpack(self, array: Array, shapes: list[Shape]) -> list[Array]:
        return [np.concatenate([np.zeros_like(array[:, :1]), array], axis=1)]


def _big_vision(config: VitConfig) -> dict[str, tuple[str, Layout]]:
    positions = _WithoutToken() if config.pool == "token" else SAME
    return {**_vit(attention=0, norm2=1, mlp=0), r"positions": (r"pos_embedding", positions)}


def _vision_transformer(config: VitConfig | MixerConfig) -> dict[str, tuple[str, Layout]]:
    if isinstance(config, MixerConfig):
        return _MIXER
    positions = {r"positions": (r"Transformer/posembed_input/pos_embedding", SAME)}
    return {**_vit(attention=1, norm2=2, mlp=3), **positions}


def _vit(*, attention: int, norm2: int, mlp: int) -> dict[str, tuple[str, Layout]]:
    """The names of a ViT, but for its positions; flax numbers the modules of a block, in two ways."""
    block = r"Transformer/encoderblock_\1"
    table: dict[str, tuple[str, Layout]] = {
        r"(embedding|head)/(kernel|bias)": (r"\1/\2", SAME),
        r"representation/(kernel|bias)": (r"pre_logits/\1", SAME),
        r"token": (r"cls", SAME),
        r"blocks/(\d+)/norm1/(\w+)": (rf"{block}/LayerNorm_0/\2", SAME),
        r"blocks/(\d+)/norm2/(\w+)": (rf"{block}/LayerNorm_{norm2}/\2", SAME),
        r"blocks/(\d+)/attention/(query|key|value|out)/(\w+)": (
            rf"{block}/MultiHeadDotProductAttention_{attention}/\2/\3",
            SAME,
        ),
        r"norm/(\w+)": (r"Transformer/encoder_norm/\1", SAME),
        r"pool/probe": (r"MAPHead_0/probe", SAME),
        r"pool/attention/(query|key|value|out)/(\w+)": (r"MAPHead_0/MultiHeadDotProductAttention_0/\1/\2", SAME),
        r"pool/norm/(\w+)": (r"MAPHead_0/LayerNorm_0/\1", SAME),
    }
    for ours, theirs in (("w", "kernel"), ("b", "bias")):
        for ours_layer, theirs_layer in ((1, 0), (2, 1)):
            dense = f"Dense_{theirs_layer}/{theirs}"
            table[rf"blocks/(\d+)/mlp/{ours}{ours_layer}"] = (rf"{block}/MlpBlock_{mlp}/{dense}", SAME)
            table[rf"pool/mlp/{ours}{ours_layer}"] = (rf"MAPHead_0/MlpBlock_0/{dense}", SAME)
    return table


_MIXER: dict[str, tuple[str, Layout]] = {
    r"embedding/(\w+)": (r"stem/\1", SAME),
    r"blocks/(\d+)/norm1/(\w+)": (r"MixerBlock_\1/LayerNorm_0/\2", SAME),
    r"blocks/(\d+)/norm2/(\w+)": (r"MixerBlock_\1/LayerNorm_1/\2", SAME),
    r"blocks/(\d+)/(token|channel)_mlp/w1": (r"MixerBlock_\1/\2_mixing/Dense_0/kernel", SAME),
    r"blocks/(\d+)/(token|channel)_mlp/b1": (r"MixerBlock_\1/\2_mixing/Dense_0/bias", SAME),
    r"blocks/(\d+)/(token|channel)_mlp/w2": (r"MixerBlock_\1/\2_mixing/Dense_1/kernel", SAME),
    r"blocks/(\d+)/(token|channel)_mlp/b2": (r"MixerBlock_\1/\2_mixing/Dense_1/bias", SAME),
    r"norm/(\w+)": (r"pre_head_layer_norm/\1", SAME),
    r"head/(\w+)": (r"head/\1", SAME),
}
