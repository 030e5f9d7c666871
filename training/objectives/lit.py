"""Trains an image tower and a text tower to match each image with its own text rather than with the texts of other images.

    z_image = features of the image tower, z_text = features of the text tower   (`moespec.models.text`)
    loss = contrastive_loss or sigmoid_loss of both                              (`moespec.spec`)

The negatives come from all devices: each device gathers all features and computes the loss. The logarithm of the scale, and the bias, are
trained with the towers. A locked image tower is not trained. Without augmentation, the features of a locked tower are computed once and
cached in the folder of the run. A resumed run recomputes some features as a check.

Source: Zhai et al. 2022 (LiT, arXiv 2111.07991), section 3; Zhai et al. 2023 (SigLIP, arXiv 2303.15343), Algorithm 1; google-research/vmoe,
vmoe/projects/contrastive/{models,trainer}.py; google-research/big_vision, big_vision/models/proj/image_text/two_towers.py.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from moespec.backends.contract import Backend
from moespec.models import text
from moespec.models.errors import CheckpointError
from moespec.models.families import Config as Model
from moespec.models.families import family
from moespec.models.files import read_file, write_atomically
from moespec.models.layers import returned
from moespec.models.parameters import Parameter, constant
from moespec.models.router_options import named
from moespec.models.tensors import sealed, unsealed
from moespec.spec.errors import ConfigError, ShapeError
from moespec.spec.routing import Params
from moespec.training.compilation import compile_if, pays
from moespec.training.configuration.config import Config
from moespec.training.configuration.modelconfig import model_config
from moespec.training.data.dataset import Dataset, Split
from moespec.training.data.loader import pairs_of_step
from moespec.training.data.tokens import check_vocabulary, encode, tokenizer_of
from moespec.training.evaluation.evaluate import evaluation_size, features
from moespec.training.evaluation.metrics import make_features, moe_metrics
from moespec.training.evaluation.zero_shot import retrieval
from moespec.training.objectives.record import Loss, Objective, Passes, contrasted, is_plain, trained

__all__ = ["LIT", "encoded", "retriever", "text_features", "tower_of"]

Array = Any
FEATURES = "features.safetensors"
COMPARED = 8
"""Number of images whose features a resumed run recomputes to check the cached features."""


def tower_of(config: Config) -> text.TextConfig:
    """The text tower of a configuration. Raises ConfigError, naming the field, for an invalid value in the section `text`."""
    return cast(text.TextConfig, model_config(config.text, "text"))


def encoded(config: Config, texts: Any, name: Callable[[int], str] = "caption {}".format) -> NDArray[np.int32]:
    """Converts texts to token ids, padded to the length of the tower. name: maps the index of a text to its name in errors."""
    tokenizer = tokenizer_of(config.lit.tokenizer, end=config.lit.end)
    return encode(tokenizer, texts, tower_of(config).length, long=config.lit.long, name=name)


def text_features(B: Backend, config: Config, compiled: bool) -> Callable[[Any, NDArray[np.int32]], NDArray[Any]]:
    """Returns `features(params, ids)`, which maps the parameters of a run and text ids `(N, length)` to features `(N, D)`."""
    tower = tower_of(config)

    def forward(params: Any, ids: Array) -> Array:
        return B.over_devices(text.forward(B, tower, params["text"], ids).features, {})[0]

    function = compile_if(B, compiled, forward)

    def features_of(params: Any, ids: NDArray[np.int32]) -> NDArray[Any]:
        batch = evaluation_size(B.sizes, tower, config.training.evaluation_batch, len(ids))
        rows, parts = B.rows(batch), []
        for start in range(0, len(ids), batch):
            part = np.arange(start, start + batch) % len(ids)  # pads the last batch with the first texts
            put = B.put(ids[part[rows.start : rows.stop]])
            parts.append(np.asarray(B.to_numpy(function(params, put))))
        return np.concatenate(parts)[: len(ids)]

    return features_of


def _layout(config: Config, model: Model) -> Params:
    """Returns the layout of the parameters: the text tower, the scale of the similarities and, for the sigmoid loss, their bias."""
    section = config.lit
    bias = {"bias": Parameter((), constant(section.bias))} if section.loss == "sigmoid" else {}
    scale = {"scale": Parameter((), constant(math.log(section.scale))), **bias}
    return {"text": text.FAMILY.layout(tower_of(config)), "pairs": scale}


def _loss(B: Backend, config: Config, model: Model) -> Loss:
    section, recompute, tower = config.lit, config.training.recompute, tower_of(config)

    def loss(params: Params, batch: dict[str, dict[str, Array]]) -> tuple[Any, ...]:
        image, texts = batch["image"], batch["text"]
        read = trained(B, tower, params["text"], texts["ids"], texts.get("random"), recompute=recompute)
        outputs: list[Any] = [(tower, "_text", read)]
        if "features" in image:
            seen = image["features"]
        elif section.locked:
            seen = family(model).forward(B, model, params, image["images"]).features
        else:
            output = trained(B, model, params, image["images"], image.get("random"), recompute=recompute)
            seen = output.features
            outputs.append((model, "", output))
        pair = B.over_devices(seen, {})[0], B.over_devices(read.features, {})[0]
        numbers = params["pairs"]
        if section.loss == "softmax":
            main = B.contrastive_loss(*pair, numbers["scale"])
        else:
            main = B.sigmoid_loss(*pair, numbers["scale"], numbers["bias"])
        total, metrics = main, {"contrastive": main}
        sums: dict[str, Any] = {}
        for of, ending, output in outputs:
            layers = family(of).moe_layers(of, seen.shape[0])
            metrics |= moe_metrics([layer._replace(name=f"{layer.name}{ending}") for layer in layers], output)
            total = sum(output.losses.values(), total)
            where = "text/" if ending else ""
            sums |= {f"{where}{path}": each for path, each in output.statistics.items()}
        return returned(total, metrics, sums)

    return loss


def _batch(config: Config, dataset: Dataset, rows: range | None) -> Callable[[int], dict[str, Any]]:
    return partial(pairs_of_step, dataset, config.data, config.training.batch, config.training.seed, rows=rows)


def _settled(config: Config, model: Model, dataset: Dataset | None) -> Config:
    """Sets the vocabulary and the output width of the text tower. If the image tower is locked, sets its learning rate to 0."""
    config = contrasted(config, dataset)
    if dataset is not None and any(split.captions is None for split in (dataset.train, dataset.validation)):
        need = "objective='lit' needs images with captions, as in --data pairs"
        raise ConfigError(f"data.name={config.data.name!r}: {need}")
    tokenizer = tokenizer_of(config.lit.tokenizer, end=config.lit.end)
    width = getattr(model, "representation", 0) or model.width
    section = config.text.but(**{"vocabulary": tokenizer.vocabulary, "projection": width, **config.text.set()})
    config = replace(config, text=section)
    tower = tower_of(config)
    with named("text.", ("vocabulary",)):
        check_vocabulary(tokenizer, tower.vocabulary)
    if tower.projection != width:
        raise ConfigError(f"text.projection={tower.projection!r}: expected {width}, the image tower's width")
    for name in ("batch", "evaluation_batch"):
        try:
            text.moe_layers(tower, getattr(config.training, name))
        except ShapeError as error:
            raise ConfigError(f"training.{name}={getattr(config.training, name)!r}: {error}") from error
    filled = {name: value for name, value in asdict(tower).items() if name != "router_options"}
    return _locked(replace(config, text=section.but(**filled)), model) if config.lit.locked else config


def _locked(config: Config, model: Model) -> Config:
    """Sets the image tower's learning rate to 0. Raises ConfigError without `init`, or if dropout or `optimizer.rates` affect the tower."""
    if config.init is None:
        raise ConfigError("lit.locked=True requires init, since a locked image tower is not trained")
    for name in ("dropout", "stochastic_depth"):
        if getattr(model, name, 0.0):
            raise ConfigError(f"model.{name}={getattr(model, name)!r}: expected 0 for a locked tower (lit.locked)")
    rates = config.optimizer.rates
    own = f"^({'|'.join(sorted(family(model).parameter_shapes(model)))})($|/)=0"
    if rates and not rates.startswith(own):
        paths = [(name, "x") for name in family(model).parameter_shapes(model)]
        if wrong := [path[0] for path in paths if config.optimizer.rate_of(path) not in (0.0, 1.0)]:
            raise ConfigError(f"optimizer.rates={rates!r}: the rate of {wrong[0]} must be 0, since lit.locked is set")
    joined = rates if rates.startswith(own) else ", ".join(filter(None, [own, rates]))
    return replace(config, optimizer=replace(config.optimizer, rates=joined))


def _prepared(B: Backend, config: Config, model: Model, dataset: Dataset, run: Path, params: Params) -> Dataset:
    """Returns the data set with captions as token ids and, if the image features can be cached, with the image features."""
    dataset = _read(config, dataset)
    if not _cached(config):
        return dataset
    arrays = _features(B, config, model, dataset, run / FEATURES, params)
    return dataset.with_splits(lambda name, split: replace(split, features=arrays[name]))


def _cached(config: Config) -> bool:
    """Whether the image features can be cached: the image tower is locked, and images are not augmented."""
    return config.lit.locked and is_plain(config.data)


def _read(config: Config, dataset: Dataset) -> Dataset:
    """Returns the data set with captions as token ids. Raises DataError for captions that are too long."""

    def with_ids(name: str, split: Split) -> Split:
        if split.captions is None or split.ids is not None:
            return split
        return replace(split, ids=encoded(config, split.captions, f"{name} caption {{}}".format))

    return dataset.with_splits(with_ids)


def _features(
    B: Backend, config: Config, model: Model, dataset: Dataset, path: Path, params: Params
) -> dict[str, NDArray[np.float32]]:
    """Returns the image features of both splits, cached in `path`. Raises CheckpointError if the tower or the images changed."""
    extract = compile_if(B, pays(B, len(dataset.train) // config.training.evaluation_batch), make_features(B, model))

    def computed(split: Split) -> NDArray[np.float32]:
        batch = evaluation_size(B.sizes, model, config.training.evaluation_batch, len(split))
        return np.asarray(features(B, extract, params, dataset, split, batch=batch), np.float32)

    splits = {"train": dataset.train, "validation": dataset.validation}
    if set(B.exchanged(str(path.is_file()))) != {"True"}:
        arrays = {name: computed(split) for name, split in splits.items()}
        if B.process == 0:
            write_atomically(path, sealed(arrays))
        return arrays
    advice = "delete the file to recompute them"
    try:
        tensors, _ = unsealed(read_file(path))
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}; {advice}") from error
    arrays = {name: tensor.array for name, tensor in tensors.items() if name != "sha256"}  # from an earlier 0.2
    if arrays.keys() != splits.keys():
        raise CheckpointError(f"{path}: expected features of {' and '.join(splits)} images; {advice}")
    few = np.arange(min(COMPARED, len(dataset.validation)))
    some = Split(lambda indices: dataset.validation.read(few[indices]), dataset.validation.labels[few])
    counts = all(len(arrays[name]) == len(split) for name, split in splits.items())
    if not counts or not np.allclose(computed(some), arrays["validation"][few], rtol=1e-2, atol=1e-3):
        raise CheckpointError(f"{path}: the image tower or the images have changed; {advice}")
    return arrays


def _evaluation(
    B: Backend, config: Config, model: Model, dataset: Dataset, compiled: bool
) -> Callable[[Any], dict[str, Any]]:
    """Returns a function that evaluates retrieval among the validation pairs in both directions; "accuracy" is the mean recall at 1."""
    measured = retriever(B, config, model, compiled)

    def evaluate(params: Any) -> dict[str, Any]:
        results = measured(params, dataset)
        recalls = [results[way]["recall_1"] for way in ("image_to_text", "text_to_image")]
        return {"accuracy": sum(recalls) / 2, **results, "images": len(dataset.validation)}

    return evaluate


def retriever(B: Backend, config: Config, model: Model, compiled: bool) -> Callable[[Any, Dataset], dict[str, Any]]:
    """Returns a function that maps parameters and a data set to the `retrieval` results of the validation pairs."""
    extract, read = compile_if(B, compiled, make_features(B, model)), text_features(B, config, compiled)

    def measure(params: Any, dataset: Dataset) -> dict[str, Any]:
        split = dataset.validation
        seen = split.features
        if seen is None:
            batch = evaluation_size(B.sizes, model, config.training.evaluation_batch, len(split))
            seen = features(B, extract, params, dataset, split, batch=batch)
        texts = read(params, encoded(config, split.captions) if split.ids is None else split.ids)
        return retrieval((seen, split.labels), (texts, split.labels))

    return measure


def _towers(config: Config, model: Model) -> list[Passes]:
    """Returns the passes of both towers. A locked image tower has only forward passes, or none if its features are cached."""
    image = Passes(model, trained=not config.lit.locked, forward=config.lit.locked)
    return [*([] if _cached(config) else [image]), Passes(tower_of(config), 1)]


def _of_batch(config: Config, model: Model) -> tuple[int, int]:
    """Counts, per image, the values that the loss stores (features and similarities), and the operations for similarities to all texts."""
    width, batch = tower_of(config).projection, config.training.batch
    return 2 * width + batch, 2 * width * batch


LIT = Objective(
    ("contrastive", "contrastive loss"),
    _loss,
    _batch,
    _evaluation,
    layout=_layout,
    settled=_settled,
    read=_read,
    prepared=_prepared,
    head=False,
    views=2,
    routed=lambda config, model: {**({} if config.lit.locked else {"": model}), "text/": tower_of(config)},
    towers=_towers,
    of_batch=_of_batch,
)
