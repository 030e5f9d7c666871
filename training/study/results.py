"""Writes the results of a study from the outcomes and logs of its runs, as JSON, CSV, LaTeX, figures and a page."""

import csv
import io
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from moespec.models.files import write_atomically
from moespec.spec.errors import ConfigError
from moespec.training.loop.runlog import read_log, scalars
from moespec.training.reports.cost import scaled
from moespec.training.reports.templates import render
from moespec.training.study.figures import COSTS, draw
from moespec.training.study.outcome import TIMES, right_of
from moespec.training.study.statistics import differences, differences_of_seeds, pareto, sentences, spread
from moespec.version import version

__all__ = ["latex", "rows", "summarised", "write"]

Outcomes = Mapping[str, Mapping[int, dict[str, Any]]]
"""Entry -> seed -> outcome."""

FIXED, MEDIANS = ("parameters",), ("dropped", "imbalance", "seconds")


def summarised(outcomes: Outcomes, failed: Mapping[str, Mapping[int, str]], measure: str = "") -> dict[str, Any]:
    """Returns the content of results.json: the accuracies and costs of entries, and the difference of each pair with its interval.

    measure: one of `outcome.measures`, compared instead of the head's accuracy. failed: entry -> seed -> reason. Entries that failed with
    any seed are not compared; seeds that some entries lack are ignored. Raises ConfigError if the numbers of evaluated images differ.
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
            **{key: min(runs[seed][key] for seed in seeds) for key in COSTS},  # minimum: other processes only add time
            "quartiles": {key: _quartiles([runs[seed] for seed in seeds], key) for key in TIMES},
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
    """The number that is compared between runs."""
    return float(outcome["evaluations"][measure] if measure else outcome["accuracy"])


def _evaluated(runs: list[dict[str, float]]) -> dict[str, dict[str, float | None]]:
    """Returns the mean and the spread over seeds of each value that all runs have. Older outcomes lack some values."""
    names = [name for name in runs[0] if all(name in run for run in runs)]
    values = {name: [run[name] for run in runs] for name in names}
    return {name: {"mean": statistics.mean(each), "spread": spread(each)} for name, each in values.items()}


def evaluations(results: dict[str, Any]) -> list[tuple[str, ...]]:
    """The table of the scheduled evaluations, with a column for each evaluation and a row for each entry; empty if there are none."""
    entries = {name: entry["evaluations"] for name, entry in results["entries"].items()}
    names = sorted({name for measured in entries.values() for name in measured})
    found = [(name, *(_percent(measured.get(column)) for column in names)) for name, measured in entries.items()]
    return [("", *names), *found] if names else []


def _percent(value: dict[str, float | None] | None) -> str:
    if value is None or value["mean"] is None:
        return ""
    return f"{100 * value['mean']:.2f} %" + ("" if value["spread"] is None else f" ± {100 * value['spread']:.2f}")


def write(folder: Path, results: dict[str, Any], commands: dict[str, str]) -> None:
    """Writes the files of a study except its runs and outcomes. commands: maps the user's text for an entry to its configuration."""
    by_step = _by_step(folder, results)
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    files = draw(results, by_step)
    for name, content in files.items():
        write_atomically(folder / "figures" / name, content)
    write_atomically(folder / "results.json", (json.dumps(results, indent=1) + "\n").encode())
    head = ("entry", "seed", "step", "measure", "value")
    tables: dict[str, list[Any]] = {"results.csv": _by_run(results), "steps.csv": [head, *by_step]}
    for name, lines in tables.items():
        csv.writer(buffer := io.StringIO(), lineterminator="\n").writerows(lines)
        write_atomically(folder / name, buffer.getvalue().encode())
    write_atomically(folder / "table.tex", latex(results).encode())
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
        pictures={name: content for name, content in files.items() if name.endswith(".svg")},
        commands=commands,
    )
    write_atomically(folder / "index.html", page.encode())


def _by_step(folder: Path, results: dict[str, Any]) -> list[tuple[str, int, int, str, float]]:
    """Returns rows of entry, seed, step, measure and value from the logs of all runs, except routing metrics. Skips removed runs."""
    found = []
    for name, seeds in results["runs"].items():
        for seed, outcome in seeds.items():
            others = {f"evaluation/{one.partition('/')[0]}" for one in outcome.get("evaluations", {})}
            for kind in ("train", "evaluation", *sorted(others)):
                for line in read_log(folder / "runs" / f"{name}-seed{seed}", kind):
                    values = {key: value for key, value in line.items() if key not in ("kind", "step", "moe")}
                    found += [(name, int(seed), line["step"], *pair) for pair in scalars(values, kind)]
    return found


LATEX = str.maketrans(
    {**{sign: f"\\{sign}" for sign in "&%$#_{}"}, "\\": r"\textbackslash{}", "~": r"\textasciitilde{}"}
    | {"^": r"\textasciicircum{}", "±": r"$\pm$"}
)
"""Characters with a special meaning in LaTeX."""
HEAD = ("spread", "training", "operations", "ms to train", "ms forward", "parameters", "dropped", "imbalance")


def rows(results: dict[str, Any]) -> list[tuple[str, ...]]:
    """The table of a study as text, with a row for each entry, the best entry first: its name, the measure, and the columns of `HEAD`."""
    ordered = sorted(results["entries"].items(), key=lambda item: -item[1]["accuracy"])
    finished = [
        (
            name,
            f"{100 * entry['accuracy']:.2f} %",
            "" if entry["spread"] is None else f"{100 * entry['spread']:.2f}",
            scaled(entry["training_operations"]),
            scaled(entry["operations"]),
            *(" to ".join(dict.fromkeys(f"{one:.3f}" for one in entry["quartiles"][cost])) for cost in TIMES),
            f"{entry['parameters']:,}",
            f"{entry['dropped']:.1%}",
            f"{entry['imbalance']:.2f}",
        )
        for name, entry in ordered
    ]
    head = ("", results.get("measure") or "accuracy", *HEAD)
    return [head, *finished, *((name, "failed", *[""] * len(HEAD)) for name in results["failed"])]


def _quartiles(runs: Sequence[dict[str, Any]], cost: str) -> list[float]:
    """The smallest first quartile and the largest third quartile of the runs. For a run without quartiles, its median is used."""
    pairs = [run.get("quartiles", {}).get(cost, [run[cost]] * 2) for run in runs]
    return [min(low for low, _ in pairs), max(high for _, high in pairs)]


def latex(results: dict[str, Any]) -> str:
    """The table as a LaTeX tabular with the rules of booktabs. The spread appears after the measure."""
    table = [(name, f"{value} ± {of}" if of else value, *cells) for name, value, of, *cells in rows(results)]
    head, *body = [" & ".join(cell.translate(LATEX) for cell in cells) + r" \\" for cells in table]
    begin = rf"\begin{{tabular}}{{l{'r' * len(HEAD)}}}"
    return "\n".join([begin, r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}", ""])


def _by_run(results: dict[str, Any]) -> list[list[Any]]:
    columns = ("step", "accuracy", "loss", "images", *COSTS, *FIXED, *MEDIANS, "backend")
    more = [results["measure"]] if results["measure"] else []
    lines = [["entry", "seed", *columns, *more, "failed"]]
    for name, runs in results["runs"].items():
        for seed, outcome in runs.items():
            of_run = [*(outcome[column] for column in columns), *(_compared(outcome, one) for one in more)]
            lines.append([name, seed, *of_run, ""])
    for name, seeds in results["failed"].items():
        lines += [[name, seed, *[""] * len([*columns, *more]), why] for seed, why in seeds.items()]
    return lines
