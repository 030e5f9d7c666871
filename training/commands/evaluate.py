"""The command `moespec evaluate`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from moespec.models.families import Config as Model
from moespec.models.options import option
from moespec.models.shown import on_one_line
from moespec.spec.errors import ConfigError
from moespec.training.commandline.chosen import OfRun
from moespec.training.commandline.parse import parse
from moespec.training.compilation import compile_if, pays
from moespec.training.data.dataset import Dataset
from moespec.training.data.datasets import load_others
from moespec.training.evaluation.classes import always, beside, class_tables, confusion
from moespec.training.evaluation.evaluate import evaluation_size
from moespec.training.evaluation.metrics import line
from moespec.training.evaluation.options import EvaluationConfig
from moespec.training.interruption import Interruption, check
from moespec.training.loop.evaluations import Evaluations, load_sets
from moespec.training.loop.progress import called, told
from moespec.training.loop.resolve import model_config
from moespec.training.loop.resume import trained_params
from moespec.training.loop.rundirectory import RunDirectory
from moespec.training.objectives.table import objective_of
from moespec.training.reports import predictions
from moespec.training.reports.cost import aligned, described, milliseconds
from moespec.training.reports.curves import in_order
from moespec.training.runs import LoadedRun, load_run

__all__ = ["EvaluateArguments", "evaluate_command", "main"]


@dataclass(frozen=True, kw_only=True)
class EvaluateArguments(OfRun):
    """Evaluate the newest checkpoint of a run on its validation images, and run the evaluations [evaluation.NAME]
    of its config.toml. --fewshot and --knn use the features before the head and the run's training images.

    moespec evaluate runs/x --data folder --data.path new evaluates on other images and skips the evaluations of the run. The
    other images are the validation split of the new data, or all images if the new data have no validation split. The classes of the new
    data are matched by name and must be a subset of the classes of the run.
    """

    fewshot: tuple[int, ...] = ()
    """few-shot linear evaluation with this many training images per class (10: 10-shot)"""
    l2: tuple[float, ...] = (1024.0,)
    """--fewshot: L2 regularisation; several values: use the value with the best mean rank over the seeds"""
    seeds: int = 3
    """--fewshot: number of random draws of the training images"""
    knn: tuple[int, ...] = ()
    """nearest-neighbour evaluation with this many neighbours among the training images"""
    data: str | None = option(None, flags=("--data", "--data.name"))
    """data set to evaluate on (moespec list datasets) (default: the run's data set)"""
    path: str = option("", flags=("--data.path",))
    """file or folder of the data set that --data names"""
    broken: Literal["error", "skip"] = option("error", flags=("--data.broken",))
    """handling of unreadable images; error: stop at the first; skip: check all images first, count the unreadable ones and skip them"""
    csv: Path | None = None
    """write a table in the format of `moespec predict`, with one row per image and a column for the true class"""
    html: Path | None = None
    """write a page with the results of each class and the misclassified images"""


def main(words: list[str]) -> None:
    """Runs the command."""
    evaluate_command(parse("evaluate", EvaluateArguments, words))


def evaluate_command(given: EvaluateArguments) -> dict[str, Any]:
    """Prints the accuracy, loss, routing metrics and cost of a checkpoint, and the results of the requested extra evaluations.
    Writes the requested table, and the requested page with the misclassified images. Returns the results.

    Raises Interrupted on a signal.
    """
    for name in ("l2", "seeds"):
        if not given.fewshot and getattr(given, name) != getattr(EvaluateArguments, name):
            raise ConfigError(f"{name}={getattr(given, name)!r} has no effect without --fewshot")
    if given.csv or given.html:
        config = RunDirectory(given.run).begun_config()
        predictions.check_model(given.run, config.objective, model_config(config.model))
        data = given.path or config.data.path
        predictions.check_outputs(given.csv, given.html, Path(data) if data else None)
    sets: dict[str, EvaluationConfig] = {}
    if given.fewshot:
        sets["few-shot"] = EvaluationConfig("few_shot", shots=given.fewshot, l2=given.l2, seeds=given.seeds)
    if given.knn:
        sets["nearest neighbours"] = EvaluationConfig("neighbours", neighbours=given.knn)
    run, others = given.run, (given.data, given.path, given.broken) != (None, "", "error")
    loaded = load_run(run, given.backend, given.step)
    config, dataset, most = loaded.config, loaded.dataset, loaded.config.training.evaluation_batch
    if others:
        dataset = load_others(config.data, dataset, name=given.data, path=given.path, broken=given.broken)
        for note in dataset.notes:
            print(f"data: {on_one_line(note)}")
    evaluations = load_sets(config, dataset, {**({} if others else config.evaluation), **sets})
    B, model, images = loaded.backend, model_config(config.model), len(dataset.validation)
    params = B.from_numpy(loaded.params)
    objective = objective_of(config)
    with Interruption():
        dataset = objective.prepared(B, config, model, dataset, run, params)
        evaluate = objective.evaluation(B, config, model, dataset, pays(B, images // most))
        result = evaluate(params)
        right, total = round(result["accuracy"] * result["images"]), result["images"]
        print(f"{run}: step {loaded.step} of {config.training.steps}, backend {B.name}, data {dataset.name}")
        five = f", top 5 {result['top5']:.4f}" if "top5" in result else ""
        which = "accuracy" if others else f"validation {called(result)}"
        if "loss" in result:
            loss = config.training.loss.partition(":")[2] or "cross-entropy"
            print(f"{which} {result['accuracy']:.4f} ({right} of {total}){five}, {loss} {result['loss']:.4f}")
        else:
            rest = {name: value for name, value in result.items() if name not in ("accuracy", "images")}
            print(f"{which} {result['accuracy']:.4f}, {told(rest)}")
        print(*beside(result, dataset), sep="\n", end="\n" * bool(dataset.classes))
        if config.optimizer.ema is not None and "loss" in result:
            averaged, _ = trained_params(RunDirectory(run), config, step=loaded.step, average=True)
            result["average"] = average = evaluate(B.from_numpy(averaged))
            print(f"moving average: {which} {average['accuracy']:.4f}, {loss} {average['loss']:.4f}")
        for block in sorted(result.get("moe", {}), key=in_order):
            print(f"block {block}: {line(result['moe'][block])}")
        measure = Evaluations(B, config, evaluations).measure
        for name in evaluations:
            result[f"evaluation/{name}"] = found = measure(name, params)
            print(f"{name}: {told(found)}")
        if given.csv or given.html:
            _write(given, loaded, dataset, result, model, params)
        check(B)
    batch = evaluation_size(B.sizes, model, most, min(most, images))
    took = milliseconds(B, model, params, batch=batch)
    print(f"cost: {described(model, batch=batch)}, {took:.3f} ms in batches of {batch}")
    return {"step": loaded.step, **result}


def _write(
    given: EvaluateArguments, loaded: LoadedRun, dataset: Dataset, results: dict[str, Any], model: Model, params: Any
) -> None:
    """Writes the table and the page, and prints the results per class and the misclassified images."""
    B, training, split = loaded.backend, loaded.config.training, dataset.validation
    size, run = evaluation_size(B.sizes, model, training.evaluation_batch, len(split)), given.run
    forward = compile_if(B, pays(B, len(split) // size), predictions.make_shares(B, model))
    found = [*predictions.predicted(B, forward, model, params, dataset, batch=size, kind=training.loss)]
    counts = confusion(split.labels, np.array([one.read for one in found]), len(dataset.classes))
    tables = class_tables(counts, dataset.classes)
    mistakes = predictions.shown(found)
    page: Any = {"title": f"{dataset.name} as classified by {run.resolve().name}", "wrong": (), "tables": tables}
    page |= {"facts": {"model": f"{run}, step {loaded.step} of {training.steps}", "data": dataset.name}}
    page |= {"results": results, "always": always(dataset), "count": len(mistakes)}
    if given.html is not None:
        page["pictures"] = [one.drawn(dataset, given.html) for one in mistakes[: predictions.GALLERY]]
    written = predictions.write(found, given.csv, given.html, **page)
    head = ["class" if tables["whole"] else "class of low recall", "images", "recall", "precision"]
    print(aligned([head, *(words for _, words, _ in tables["rows"])]), *predictions.table(found), sep="\n")
    print(*written, sep="\n")
