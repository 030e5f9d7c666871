"""The results of a study from the outcomes of its runs, as JSON, CSV, a picture and a page."""

import csv
import io
import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from moespec.models.files import write_atomically
from moespec.spec.errors import ConfigError
from moespec.training.inspection.inspect_run import png
from moespec.training.reports.cost import scaled
from moespec.training.reports.templates import render
from moespec.training.study.outcome import right_of
from moespec.training.study.statistics import differences, differences_of_seeds, pareto, sentences, spread
from moespec.version import version

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["rows", "summarised", "write"]

Outcomes = Mapping[str, Mapping[int, dict[str, Any]]]
"""Entry -> seed -> outcome."""

COSTS = {
    "training_operations": "FLOP of the whole training",
    "training_milliseconds": "ms to train on an image",
    "milliseconds": "ms an image, forward",
}
FIXED, MEDIANS = ("operations", "parameters"), ("dropped", "imbalance", "seconds")


def summarised(outcomes: Outcomes, failed: Mapping[str, Mapping[int, str]], measure: str = "") -> dict[str, Any]:
    """The content of results.json: each entry with its accuracies and costs, each pair with its interval.

    measure: one of `outcome.measures`, compared in place of the accuracy of the head. failed: entry -> seed -> why. Entries
    that failed with any seed, and seeds that not all entries have, are not compared. Raises ConfigError when entries were
    evaluated on different images.
    """
    everything, outcomes = outcomes, {name: runs for name, runs in outcomes.items() if name not in failed}
    seeds = sorted(set.intersection(*(set(runs) for runs in outcomes.values()))) if outcomes else []
    sizes = {name: runs[seeds[0]]["images"] for name, runs in outcomes.items()}
    if len(set(sizes.values())) > 1:
        raise ConfigError(f"routers: the entries have different validation images: {sizes}")
    values = {name: [_compared(runs[seed], measure) for seed in seeds] for name, runs in outcomes.items()}
    entries = {
        name: {
            "accuracy": statistics.mean(values[name]),
            "spread": spread(values[name]),
            "evaluations": _evaluated([runs[seed].get("evaluations", {}) for seed in seeds]),
            **{key: min(runs[seed][key] for seed in seeds) for key in COSTS},  # whatever else runs only adds
            **{key: runs[seeds[0]][key] for key in FIXED},
            **{key: statistics.median(runs[seed][key] for seed in seeds) for key in MEDIANS},
        }
        for name, runs in outcomes.items()
    }
    if measure:
        pairs = differences_of_seeds(values)
    else:
        pairs = differences({name: np.stack([right_of(runs[s]) for s in seeds]) for name, runs in outcomes.items()})
    images = next(iter(sizes.values()), 0)
    why = [f"{name} failed with seed {seed}: {text}." for name, of in failed.items() for seed, text in of.items()]
    return {
        "version": version(),
        "measure": measure,
        "seeds": seeds,
        "images": images,
        "entries": entries,
        "pareto": {
            cost: pareto({name: (entry[cost], entry["accuracy"]) for name, entry in entries.items()}) for cost in COSTS
        },
        "differences": [{**one._asdict(), "sure": one.sure} for one in pairs],
        "sentences": sentences(pairs, seeds=len(seeds), images=None if measure else images) + why,
        "failed": {name: {str(seed): text for seed, text in of.items()} for name, of in failed.items()},
        "runs": {
            name: {str(seed): {key: run[key] for key in run if key != "config"} for seed, run in runs.items()}
            for name, runs in everything.items()
        },
    }


def _compared(outcome: dict[str, Any], measure: str) -> float:
    """The number of a run that is compared."""
    return float(outcome["evaluations"][measure] if measure else outcome["accuracy"])


def _evaluated(runs: list[dict[str, float]]) -> dict[str, dict[str, float | None]]:
    """Mean and spread over the seeds of what all of them measured; older outcomes have none."""
    names = [name for name in runs[0] if all(name in run for run in runs)]
    values = {name: [run[name] for run in runs] for name in names}
    return {name: {"mean": statistics.mean(each), "spread": spread(each)} for name, each in values.items()}


def evaluations(results: dict[str, Any]) -> list[tuple[str, ...]]:
    """The table of the evaluations by schedule, a column for each, a row for each entry; empty without any."""
    entries = {name: entry["evaluations"] for name, entry in results["entries"].items()}
    names = sorted({name for measured in entries.values() for name in measured})
    found = [(name, *(_percent(measured.get(column)) for column in names)) for name, measured in entries.items()]
    return [("", *names), *found] if names else []


def _percent(value: dict[str, float | None] | None) -> str:
    if value is None or value["mean"] is None:
        return ""
    return f"{100 * value['mean']:.2f} %" + ("" if value["spread"] is None else f" ± {100 * value['spread']:.2f}")


def write(folder: Path, results: dict[str, Any], commands: dict[str, str]) -> None:
    """Writes results.json, results.csv (a line for each run), pareto.png and index.html. commands: of each entry."""
    picture = png(_picture(results))
    write_atomically(folder / "results.json", (json.dumps(results, indent=1) + "\n").encode())
    write_atomically(folder / "results.csv", _csv(results).encode())
    write_atomically(folder / "pareto.png", picture)
    points = [[100 * one[key] for key in ("difference", "low", "high")] for one in results["differences"]]
    page = render(
        "study.html.jinja",
        title="Study",
        results=results,
        rows=rows(results),
        evaluations=evaluations(results),
        differences=[
            [one, f"{difference:+.2f}", f"{low:+.2f} to {high:+.2f}"]
            for one, (difference, low, high) in zip(results["differences"], points, strict=True)
        ],
        picture=picture,
        commands=commands,
    )
    write_atomically(folder / "index.html", page.encode())


HEAD = ("spread", "training", "operations", "ms to train", "ms forward", "parameters", "dropped", "imbalance")


def rows(results: dict[str, Any]) -> list[tuple[str, ...]]:
    """The table of a study, a row for each entry, the best first, as text: its name, the measure, and the columns of `HEAD`."""
    ordered = sorted(results["entries"].items(), key=lambda item: -item[1]["accuracy"])
    finished = [
        (
            name,
            f"{100 * entry['accuracy']:.2f} %",
            "" if entry["spread"] is None else f"{100 * entry['spread']:.2f}",
            scaled(entry["training_operations"]),
            scaled(entry["operations"]),
            _range(results, name, "training_milliseconds"),
            _range(results, name, "milliseconds"),
            f"{entry['parameters']:,}",
            f"{entry['dropped']:.1%}",
            f"{entry['imbalance']:.2f}",
        )
        for name, entry in ordered
    ]
    head = ("", results.get("measure") or "accuracy", *HEAD)
    return [head, *finished, *((name, "failed", *[""] * len(HEAD)) for name in results["failed"])]


def _range(results: dict[str, Any], name: str, cost: str) -> str:
    """What the runs of an entry measured, from the least to the most: other work on the machine adds to it."""
    values = [results["runs"][name][str(seed)][cost] for seed in results["seeds"]]
    return " to ".join(dict.fromkeys(f"{value:.3f}" for value in (min(values), max(values))))


def _csv(results: dict[str, Any]) -> str:
    columns = ("step", "accuracy", "loss", "images", *COSTS, *FIXED, *MEDIANS, "backend")
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    more = [results["measure"]] if results["measure"] else []
    writer.writerow(["entry", "seed", *columns, *more, "failed"])
    for name, runs in results["runs"].items():
        for seed, outcome in runs.items():
            of_run = [*(outcome[column] for column in columns), *(_compared(outcome, one) for one in more)]
            writer.writerow([name, seed, *of_run, ""])
    for name, seeds in results["failed"].items():
        writer.writerows([name, seed, *[""] * len([*columns, *more]), why] for seed, why in seeds.items())
    return buffer.getvalue()


def _picture(results: dict[str, Any]) -> "Figure":
    """Accuracy against each cost; the line joins what no other entry beats in both."""
    from matplotlib.figure import Figure  # here, since its import is slow

    figure = Figure(figsize=(14, 4.5), layout="constrained")
    for axis, (cost, label) in zip(figure.subplots(1, len(COSTS)), COSTS.items(), strict=True):
        for name, entry in results["entries"].items():
            x, y = entry[cost], 100 * entry["accuracy"]
            axis.errorbar(x, y, yerr=100 * (entry["spread"] or 0.0), fmt="o", ms=4, lw=1, capsize=2)
            axis.annotate(name, (x, y), xytext=(4, 3), textcoords="offset points", fontsize=7)
        front = [results["entries"][name] for name in results["pareto"][cost]]
        axis.plot([e[cost] for e in front], [100 * e["accuracy"] for e in front], lw=1, color="0.5", zorder=0)
        axis.set(xlabel=label, ylabel=f"{results['measure'] or 'validation accuracy'}, %")
        axis.margins(x=0.15)
        axis.grid(alpha=0.3)
    return figure
