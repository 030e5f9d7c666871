"""Draws the figures of a study, each with one pair of axes: the measure against each cost, and curves over the steps.

The names of the entries form a column to the right of the axes, without overlap. A thin line joins each name to the point of the entry.
"""

import io
from collections.abc import Iterable, Mapping
from itertools import cycle
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from moespec.training.inspection.inspect_run import COLOURS
from moespec.training.study.outcome import TIMES
from moespec.training.study.statistics import spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["COSTS", "draw"]

COSTS = {
    "training_operations": "operations of the whole training, FLOP",
    "operations": "operations of a forward pass per image, FLOP",
    "training_milliseconds": "training time per image, ms",
    "milliseconds": "time of a forward pass per image, ms",
}
"""The costs of an entry, with their axis labels: first the exact counts of operations, then the measured times."""
WIDTH, HEIGHT, LINE, SIZE = 4.0, 2.8, 0.15, 8
"""In inches: width without names, minimum height, line height of the names. In points: font size."""
STYLE: Any = {  # the files store text as text, not as outlines of letters
    **{"font.size": SIZE, "axes.grid": True, "grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False},
    **{"lines.linewidth": 1, "pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "moespec"},
}


def draw(results: Mapping[str, Any], by_step: Iterable[tuple[str, int, int, str, float]]) -> dict[str, bytes]:
    """Returns the figures as PDF and SVG files, by file name, without empty figures. by_step: the lines of steps.csv."""
    from matplotlib import rc_context  # imported here, since this import is slow

    entries, measure = results["entries"], results["measure"] or "accuracy"
    curves: dict[str, dict[str, dict[int, list[float]]]] = {f"evaluation/{measure}": {}, "train/loss": {}}
    for name, seed, step, of, value in by_step:
        if name in entries and seed in results["seeds"] and of in curves:
            curves[of].setdefault(name, {}).setdefault(step, []).append(value)
    with rc_context(STYLE):
        figures = {f"cost-{cost}": _against_cost(results, cost, f"{measure}, %") for cost in COSTS if entries}
        labels = ((f"{measure}, %", 100), ("training loss", 1))
        for name, lines, (label, factor) in zip(("measure", "loss"), curves.values(), labels, strict=True):
            if several := {entry: curve for entry, curve in lines.items() if len(curve) > 1}:
                figures[f"steps-{name}"] = _over_steps(several, label, factor)
        files = {}
        for name, figure in figures.items():
            for kind, date in (("svg", "Date"), ("pdf", "CreationDate")):
                buffer = io.BytesIO()
                figure.savefig(buffer, format=kind, metadata={date: None})
                files[f"{name}.{kind}"] = buffer.getvalue()
    return files


def _against_cost(results: Mapping[str, Any], cost: str, label: str) -> "Figure":
    """Plots the measure against a cost, with spread and quartiles as error bars, and the Pareto front, which is dashed for a time."""
    entries = results["entries"]
    points = {name: (entry[cost], 100 * entry["accuracy"]) for name, entry in entries.items()}
    figure, axis = _axes(points, COSTS[cost], label)
    for (name, (x, y)), colour in zip(points.items(), cycle(COLOURS), strict=False):
        low, high = entries[name]["quartiles"].get(cost, (x, x))
        errors = 100 * (entries[name]["spread"] or 0.0), [[x - low], [high - x]]
        axis.errorbar(x, y, *errors, fmt="o", ms=4, capsize=2, color=colour)
    front = [points[name] for name in results["pareto"][cost]]
    axis.plot(*zip(*front, strict=True), ls="--" if cost in TIMES else "-", color="0.5", zorder=0)
    _name(figure, axis, points)
    return figure


def _over_steps(curves: Mapping[str, Mapping[int, list[float]]], label: str, factor: float) -> "Figure":
    """Plots the mean over seeds with a band of one standard deviation on either side, at each step that all seeds have."""
    (figure, axis), ends = _axes(curves, "steps", label), {}
    for (name, curve), colour in zip(curves.items(), cycle(COLOURS), strict=False):
        seeds = max(map(len, curve.values()))
        line = [(step, np.mean(of), spread(of) or 0.0) for step, of in sorted(curve.items()) if len(of) == seeds]
        steps, means, spreads = np.array(line).T * [[1], [factor], [factor]]
        axis.fill_between(steps, means - spreads, means + spreads, color=colour, alpha=0.2, lw=0)
        axis.plot(steps, means, color=colour)
        ends[name] = (float(steps[-1]), float(means[-1]))
    _name(figure, axis, ends)
    return figure


def _axes(names: Iterable[str], x: str, y: str) -> "tuple[Figure, Axes]":
    """Returns a figure with empty axes, and with space for the names on the right."""
    from matplotlib.figure import Figure
    from matplotlib.textpath import TextPath
    from matplotlib.ticker import EngFormatter, MaxNLocator

    widths = [TextPath((0, 0), name, size=SIZE).get_extents().width / 72 for name in names]
    figure = Figure(figsize=(WIDTH + max(widths), max(HEIGHT, LINE * (len(widths) + 6))), layout="constrained")
    axis = figure.add_subplot(xlabel=x, ylabel=fill(y, 40))
    axis.xaxis.set_major_locator(MaxNLocator(4))
    if not x.endswith("ms"):
        axis.xaxis.set_major_formatter(EngFormatter())
    return figure, axis


def _name(figure: "Figure", axis: "Axes", points: Mapping[str, tuple[float, float]]) -> None:
    """Puts the names to the right of the axes, ordered like the points and as close to the points as the line height allows."""
    texts = {}
    for (name, point), colour in zip(points.items(), cycle(COLOURS), strict=False):
        arrow = {"arrowstyle": "-", "lw": 0.5, "color": colour, "shrinkA": 1, "shrinkB": 3, "relpos": (0, 0.5)}
        how: Any = {"arrowprops": arrow, "color": colour, "va": "center"}
        texts[name] = axis.annotate(name, point, (1.06, 0.5), "data", "axes fraction", **how)
    figure.draw_without_rendering()  # computes the layout, which fixes the height of the axes
    figure.set_layout_engine(None)
    line = LINE * figure.dpi / axis.get_window_extent().height
    ordered = sorted(points, key=lambda name: points[name][1])
    wanted = axis.transAxes.inverted().transform(axis.transData.transform([points[name] for name in ordered]))[:, 1]
    steps = line * np.arange(len(ordered))
    heights = np.maximum.accumulate(np.maximum(wanted, line / 2) - steps) + steps  # each name is above the previous
    for name, height in zip(ordered, np.minimum(heights, 1 - line / 2 - steps[::-1]), strict=True):
        texts[name].xyann = (1.06, height)
