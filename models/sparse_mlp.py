"""Sparse-MLP, an MLP-Mixer whose last blocks mix tokens and channels with mixtures of experts, written once for every backend.

    x    = patches(images) @ kernel + bias
    x    = mixer_block(x)                                                         for each dense block
    x    = rescale1(x)                                                            for each sparse block: (S, C) to (S', C')
    x    = x + t(moe_tokens(t(norm(x))));   x = x + moe_channels(norm(x))         t swaps the last axes
    x    = rescale2(x)                                                            back to (S, C)
    out  = head(mean over patches of norm(x))

The token-mixing MoE routes N C' channels of width S'. The channel-mixing MoE routes N S' tokens of width C'. Letters of
the shape comments: N images, S patches of one image, C channels of a patch, S' tokens and C' channels in a sparse
block.

Source: Lou et al. 2021 (arXiv 2109.02008). Where the paper is silent, this module follows the readings in the ambiguity ledger of
`moespec.spec.algorithms.sparse_mlp`. Initial values are as in the MLP-Mixer.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from moespec.models import layers, mixer, parameters
from moespec.models.experts import KINDS, ExpertsConfig, moe_layout, of_block
from moespec.models.layers import MoeLayer, Output
from moespec.models.options import MOE, option
from moespec.models.parameters import Parameter, constant, lecun_normal
from moespec.models.router_options import Decided, options_of, settings
from moespec.spec.errors import ConfigError
from moespec.spec.options import RouterOptions
from moespec.spec.ranges import Count
from moespec.spec.routing import Params, RouterOutput

__all__ = [
    "NAMES",
    "SIZES",
    "Output",
    "SparseMlpConfig",
    "forward",
    "init",
    "moe_blocks",
    "moe_layers",
    "moe_noise",
    "named",
    "of_block",
    "parameter_count",
    "parameter_shapes",
]

Array = Any


Mode = Literal["importance_score", "softmax_token_choice"]
"""The routers of the paper's two routing modes, efficient and vanilla."""
ROUTERS = get_args(Mode)


@dataclass(frozen=True, kw_only=True)
class SparseMlpConfig(ExpertsConfig, layers.CommonConfig):
    """The configuration of one Sparse-MLP. Raises ConfigError for an invalid value.

    Sparse blocks do not use `token_hidden` and `hidden`, which are hidden widths in dense blocks. An image is still routed if
    stochastic depth skips its branch (SL-8). Rescale sub-layers have no residual connection, and stochastic depth never skips them.
    The form of the experts is the same in both MoEs. Shared experts have the hidden width of the MoE's experts.
    """

    overridable = (
        *("router", "channel_router", "router_options", "token_experts", "token_choices", "sparse_token_hidden"),
        *("experts", "choices", "sparse_hidden", *KINDS),
    )
    token_hidden: Count
    """hidden width of the MLP over patches"""
    moe: str = "last_2"
    """sparse blocks: none, every_2 (1, 3, 5, ...), last_half, first_N, last_N (the first or last N blocks), every_2_last_N
    (the last N of 1, 3, 5, ...), or zero-based block numbers, such as 5,11"""
    sparse_tokens: Count
    """tokens S' of a sparse block; if equal to the number of patches, tokens are not rescaled (Table 6)"""
    sparse_width: Count
    """channels C' of a sparse block; if equal to the width, channels are not rescaled"""
    router: Mode = option("importance_score", only=MOE)
    """router of the token-mixing MoE: efficient (importance_score) or vanilla"""
    channel_router: Mode = "softmax_token_choice"
    """router of the channel-mixing MoE"""
    token_experts: Count
    """number N_S of experts in the token-mixing MoE"""
    token_choices: Count = 1
    """number K_S of experts that a channel chooses"""
    sparse_token_hidden: Count
    """hidden width of an expert that mixes tokens"""
    experts: layers.Size = option(0, only=MOE)
    """number N_C of experts in the channel-mixing MoE; 0 for a dense MLP"""
    choices: Count = 2
    """number K_C of experts that a token chooses"""
    sparse_hidden: Count
    """hidden width of an expert that mixes channels, or of the dense MLP"""
    router_options: Mapping[str, bool | int | float | str | None] = option(factory=dict, only=MOE, hash=False)
    """router options that differ from the defaults; they also apply to the channel-mixing router if it has them; the
    capacity factor is 1.05"""
    group_size: layers.Size = 0
    """channels that the token-mixing MoE routes together; 0 for all channels of the batch"""
    group_images: layers.Size = option(0, only=MOE)
    """images whose tokens the channel-mixing MoE routes together; 0 for all images of the batch"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.token_choices > self.token_experts:
            raise ConfigError(f"token_choices={self.token_choices!r} exceeds token_experts={self.token_experts!r}")
        if self.experts and self.choices > self.experts:
            raise ConfigError(f"choices={self.choices!r} exceeds experts={self.experts!r}")
        if moe_blocks(self):
            for name in ("token_experts", *(["experts"] if self.experts else [])):
                self.check_form(name)
        # Create the router options here to check them for the smallest groups, since a compiled model skips these checks.
        object.__setattr__(self, "_options", _settings(self))
        self.set_blocks()

    @property
    def fewest_images(self) -> int:
        """The smallest batch size that fills all groups whose size is fixed."""
        filled = math.lcm(self.group_size or 1, self.sparse_width) // self.sparse_width if self.group_size else 1
        return math.lcm(filled, self.group_images or 1)

    @property
    def whole_batch(self) -> bool:
        """True if an MoE layer routes all images of a batch together, so that the output of an image depends on the other images."""
        channels = any(of_block(self, block).experts for block in moe_blocks(self))
        return bool(moe_blocks(self)) and (not self.group_size or (channels and not self.group_images))


DECIDED = Decided(("width", "experts", "tokens", "choices"), (("capacity_factor", 1.05),))
"""The router options that the model determines, and the default that the paper sets."""

_LARGE: dict[str, Any] = {
    **{"patch_size": 16, "width": 768, "token_hidden": 384, "hidden": 3072, "sparse_tokens": 392, "sparse_width": 384},
    **{"sparse_token_hidden": 768, "experts": 4, "choices": 2, "sparse_hidden": 1536},
}
SIZES: dict[str, dict[str, Any]] = {
    "sparse_mlp_tiny": {
        **{"image_size": 8, "patch_size": 2, "channels": 1, "classes": 10},
        **{"width": 64, "depth": 4, "token_hidden": 32, "hidden": 128, "moe": "last_2"},
        **{"sparse_tokens": 32, "sparse_width": 32, "token_experts": 4, "sparse_token_hidden": 64},
        **{"experts": 4, "sparse_hidden": 64},
    },
    "sparse_mlp_s": {
        **{"patch_size": 16, "width": 512, "depth": 8, "token_hidden": 256, "hidden": 2048, "moe": "last_2"},
        **{"sparse_tokens": 392, "sparse_width": 512, "token_experts": 4, "sparse_token_hidden": 512},
        **{"experts": 0, "sparse_hidden": 2048},
    },
    "sparse_mlp_b": {**_LARGE, "depth": 12, "moe": "last_2", "token_experts": 8},
    "sparse_mlp_l": {**_LARGE, "depth": 14, "moe": "last_6", "token_experts": 16},
}
"""The fields of `SparseMlpConfig` for each size. `sparse_mlp_tiny` is for images of 8 x 8 pixels and for tests."""

NAMES = tuple(SIZES)
"""The names that `named` accepts."""


def moe_blocks(config: SparseMlpConfig) -> tuple[int, ...]:
    """Returns the indices (from 0) of the sparse blocks, in order. Raises ConfigError if `config.moe` is invalid for the depth."""
    return layers.placed(config.moe, config.depth)


def moe_layers(config: SparseMlpConfig, images: int) -> list[MoeLayer]:
    """Returns the MoE layers in order, one or two per sparse block, for `images` images.

    Raises ShapeError if the images do not fill the groups.
    """
    found, channels, together = [], images * config.sparse_width, config.group_images or images
    for block in moe_blocks(config):
        own, group, path = of_block(config, block), config.group_size or channels, f"blocks/{block}"
        groups = layers.split(channels, group, "x sparse_width channels of the images", "group_size")
        form, options = own.form_of(own.sparse_token_hidden), _settings_of(own, "tokens", group)
        of: Any = (own.router, options, groups, "channels", form, f"{path}/token_moe")
        found.append(MoeLayer(f"{block}_tokens", *of))
        if own.experts:
            groups = layers.split(images, together, "images", "group_images")
            options = _settings_of(own, "channels", together * config.sparse_tokens)
            of = (own.channel_router, options, groups, "tokens", own.form_of(own.sparse_hidden), f"{path}/channel_moe")
            found.append(MoeLayer(f"{block}_channels", *of))
    return found


def _settings(config: SparseMlpConfig) -> dict[str, RouterOptions]:
    """Returns the router options of the token-mixing and the channel-mixing MoE for the smallest possible groups."""
    options = {**dict(DECIDED.defaults), **config.router_options}
    has = options_of(config.channel_router)
    of_layers = {
        "tokens": settings(
            config.router,
            options,
            width=config.sparse_tokens,
            experts=config.token_experts,
            tokens=config.group_size or config.sparse_width,
            choices=config.token_choices,
        )
    }
    if config.experts:
        of_layers["channels"] = settings(
            config.channel_router,
            {name: value for name, value in options.items() if name in has},
            width=config.sparse_width,
            experts=config.experts,
            tokens=config.sparse_tokens,
            choices=config.choices,
        )
    return of_layers


def _settings_of(config: SparseMlpConfig, mixing: str, items: int) -> RouterOptions:
    """Returns the router options of the MoE that mixes "tokens" or "channels", for groups of `items` items."""
    of_layers: dict[str, RouterOptions] = config._options  # type: ignore[attr-defined]
    return of_layers[mixing].of_tokens(items)


def _layout(config: SparseMlpConfig) -> Params:
    sparse = moe_blocks(config)
    return mixer.layout(
        config, lambda of, n: _sparse_layout(of_block(of, n)) if n in sparse else mixer.block_layout(of)
    )


def _sparse_layout(config: SparseMlpConfig) -> Params:
    outer, inner = (config.sequence, config.width), (config.sparse_tokens, config.sparse_width)
    draws: Any = (lambda inputs, outputs: lecun_normal(inputs), constant(0.0))
    layout: Params = {
        **_rescale_layout("rescale1", outer, inner),
        "norm1": parameters.norm(config.sparse_width),
        "token_moe": moe_layout(
            config,
            config.router,
            _settings_of(config, "tokens", config.sparse_width),
            config.form_of(config.sparse_token_hidden),
            *draws,
        ),
        "norm2": parameters.norm(config.sparse_width),
    }
    if config.experts:
        settings = _settings_of(config, "channels", config.sparse_tokens)
        form = config.form_of(config.sparse_hidden)
        layout["channel_moe"] = moe_layout(config, config.channel_router, settings, form, *draws)
    else:
        layout["channel_mlp"] = mixer.dense_mlp(config.sparse_width, config.sparse_hidden)
    return {**layout, **_rescale_layout("rescale2", inner, outer)}


def _rescale_layout(name: str, before: tuple[int, int], after: tuple[int, int]) -> Params:
    """Returns the layout of the maps that change the numbers of tokens and channels. Omits a map between equal numbers."""
    layout = {}
    for axis, inputs, outputs in zip(("token", "channel"), before, after, strict=True):
        if inputs != outputs:
            layout[f"{axis}_kernel"] = Parameter((inputs, outputs), lecun_normal(inputs))
            layout[f"{axis}_bias"] = Parameter((outputs,), constant(0.0))
    return {name: layout} if layout else {}


def _features(run: layers.Forward, params: Params, images: Array) -> Array:
    B, config, drop, compute = run.B, run.config, run.drop, run.compute

    def block(number: int, p: Params, x: Array) -> tuple[Array, list[RouterOutput]]:
        if number not in moe_blocks(config):
            return mixer.block(run, p, x, number), []
        x = B.rescale(x, compute(p["rescale1"])) if "rescale1" in p else x  # (N, S', C')
        y = B.transpose(layers.layer_norm(B, p["norm1"], x), (0, 2, 1))  # (N, C', S')
        y, output = run.moe(f"{number}_tokens", p["token_moe"], y)
        x, outputs = x + drop.branch(B.transpose(y, (0, 2, 1)), 2 * number), [output]
        y = layers.layer_norm(B, p["norm2"], x)
        if f"{number}_channels" in run.moe_layers:
            y, output = run.moe(f"{number}_channels", p["channel_moe"], y)
            outputs.append(output)
        else:
            y = layers.mlp(B, compute(p["channel_mlp"]), y, gelu=config.gelu)
        x = x + drop.branch(y, 2 * number + 1)
        return B.rescale(x, compute(p["rescale2"])) if "rescale2" in p else x, outputs  # (N, S, C)

    return mixer.features(run, params, images, block)


FAMILY = layers.Family(SparseMlpConfig, SIZES, _layout, moe_layers, _features)
named, init, forward, moe_noise = FAMILY.named, FAMILY.init, FAMILY.forward, FAMILY.moe_noise
parameter_shapes, parameter_count = FAMILY.parameter_shapes, FAMILY.parameter_count
