"""What training minimises and what evaluation measures, as functions of parameters and a batch for any backend.

loss = mean over images of the cross-entropy + auxiliary losses of the routers (already weighted)
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from moespec.backends.contract import Backend, Step
from moespec.backends.optimizer import OptimizerConfig
from moespec.models.draws import gating_noise, takes_draws
from moespec.models.families import Config, family
from moespec.models.layers import MoeLayer, Output
from moespec.models.training import config, resolve
from moespec.models.training.compilation import pays
from moespec.models.training.statistics import with_statistics

__all__ = ["draws", "make_features", "make_forward", "make_loss", "moe_metrics", "step_maker", "unflatten"]

Batch = dict[str, Any]


def make_loss(
    B: Backend, model: Config, kind: str, *, recompute: bool = False
) -> Callable[[Any, Batch], tuple[Any, dict[str, Any]]]:
    """`loss(params, batch) -> (loss, metrics)` for `make_step`.

    kind: "softmax" (targets are the probabilities of exclusive classes) or "sigmoid" (each class by itself, summed over
    classes). batch: images `(N, H, W, Ch)`, targets `(N, classes)` and, if the model draws random numbers in training,
    `random` `(N, 4)`, see `moespec.models.draws`. recompute: the backward pass computes each block anew.
    """
    cross_entropy = {"softmax": B.softmax_cross_entropy, "sigmoid": B.sigmoid_cross_entropy}[kind]
    forward, layers, wanted = family(model).forward, family(model).moe_layers, family(model).moe_noise

    def loss(params: Any, batch: Batch) -> tuple[Any, dict[str, Any]]:
        images, random = batch["images"], batch.get("random")
        noise = None if random is None else gating_noise(B, wanted(model, images.shape[0]), random, images)
        output = forward(B, model, params, images, noise=noise, random=random, train=True, recompute=recompute)
        main = B.mean(cross_entropy(output.logits, batch["targets"]), 0)
        total = main
        for value in output.losses.values():
            total = total + value
        return total, {"cross_entropy": main, **moe_metrics(layers(model, images.shape[0]), output)}

    return loss


def step_maker(B: Backend, run: config.Config) -> Callable[[OptimizerConfig], Step]:
    """`make(optimizer)` makes the training step of a resolved configuration, compiled where that pays."""
    training = run.training
    eager = {} if pays(B, training.total, training.compile) else {"compiled": False}
    loss = make_loss(B, resolve.model_config(run.model), training.loss, recompute=training.recompute)
    return lambda optimizer: B.make_step(loss, optimizer, accumulate=training.accumulate, **eager)


def make_forward(B: Backend, model: Config) -> Callable[[Any, Any], tuple[Any, dict[str, Any]]]:
    """`forward(params, images) -> (logits, metrics and statistics of the MoE layers)`, without noise."""
    module = family(model)

    def forward(params: Any, images: Any) -> tuple[Any, dict[str, Any]]:
        output = module.forward(B, model, params, images)
        layers = module.moe_layers(model, images.shape[0])
        return B.over_devices(output.logits, moe_metrics(layers, with_statistics(B, layers, output)))

    return forward


def make_features(B: Backend, model: Config) -> Callable[[Any, Any], Any]:
    """`features(params, images) -> (images, D)`: what the head sees, after the final norm and the pooling; no noise."""
    forward = family(model).forward
    return lambda params, images: B.over_devices(forward(B, model, params, images).features, {})[0]


def draws(model: Config, images: int) -> bool:
    """Whether the model draws random numbers in training: gating noise, dropout or stochastic depth."""
    return bool(family(model).moe_noise(model, images)) or takes_draws(model)


def moe_metrics(layers: list[MoeLayer], output: Output) -> dict[str, Any]:
    """The routing metrics of all MoE layers in one flat dict, `moe/<layer>/<metric>`."""
    pairs = zip(layers, output.metrics, strict=True)
    return {f"moe/{layer.name}/{name}": value for layer, metrics in pairs for name, value in metrics.items()}


def unflatten(metrics: dict[str, Any]) -> dict[str, Any]:
    """`{"moe/1/load": array}` as nested dicts of floats and lists, `{"moe": {"1": {"load": [...]}}}`."""
    nested: dict[str, Any] = {}
    for path, value in metrics.items():
        *parents, last = path.split("/")
        level = nested
        for parent in parents:
            level = level.setdefault(parent, {})
        level[last] = np.asarray(value, np.float64).tolist()
    return nested
