"""MoCo v3: the encoder learns to match its features of one view of an image to the momentum encoder's features of the other view.

    q = predictor(projector(features of the model))          for both views
    k = projector(features of the model), with the averaged parameters, for both views
    loss = ctr(q_1, k_2) + ctr(q_2, k_1)                     `moespec.spec.moco_loss`

The momentum encoder uses the parameter average that the optimiser keeps (`optimizer.ema`). The momentum encoder runs in evaluation mode,
without noise and dropout, and with the evaluation capacity. Only the trained encoder has auxiliary losses, averaged over both
views. Batch normalisation, negatives and the loss cover the images on all devices: each device gathers all features.

Source: Chen et al. 2021 (arXiv 2104.02057), Algorithm 1 and section 4.1; facebookresearch/moco-v3, moco/builder.py (MoCo_ViT) and
main_moco.py (both augmentations).
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from moespec.backends.contract import Backend
from moespec.backends.pytrees import leaves
from moespec.models import parameters
from moespec.models.families import Config as Model
from moespec.models.families import family
from moespec.models.layers import returned
from moespec.models.parameters import Parameter, glorot_uniform, norm
from moespec.spec.errors import ConfigError
from moespec.spec.routing import Params
from moespec.training.compilation import compile_if
from moespec.training.configuration.config import Config
from moespec.training.data.dataset import Dataset, Split
from moespec.training.data.loader import views_of_step
from moespec.training.evaluation.evaluate import evaluation_size, features
from moespec.training.evaluation.metrics import make_features, moe_metrics
from moespec.training.evaluation.neighbours import nearest_neighbours, spread
from moespec.training.objectives.record import Loss, Objective, Passes, as_it_is, contrasted, is_plain, trained

__all__ = ["MOCO"]

Array = Any
MOMENTUM = 0.99
"""Default momentum of the parameter average (main_moco.py, moco-m)."""
NEIGHBOURS, TEMPERATURE, REFERENCES = 20, 0.07, 10_000
"""Evaluation by nearest neighbours: number of neighbours, temperature, and maximum number of training images."""


def _layout(config: Config, model: Model) -> Params:
    """Returns the layout of a projector (three layers) and a predictor (two). In both, all layers but the last have a scale and a bias."""
    width, section = getattr(model, "representation", 0) or model.width, config.moco
    return {
        "projector": _perceptron(width, section.hidden, section.hidden, section.output),
        "predictor": _perceptron(section.output, section.hidden, section.output),
    }


def _perceptron(*widths: int) -> Params:
    layers: Params = {}
    for number, (inputs, outputs) in enumerate(pairwise(widths)):
        normalised = {"norm": norm(outputs)} if number < len(widths) - 2 else {}
        layers[str(number)] = {"kernel": Parameter((inputs, outputs), glorot_uniform(inputs, outputs)), **normalised}
    return layers


def _projected(B: Backend, layers: Params, x: Array) -> Array:
    """Applies batch-normalised layers to the features `x` `(N, D)` of all images. All layers except the last apply scale, bias and ReLU."""
    for number in sorted(layers):
        x = B.batch_norm(B.linear(x, layers[number]["kernel"]))
        if (p := layers[number].get("norm")) is not None:
            x = B.relu(x * p["scale"] + p["bias"])
    return x


def _loss(B: Backend, config: Config, model: Model) -> Loss:
    module, recompute, temperature = family(model), config.training.recompute, config.moco.temperature

    def projected(params: Params, features: Array) -> Array:
        return _projected(B, params["projector"], B.over_devices(features, {})[0])

    def loss(params: Params, batch: dict[str, dict[str, Array]], average: Params) -> tuple[Any, ...]:
        views = [batch["first"], batch["second"]]
        outputs = [trained(B, model, params, one["images"], one.get("random"), recompute=recompute) for one in views]
        queries = [_projected(B, params["predictor"], projected(params, output.features)) for output in outputs]
        keys = [projected(average, module.forward(B, model, average, view["images"]).features) for view in views]
        main = B.moco_loss(*queries, *keys, temperature=temperature)
        total = sum((value / 2 for output in outputs for value in output.losses.values()), main)
        layers = module.moe_layers(model, views[0]["images"].shape[0])
        first, second = (moe_metrics(layers, output) for output in outputs)
        metrics = {"contrastive": main, **{name: (value + second[name]) / 2 for name, value in first.items()}}
        sums = {
            path: {name: value + outputs[1].statistics[path][name] for name, value in each.items()}
            for path, each in outputs[0].statistics.items()
        }
        return returned(total, metrics, sums)

    return loss


def _batch(config: Config, dataset: Dataset, rows: range | None) -> Callable[[int], dict[str, Any]]:
    """Returns a function that maps a step to two views of each image. The second view has separate rates of blur and solarisation."""
    other = replace(config.data, blur=config.moco.blur, solarise=config.moco.solarise)
    views, training = {"first": config.data, "second": other}, config.training
    return partial(views_of_step, dataset, views, training.batch, training.seed, rows=rows)


def _evaluation(
    B: Backend, config: Config, model: Model, dataset: Dataset, compiled: bool
) -> Callable[[Any], dict[str, Any]]:
    """Returns a function that computes the nearest-neighbour "accuracy" with evenly spaced training images, and the features' "spread"."""
    most = config.training.evaluation_batch
    extract = compile_if(B, compiled, make_features(B, model))
    places = np.linspace(0, len(dataset.train) - 1, min(REFERENCES, len(dataset.train))).round().astype(np.int64)
    references = Split(lambda indices: dataset.train.read(places[indices]), dataset.train.labels[places])

    def labelled(params: Any, split: Split) -> Any:
        batch = evaluation_size(B.sizes, model, most, len(split))
        return features(B, extract, params, dataset, split, batch=batch), split.labels

    def evaluate(params: Any) -> dict[str, Any]:
        train, test = labelled(params, references), labelled(params, dataset.validation)
        vote: Any = {"neighbours": [min(NEIGHBOURS, len(places))], "temperature": TEMPERATURE}
        (result,) = nearest_neighbours(train, test, classes=len(dataset.classes), **vote).values()
        return {**result, "spread": spread(test[0]), "images": len(test[1])}

    return evaluate


def _settled(config: Config, model: Model, dataset: Dataset | None) -> Config:
    """Returns the configuration with `optimizer.ema` set, so that the optimiser keeps the parameter average for the keys."""
    config = as_it_is(contrasted(config, dataset), model, dataset)
    if dataset is not None and is_plain(config.data) and not config.moco.blur and not config.moco.solarise:
        raise ConfigError("data: without augmentation both views of an image are equal; set --data.crop or --data.flip")
    momentum = MOMENTUM if config.optimizer.ema is None else config.optimizer.ema
    rising: Any = {"ema_steps": config.training.total} if config.moco.cosine and dataset is not None else {}
    return replace(config, optimizer=replace(config.optimizer, ema=momentum, **rising))


def _of_batch(config: Config, model: Model) -> tuple[int, int]:
    """Counts, per image, the values that projector and predictor output for both views, and the operations of both for one view."""
    own = _layout(config, model)
    outputs = sum(shape[-1] for path, shape in leaves(parameters.shapes(own)) if path[-1] == "kernel")
    return 2 * outputs, 2 * parameters.count(own)


MOCO = Objective(
    ("contrastive", "contrastive loss"),
    _loss,
    _batch,
    _evaluation,
    layout=_layout,
    settled=_settled,
    head=False,
    averaged=True,
    views=2,
    towers=lambda config, model: [Passes(model, trained=2, forward=2)],
    of_batch=_of_batch,
)
