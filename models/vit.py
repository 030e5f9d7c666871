"""The vision transformer with mixture-of-experts layers (MoE-ViT), in one implementation for all backends.

    x    = patches(images) @ kernel + bias  (+ class token, registers)  + positions
    x    = x + attention(norm(x));   x = x + mlp_or_moe(norm(x))          for each block (pre-norm)
    out  = head(pool(norm(x)))

An MoE block reshapes its input `(N, S, D)` to routing groups `(G, T, D)`, in row-major order. T is group_images * S, or group_tokens if
group_tokens is not 0. Letters in the shape comments: N images, S tokens of one image, D width, H hidden, G groups, T tokens of one
group, E experts.

Sources: Dosovitskiy et al. 2021 (ViT); Riquelme et al. 2021 (V-MoE); Puigcerver et al. 2024 (Soft MoE); Liu et al. 2024
(routers, placement); Touvron et al. 2021 (arXiv 2103.17239, layer scale); Xiao et al. 2021 (arXiv 2106.14881, stem;
the paper uses batch normalisation and ReLU); Darcet et al. 2023 (arXiv 2309.16588, registers); timm
(`VisionTransformer`, combinations of model options).
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal

from moespec.backends.contract import Backend
from moespec.models import layers, parameters, transformer
from moespec.models.experts import of_block
from moespec.models.hashing import multi_hash, token_ids
from moespec.models.hashing.token_ids import IdKind
from moespec.models.layers import MoeLayer, Output
from moespec.models.options import MOE, Only, option
from moespec.models.parameters import Parameter, constant, normal
from moespec.models.transformer import DECIDED, Norm, id_blocks, moe_blocks, router_config, takes_ids
from moespec.spec.errors import ConfigError
from moespec.spec.options import RouterOptions
from moespec.spec.ranges import Count, Range, Scalar
from moespec.spec.routing import Params

__all__ = [
    "DECIDED",
    "NAMES",
    "SIZES",
    "Output",
    "VitConfig",
    "forward",
    "id_blocks",
    "init",
    "moe_blocks",
    "moe_layers",
    "moe_noise",
    "named",
    "of_block",
    "parameter_count",
    "parameter_shapes",
    "regrouped",
    "router_config",
    "stem_features",
    "takes_ids",
]

IDS = Only("takes_ids", why="the model has no router that needs token ids")

Array = Any


@dataclass(frozen=True, kw_only=True)
class VitConfig(layers.CommonConfig, transformer.TransformerConfig):
    """The configuration of one MoE-ViT. Raises ConfigError for an invalid value."""

    stem: int = option(0, rare=True)
    """number of 3 x 3 convolutions with stride 2 before the patch embedding, each with a layer normalisation and a GELU; the
    last has the width of a token, each earlier one has half the width of the next; 2^stem must divide patch_size"""
    stem_depth: Annotated[int, Range(1, 1000, below=False)] = option(1, only=Only("stem"))
    """convolutions at each resolution of the stem: one with stride 2, the rest with stride 1"""
    pool: Literal["gap", "gap_norm", "token", "map"] = "gap"
    """pooling; gap: mean of the normalised patches; gap_norm: normalised mean of the patches; token: a class token; map:
    attention pooling of the patches with a learned probe"""
    registers: layers.Size = option(0, rare=True)
    """number of learned register tokens between the class token and the patches, ignored by the pooling"""
    positions: Literal["learned", "learned_patches", "sincos2d", "sincos2d_moco", "none"] = "learned"
    """position embedding; learned_patches: only for patches, not for class token and registers; sincos2d: frequencies
    10000^(-i/(P-1)) with P = width/4; sincos2d_moco: 10000^(-i/P)"""
    pre_norm: bool = option(False, rare=True)
    """normalise the tokens before the first block, and embed the patches without a bias (CLIP)"""
    layer_scale: Scalar = option(0.0, rare=True)
    """initial value of the learned per-channel factors of attention and MLP outputs (LayerScale); 0 for none"""
    qkv_bias: bool = option(True, rare=True)
    """add a bias to queries, keys and values"""
    representation: layers.Size = option(0, rare=True)
    """width of a linear layer with tanh between the pooling and the head; 0 for none"""
    qk_norm_bias: bool = option(False, rare=True)
    """add a bias to the normalisation of queries and keys, as in timm; requires qk_norm"""
    group_images: Count = option(1, only=MOE)
    """images routed together as one group"""
    group_tokens: layers.Size = option(0, only=MOE)
    """tokens routed together as one group, cut from the concatenated tokens of all images; 0: use group_images"""
    round_experts: bool = option(False, only=(MOE, Only("dtype", unless="bfloat16")))
    """round the experts' inputs and outputs to bfloat16 in a float32 model, as vmoe's bfloat16 dispatcher does;
    empty slots are computed too"""
    token_ids: IdKind = option("patch_code", only=(MOE, IDS))
    """source of the token ids for a router that takes ids (see moespec.models.hashing.token_ids)"""
    codes: Count = option(1024, only=(MOE, IDS))
    """number of codewords in the patch codebook, from which token ids are computed"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.stem < self.patch_size.bit_length() or self.patch_size % 2**self.stem:
            raise ConfigError(f"stem={self.stem!r}: 2^stem must divide patch_size={self.patch_size!r}")
        if self.stem and self.width % 2 ** (self.stem - 1):
            raise ConfigError(f"stem={self.stem!r}: 2^(stem - 1) must divide width={self.width!r}")
        hashed: list[Any] = [router_config(of_block(self, block)) for block in id_blocks(self)]
        if len({(options.experts, options.hashes, options.choices) for options in hashed}) > 1:
            raise ConfigError(
                "block: expected the same experts, hashes and choices in all hash layers, since they share their tables"
            )
        if self.stem_depth > 1 and not self.stem:
            raise ConfigError(f"stem_depth={self.stem_depth!r} has no effect without stem")
        if self.qk_norm_bias and not self.qk_norm:
            raise ConfigError("qk_norm_bias=True has no effect without qk_norm=True")
        if self.group_tokens and self.group_images != 1:
            raise ConfigError(
                f"group_images={self.group_images!r} with group_tokens={self.group_tokens!r}: set only one of them"
            )
        if self.positions.startswith("sincos2d") and (self.width % 4 or self.width < 8):
            raise ConfigError(f"width={self.width!r}: positions={self.positions!r} needs a multiple of 4, minimum 8")

    def _check_routing(self) -> RouterOptions:
        options = super()._check_routing()
        if self.round_experts and multi_hash.chosen(options):
            raise ConfigError("round_experts=True: expected False with MultiHash, because it mixes the experts")
        return options

    @property
    def group_size(self) -> int:
        """The number T of tokens in a routing group."""
        return self.group_tokens or self.group_images * self.sequence

    @property
    def id_count(self) -> int:
        """The number of distinct token ids."""
        return token_ids.count(self)

    @property
    def sequence(self) -> int:
        """The number S of tokens of one image, including the class token and the registers."""
        return (self.image_size // self.patch_size) ** 2 + self.prefix

    @property
    def prefix(self) -> int:
        """The number of tokens before the patches: the class token and the registers."""
        return (self.pool == "token") + self.registers


SIZES: dict[str, dict[str, Any]] = {
    "vit_tiny": {
        **{"image_size": 8, "patch_size": 2, "channels": 1, "classes": 10},
        **{"width": 64, "depth": 4, "hidden": 128, "heads": 4, "codes": 64},
        **{"positions": "sincos2d", "qk_norm": True},
    },
    "vit_ti": {"width": 192, "depth": 12, "hidden": 768, "heads": 3},
    "vit_s": {"width": 384, "depth": 12, "hidden": 1536, "heads": 6},
    "vit_b": {"width": 768, "depth": 12, "hidden": 3072, "heads": 12},
    "vit_l": {"width": 1024, "depth": 24, "hidden": 4096, "heads": 16},
    "vit_h": {"width": 1280, "depth": 32, "hidden": 5120, "heads": 16},
    "vit_vmoe_s": {"width": 512, "depth": 8, "hidden": 2048, "heads": 8},
}
"""The values of `VitConfig` fields for each model size. `vit_vmoe_s` is the size S of the V-MoE paper, which differs
from the usual ViT-S. `vit_tiny` is for images of 8 x 8 pixels, such as the handwritten digits, and for tests."""

NAMES: tuple[str, ...] = (
    *("vit_tiny", "vit_ti16", "vit_s8", "vit_s14", "vit_s16", "vit_s32", "vit_b16", "vit_b32"),
    *("vit_l16", "vit_l32", "vit_h14", "vit_vmoe_s32"),
)
"""The usual names. `named` accepts a key of `SIZES` followed by any patch size, as in `vit_s8`. Only `vit_tiny` has a fixed patch size."""


def moe_layers(config: VitConfig, images: int) -> list[MoeLayer]:
    """Returns the MoE layers, in block order, for `images` images. Raises ShapeError if a group would be incomplete."""
    if not moe_blocks(config):
        return []
    if config.group_tokens:
        groups = layers.split(images * config.sequence, config.group_tokens, "tokens", "group_tokens")
    else:
        groups = layers.split(images, config.group_images, "images", "group_images")
    return transformer.moe_layers(config, groups, "patches")


def stem_features(config: VitConfig) -> list[int]:
    """Returns the channel counts of the stem, in order: of the image, then of the output of each convolution."""
    halvings = reversed(range(config.stem))
    return [config.channels, *(config.width >> left for left in halvings for _ in range(config.stem_depth))]


def regrouped(config: VitConfig, images: int) -> VitConfig:
    """Returns the configuration with routing groups of `images` images. The router parameters do not change."""
    other = replace(config, group_images=images, group_tokens=0)
    if moe_blocks(config):
        object.__setattr__(other, "_options", router_config(config).of_tokens(images * config.sequence, images))
        own = {number: regrouped(of_block(config, int(number)), images) for number in config.block}
        object.__setattr__(other, "_own", own)
    return other


def _layout(config: VitConfig) -> Params:
    """Returns every parameter of the model, with its name, shape and initial values.

    `transformer.blocks_layout` defines the parameters of the blocks. The initial kernel of the patch embedding is LeCun normal (truncated
    at two standard deviations). Learned position embeddings are initially normal with standard deviation 0.02.
    """
    D = config.width
    layout: Params = {}
    features = stem_features(config)
    for i in range(len(features) - 1):
        convolution = parameters.embedding(3, features[i], features[i + 1])
        layout |= {"stem": layout.get("stem", {}) | {str(i): {**convolution, "norm": parameters.norm(features[i + 1])}}}
    layout["embedding"] = parameters.embedding(config.patch_size >> config.stem, features[-1], D)
    if config.pre_norm:
        del layout["embedding"]["bias"]
        layout["pre_norm"] = parameters.norm(D)
    if takes_ids(config):
        layout |= token_ids.layout(config)
    if config.pool == "token":
        layout["token"] = Parameter((1, 1, D), constant(0.0))
    if config.registers:
        layout["registers"] = Parameter((1, config.registers, D), normal(1e-6))
    if config.positions.startswith("learned"):
        places = config.sequence - (config.prefix if config.positions == "learned_patches" else 0)
        layout["positions"] = Parameter((1, places, D), normal(0.02))
    layout["blocks"] = transformer.blocks_layout(config, qkv_bias=config.qkv_bias, layer_scale=config.layer_scale)
    layout["norm"] = parameters.norm(D)
    if config.pool == "map":
        layout["pool"] = transformer.pool_layout(config)
    if config.representation:
        layout["representation"] = {
            "kernel": Parameter((D, config.representation), parameters.lecun_normal(D)),
            "bias": Parameter((config.representation,), constant(0.0)),
        }
    if config.classes:
        layout["head"] = parameters.head(config.representation or D, config.classes, config.head_bias)
    return layout


def _features(run: layers.Forward, params: Params, images: Array) -> Array:
    B, config = run.B, run.config
    norm = partial(layers.layer_norm, B, epsilon=config.norm_epsilon)
    x = run.drop.units(_embed(B, config, params, images), 0)  # (N, S, D)
    if config.pre_norm:
        x = norm(params["pre_norm"], x)
    ids = token_ids.of_images(B, config, params, images) if takes_ids(config) else None

    x = transformer.blocks(run, params, x, ids=ids)
    features = _pool(B, config, params, x, norm)
    if config.representation:
        p = params["representation"]
        features = B.tanh(features @ p["kernel"] + p["bias"])
    return features


def _embed(B: Backend, config: VitConfig, params: Params, images: Array) -> Array:
    """Converts images to tokens `(N, S, D)` with position embeddings. The class token comes first."""
    compute = layers.compute_dtype(B, config.dtype)
    embedding, pixels = compute(params["embedding"]), compute(images)
    for i in range(config.stem * config.stem_depth):
        p, stride = params["stem"][str(i)], 1 if i % config.stem_depth else 2
        pixels = B.convolution(pixels, compute(p["kernel"]), compute(p["bias"]), stride=stride)
        pixels = B.gelu(layers.layer_norm(B, p["norm"], pixels), form=config.gelu)
    x = B.patch_embed(pixels, embedding["kernel"], embedding.get("bias"))
    if config.positions.startswith("sincos2d"):
        x = x + compute(_sincos_positions(B, config, x))
    if config.positions == "learned_patches":
        x = x + compute(params["positions"])
    prefix = [compute(params[name]) for name in ("token", "registers") if name in params]
    if prefix:
        x = B.concatenate([*(B.broadcast_to(p, (x.shape[0], *p.shape[1:])) for p in prefix), x], 1)
    return x + compute(params["positions"]) if config.positions == "learned" else x


def _sincos_positions(B: Backend, config: VitConfig, x: Array) -> Array:
    """Returns fixed position embeddings `(1, patches, D)`: sines and cosines of the column and the row, at P = D/4 frequencies.

    The embedding of a patch is `[sin u w_i, cos u w_i, sin v w_i, cos v w_i]`, i = 0..P-1. As in vmoe and big_vision, "sincos2d" uses
    `w_i = 10000^(-i/(P-1))` and (u, v) = (column, row). As in MoCo v3, "sincos2d_moco" uses `w_i = 10000^(-i/P)` and
    (u, v) = (row, column). The class token and the registers have no position embedding.
    """
    grid, P = config.image_size // config.patch_size, config.width // 4
    moco = config.positions == "sincos2d_moco"
    frequencies = 10000.0 ** (-B.arange(P, x) / (P if moco else P - 1))
    angles = B.arange(grid, x)[:, None] * frequencies  # (grid, P)
    waves = B.concatenate([B.sin(angles), B.cos(angles)], 1)  # (grid, 2P)
    by_row = B.broadcast_to(waves[:, None], (grid, grid, 2 * P))
    by_column = B.broadcast_to(waves[None], (grid, grid, 2 * P))
    halves = [by_row, by_column] if moco else [by_column, by_row]
    return B.concatenate(halves, 2).reshape((1, grid * grid, config.width))


def _pool(B: Backend, config: VitConfig, params: Params, x: Array, norm: Norm) -> Array:
    """Normalises and pools the output `x` of the last block. Returns the features of each image, `(N, D)`."""
    if config.pool == "gap_norm":
        return norm(params["norm"], B.mean(x[:, config.prefix :], 1))
    x = norm(params["norm"], x)
    if config.pool == "token":
        return x[:, 0]
    if config.registers:
        x = x[:, config.registers :]
    if config.pool == "gap":
        return B.mean(x, 1)
    return transformer.pooled(B, config, params["pool"], x)


FAMILY = layers.Family(VitConfig, SIZES, _layout, moe_layers, _features)
named, init, forward, moe_noise = FAMILY.named, FAMILY.init, FAMILY.forward, FAMILY.moe_noise
parameter_shapes, parameter_count = FAMILY.parameter_shapes, FAMILY.parameter_count
