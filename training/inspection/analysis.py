"""`moespec inspect --analysis`: draws the figures that the Soft MoE paper uses to examine slots, and writes the numbers as JSON."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from moespec.models.checks import check_output
from moespec.models.files import write_atomically
from moespec.training.evaluation.slots import FRACTION, SlotStatistics, numbers, slot_statistics
from moespec.training.inspection.inspect_run import alone, png
from moespec.training.loop.resolve import model_config
from moespec.training.runs import load_run
from moespec.version import version

__all__ = ["analysis_command", "draw_analysis"]

IMAGES = 64
"""Number of validation images used, evenly spaced over the split."""
COLUMNS = (
    "token: total dispatch weight over slots\n(Fig. 24 left; dotted: mean, slots / tokens)",
    "slot: total combine weight over tokens\n(Fig. 24; in multiples of the smallest)",
    "weight of the k largest tokens of a slot\n(Fig. 26; dotted: all weights equal)",
    "weight of the k largest slots of a token\n(dotted: all weights equal)",
    f"tokens that make up {FRACTION:.0%} of a slot",
    "correlation of the slots' parameters\n(Figs. 28 to 30)",
)


def analysis_command(run: Path, out: Path, *, backend: str | None, step: int | str | None) -> None:
    """Draws the slot statistics of a checkpoint into `out`, and writes the numbers to a file with the same name and the extension .json."""
    values = out.with_suffix(".json")
    check_output("out", out, [".png"])
    check_output("out", values)
    loaded = load_run(run, backend, step)
    B, dataset = loaded.backend, loaded.dataset
    split = dataset.validation
    indices = np.unique(np.linspace(0, len(split) - 1, IMAGES).round().astype(int))
    images = dataset.normalize(split.read(indices))
    statistics = slot_statistics(B, alone(model_config(loaded.config.model)), B.from_numpy(loaded.params), images)
    blocks = numbers(statistics)
    about = {"run": str(run), "step": loaded.step, "router": "soft_moe", "images": len(images), "fraction": FRACTION}
    title = f"{run.name}, step {loaded.step}: slots of Soft MoE over {len(images)} validation images (figures of arXiv 2308.00951)"
    write_atomically(out, png(draw_analysis(statistics, title)))
    about |= {"version": version(), "blocks": blocks}
    write_atomically(values, (json.dumps(about, indent=1, allow_nan=False) + "\n").encode())
    for name, each in blocks.items():
        print(f"block {name}: {_said(each)}")
    print(f"{out}, {values}: {len(images)} validation images")


def _said(block: dict[str, Any]) -> str:
    tokens, slots = block["tokens"], block["experts"] * block["slots_per_expert"]
    pairs = [
        f"{name.replace('_', ' ')} {similarity['mean']:.3f}" for name, similarity in block["slot_similarity"].items()
    ]
    return (
        f"{FRACTION:.0%} of a slot comes from {block['tokens_needed']['median']:.0f} of {tokens} tokens, "
        f"{FRACTION:.0%} of a token from {block['slots_needed']['median']:.0f} of {slots} slots (medians)"
        + (f"; mean correlation of slots: {', '.join(pairs)}" if pairs else "")
    )


def draw_analysis(statistics: Sequence[SlotStatistics], title: str) -> Figure:
    """Draws a row for each layer, with the panels of `COLUMNS`. All histograms in a column have the same horizontal axis."""
    rows = len(statistics)
    figure = Figure(figsize=(3.0 * len(COLUMNS), 2.3 * rows + 1.0), layout="constrained")
    axes = figure.subplots(rows, len(COLUMNS), squeeze=False)
    tokens = max(each.dispatch.shape[1] for each in statistics)
    histograms: dict[int, tuple[list[NDArray[Any]], float, float]] = {  # column: values, and the limits of the axis
        0: ([each.dispatch for each in statistics], 0, 2 * max(float(each.dispatch.mean()) for each in statistics)),
        1: ([each.combine for each in statistics], 1, 2),
        4: ([each.tokens_needed for each in statistics], 0, tokens),
    }
    for column, (values, low, high) in histograms.items():
        high = max(high, *(float(each[np.isfinite(each)].max(initial=high)) for each in values))
        width = -(-int(high - low) // 40)  # about 40 bins; bins of token counts have an integer width
        edges = np.arange(low + 0.5, high + width + 0.5, width) if column == 4 else np.linspace(low, high, 41)
        for axis, part in zip(axes[:, column], values, strict=True):
            counts, _ = np.histogram(part[np.isfinite(part)], edges)
            axis.stairs(counts / part.size, edges, fill=True)
            axis.set(xlim=(edges[0], edges[-1]), ylim=(0, None))
    for row, one in zip(axes, statistics, strict=True):
        row[0].set_ylabel(f"block {one.block}")
        row[0].axvline(one.dispatch.mean(), ls=":", lw=1, color="0.3")
        _cumulative(row[2], one.cumulative_dispatch)
        _cumulative(row[3], one.cumulative_combine)
        drawing = row[5].imshow(one.similarity, vmin=-1, vmax=1, cmap="RdBu_r", interpolation="nearest")
        figure.colorbar(drawing, ax=row[5]).ax.tick_params(labelsize=6)
    for axis, name in zip(axes[0], COLUMNS, strict=True):
        axis.set_title(name, fontsize=8)
    for axis in axes.flat:
        axis.tick_params(labelsize=7)
    for axis in axes[:, 2:].flat:
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.suptitle(title, fontsize=10, parse_math=False)
    return figure


def _cumulative(axis: Axes, sums: NDArray[np.float64]) -> None:
    """Plots the sums of the k largest weights against k."""
    number = np.arange(1, len(sums) + 1)
    axis.plot(number, sums, lw=1.2)
    axis.plot(number, number / len(sums), ls=":", lw=1, color="0.3")
    axis.axhline(FRACTION, ls="--", lw=0.6, color="0.6")
    axis.set(xlim=(0, len(sums)), ylim=(0, 1.02))
