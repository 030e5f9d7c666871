"""The MLP-Mixer, written once for every backend.

    x    = patches(images) @ kernel + bias
    x    = x + t(mlp_tokens(t(norm(x))));   x = x + mlp_channels(norm(x))          for each block, t swaps the last axes
    out  = head(mean over patches of norm(x))

Letters of the shape comments: N images, S patches of one image, D width (channels of a patch).

Source: Tolstikhin et al. 2021 (arXiv 2105.01601); for the block, also Lou et al. 2021 (arXiv 2109.02008), eqs. (8) and
(9). Initial values follow the public code: kernels are LeCun normal, and biases are 0.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from moespec.models import layers, parameters
from moespec.models.layers import MoeLayer, Output
from moespec.models.parameters import constant, lecun_normal
from moespec.spec.ranges import Count
from moespec.spec.routing import Params

__all__ = [
    "NAMES",
    "SIZES",
    "MixerConfig",
    "Output",
    "block",
    "block_layout",
    "dense_mlp",
    "features",
    "forward",
    "init",
    "layout",
    "moe_layers",
    "moe_noise",
    "named",
    "parameter_count",
    "parameter_shapes",
]

Array = Any


@dataclass(frozen=True, kw_only=True)
class MixerConfig(layers.CommonConfig):
    """The configuration of one MLP-Mixer. Raises ConfigError for an invalid value."""

    token_hidden: Count
    """hidden width of the MLP over patches"""
    dropout: float = 0.0
    """dropout rate inside each MLP (after its activation) and after it"""


DECIDED = None
"""A Mixer has no router, so it determines no router options."""

SIZES: dict[str, dict[str, int]] = {
    "mixer_tiny": {
        **{"image_size": 8, "patch_size": 2, "channels": 1, "classes": 10},
        **{"width": 64, "depth": 4, "token_hidden": 32, "hidden": 128},
    },
    "mixer_s": {"width": 512, "depth": 8, "token_hidden": 256, "hidden": 2048},
    "mixer_b": {"width": 768, "depth": 12, "token_hidden": 384, "hidden": 3072},
    "mixer_l": {"width": 1024, "depth": 24, "token_hidden": 512, "hidden": 4096},
}
"""The fields of `MixerConfig` for each size. `mixer_tiny` is for images of 8 x 8 pixels and for tests."""

NAMES: tuple[str, ...] = ("mixer_tiny", "mixer_s16", "mixer_b16", "mixer_l16")
"""The usual names. `named` takes any patch size: `mixer_<size><patch>`."""


def moe_layers(config: MixerConfig, images: int) -> list[MoeLayer]:
    """Returns an empty list, since a Mixer has no MoE layer."""
    return []


def layout(config: Any, of_block: Callable[[Any, int], Params] | None = None) -> Params:
    """Returns the layout of a model. of_block: returns the layout of block n, by default `block_layout`."""
    head = parameters.head(config.width, config.classes, config.head_bias)
    return {
        "embedding": parameters.embedding(config.patch_size, config.channels, config.width),
        "blocks": {str(n): of_block(config, n) if of_block else block_layout(config) for n in range(config.depth)},
        "norm": parameters.norm(config.width),
        **({"head": head} if config.classes else {}),
    }


def block_layout(config: Any) -> Params:
    """Returns the layout of one dense block."""
    return {
        "norm1": parameters.norm(config.width),
        "token_mlp": dense_mlp(config.sequence, config.token_hidden),
        "norm2": parameters.norm(config.width),
        "channel_mlp": dense_mlp(config.width, config.hidden),
    }


def dense_mlp(width: int, hidden: int) -> Params:
    """Returns the layout of an MLP whose initial kernels are LeCun normal and whose initial biases are 0."""
    return parameters.mlp(width, hidden, lambda inputs, outputs: lecun_normal(inputs), constant(0.0))


def features(run: layers.Forward, params: Params, images: Array, of_block: layers.Block | None = None) -> Array:
    """Computes the features `(N, D)`: the mean over patches of the normalised output of the blocks. of_block: replaces `block`."""
    B, embedding = run.B, run.compute(params["embedding"])
    x = B.patch_embed(run.compute(images), embedding["kernel"], embedding["bias"])  # (N, S, D)
    x = run.blocks(of_block or (lambda number, p, x: (block(run, p, x, number), [])), params, x)
    return B.mean(layers.layer_norm(B, params["norm"], x), 1)


def block(run: layers.Forward, p: Params, x: Array, number: int) -> Array:
    """Mixes the tokens of `x` `(N, S, D)` and then the channels. Keeps the shape. number: the index of the block."""
    B, drop = run.B, run.drop

    def branch(name: str, x: Array, half: int) -> Array:
        hidden, output = range(4 * number + 2 * half, 4 * number + 2 * half + 2)
        y = layers.mlp(B, run.compute(p[name]), x, gelu=run.config.gelu, drop=partial(drop.units, number=hidden))
        return drop.branch(drop.units(y, output), 2 * number + half)

    y = B.transpose(layers.layer_norm(B, p["norm1"], x), (0, 2, 1))  # (N, D, S)
    x = x + B.transpose(branch("token_mlp", y, 0), (0, 2, 1))
    return x + branch("channel_mlp", layers.layer_norm(B, p["norm2"], x), 1)


FAMILY = layers.Family(MixerConfig, SIZES, layout, moe_layers, features)
named, init, forward, moe_noise = FAMILY.named, FAMILY.init, FAMILY.forward, FAMILY.moe_noise
parameter_shapes, parameter_count = FAMILY.parameter_shapes, FAMILY.parameter_count
