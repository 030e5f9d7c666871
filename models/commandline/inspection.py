"""Which expert handles which patch: the routing of one image by each MoE layer, as numbers and as a picture.

The image is routed alone, as a group of one image, also by a model that was trained with several images to a group: the
capacity of the experts is scaled down accordingly, and the slots of Soft MoE mix the patches of this image only. A model
whose groups are parts of an image keeps them, and an expert shows the slots of all groups.

Sparse-MLP routes channels, and tokens that mix the patches of the whole image. These have no place in the image: they are
drawn row by row, in the order of their numbers, in the squarest grid that they fill.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from numpy.typing import NDArray

from moespec.backends.contract import Backend
from moespec.models import sparse_mlp, vit
from moespec.models.families import Config, family
from moespec.models.training.compilation import compile_if, pays

__all__ = ["BlockRouting", "draw", "main_experts", "make_route"]

PANELS = 8
"""Largest number of experts (or slots) that get a panel of their own in a row."""
UNASSIGNED = (0.15, 0.15, 0.15)


class BlockRouting(NamedTuple):
    """How one MoE layer handles the patches of an image, on the grid of patches `(rows, columns)`.

    block: the name of the layer, the number of its block if that has one. items: what the grid holds, "patches", or
    "channels" or "tokens" in the order of their numbers. experts: `(rows, columns, E)`, the weight with which each
    expert's output enters each item (sum of the combine weights over its slots). slots: `(rows, columns, E, C)`, the
    dispatch weights: what fraction of slot c of expert e is that item. soft: whether slots are mixtures; if not, a slot
    holds one item, or none.
    """

    block: str
    experts: NDArray[np.float64]
    slots: NDArray[np.float64]
    soft: bool
    items: str = "patches"


def make_route(
    B: Backend, model: Config
) -> Callable[[Any, NDArray[np.float32]], tuple[NDArray[np.float64], list[BlockRouting]]]:
    """`route(params, image)`: logits `(classes,)` and the routing by each MoE layer of an image in [-1, 1].

    `params` are arrays of `B`, `image` is `(H, W, Ch)`. A class token is left out of the grids.
    """
    alone = _alone(model)
    module, patches = family(model), model.image_size // model.patch_size

    def forward(params: Any, images: Any) -> tuple[Any, list[Any]]:
        output = module.forward(B, alone, params, images)
        return output.logits, [tuple(routing.dense()) for routing in output.routings]

    run = compile_if(B, pays(B, calls=1), forward)

    def route(params: Any, image: NDArray[np.float32]) -> tuple[NDArray[np.float64], list[BlockRouting]]:
        logits, dense = B.to_numpy(run(params, B.from_numpy(image[None])))
        routings = []
        for layer, parts in zip(module.moe_layers(alone, 1), dense, strict=True):
            grid = (patches, patches) if layer.items == "patches" else squarest(layer.settings.tokens)
            dispatch, combine = (_joined(np.asarray(part, np.float64))[-math.prod(grid) :] for part in parts)
            soft = not np.isin(dispatch, (0.0, 1.0)).all()
            dispatch, combine = (part.reshape(*grid, *part.shape[1:]) for part in (dispatch, combine))
            routings.append(BlockRouting(layer.name, combine.sum(axis=3), dispatch, soft, layer.items))
        return np.asarray(logits, np.float64)[0], routings

    return route


def _joined(parts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Weights of groups `(G, T, E, C)` as those of one, `(G T, E, G C)`: the slots of one group hold nothing of another."""
    groups, tokens, experts, capacity = parts.shape
    joined = np.zeros((groups, tokens, experts, groups, capacity))
    for group, part in enumerate(parts):
        joined[group, :, :, group] = part
    return joined.reshape(groups * tokens, experts, groups * capacity)


def _alone(model: Config) -> Config:
    """The model with one image to a group, or less."""
    if isinstance(model, vit.VitConfig):
        return model if model.fewest_images == 1 else vit.regrouped(model, 1)
    if isinstance(model, sparse_mlp.SparseMlpConfig):
        return replace(model, group_images=1, group_size=0)
    return model


def squarest(items: int) -> tuple[int, int]:
    """Rows and columns, as nearly equal as can be, that `items` fill.

    >>> squarest(392), squarest(7)
    ((14, 28), (1, 7))
    """
    rows = next(rows for rows in range(math.isqrt(items), 0, -1) if items % rows == 0)
    return rows, items // rows


def draw(pixels: NDArray[np.uint8], maximum: int, title: str, routings: list[BlockRouting]) -> Figure:
    """A picture, one row per MoE block: the image, the main expert of each patch, and a panel per expert or slot."""
    panels = [_panels(routing) for routing in routings]
    columns = 2 + max((len(row) for row in panels), default=0)
    figure = Figure(figsize=(1.45 * columns, 1.75 * max(len(routings), 1) + 0.9), layout="constrained")
    axes = figure.subplots(max(len(routings), 1), columns, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    image = np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels
    colours = _colours(max((routing.experts.shape[2] for routing in routings), default=0))
    for row, (routing, shown) in enumerate(zip(routings, panels, strict=True)):
        axes[row, 0].imshow(image / maximum)
        of_items = "" if routing.items == "patches" else f": {routing.items}"
        axes[row, 0].set_title(f"block {routing.block.split('_')[0]}{of_items}", fontsize=8)
        axes[row, 1].imshow(main_experts(routing, colours))
        axes[row, 1].set_title("main expert", fontsize=8)
        for axis, (name, expert, weights) in zip(axes[row, 2:], shown, strict=False):
            low = weights.min() if routing.soft else 0.0
            axis.imshow(weights, vmin=low, vmax=max(weights.max(), low + 1e-12), cmap="magma")
            axis.set_title(f"{name}: {low:.2g} to {weights.max():.2g}", fontsize=6, color=colours[expert] * 0.8)
    figure.suptitle(title, fontsize=9, parse_math=False)  # names of files and classes may have a $
    figure.supxlabel(_explanation(routings), fontsize=7)
    return figure


def main_experts(routing: BlockRouting, colours: NDArray[np.float64]) -> NDArray[np.float64]:
    """An RGB grid: each patch in the colour of the expert with the largest weight, dark where no expert handles it.

    The more even the weights, the paler the colour.
    """
    total = routing.experts.sum(axis=2)
    fraction = routing.experts.max(axis=2) / np.where(total > 0, total, 1)
    colour = colours[routing.experts.argmax(axis=2)]
    strength = (0.25 + 0.75 * fraction)[..., None]
    return np.where((total > 0)[..., None], strength * colour + (1 - strength), UNASSIGNED)


def _panels(routing: BlockRouting) -> list[tuple[str, int, NDArray[np.float64]]]:
    """Name, expert and weights over the patches of what gets a panel: experts, or the slots of Soft MoE."""
    experts, capacity = routing.slots.shape[2:]
    if not routing.soft:
        chosen = np.linspace(0, experts - 1, min(experts, PANELS)).round().astype(int)
        return [(f"expert {e}", int(e), routing.experts[..., e]) for e in chosen]
    chosen = np.linspace(0, experts * capacity - 1, min(experts * capacity, PANELS)).round().astype(int)
    pairs = [divmod(int(slot), capacity) for slot in chosen]
    return [(f"slot {e}.{c}", e, routing.slots[..., e, c]) for e, c in pairs]


def _explanation(routings: list[BlockRouting]) -> str:
    if not routings:
        return "The model has no MoE block."
    experts, capacity = routings[0].slots.shape[2:]
    dark = "Dark: handled by no expert. " if any((r.experts.sum(axis=2) == 0).any() for r in routings) else ""
    if routings[0].soft:
        number = min(experts * capacity, PANELS)
        return (
            "Main expert: colour of the expert whose slots have the largest weight in the patch, paler the more even the weights. "
            "Slot e.c: fraction of each patch in the mixture that expert e computes "
            f"({number} of {experts * capacity} slots)."
        )
    each = routings[0].items.removesuffix("es") if routings[0].items == "patches" else "item"
    placed = "" if each == "patch" else "Channels and tokens row by row: they have no place in the image.\n"
    most = f", {capacity} patches at most each" if each == "patch" else ""
    return (
        f"Main expert: colour of the expert with the largest weight. {dark}{placed}Expert e: weight of its output "
        f"in each {each} ({min(experts, PANELS)} of {experts} experts{most})."
    )


def _colours(count: int) -> NDArray[np.float64]:
    names = (
        "tab:blue",
        "tab:orange",
        "tab:green",
        "tab:red",
        "tab:purple",
        "tab:brown",
        "tab:pink",
        "tab:olive",
        "tab:cyan",
    )
    return np.array([to_rgb(names[index % len(names)]) for index in range(count)]).reshape(-1, 3)
