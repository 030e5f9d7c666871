"""Computes the cost of a model from its configuration: the floating-point operations of a forward pass per image, and of training.

A multiply-add in a matrix product counts as 2 operations, any other arithmetic on an element as 1, and exponentials, tanh, erf, roots,
moves and sorts as 0. This is the convention of XLA's cost analysis, and apparently of Puigcerver et al. 2024 (arXiv 2308.00951, Table 1):
with normalised queries and keys, our counts match their numbers to the last printed digit. By default, MoE layers are counted for
evaluation, with every slot, filled or empty. If every expert has room for every token, or if there are more than twice as many slots as
choices, only the chosen slots are counted (for DSelect-k, the slots that sharp selectors choose). Counts of routers include logits,
combination and Sinkhorn iterations, but not the assignment of `base`, `s_base` and `sparsity_constrained_expert_choice`.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from moespec.backends.contract import filled_alone
from moespec.models import mixer, sparse_mlp, text, transformer, vit
from moespec.models.families import Tower, family, fewest_images
from moespec.models.hashing import multi_hash
from moespec.models.layers import Experts, MoeLayer

__all__ = ["flops", "rows", "slots", "training_flops"]

Filled = Callable[[MoeLayer], int]
"""A function that returns the number of rows that a layer's experts compute for one group."""

PLAIN = Experts(0)
GELU = {"tanh": 8, "erf": 4}
ACTIVE = {"swiglu": 4, "relu2": 2, "clamped_swiglu": 7, "swiglu_oai": 9, "situglu": 8}
"""Operations per hidden unit of an activation and, if gated, of the bounds of the second factor."""
NORM, RMS_NORM, SOFTMAX = 7, 4, 4
"""Operations per element of a layer normalisation with scale and bias, of an RMSNorm with scale, and of a softmax."""


def flops(
    config: Tower, images: int | None = None, *, train: bool = False, every_slot: bool = False
) -> dict[str, float]:
    """Returns the operations for one image or text, by component of the model: "embedding", "attention", "mlps", "experts", "routers", ...

    images: the batch size, for models that route a whole batch as one group; default: the smallest batch that fills a group. train: whether
    to count the forward pass of training, in which experts may have a different capacity. every_slot: whether to count empty slots, which
    are computed if the experts are sharded over devices.

    Raises ShapeError if the images do not fill the groups.
    """
    batch = images or fewest_images(config)
    filled = partial(rows, train=train, every_slot=every_slot)
    S, D = config.sequence, config.width
    parts = {
        "embedding": _embedding(config),
        **_blocks(config, family(config).moe_layers(config, batch), batch, filled),
        "final norm and pooling": (NORM + 1) * S * D,
        **_head(config),
    }
    return {name: float(value) for name, value in parts.items() if value}


def training_flops(
    config: Tower, images: int, *, batch: int | None = None, passes: int = 3, every_slot: bool = False
) -> float:
    """Returns the operations of training on `images` images in batches of `batch` images. An image is counted each time it is used.

        passes * operations per image of a forward pass in training * images

    `passes` is 3, or 4 with activation checkpointing; `moespec.training.objectives.table` computes the passes for each objective.

    A backward pass has two matrix products for each matrix product of the forward pass. The optimiser and augmentation are not counted. The
    eight exaFLOP values of Puigcerver et al. 2024 (arXiv 2308.00951, Table 1) are half of ours, within 0.4 %: they count a multiply-add
    as 1 operation, although the GFLOP per image in the same table count a multiply-add as 2.
    """
    forward = sum(flops(config, batch, train=True, every_slot=every_slot).values())
    return passes * images * forward


def _embedding(config: Tower) -> float:
    """Counts the stem (convolutions, norms and GELUs) and the patch embedding. The look-up of word embeddings counts as 0."""
    if isinstance(config, text.TextConfig):
        return 0.0
    total, stem, features = 0.0, 0, [config.channels]
    if isinstance(config, vit.VitConfig):
        stem, features = config.stem, vit.stem_features(config)
        for i in range(len(features) - 1):
            pixels = (config.image_size >> (i // config.stem_depth + 1)) ** 2
            total += pixels * features[i + 1] * (2 * 9 * features[i] + 1 + NORM + GELU[config.gelu])
    patches, patch = (config.image_size // config.patch_size) ** 2, config.patch_size >> stem
    return total + patches * config.width * (2 * patch**2 * features[-1] + 1)


def _head(config: Tower) -> dict[str, float]:
    if isinstance(config, text.TextConfig):
        return {"projection": float(config.projection * (2 * config.width + 1))}
    representation = config.representation if isinstance(config, vit.VitConfig) else 0
    head = config.classes * (2 * (representation or config.width) + 1)
    return {"head": float(head), "representation": float(representation * (2 * config.width + 2))}


BY_EXPERT = ("relu", "soft_moe", "variable_budget")
"""Routers of tokens whose layer computes every slot, because a token has no fixed number of choices."""


def slots(layer: MoeLayer, *, train: bool = False) -> int:
    """Returns the number of slots of all MLP experts for one routing group. An expert without a capacity has a slot for each token."""
    return (layer.settings.experts - layer.experts.without_mlp) * layer.settings.capacity(train=train)


def rows(layer: MoeLayer, *, train: bool = False, every_slot: bool = False) -> int:
    """Returns the number of rows that the MLP experts of a layer compute for one routing group. If the layer computes only the chosen
    slots, this is the number for tokens that choose no expert without an MLP, the largest possible number.
    """
    settings: Any = layer.settings
    there = slots(layer, train=train)
    if every_slot or settings.experts_choose or layer.router in BY_EXPERT:
        return there
    choices = settings.requests[1]
    mlps = settings.experts - layer.experts.without_mlp
    alone = filled_alone(settings.tokens, choices, mlps, there // mlps)
    return min(settings.tokens * choices, there) if alone else there


def _blocks(config: Tower, layers: list[MoeLayer], images: int, filled: Filled) -> dict[str, float]:
    """Counts the operations of all blocks. The entry "norms" contains two norms and two residual additions per block."""
    by_block: dict[int, list[MoeLayer]] = {}
    for layer in layers:
        by_block.setdefault(int(layer.name.partition("_")[0]), []).append(layer)
    total: dict[str, float] = {}
    for number in range(config.depth):
        if isinstance(config, transformer.TransformerConfig):
            block = _transformer_block(config, by_block.get(number, []), images, filled)
        elif isinstance(config, sparse_mlp.SparseMlpConfig) and number in by_block:
            block = _sparse_block(config, by_block[number], images, filled)
        else:
            block = _mixer_block(config)
        for name, value in block.items():
            total[name] = total.get(name, 0) + value
    if isinstance(config, transformer.TransformerConfig):
        total["positions"] = config.sequence * config.width * (getattr(config, "positions", "") != "none")
        total["norms"] += getattr(config, "pre_norm", False) * (NORM + 1) * config.sequence * config.width
        if getattr(config, "pool", "") == "map":
            total["attention"] += _attention(config, queries=1, bias=True)
            total["mlps"] = total.get("mlps", 0) + _mlp(1, config.width, config.hidden, config.gelu)
    return total


def _transformer_block(
    config: transformer.TransformerConfig, layers: list[MoeLayer], images: int, filled: Filled
) -> dict[str, float]:
    S, D = config.sequence, config.width
    norms = 2 * (NORM + 1 + bool(getattr(config, "layer_scale", 0.0))) * S * D
    attention = _attention(config, queries=S, bias=getattr(config, "qkv_bias", True))
    block: dict[str, float] = {"attention": attention, "norms": norms}
    if not layers:
        return {**block, "mlps": _mlp(S, D, config.hidden, config.gelu)}
    return {**block, **_moe(layers[0], config.gelu, images, filled)}


def _attention(config: transformer.TransformerConfig, *, queries: int, bias: bool) -> float:
    S, D = config.sequence, config.width
    projections = 2 * (queries + S) * D * (2 * D) + (queries + (queries + 2 * S) * bias) * D  # and their biases
    normalised = (queries + S) * D * (NORM - 1 + getattr(config, "qk_norm_bias", False)) if config.qk_norm else 0
    return projections + normalised + queries * S * (4 * D + (SOFTMAX + 1) * config.heads)


def _mixer_block(config: mixer.MixerConfig | sparse_mlp.SparseMlpConfig) -> dict[str, float]:
    S, D = config.sequence, config.width
    mlps = _mlp(D, S, config.token_hidden, config.gelu) + _mlp(S, D, config.hidden, config.gelu)
    return {"mlps": mlps, "norms": 2 * (NORM + 1) * S * D}


def _sparse_block(
    config: sparse_mlp.SparseMlpConfig, layers: list[MoeLayer], images: int, filled: Filled
) -> dict[str, float]:
    own = sparse_mlp.of_block(config, int(layers[0].name.partition("_")[0]))
    outer, inner = (config.sequence, config.width), (config.sparse_tokens, config.sparse_width)
    S, D = inner
    block: dict[str, float] = {
        "norms": 2 * (NORM + 1) * S * D,
        "rescaling": _rescale(outer, inner) + _rescale(inner, outer),
    }
    for layer in layers:
        for name, value in _moe(layer, config.gelu, images, filled).items():
            block[name] = block.get(name, 0) + value
    return block if len(layers) == 2 else {**block, "mlps": _mlp(S, D, own.sparse_hidden, config.gelu)}


def _rescale(before: tuple[int, int], after: tuple[int, int]) -> float:
    """Counts the operations that rescale the tokens and then the channels. A map between equal sizes is skipped."""
    (S, D), (tokens, width) = before, after
    first = tokens * D * (2 * S + 1) if tokens != S else 0
    return first + (tokens * width * (2 * D + 1) if width != D else 0)


def _mlp(rows: int, width: int, hidden: int, gelu: str, form: Experts = PLAIN) -> float:
    inputs, active = 1 + form.gated, ACTIVE.get(form.activation, GELU[gelu])
    kernels = 2 * (inputs + 1) * width * hidden + form.bias * (inputs * hidden + width)
    return rows * (kernels + (active + form.gated) * hidden)


def _moe(layer: MoeLayer, gelu: str, images: int, filled_of: Filled) -> dict[str, float]:
    settings, groups, of = layer.settings, layer.groups / images, layer.experts
    T, D, E, filled = settings.tokens, settings.width, settings.experts, filled_of(layer)
    if multi_hash.chosen(settings):
        return {"experts": groups * _mlp(T, D, of.hidden, gelu)}
    inner = of.latent or D
    experts = _mlp(filled, inner, of.hidden, gelu, of) + (_mlp(T, D, of.shared, gelu, of) + T * D if of.shared else 0)
    experts += T * (4 * D * of.latent + RMS_NORM * of.latent_norm * of.latent + 3 * D * of.shared_gate)
    experts += 2 * T * D * bool(of.copies) + of.constants * settings.capacity() * (4 + 5) * D
    experts += (2 * settings.requests[1] + 1) * T * D * bool(of.constants)  # combine, and add to the output of the MLPs
    if layer.router == "soft_moe":  # logits, two softmaxes (over tokens, over slots), dispatch, combine
        router = float(T * filled * (6 * D + 2 * SOFTMAX))
    else:
        routed = settings.images if layer.router == "image_choice" else T  # type: ignore[attr-defined]
        router = routed * (E * SOFTMAX + 2 * D * _columns(layer)) + 2 * filled * inner
        if layer.router == "cosine_token_choice":
            router += 2 * T * settings.dimensions * E  # type: ignore[attr-defined]
        router += 8 * T * E * getattr(settings, "sinkhorn_iterations", 0) * layer.router.startswith("sinkhorn")
    return {"experts": groups * experts, "routers": groups * router}


def _columns(layer: MoeLayer) -> int:
    """Returns the number of columns of the kernel that computes the scores of a token for all experts."""
    settings: Any = layer.settings
    if layer.router == "hash" and settings.affinity == "none":
        return 0
    if layer.router == "cosine_token_choice":
        return int(settings.dimensions)
    if layer.router == "dselect_k":
        return int(settings.choices * (settings.experts + math.ceil(math.log2(settings.experts))))
    if getattr(settings, "predictor", False):  # two more matrices
        return int(2 * settings.experts + settings.width)
    return int(getattr(settings, "columns", settings.experts))
