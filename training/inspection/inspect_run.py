"""Shows how each MoE layer routes one image, that is, which expert handles which patch, as numbers and as a picture.

The image is routed separately, as a group of one image, and the capacity of the experts is scaled to this group. If a model's groups are
parts of an image, the groups do not change, and the panel of an expert shows the expert's slots in all groups.

Sparse-MLP routes channels, and tokens that mix the patches of the entire image. Channels and tokens have no position in the image and are
drawn row by row, in numerical order, on a full grid that is as square as possible.

All panels of a layer share a colour scale. Unless slots are mixtures, the routing of patches is drawn on the image: an expert's panel tints
the patches that the expert handles. Larger weights are more opaque. The scale of Soft MoE is in multiples of the uniform weight,
1 / tokens: white is the uniform weight, red is larger and blue is smaller. The scale covers at least half to twice the uniform weight.

Only the drawing functions import matplotlib. Training does not need matplotlib, since the report of a run shows grids of pixels.
"""

import io
import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moespec.backends.contract import Backend
from moespec.models import sparse_mlp, vit
from moespec.models.families import Config, family
from moespec.models.shown import on_one_line
from moespec.spec.errors import ConfigError
from moespec.spec.numerics import sigmoid, softmax
from moespec.training.compilation import compile_if, pays

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    *("COLOURS", "BlockRouting", "Panel", "alone", "colours_of", "draw", "explanation", "main_experts", "make_route"),
    *("panels", "png", "prediction", "shaded", "times_uniform", "tinted", "weights_of"),
]

PANELS = 8
"""Number of experts (or slots) that get a panel in a row by default."""
MOST_PANELS = 64
"""Maximum number of panels that can be chosen for a row."""
FAINTEST = 2.0
"""Soft MoE's colour scale reaches at least this multiple of the uniform weight."""
LETTERS = 17
"""Number of characters of the explanation per inch of the figure's width."""
UNASSIGNED, NOTHING = (0.15, 0.15, 0.15), (0.6, 0.6, 0.6)
COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#bcbd22", "#17becf")
"""Colours of experts and of chart lines. If there are more experts than colours, the colours repeat."""
SOFT = ("#053061", "#4393c3", "#f7f7f7", "#d6604d", "#67001f")
"""Colour scale of a layer's slot weights, from small to large. The uniform weight is in the middle."""
HARD = ("#000004", "#51127c", "#b73779", "#fc8961", "#fcfdbf")
"""Colour scale of a layer's expert weights, from 0 to the largest weight."""
TINT = 0.5
"""Opacity of an expert's colour over a patch of the image."""


class BlockRouting(NamedTuple):
    """The routing of one image by one MoE layer, with the weights of each cell in the grid of patches `(rows, columns)`.

    block: the name of the layer. tokens: the number of tokens in a group.
    items: the content of the grid: "patches", or "channels" or "tokens" in numerical order.
    experts: `(rows, columns, E)`, the weight of each expert's output in each item (sum of the combine weights over the expert's slots).
    slots: `(rows, columns, E, C)`, the dispatch weights. soft: whether a slot is a mixture of items; otherwise, a slot holds at most one.
    """

    block: str
    experts: NDArray[np.float64]
    slots: NDArray[np.float64]
    soft: bool
    tokens: int
    items: str = "patches"


class Panel(NamedTuple):
    """One panel of a row: its name, such as "expert 3" or "slot 3.0", the number of the expert, and the weights `(rows, columns)`."""

    name: str
    expert: int
    weights: NDArray[np.float64]


def make_route(
    B: Backend, model: Config
) -> Callable[[Any, NDArray[np.float32]], tuple[NDArray[np.float64], list[BlockRouting]]]:
    """Returns `route(params, image)`, which returns the logits `(classes,)` and the routing of an image in each MoE layer.

    `params` are arrays of `B`; `image` `(H, W, Ch)` is a model input. Logits are empty without a head. The grids omit a class token.
    """
    single = alone(model)
    module, patches = family(model), model.image_size // model.patch_size

    def forward(params: Any, images: Any) -> tuple[Any, list[Any]]:
        output = module.forward(B, single, params, images)
        return output.logits, [tuple(routing.dense()) for routing in output.routings]

    run = compile_if(B, pays(B, calls=1), forward)

    def route(params: Any, image: NDArray[np.float32]) -> tuple[NDArray[np.float64], list[BlockRouting]]:
        logits, dense = B.to_numpy(run(params, B.from_numpy(image[None])))
        routings = []
        for layer, parts in zip(module.moe_layers(single, 1), dense, strict=True):
            grid = (patches, patches) if layer.items == "patches" else squarest(layer.settings.tokens)
            dispatch, combine = (_joined(np.asarray(part, np.float64))[-math.prod(grid) :] for part in parts)
            soft = not np.isin(dispatch, (0.0, 1.0)).all()
            dispatch, combine = (part.reshape(*grid, *part.shape[1:]) for part in (dispatch, combine))
            tokens = layer.settings.tokens
            routings.append(BlockRouting(layer.name, combine.sum(axis=3), dispatch, soft, tokens, layer.items))
        return np.zeros(0) if logits is None else np.asarray(logits, np.float64)[0], routings

    return route


def _joined(parts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Joins weights `(G, T, E, C)` of groups into weights `(G T, E, G C)` of one group. A slot has weight 0 for tokens of other groups."""
    groups, tokens, experts, capacity = parts.shape
    joined = np.zeros((groups, tokens, experts, groups, capacity))
    for group, part in enumerate(parts):
        joined[group, :, :, group] = part
    return joined.reshape(groups * tokens, experts, groups * capacity)


def alone(model: Config) -> Config:
    """Returns the model with groups of at most one image."""
    if isinstance(model, vit.VitConfig):
        return model if model.fewest_images == 1 else vit.regrouped(model, 1)
    if isinstance(model, sparse_mlp.SparseMlpConfig):
        return replace(model, group_images=1, group_size=model.sparse_width)
    return model


def squarest(items: int) -> tuple[int, int]:
    """Returns the numbers of rows and columns of the grid with `items` cells that is closest to a square.

    >>> squarest(392), squarest(7)
    ((14, 28), (1, 7))
    """
    rows = next(rows for rows in range(math.isqrt(items), 0, -1) if items % rows == 0)
    return rows, items // rows


def prediction(logits: NDArray[np.float64], classes: Sequence[str], loss: str) -> str:
    """Describes the class with the largest logit, and its probability according to a softmax over all classes or to a sigmoid.

    >>> prediction(np.array([0.0, 2.0]), ["cat", "dog"], "softmax")
    ', predicted dog (probability 0.881)'
    """
    if not len(logits):
        return ""
    likely = (sigmoid if loss == "sigmoid" else softmax)(logits)
    best = int(logits.argmax())
    return f", predicted {classes[best]} (probability {likely[best]:.3f})"


def times_uniform(routing: BlockRouting) -> NDArray[np.float64]:
    """Returns the dispatch weights of a soft routing in multiples of 1 / tokens, `(rows, columns, E, C)`.

    An entry is NaN if a slot has no weight for a patch: the slot belongs to another group, or the weight underflows the dtype.
    """
    return np.where(routing.slots > 0, routing.slots * routing.tokens, np.nan)


def panels(routing: BlockRouting, chosen: Sequence[str] = ()) -> list[Panel]:
    """Returns the panels of experts or, for Soft MoE, of slots: the panels named in `chosen`; by default, eight evenly spaced panels.

    chosen: experts, such as "3". For Soft MoE, "3.0" is the first slot of expert 3, and "3" means all slots of expert 3. The weights of
    Soft MoE are multiples of the uniform weight. Raises ConfigError for unknown names and for too many panels.
    """
    experts, capacity = routing.slots.shape[2:]
    if routing.soft:
        everything = [f"{e}.{c}" for e in range(experts) for c in range(capacity)]
        whole = {str(e): everything[e * capacity : (e + 1) * capacity] for e in range(experts)}
    else:
        everything, whole = [str(e) for e in range(experts)], {}
    places = np.linspace(0, len(everything) - 1, min(len(everything), PANELS)).round().astype(int)
    names = [everything[i] for i in places]
    if chosen:
        for name in chosen:
            if name not in everything and name not in whole:
                kinds = f"slots 0.0 to {everything[-1]} or experts" if routing.soft else "experts"
                raise ConfigError(f"panels={name!r}: block {routing.block} has {kinds} 0 to {experts - 1}")
        names = list(dict.fromkeys(one for name in chosen for one in whole.get(name, [name])))
    if len(names) > MOST_PANELS:
        raise ConfigError(f"panels={' '.join(chosen)!r}: expected at most {MOST_PANELS} panels, got {len(names)}")
    if not routing.soft:
        return [Panel(f"expert {name}", int(name), routing.experts[..., int(name)]) for name in names]
    weights, pairs = times_uniform(routing), [tuple(map(int, name.split("."))) for name in names]
    return [Panel(f"slot {e}.{c}", e, weights[..., e, c]) for e, c in pairs]


def draw(
    pixels: NDArray[np.uint8], maximum: int, title: str, routings: list[BlockRouting], chosen: Sequence[str] = ()
) -> "Figure":
    """Draws a picture with one row per MoE block: the image, the main expert of each patch, and a panel per expert or slot.

    chosen: experts or slots, see `panels`.
    """
    from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize
    from matplotlib.figure import Figure

    rows = [panels(routing, chosen) for routing in routings]
    columns = 2 + max((len(row) for row in rows), default=0)
    figure = Figure(figsize=(1.45 * columns + 0.8, 1.85 * max(len(routings), 1) + 0.9), layout="constrained")
    axes = figure.subplots(max(len(routings), 1), columns, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    image = np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels
    colours = colours_of(routings)
    for row, routing, shown in zip(axes[: len(routings)], routings, rows, strict=True):
        row[0].imshow(image / maximum)
        of_items = "" if routing.items == "patches" else f": {routing.items}"
        row[0].set_title(f"block {routing.block.split('_')[0]}{of_items}", fontsize=9)
        row[1].set_title("main expert", fontsize=9)
        if not routing.soft and routing.items == "patches":
            _draw_on_image(row, image / maximum, routing, shown, colours)
            continue
        row[1].imshow(main_experts(routing, colours))
        low, high = _ends(routing)
        scale: Any = LogNorm(low, high) if routing.soft else Normalize(low, high)
        palette = LinearSegmentedColormap.from_list("", SOFT if routing.soft else HARD).with_extremes(bad=NOTHING)
        for axis, panel in zip(row[2:], shown, strict=False):
            drawing = axis.imshow(panel.weights, norm=scale, cmap=palette)
            title_of = f"{panel.name}: {_range(panel, routing.soft)}"
            axis.set_title(title_of, fontsize=6, color=colours[panel.expert] * 0.8)
        bar = figure.colorbar(drawing, ax=list(row), pad=0.01, aspect=12)
        bar.set_label(weights_of(routing).replace(", ", "\n"), fontsize=7)
        if routing.soft:
            ticks = np.geomspace(low, high, 5).tolist()
            bar.set_ticks(ticks, labels=[f"{tick:.3g}" for tick in ticks], minor=False)
            bar.minorticks_off()
        bar.ax.tick_params(labelsize=6)
    figure.suptitle(on_one_line(title), fontsize=9, parse_math=False)  # names of files and classes may contain a $
    width = int(figure.get_figwidth() * LETTERS)
    figure.supxlabel(textwrap.fill(explanation(routings, on_image=True), width), fontsize=7)
    return figure


def png(figure: "Figure") -> bytes:
    """A figure as PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    return buffer.getvalue()


def _draw_on_image(
    row: Any, image: NDArray[np.float64], routing: BlockRouting, shown: list[Panel], colours: NDArray[np.float64]
) -> None:
    row[1].imshow(tinted(image, main_experts(routing, colours)))
    largest = max(float(routing.experts.max()), 1e-12)
    for axis, panel in zip(row[2:], shown, strict=False):
        colour = np.broadcast_to(colours[panel.expert], (*panel.weights.shape, 3))
        axis.imshow(tinted(image, colour, panel.weights / largest))
        patches = np.count_nonzero(panel.weights)
        of_patches = f"{patches} patches, {_range(panel, soft=False)}" if patches else "none"
        axis.set_title(f"{panel.name}\n{of_patches}", fontsize=8, color=colours[panel.expert] * 0.8)


def tinted(
    image: NDArray[np.float64], colour: NDArray[np.float64], opacity: NDArray[np.float64] | float = 1.0
) -> NDArray[np.float64]:
    """Returns the image `(H, W, 3)` in grey, tinted with the colours of the patches, `(rows, columns, 3)`.

    opacity: `(rows, columns)`, 0 to 1; a patch with opacity 0 remains faintly visible on white. The result ranges from 0 to 1.
    """
    sides = zip(image.shape, colour.shape[:2], strict=False)
    place = np.ix_(*(np.arange(pixels) * patches // pixels for pixels, patches in sides))
    cover = np.broadcast_to(opacity, colour.shape[:2])[place][..., None]
    grey = image.mean(axis=2, keepdims=True)
    blend: NDArray[np.float64] = cover * ((1 - TINT) * grey + TINT * colour[place]) + (1 - cover) * (0.85 + 0.15 * grey)
    return blend


def _ends(routing: BlockRouting) -> tuple[float, float]:
    """Returns the ends of a layer's colour scale. For Soft MoE, the ends are 1 / x and x, so that the uniform weight 1 is in the middle."""
    if not routing.soft:
        return 0.0, max(float(routing.experts.max()), 1e-12)
    weights = routing.slots[routing.slots > 0] * routing.tokens
    reach = max(FAINTEST, weights.max(initial=1.0), min(1 / weights.min(initial=1.0), routing.tokens))
    return 1 / float(reach), float(reach)


def weights_of(routing: BlockRouting) -> str:
    """Describes the meaning of a layer's weights and, for Soft MoE, their range."""
    if not routing.soft:
        return "weight"
    weights = routing.slots[routing.slots > 0] * routing.tokens
    low, high = float(weights.min(initial=1.0)), float(weights.max(initial=1.0))
    return f"times uniform, {low:.3g} to {high:.3g}, ratio {high / low:.3g}"


def shaded(routing: BlockRouting, panel: Panel) -> NDArray[np.float64]:
    """Returns the weights of a panel as an RGB grid `(rows, columns, 3)`, in the colours that `draw` uses."""
    ends, weights = np.array(_ends(routing)), panel.weights
    if routing.soft:
        ends, weights = np.log(ends), np.log(weights)  # a missing weight is NaN, so `log` never gets 0
    anchors = _rgb(SOFT if routing.soft else HARD)
    place = (weights - ends[0]) / (ends[1] - ends[0]) * (len(anchors) - 1)
    channels = [np.interp(place, np.arange(len(anchors)), channel) for channel in anchors.T]
    return np.where(np.isnan(weights)[..., None], NOTHING, np.stack(channels, -1))


def _range(panel: Panel, soft: bool) -> str:
    weights = panel.weights[panel.weights > 0]
    if not weights.size:
        return "none"
    return f"{weights.min():.3g} to {weights.max():.3g}" if soft else f"to {weights.max():.2g}"


def main_experts(routing: BlockRouting, colours: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns an RGB grid. A patch has the colour of the expert with the largest weight, or is dark if no expert handles the patch.

    The colour is paler if the experts have similar weights. For Soft MoE, a patch is white if all experts have the same weight, and
    fully coloured if one expert has at least twice the mean weight.
    """
    total = routing.experts.sum(axis=2)
    fraction = routing.experts.max(axis=2) / np.where(total > 0, total, 1)
    colour = colours[routing.experts.argmax(axis=2)]
    strength = 0.25 + 0.75 * fraction
    if routing.soft:
        multiple = np.maximum(fraction * routing.experts.shape[2], 1)
        strength = np.minimum(np.log(multiple) / np.log(FAINTEST), 1)
    strength = strength[..., None]
    return np.where((total > 0)[..., None], strength * colour + (1 - strength), UNASSIGNED)


def explanation(routings: list[BlockRouting], *, on_image: bool) -> str:
    """Describes the panels in words."""
    if not routings:
        return "The model has no MoE block."
    experts, capacity = routings[0].slots.shape[2:]
    dark = "Dark: no expert. " if any((r.experts.sum(axis=2) == 0).any() for r in routings) else ""
    if routings[0].soft:
        return (
            "Main expert: colour of the expert whose slots have the largest weight in the patch: white if all "
            "experts have equal weights, saturated from twice that weight. "
            f"Slot e.c (of {experts * capacity}): weight of each patch in the slot's input to expert e, "
            "in multiples of uniform, on one scale per block: white uniform, red more, blue less, grey zero. "
            "Ratio: largest over smallest weight of all slots; near 1, the router barely distinguishes patches, as after short training."
        )
    each = routings[0].items.removesuffix("es") if routings[0].items == "patches" else "item"
    placed = "" if each == "patch" else "Channels and tokens are drawn row by row: they have no position in the image. "
    main = f"Main expert: colour of the expert with the largest weight. {dark}{placed}"
    if each == "patch" and on_image:
        return (
            f"{main}Expert e (of {experts}): number of patches it handles, at most {capacity}, and the largest weight of its "
            "output in them; opacity shows the weight, on one scale per block."
        )
    most = f", at most {capacity} patches each" if each == "patch" else ""
    return f"{main}Expert e: weight of its output in each {each} (of {experts} experts{most}), on one scale per block."


def colours_of(routings: Sequence[BlockRouting]) -> NDArray[np.float64]:
    """Returns the colours of the experts of these layers, `(experts, 3)`."""
    return _rgb([COLOURS[e % len(COLOURS)] for e in range(max((r.experts.shape[2] for r in routings), default=0))])


def _rgb(names: Sequence[str]) -> NDArray[np.float64]:
    return np.array([[int(name[place : place + 2], 16) / 255 for place in (1, 3, 5)] for name in names]).reshape(-1, 3)
