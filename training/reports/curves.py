"""Draws the curves of a report: loss, accuracy and metrics of the MoE layers by step.

Values that are equal at every logged step, such as the load of Soft MoE, are printed as text instead.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moespec.training.inspection.inspect_run import COLOURS

__all__ = ["Chart", "Line", "constant", "curves", "in_order", "loads", "plotted", "running_mean", "ticks"]

QUANTITIES = {
    "load": "load of each expert",
    "dropped": "tokens dropped (fraction)",
    "entropy": "routing entropy (nats)",
}
NAMED = 9
"""Maximum number of experts that have their own line."""
POINTS = 200
"""Maximum number of points of a line."""
WIDTH, HEIGHT, MARGIN, FOOT = 320, 170, 44, 26
"""Width and height of a chart, and its left and bottom margins for the axis labels."""
Records = Sequence[Mapping[str, Any]]


class Line(NamedTuple):
    """A line of values by step. faint: whether the line is drawn pale, behind its running mean."""

    label: str
    steps: Sequence[int]
    values: Sequence[float]
    faint: bool = False


class Chart(NamedTuple):
    """A chart of lines. The vertical scale starts at `low`. limit: the label and the value of a dotted horizontal line."""

    title: str
    lines: list[Line]
    low: float
    limit: tuple[str, float] | None = None


def running_mean(values: Sequence[float]) -> NDArray[np.float64]:
    """mean[i] = mean of values[max(i - h, 0)] .. values[min(i + h, N - 1)],   h = N // 20 + 2

    >>> running_mean([1.0, 3.0, 2.0, 2.0]).tolist()
    [2.0, 2.0, 2.0, 2.3333333333333335]
    """
    number = len(values)
    total = np.concatenate([[0.0], np.cumsum(np.asarray(values, np.float64))])
    place, half = np.arange(number), number // 20 + 2
    first, after = np.maximum(place - half, 0), np.minimum(place + half + 1, number)
    means: NDArray[np.float64] = (total[after] - total[first]) / (after - first)
    return means


def curves(
    training: Records, evaluations: Records, *, measure: tuple[str, str], called: str, mixes: bool
) -> list[Chart]:
    """Returns charts over the steps: the loss (training and, with a head, validation), and the results on the validation images.

    measure: the name of the loss in the records, and its title. called: the title of the accuracy.
    mixes: whether mixup or cutmix makes the loss noisy. If so, the chart also shows the running mean, and the loss as a pale line.
    """
    logged, steps = ([record["step"] for record in records] for records in (training, evaluations))
    losses = [record[measure[0]] for record in training]
    lines = [Line("training", logged, losses)]
    if mixes:
        means = Line("training, running mean", logged, running_mean(losses).tolist())
        lines = [Line("training, single steps", logged, losses, faint=True), means]

    def measured(names: dict[str, str]) -> list[Line]:
        there = [name for name in names if name in evaluations[-1]]
        return [Line(names[name], steps, [record[name] for record in evaluations]) for name in there]

    first = Chart(f"loss ({measure[1]})", [*lines, *measured({"loss": "validation"})], 0.0)
    rest = measured({"accuracy": called, "spread": "spread of features"})
    return _drawable([first, Chart("validation images", rest, min(min(line.values) for line in rest))])


def constant(training: Records) -> dict[str, str]:
    """Describes, for each MoE layer in order, the values that are equal at every logged step. Layers without such values are omitted."""
    words = {}
    for block in _blocks(training):
        values = {text: value for name, text in QUANTITIES.items() for value in _unchanged(training, block, name)}
        if values:
            words[block] = ", ".join(f"{text} {_said(value)}" for text, value in values.items())
    return words


def loads(training: Records) -> list[Chart]:
    """Returns charts of the expert load, the fraction of dropped tokens and the routing entropy of each MoE layer, if the values vary.

    With many experts, the chart of loads shows only the largest, the median and the smallest load.
    """
    steps, charts = [record["step"] for record in training], []
    for block in _blocks(training):
        for name, text in QUANTITIES.items():
            if _unchanged(training, block, name):
                continue
            values, limit, labels = _series(training, block, name), None, [text]
            if name == "load":
                labels = [f"expert {expert}" for expert in range(values.shape[1])]
                if len(labels) > NAMED:
                    labels, values = ["largest", "median", "smallest"], np.quantile(values, (1, 0.5, 0), axis=1).T
            if name == "entropy":
                limit = ("all weights equal", float(np.log(len(training[-1]["moe"][block]["load"]))))
            lines = [Line(label, steps, line.tolist()) for label, line in zip(labels, values.T, strict=True)]
            charts.append(Chart(f"block {block}: {text}", lines, 0.0, limit))
    return _drawable(charts)


def _drawable(charts: list[Chart]) -> list[Chart]:
    """Drops lines with a single point, then charts in which no line rises or falls."""
    several = [chart._replace(lines=[line for line in chart.lines if len(line.steps) > 1]) for chart in charts]
    return [chart for chart in several if any(len(set(line.values)) > 1 for line in chart.lines)]


def plotted(chart: Chart) -> dict[str, Any]:
    """Returns the template values of a chart: its lines as points in a picture of `WIDTH` by `HEIGHT`, and the axis labels."""
    last, bottom = max(line.steps[-1] for line in chart.lines), HEIGHT - FOOT
    high = max([max(line.values) for line in chart.lines] + [chart.limit[1] if chart.limit else chart.low])
    marks = ticks(chart.low, high)
    low, high = marks[0][0], marks[-1][0]

    def y(value: float) -> float:
        return round(bottom - (value - low) / (high - low) * (bottom - 8), 1)

    lines = []
    for line, colour in zip(chart.lines, COLOURS, strict=False):
        kept = np.linspace(0, len(line.steps) - 1, min(len(line.steps), POINTS)).round().astype(int)
        xs = [MARGIN + line.steps[i] / last * (WIDTH - MARGIN - 8) for i in kept]
        points = " ".join(f"{x:.1f},{y(line.values[i])}" for x, i in zip(xs, kept, strict=True))
        lines.append({"label": line.label, "colour": colour, "faint": line.faint, "points": points})
    limit = chart.limit and (chart.limit[0], y(chart.limit[1]))
    sides = [(y(value), text) for value, text in marks]
    return {"title": chart.title, "lines": lines, "ticks": sides, "last": last, "limit": limit}


def ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Returns two to five ticks that cover the range from `low` to `high`, in steps of 1, 2 or 5 times a power of ten.

    >>> [[text for _, text in ticks(*ends)] for ends in ((0.806, 0.977), (0, 123456))]
    [['0.80', '0.85', '0.90', '0.95', '1.00'], ['0', '5e+04', '1e+05', '1.5e+05']]
    """
    power = 10.0 ** math.floor(math.log10((high - low) / 4))
    ends = [
        (math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9), step)
        for step in power * np.array([1, 2, 5, 10, 20])
    ]
    first, last, step = next(each for each in ends if each[1] - each[0] <= 4)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    form = f".{digits}f" if (digits < 4 or low > 0) and high < 1e5 else ".3g"
    return [(number * step, f"{number * step:{form}}") for number in range(first, last + 1)]


def in_order(block: str) -> tuple[int, str]:
    """Sort key of a layer: the number of the block, then the axis that the layer mixes, as in "2", "10_channels", "10_tokens"."""
    number, _, items = block.partition("_")
    return int(number), items


def _blocks(training: Records) -> list[str]:
    return sorted(training[-1].get("moe", ()), key=in_order)  # lacks "moe" if a locked tower has cached features


def _series(training: Records, block: str, name: str) -> NDArray[np.float64]:
    """The values of one quantity of a layer, `(steps, experts)` or `(steps, 1)`."""
    return np.array([record["moe"][block][name] for record in training], np.float64).reshape(len(training), -1)


def _unchanged(training: Records, block: str, name: str) -> list[NDArray[np.float64]]:
    """Returns a list with the values of the experts if every step has the same values up to float32 rounding, else an empty list."""
    values = _series(training, block, name)
    return [values[-1]] if np.allclose(values, values[-1], rtol=1e-5, atol=1e-6) else []


def _said(values: NDArray[np.float64]) -> str:
    """Formats numbers: one number if all are equal, otherwise the smallest and the largest."""
    low, high = (f"{value + 0.0:.3g}" if abs(value) > 1e-6 else "0" for value in (values.min(), values.max()))
    return low if low == high else f"{low} to {high}"
