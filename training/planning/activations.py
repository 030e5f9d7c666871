"""Bytes of what a training step keeps of the images of a device between forward and backward pass, by a rule.

Kept of a block, for each of S tokens of width D, in the dtype of the computation, where S is a multiple of 16 (in float32, of
8), the rows of a tile of a TPU:

    12 D                 what goes into each operation and comes out of it: the tokens, normalised, query, key and value, what
                         attention gives, the tokens with it, normalised, what the MLP gives; 4 D in a block without attention
    heads S'             the weights of attention; S' is S in multiples of 128, a tile's columns
    H                    the hidden units of an MLP before the activation, which is computed again

In an MoE block H is of each row that the experts compute, with D of its input and D of its output, twice where experts are
split and slots travel; a router keeps a number in float32 for each token and expert, Soft MoE two for each token and slot,
and a copy of both in the dtype of the computation.

To this comes, once, what the backward pass of one block has at hand, `4 heads S'` and `H` for each token, and the images
and the tokens in float32 around the head. Recomputed blocks keep the tokens that go in, D, and one block at a time is whole.

The rule is near what compilers need, and mostly above: `benchmarks/plan_check.py` has how far. Kernels for attention that
keep no weights take less.
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
"""Columns of a tile of a TPU's memory."""


def padded(size: int, multiple: int = COLUMNS) -> int:
    """The next multiple."""
    return -(-size // multiple) * multiple


def bytes_of_dtype(config: Tower) -> int:
    """Bytes of a number of the computation."""
    return 2 if config.dtype == "bfloat16" else 4


def activations(config: Tower, images: int, *, split: bool, recompute: bool) -> float:
    """Bytes for a part of `images` images, or texts; `split`: experts are split over devices."""
    by_block: dict[int, list[MoeLayer]] = {}
    for layer in family(config).moe_layers(config, images):
        by_block.setdefault(int(layer.name.partition("_")[0]), []).append(layer)
    blocks = [_block(config, by_block.get(number, []), images, split=split) for number in range(config.depth)]
    tokens, size = images * config.sequence * config.width, bytes_of_dtype(config)
    around: float = images * math.prod(config.input_shape) * size + 3 * 4 * tokens
    if isinstance(config, vit.VitConfig):
        features = vit.stem_features(config)[1:]  # of each convolution, before and after norm and activation
        sides = [config.image_size >> (i // config.stem_depth + 1) for i in range(len(features))]
        around += 3 * sum(side**2 * of for side, of in zip(sides, features, strict=True)) * images * size
    if recompute:
        return around + config.depth * tokens * size + max(map(sum, blocks))
    return around + sum(kept for kept, _ in blocks) + max(at_hand for _, at_hand in blocks)


def _block(config: Tower, layers: list[MoeLayer], images: int, *, split: bool) -> tuple[float, float]:
    """Bytes for the images of one part of a batch: what is kept, and what the backward pass has besides."""
    size, D = bytes_of_dtype(config), config.width
    S = padded(config.sequence, 32 // size)
    hidden, mixing, wide = 0.0, 0.0, 0.0
    if isinstance(config, TransformerConfig):
        mixing, wide = config.heads * padded(config.sequence) * S, config.hidden * S
        hidden = 0 if layers else config.hidden * S
        per_image = 12 * S * D + mixing + hidden
    elif isinstance(config, sparse_mlp.SparseMlpConfig) and layers:
        S, D = config.sparse_tokens, config.sparse_width
        hidden = 0 if config.experts else config.sparse_hidden * S
        wide = max(config.sparse_token_hidden * D, config.sparse_hidden * S)
        per_image = 2 * config.sequence * config.width + 4 * S * D + hidden
    else:
        wide = max(config.token_hidden * D, config.hidden * S)
        per_image = 4 * S * D + config.token_hidden * D + config.hidden * S
    moe = sum(_moe(config, layer, split=split) for layer in layers)
    return images * per_image * size + moe, images * (4 * mixing + size * wide)


def _moe(config: Tower, layer: MoeLayer, *, split: bool) -> float:
    """Bytes that a layer keeps in place of H of a token."""
    settings: Any = layer.settings
    size, filled = bytes_of_dtype(config), rows(layer, train=True, every_slot=split)
    experts, kernels = layer.experts, 1 + layer.experts.gated  # whose results are kept
    numbers = size * filled * (kernels * experts.hidden + (4 if split else 2) * settings.width)
    numbers += size * settings.tokens * kernels * experts.shared
    columns = filled if layer.router == "soft_moe" else settings.experts
    numbers += settings.tokens * columns * ((8 + 2 * size) if layer.router == "soft_moe" else 4)
    return float(layer.groups * numbers)
