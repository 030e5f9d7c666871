"""The curves of a run's report: loss, accuracy and what the MoE layers do, against the steps.

What is the same at every logged step is not drawn but said: the load of Soft MoE or of Expert Choice, whose slots are
always full, or the tokens dropped by a router that drops none.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

__all__ = ["constant", "curves", "in_order", "loads", "running_mean"]

QUANTITIES = {
    "load": "load of each expert",
    "dropped": "tokens dropped (fraction)",
    "entropy": "routing entropy (nats)",
}
NAMED = 10
"""Largest number of experts that have names in the legend."""
Records = Sequence[Mapping[str, Any]]


def running_mean(values: Sequence[float]) -> NDArray[np.float64]:
    """The mean of each value and its neighbours, those h before it and those h after it, as far as there are any:

        mean[i] = mean of values[max(i - h, 0)] .. values[min(i + h, N - 1)],   h = N // 20 + 2

    >>> running_mean([1.0, 3.0, 2.0, 2.0]).tolist()
    [2.0, 2.0, 2.0, 2.3333333333333335]
    """
    number = len(values)
    total = np.concatenate([[0.0], np.cumsum(np.asarray(values, np.float64))])
    place, half = np.arange(number), number // 20 + 2
    first, after = np.maximum(place - half, 0), np.minimum(place + half + 1, number)
    means: NDArray[np.float64] = (total[after] - total[first]) / (after - first)
    return means


def curves(training: Records, evaluations: Records, *, measure: tuple[str, str], mixes: bool) -> Figure:
    """Loss (training and, of a head, validation) and validation accuracy, and spread of the features, against the steps.

    measure: the part of the loss that is drawn: its name in the records, and what it is called.

    mixes: whether batches are mixed by weights of their own (mixup, cutmix), so that the loss of a step depends most on its
    weight; the training loss is then its running mean, with the steps themselves faint behind.
    """
    figure = Figure(figsize=(9, 3), layout="constrained")
    left, right = figure.subplots(1, 2)
    logged, losses = _steps(training), [r[measure[0]] for r in training]
    if mixes:
        left.plot(logged, losses, lw=1, color="tab:blue", alpha=0.3, label="training, single steps")
        left.plot(logged, running_mean(losses), lw=1.5, color="tab:blue", label="training, running mean")
    else:
        left.plot(logged, losses, lw=1, color="tab:blue", label="training")
    steps = _steps(evaluations)
    if "loss" in evaluations[-1]:
        left.plot(steps, [r["loss"] for r in evaluations], "o-", label="validation", ms=3, color="tab:orange")
    left.set(xlabel="step", ylabel=measure[1], ylim=(0, None))
    left.legend(fontsize=8)
    accuracies = [r["accuracy"] for r in evaluations]
    right.plot(steps, accuracies, "o-", ms=3, color="tab:green", label="accuracy of nearest neighbours")
    right.set(xlabel="step", ylabel="validation accuracy", ylim=(None if len(set(accuracies)) > 1 else 0, 1))
    if "spread" in evaluations[-1]:
        spreads = [r["spread"] for r in evaluations]
        right.plot(steps, spreads, "o-", ms=3, color="tab:purple", label="spread of features")
        right.set(ylabel="validation images", ylim=(0, 1))
        right.legend(fontsize=8)
    if "text_to_image" in evaluations[-1]:
        right.set(ylabel="recall at 1, mean of images and texts", ylim=(0, 1))
    right.grid(alpha=0.3)
    for axis in (left, right):
        axis.set_xlim(0, 1.02 * max([*logged, *steps]))
    return figure


def constant(training: Records) -> dict[str, str]:
    """For each MoE layer, in order, what is the same at every logged step, in words; layers without such are left out."""
    words = {}
    for block in _blocks(training):
        same = [
            f"{text} {_said(value)}" for name, text in QUANTITIES.items() for value in _unchanged(training, block, name)
        ]
        if same:
            words[block] = ", ".join(same)
    return words


def loads(training: Records) -> Figure | None:
    """For each MoE layer the load of each expert, the fraction of tokens dropped and the routing entropy over the steps.

    The dotted line is the largest entropy, ln E. A column for what varies in some layer; where it does not in one, that is
    said in its place. None if nothing varies.
    """
    blocks = _blocks(training)
    names = [name for name in QUANTITIES if not all(_unchanged(training, block, name) for block in blocks)]
    if not names:
        return None
    steps = _steps(training)
    figure = Figure(figsize=(max(4.5, 3.6 * len(names)), 2.2 * len(blocks)), layout="constrained")
    axes = figure.subplots(len(blocks), len(names), squeeze=False)
    for row, block in zip(axes, blocks, strict=True):
        row[0].set_ylabel(f"block {block}")
        for axis, name in zip(row, names, strict=True):
            if same := _unchanged(training, block, name):
                axis.text(0.5, 0.5, f"{_said(same[0])} at each step", ha="center", transform=axis.transAxes, fontsize=8)
                axis.set(xticks=[], yticks=[])
                continue
            values = _series(training, block, name)
            for expert, line in enumerate(values.T):
                axis.plot(steps, line, lw=1, label=str(expert) if name == "load" and expert < NAMED else None)
            highest = values.max()
            if name == "entropy":
                highest = max(highest, np.log(len(training[-1]["moe"][block]["load"])))
                axis.axhline(highest, lw=0.8, ls=":", color="0.4")
            axis.set_ylim(0, 1.1 * highest)
    for axis, name in zip(axes[0], names, strict=True):
        axis.set_title(QUANTITIES[name], fontsize=9)
    if names[0] == "load":
        varying = next(axis for axis in axes[:, 0] if axis.lines)
        figure.legend(
            *varying.get_legend_handles_labels(), loc="outside lower center", ncol=NAMED, fontsize=7, title="expert"
        )
    for axis in axes[-1]:
        axis.set_xlabel("step")
    return figure


def in_order(block: str) -> tuple[int, str]:
    """By the number of the block, then by what it mixes: "2", "10_channels", "10_tokens"."""
    number, _, items = block.partition("_")
    return int(number), items


def _blocks(training: Records) -> list[str]:
    return sorted(training[-1].get("moe", ()), key=in_order)  # none where the features of a locked tower are cached


def _steps(records: Records) -> list[int]:
    return [record["step"] for record in records]


def _series(training: Records, block: str, name: str) -> NDArray[np.float64]:
    """The values of one quantity of a layer, `(steps, experts)` or `(steps, 1)`."""
    return np.array([record["moe"][block][name] for record in training], np.float64).reshape(len(training), -1)


def _unchanged(training: Records, block: str, name: str) -> list[NDArray[np.float64]]:
    """The one value of each expert if it is the same at every step, up to rounding in float32; else nothing."""
    values = _series(training, block, name)
    return [values[-1]] if np.allclose(values, values[-1], rtol=1e-5, atol=1e-6) else []


def _said(values: NDArray[np.float64]) -> str:
    """One number if all are the same, else the smallest and the largest."""
    low, high = (f"{value + 0.0:.3g}" if abs(value) > 1e-6 else "0" for value in (values.min(), values.max()))
    return low if low == high else f"{low} to {high}"
