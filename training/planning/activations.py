"""Estimates the bytes of activations that a device keeps between the forward and the backward pass of a training step.

A block keeps the following values for each of S tokens of width D, in the compute dtype. S is rounded up to a multiple of 16 (8 in
float32), the rows of a TPU tile:

    12 D                 inputs and outputs of each operation: the tokens, normalised tokens, query, key, value, output
                         of attention, sum with the tokens, normalised sum, output of the MLP; 4 D in a block without attention
    heads S'             the attention weights; S' is S rounded up to a multiple of 128, the columns of a tile
    H                    the hidden units of an MLP before the activation (the activation is recomputed)

An MoE block keeps H + 2 D values for each row that the experts compute: the hidden units, the input and the output. If experts are sharded,
the input and the output count twice, because slots are exchanged. A router keeps one float32 value per token and
expert. Soft MoE keeps two float32 values per token and slot, and copies of both in the compute dtype.

Two costs occur once per step: the working set of one block's backward pass (`4 heads S'` bytes and `H` values per token), and the images
and three float32 copies of the tokens. With recomputation (activation checkpointing), only one block at a time keeps more than its input.

The estimate is close to the memory that compilers use, and usually above it; `benchmarks/plan_check.py` measures the difference. Attention
kernels that do not store the attention weights need less memory.
"""

import math
from typing import Any

from moespec.models import sparse_mlp, vit
from moespec.models.counts import rows
from moespec.models.families import Tower, family
from moespec.models.layers import MoeLayer
from moespec.models.transformer import TransformerConfig

__all__ = ["activations", "bytes_of_dtype", "padded"]

COLUMNS = 128
"""Columns of a tile in a TPU's memory."""


def padded(size: int, multiple: int = COLUMNS) -> int:
    """Rounds `size` up to a multiple of `multiple`."""
    return -(-size // multiple) * multiple


def bytes_of_dtype(config: Tower) -> int:
    """The size of a number in the compute dtype, in bytes."""
    return 2 if config.dtype == "bfloat16" else 4


def activations(config: Tower, images: int, *, split: bool, recompute: bool) -> float:
    """Returns the bytes of the activations of `images` images or texts on a device. split: whether experts are sharded over devices."""
    by_block: dict[int, list[MoeLayer]] = {}
    for layer in family(config).moe_layers(config, images):
        by_block.setdefault(int(layer.name.partition("_")[0]), []).append(layer)
    blocks = [_block(config, by_block.get(number, []), images, split=split) for number in range(config.depth)]
    tokens, size = images * config.sequence * config.width, bytes_of_dtype(config)
    around: float = images * math.prod(config.input_shape) * size + 3 * 4 * tokens
    if isinstance(config, vit.VitConfig):
        features = vit.stem_features(config)[1:]  # a convolution keeps three arrays: output, norm, activation
        sides = [config.image_size >> (i // config.stem_depth + 1) for i in range(len(features))]
        around += 3 * sum(side**2 * of for side, of in zip(sides, features, strict=True)) * images * size
    if recompute:
        return around + config.depth * tokens * size + max(map(sum, blocks))
    return around + sum(kept for kept, _ in blocks) + max(at_hand for _, at_hand in blocks)


def _block(config: Tower, layers: list[MoeLayer], images: int, *, split: bool) -> tuple[float, float]:
    """Returns the bytes that a block keeps for the images of a micro-batch, and the extra bytes of the backward pass."""
    size, D = bytes_of_dtype(config), config.width
    S = padded(config.sequence, 32 // size)
    hidden, mixing, wide = 0.0, 0.0, 0.0
    if isinstance(config, TransformerConfig):
        mixing, wide = config.heads * padded(config.sequence) * S, config.hidden * S
        hidden = 0 if layers else config.hidden * S
        per_image = 12 * S * D + mixing + hidden
    elif isinstance(config, sparse_mlp.SparseMlpConfig) and layers:
        S, D = config.sparse_tokens, config.sparse_width
        own = sparse_mlp.of_block(config, int(layers[0].name.partition("_")[0]))
        hidden = 0 if own.experts else own.sparse_hidden * S
        wide = max(own.sparse_token_hidden * D, own.sparse_hidden * S)
        per_image = 2 * config.sequence * config.width + 4 * S * D + hidden
    else:
        wide = max(config.token_hidden * D, config.hidden * S)
        per_image = 4 * S * D + config.token_hidden * D + config.hidden * S
    moe = sum(_moe(config, layer, split=split) for layer in layers)
    return images * per_image * size + moe, images * (4 * mixing + size * wide)


def _moe(config: Tower, layer: MoeLayer, *, split: bool) -> float:
    """Returns the bytes that an MoE layer keeps instead of the hidden units of an MLP."""
    settings: Any = layer.settings
    size, filled = bytes_of_dtype(config), rows(layer, train=True, every_slot=split)
    experts, kernels = layer.experts, 1 + layer.experts.gated  # one stored result per input kernel
    numbers = size * filled * (kernels * experts.hidden + (4 if split else 2) * (experts.latent or settings.width))
    numbers += size * settings.tokens * (kernels * experts.shared + (2 + experts.latent_norm) * experts.latent)
    numbers += (
        size
        * settings.width
        * (experts.constants * settings.capacity(train=True) + settings.tokens * bool(experts.copies))
    )
    columns = filled if layer.router == "soft_moe" else settings.experts
    numbers += settings.tokens * columns * ((8 + 2 * size) if layer.router == "soft_moe" else 4)
    return float(layer.groups * numbers)
