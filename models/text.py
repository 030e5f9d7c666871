"""A text transformer with mixture-of-experts layers (the text tower beside an image model), written once for every backend.

    x    = table[ids] + positions
    x    = x + attention(norm(x));   x = x + mlp_or_moe(norm(x))          for each block (`transformer`)
    z    = pool(norm(x)) @ kernel + bias

The text tower has no head; a contrastive loss normalises z. An MoE block routes groups of `group_texts` texts: `(N, S, D)` is reshaped to
`(G, T, D)` with T = group_texts * S. Routers that use token ids receive the ids of the text. Every text has S tokens: short texts are
padded with end tokens. The model does not mask the padding: it attends to, pools and routes the padding tokens.

| | attention | pooling | after the end token |
|---|---|---|---|
| big_vision | bidirectional | last, first, gap, max or map | end tokens |
| vmoe, with MoE blocks | bidirectional | last, first, gap, max or map | end tokens |
| CLIP | causal | the first end token | zeros, which earlier tokens do not see |

With `causal` and pool="last", the pooled token attends to every token of the text, as in CLIP, but also to the padding. The initial
values follow vmoe; big_vision draws positions with a standard deviation of 1 / sqrt(D).

Sources: google-research/big_vision, `models/proj/image_text/text_transformer.py`, `pp/ops_text.py` (eos="sticky"); google-research/vmoe,
`projects/contrastive/models.py`, `projects/soft_moe/configs/pretrain_laion.py`; openai/CLIP, `clip/model.py` (encode_text,
build_attention_mask), `clip/clip.py` (tokenize).
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

from moespec.models import layers, parameters, transformer
from moespec.models.layers import MoeLayer
from moespec.models.options import MOE, option
from moespec.models.parameters import Parameter, constant, lecun_normal, normal
from moespec.models.transformer import DECIDED, moe_blocks, takes_ids
from moespec.spec.ranges import Count
from moespec.spec.routing import Params

__all__ = [
    "DECIDED",
    "NAMES",
    "SIZES",
    "TextConfig",
    "forward",
    "init",
    "moe_layers",
    "moe_noise",
    "named",
    "parameter_count",
    "parameter_shapes",
]

Array = Any


@dataclass(frozen=True, kw_only=True)
class TextConfig(transformer.TransformerConfig):
    """The configuration of one text tower. Raises ConfigError for an invalid value."""

    inputs = "ids"
    classes: ClassVar[int] = 0
    vocabulary: Count = 257
    """number of token ids; 257 for bytes and the end token (moespec.training.data.tokens)"""
    length: Count = 64
    """number S of tokens in a text"""
    causal: bool = False
    """let tokens attend only to themselves and earlier tokens"""
    pool: Literal["last", "gap", "map"] = "last"
    """pooling of the normalised tokens; last: the last token, an end token unless the text fills the length; gap: the mean;
    map: attention pooling with a learned probe"""
    projection: layers.Size = 0
    """width of a linear projection after the pooling, into the joint space of images and texts; 0 for none"""
    group_texts: Count = option(1, only=MOE)
    """texts routed together as one group"""

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (self.length,)

    @property
    def sequence(self) -> int:
        return self.length

    @property
    def group_size(self) -> int:
        return self.group_texts * self.length

    @property
    def id_count(self) -> int:
        return self.vocabulary


SIZES: dict[str, dict[str, Any]] = {
    "text_tiny": {"width": 64, "depth": 4, "hidden": 128, "heads": 4, "length": 32},
    "text_ti": {"width": 192, "depth": 12, "hidden": 768, "heads": 3},
    "text_s": {"width": 384, "depth": 12, "hidden": 1536, "heads": 6},
    "text_b": {"width": 768, "depth": 12, "hidden": 3072, "heads": 12},
    "text_l": {"width": 1024, "depth": 24, "hidden": 4096, "heads": 16},
}
"""The fields of `TextConfig` for each size: the widths and depths of the image towers (google-research/big_vision,
`models/vit.py`, decode_variant); `text_tiny` is for tests."""

NAMES: tuple[str, ...] = tuple(SIZES)


def moe_layers(config: TextConfig, texts: int) -> list[MoeLayer]:
    """Returns the MoE layers, in block order, for `texts` texts. Raises ShapeError if the texts do not fill the groups."""
    if not moe_blocks(config):
        return []
    groups = layers.split(texts, config.group_texts, "texts", "group_texts", inputs="ids")
    return transformer.moe_layers(config, groups, "tokens")


def _layout(config: TextConfig) -> Params:
    """Returns every parameter of the model, with its name, shape and initial values; see `transformer.blocks_layout` for the blocks.

    The initial table is normal(1 / sqrt(D)), the initial positions are normal(0.02), and the initial projection is LeCun normal.
    """
    D = config.width
    layout: Params = {
        "embedding": {"table": Parameter((config.vocabulary, D), normal(1 / math.sqrt(D)))},
        "positions": Parameter((1, config.length, D), normal(0.02)),
        "blocks": transformer.blocks_layout(config),
        "norm": parameters.norm(D),
    }
    if config.pool == "map":
        layout["pool"] = transformer.pool_layout(config)
    if config.projection:
        layout["projection"] = {
            "kernel": Parameter((D, config.projection), lecun_normal(D)),
            "bias": Parameter((config.projection,), constant(0.0)),
        }
    return layout


def _features(run: layers.Forward, params: Params, ids: Array) -> Array:
    """Returns the text features `(N, projection)`, or `(N, D)` without a projection, in float32, without normalisation."""
    B, config = run.B, run.config
    norm = partial(layers.layer_norm, B, epsilon=config.norm_epsilon)
    x = B.embedding(ids, params["embedding"]["table"]) + params["positions"]  # (N, S, D)
    x = run.drop.units(run.compute(x), 0)
    routed_ids = ids if takes_ids(config) else None
    x = transformer.blocks(run, params, x, ids=routed_ids, causal=config.causal)
    x = norm(params["norm"], x)
    if config.pool == "map":
        features = transformer.pooled(B, config, params["pool"], x)
    else:
        features = x[:, -1] if config.pool == "last" else B.mean(x, 1)
    if config.projection:
        features = features @ params["projection"]["kernel"] + params["projection"]["bias"]
    return features


FAMILY = layers.Family(TextConfig, SIZES, _layout, moe_layers, _features)
named, init, forward, moe_noise = FAMILY.named, FAMILY.init, FAMILY.forward, FAMILY.moe_noise
parameter_shapes, parameter_count = FAMILY.parameter_shapes, FAMILY.parameter_count
