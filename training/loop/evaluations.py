"""The evaluations `[evaluation.NAME]` of a run: their images, schedule and results."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from moespec.backends.contract import Backend
from moespec.models.checks import called
from moespec.models.errors import DataError, Interrupted
from moespec.models.families import Config as Model
from moespec.models.files import read_json
from moespec.models.router_options import named
from moespec.spec.errors import ConfigError
from moespec.spec.own import is_own, own_function, shown
from moespec.training.compilation import compile_if, pays
from moespec.training.configuration.config import Config
from moespec.training.data import datasets
from moespec.training.data.dataset import Dataset
from moespec.training.evaluation.evaluate import evaluate, evaluation_size, features
from moespec.training.evaluation.few_shot import few_shot
from moespec.training.evaluation.metrics import make_features, make_forward
from moespec.training.evaluation.neighbours import nearest_neighbours
from moespec.training.evaluation.options import EvaluationConfig
from moespec.training.evaluation.zero_shot import class_embeddings, read_prompts, zero_shot
from moespec.training.interruption import check
from moespec.training.loop.hooks import AfterStep
from moespec.training.loop.progress import Progress, kind_of
from moespec.training.loop.resolve import model_config
from moespec.training.objectives.lit import encoded, retriever, text_features
from moespec.training.objectives.table import objective_of

__all__ = ["Evaluate", "EvaluationSet", "Evaluations", "load_sets"]


class EvaluationSet(NamedTuple):
    """One evaluation. labels: all correct labels of each image, or None if each has one. model: has the capacity of the evaluation."""

    settings: EvaluationConfig
    dataset: Dataset
    labels: Sequence[Sequence[int]] | None
    model: Model
    numbers: Sequence[str] = ()
    """names of the results of a user-defined metric"""


def load_sets(
    config: Config, dataset: Dataset, sets: Mapping[str, EvaluationConfig] | None = None
) -> dict[str, EvaluationSet]:
    """Loads the evaluations in `sets` (by default, in the resolved configuration) and returns them by name. dataset: the data of the run.

    Raises ConfigError or DataError, naming the evaluation, if an evaluation is impossible.
    """
    loaded = {}
    for name, settings in (config.evaluation if sets is None else sets).items():
        where = f"evaluation.{name}"
        with named(f"{where}.", ("data", "capacity_factor")):
            how: Any = {"image_size": config.model.image_size, "validation_share": config.data.validation_share}
            try:
                own = dataset if settings.data == "run" else datasets.load(settings.data, settings.path, **how)
            except DataError as error:
                raise DataError(f"{where}.path={settings.path!r}: {error}") from error
            model = _model(config, settings)
        if own.shape != dataset.shape:
            shapes = f"images of {own.shape} (height, width, channels), but the model takes {dataset.shape}"
            raise ConfigError(f"{where}: {shapes}")
        needs = replace(settings, kind="head") if is_own(settings.kind) and model.classes else settings
        if wrong := _wrong(config, needs, own, model, len(dataset.classes)):
            raise ConfigError(f"{where}{wrong}")
        labels = _labels(Path(settings.labels), own) if settings.labels else None
        numbers: list[str] = []
        if is_own(settings.kind):  # an invalid metric should fail before training
            width = model.classes or getattr(model, "representation", 0) or model.width
            rows = np.random.default_rng(0).normal(size=(len(own.validation), width)).astype(np.float32)
            numbers = list(_measured(f"{where}.kind", settings.kind, rows, own.validation.labels))
        loaded[name] = EvaluationSet(settings, own, labels, model, numbers)
    return loaded


def _measured(where: str, kind: str, rows: Any, labels: Any) -> dict[str, float]:
    """Returns the results, by name, that a user-defined metric computes from labels and logits (features if the model has no head)."""
    made = called(f"{where}={kind!r}", own_function(where, kind), rows, labels.copy())
    good = isinstance(made, Mapping) and made and all(isinstance(each, Real) for each in made.values())
    if not good or {"kind", "step"}.intersection(made):  # each line of the log already has these keys
        raise ConfigError(
            f"{where}={kind!r}: returned {shown(made)}, expected a dict of numbers without the keys kind and step"
        )
    return {str(name): float(each) for name, each in made.items()}


def _wrong(config: Config, settings: EvaluationConfig, own: Dataset, model: Model, head: int) -> str:
    """Returns why the run or the evaluation's data make an evaluation impossible, or "". head: the number of classes of the run."""
    kind, classes, data = settings.kind, len(own.classes), f".data={settings.data!r}: its images have"
    if kind in ("zero_shot", "retrieval") and config.objective != "lit":
        return f".kind={kind!r}: the run has no text tower (objective={config.objective!r})"
    if kind == "retrieval":
        return f"{data} no captions" if own.validation.captions is None else ""
    if not classes:
        return f"{data} captions but no classes"
    if kind == "zero_shot":
        names, prompts = read_prompts(Path(settings.prompts)).classes, f".prompts={settings.prompts!r}:"
        if len(names) != classes:
            return f"{prompts} {len(names)} classes, but the data has {classes}"
        if names != own.classes and set(names) == set(own.classes):
            return f"{prompts} expected the classes in the order of the data: {', '.join(own.classes)}"
    if kind == "head" and not model.classes:
        return ".kind='head': the model has no head; use kind='few_shot' or kind='neighbours'"
    if kind == "head" and classes != head:
        return f": {classes} classes, but the head has {head}; use kind='few_shot' or kind='neighbours'"
    if kind == "neighbours" and max(settings.neighbours) > len(own.train):
        return f".neighbours={list(settings.neighbours)!r}: expected at most {len(own.train)}, the number of training images"
    if kind == "few_shot" and max(settings.shots) > (most := int(np.bincount(own.train.labels).max())):
        return f".shots={list(settings.shots)!r}: expected at most {most}, the training images of the largest class"
    return ""


def _model(config: Config, settings: EvaluationConfig) -> Model:
    """The model of the run. If the settings define an evaluation capacity, the model uses this capacity."""
    section = config.model
    if settings.capacity_factor is not None:
        factor, fields = {"eval_capacity_factor": settings.capacity_factor}, section.set()
        blocks = {
            number: {**own, "router_options": {**own.get("router_options", {}), **factor}}
            for number, own in fields.get("block", {}).items()
        }
        options = {**fields.get("router_options", {}), **factor}
        try:
            section = section.but(router_options=options, **({"block": blocks} if blocks else {}))
        except ConfigError as error:
            raise ConfigError(f"capacity_factor={settings.capacity_factor!r}: {error}") from error
    return model_config(section)


def _labels(path: Path, dataset: Dataset) -> list[list[int]]:
    """Reads all correct labels of each validation image. Raises DataError, naming the file and the defect."""
    labels = read_json(path, DataError, object)
    classes = range(len(dataset.classes))
    if not isinstance(labels, list) or len(labels) != len(dataset.validation):
        kind = f"a list of {len(labels)}" if isinstance(labels, list) else type(labels).__name__
        raise DataError(f"{path}: expected {len(dataset.validation)} lists of labels, one for each image, got {kind}")
    for index, own in enumerate(labels):
        if not isinstance(own, list) or not all(type(label) is int and label in classes for label in own):
            raise DataError(f"{path}: image {index} has {own!r}, expected a list of labels from 0 to {classes[-1]}")
    if not any(labels):
        raise DataError(f"{path}: expected labels for at least one image")
    return labels


class Evaluations:
    """Evaluates parameters on the evaluation sets. Each function is compiled only once."""

    def __init__(self, B: Backend, config: Config, sets: Mapping[str, EvaluationSet]) -> None:
        self._B, self._config, self._training, self._sets = B, config, config.training, sets
        self._functions: dict[tuple[str, Model], Callable[..., Any]] = {}

    def pending(self, done: int) -> list[str | None]:
        """Returns the names of the evaluations that are due after `done` steps. None means the evaluation on the run's own images."""
        every: list[tuple[str | None, int]] = [(None, self._training.evaluate_every)]
        every += [(name, one.settings.every) for name, one in self._sets.items()]
        return [name for name, steps in every if done % steps == 0 or done == self._training.total]

    def measure(self, name: str, params: Any) -> dict[str, Any]:
        """Returns the results of evaluation `name` for `params` (arrays of the backend): numbers, dicts and lists."""
        settings, dataset, labels, model, _ = one = self._sets[name]
        sizes, most, splits = self._B.sizes, self._training.evaluation_batch, (dataset.train, dataset.validation)
        batches = [evaluation_size(sizes, model, most, len(split)) for split in splits]
        if settings.kind == "head":
            forward = self._function(make_forward, one)
            kind = self._training.loss
            return evaluate(self._B, forward, params, dataset, batch=batches[1], kind=kind, labels=labels)
        if settings.kind == "retrieval":
            return retriever(self._B, self._config, model, compiled=False)(params, dataset)
        if is_own(settings.kind):
            outputs = self._function(make_forward if model.classes else make_features, one)
            extract = (lambda *given: outputs(*given)[0]) if model.classes else outputs
            rows = features(self._B, extract, params, dataset, dataset.validation, batch=batches[1])
            return _measured(f"evaluation.{name}.kind", settings.kind, rows, dataset.validation.labels)
        extract = self._function(make_features, one)
        if settings.kind == "zero_shot":
            seen = features(self._B, extract, params, dataset, dataset.validation, batch=batches[1])
            return zero_shot((seen, dataset.validation.labels), self._classes(Path(settings.prompts), params))
        train, test = (
            (features(self._B, extract, params, dataset, split, batch=batch), split.labels)
            for split, batch in zip(splits, batches, strict=True)
        )
        classes = len(dataset.classes)
        if settings.kind == "few_shot":
            options: dict[str, Any] = {"shots": settings.shots, "l2": settings.l2, "seeds": settings.seeds}
            return few_shot(train, test, classes=classes, **options)
        options = {"neighbours": settings.neighbours, "temperature": settings.temperature}
        return nearest_neighbours(train, test, classes=classes, **options)

    def _classes(self, path: Path, params: Any) -> Any:
        """Computes the class embeddings from a file of prompts."""
        prompts = read_prompts(path)
        ids = encoded(self._config, prompts.texts, f"{path}, text {{}}".format)
        return class_embeddings(text_features(self._B, self._config, False)(params, ids), len(prompts.classes))

    def _function(self, make: Callable[[Backend, Model], Callable[..., Any]], one: EvaluationSet) -> Callable[..., Any]:
        key = make.__name__, one.model
        if key not in self._functions:
            calls = (len(one.dataset.train) + len(one.dataset.validation)) // self._training.evaluation_batch
            self._functions[key] = compile_if(self._B, pays(self._B, calls), make(self._B, one.model))
        return self._functions[key]


class Evaluate(Evaluations):
    """The hook that runs the pending evaluations until a signal arrives."""

    def __init__(
        self, B: Backend, config: Config, sets: Mapping[str, EvaluationSet], dataset: Dataset, progress: Progress
    ) -> None:
        super().__init__(B, config, sets)
        compiled = pays(B, config.training.total, config.training.compile)
        self._own = objective_of(config).evaluation(B, config, model_config(config.model), dataset, compiled)
        self._progress = progress
        self.last: dict[str, Any] = {}
        """the last evaluation of the run's own images"""

    def __call__(self, after: AfterStep) -> None:
        try:
            while after.pending:
                check(after.B)
                name = after.pending[0]
                results = self._of_run(after) if name is None else self.measure(name, after.B.state_params(after.state))
                self._progress.evaluated(after.done, name, results)
                after.evaluations[kind_of(name)] = results
                del after.pending[0]
        except Interrupted as stop:
            after.stopped_by = stop.signal

    def _of_run(self, after: AfterStep) -> dict[str, Any]:
        self.last = self._own(after.B.state_params(after.state))
        if after.config.optimizer.ema is not None and "loss" in self.last:
            average = self._own(after.B.state_average(after.state))
            self.last["average"] = {name: average[name] for name in ("accuracy", "loss")}
        return self.last
