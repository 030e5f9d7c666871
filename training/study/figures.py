"""The figures of a study: the measure against each cost, and curves over the steps. Each is one pair of axes, as a paper has it.

The names of the entries stand in a column on the right of the axes, none over another, with a thin line from each to its point.
"""

import io
import statistics
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from moespec.training.inspection.inspect_run import COLOURS
from moespec.training.study.outcome import TIMES
from moespec.training.study.statistics import spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["COSTS", "Curve", "against_cost", "content", "curve_of", "over_steps"]

COSTS = {
    "training_operations": "operations of the whole training, FLOP",
    "operations": "operations of a forward pass of an image, FLOP",
    "training_milliseconds": "time to train on an image, ms",
    "milliseconds": "time of a forward pass of an image, ms",
}
"""What an entry costs, the exact count first, and what an axis says of it."""
WIDTH, HEIGHT, LINE, SIZE = 4.0, 2.8, 0.15, 8
"""In inches: width without names, least height, height of a line of names. In points: size of the letters."""


class Curve(NamedTuple):
    """Mean and standard deviation over the seeds (0 for one seed) at each step that all of them have."""

    steps: list[int]
    means: list[float]
    spreads: list[float]


def curve_of(runs: Sequence[Mapping[int, float]]) -> Curve:
    """The curve of an entry from its value at each step, of each seed.

    >>> curve_of([{6: 0.5, 12: 0.75}, {6: 0.5, 12: 0.25, 18: 1.0}]).means
    [0.5, 0.5]
    """
    steps = sorted(set.intersection(*map(set, runs))) if runs else []
    values = [[run[step] for run in runs] for step in steps]
    return Curve(steps, [statistics.mean(each) for each in values], [spread(each) or 0.0 for each in values])


def against_cost(results: Mapping[str, Any], cost: str, label: str) -> "Figure":
    """The measure in percent against a cost, with bars of its spread over seeds, and for a time those of its quartiles.

    The line joins what no other entry beats in both; it is dashed for a time, which other work on the machine changes.
    """
    entries, points = results["entries"], {}
    figure, axis = _figure(list(entries), COSTS[cost], label)
    for (name, entry), colour in zip(entries.items(), cycle(COLOURS), strict=False):
        x, y = points[name] = (entry[cost], 100 * entry["accuracy"])
        low, high = entry["quartiles"].get(cost, (x, x))
        y_error, x_error = 100 * (entry["spread"] or 0.0), [[max(0.0, x - low)], [max(0.0, high - x)]]
        axis.errorbar(x, y, y_error, x_error, "o", ms=4, lw=1, capsize=2, color=colour)
    front = [points[name] for name in results["pareto"][cost]]
    axis.plot(*zip(*front, strict=True), lw=1, ls="--" if cost in TIMES else "-", color="0.5", zorder=0)
    axis.margins(x=0.1)
    _name(figure, axis, points)
    return figure


def over_steps(curves: Mapping[str, Curve], label: str) -> "Figure":
    """A measure against the steps: the mean over seeds, in a band of one standard deviation on each side."""
    figure, axis = _figure(list(curves), "steps", label)
    for curve, colour in zip(curves.values(), cycle(COLOURS), strict=False):
        low, high = np.subtract(curve.means, curve.spreads), np.add(curve.means, curve.spreads)
        axis.fill_between(curve.steps, low, high, color=colour, alpha=0.2, lw=0)
        axis.plot(curve.steps, curve.means, color=colour, lw=1)
    axis.margins(x=0.02)
    _name(figure, axis, {name: (curve.steps[-1], curve.means[-1]) for name, curve in curves.items()})
    return figure


def content(figure: "Figure", kind: str) -> bytes:
    """The figure as a file, "pdf" or "svg", with the letters of a PDF as text that can be searched."""
    from matplotlib import rc_context

    buffer, date = io.BytesIO(), {"svg": "Date", "pdf": "CreationDate"}[kind]
    with rc_context({"pdf.fonttype": 42, "svg.hashsalt": "moespec"}):
        figure.savefig(buffer, format=kind, metadata={date: None})
    return buffer.getvalue()


def _figure(names: Sequence[str], x: str, y: str) -> "tuple[Figure, Axes]":
    """Empty axes, with room for the names on the right."""
    from matplotlib.figure import Figure  # here, since its import is slow
    from matplotlib.textpath import TextPath
    from matplotlib.ticker import EngFormatter, MaxNLocator

    longest = max(TextPath((0, 0), name, size=SIZE).get_extents().width for name in names) / 72
    figure = Figure(figsize=(WIDTH + longest, max(HEIGHT, LINE * (len(names) + 6))), layout="constrained")
    axis = figure.add_subplot()
    axis.set_xlabel(x, fontsize=SIZE)
    axis.set_ylabel(y, fontsize=SIZE)
    axis.xaxis.set_major_locator(MaxNLocator(4))
    if not x.endswith("ms"):
        axis.xaxis.set_major_formatter(EngFormatter())
    axis.tick_params(labelsize=SIZE)
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    return figure, axis


def _name(figure: "Figure", axis: "Axes", points: Mapping[str, tuple[float, float]]) -> None:
    """Puts the names on the right of the axes, in the order of the points' heights and as near to these as their lines allow."""
    ordered = sorted(points, key=lambda name: points[name][1])
    colours = dict(zip(points, cycle(COLOURS), strict=False))
    texts = {
        name: axis.annotate(
            *(name, points[name], (1.06, 0.5), "data", "axes fraction"),
            {"arrowstyle": "-", "lw": 0.5, "color": colours[name], "shrinkA": 1, "shrinkB": 3, "relpos": (0, 0.5)},
            fontsize=SIZE,
            color=colours[name],
            va="center",
        )
        for name in ordered
    }
    figure.draw_without_rendering()  # makes the layout, and with it the height of the axes
    figure.set_layout_engine("none")
    line = LINE * figure.dpi / axis.get_window_extent().height
    heights = [axis.transAxes.inverted().transform(axis.transData.transform(points[name]))[1] for name in ordered]
    below, above = line / 2, 1 - line / 2
    for i, height in enumerate(heights):
        heights[i] = max(height, below)
        below = heights[i] + line
    for i, height in reversed(list(enumerate(heights))):
        heights[i] = min(height, above)
        above = heights[i] - line
    for name, height in zip(ordered, heights, strict=True):
        texts[name].xyann = (1.06, height)
