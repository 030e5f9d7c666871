"""What training minimises and what evaluation measures, as functions of parameters and a batch for any backend.

loss = mean over images of the cross-entropy + auxiliary losses of the routers (already weighted)
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec.backends.contract import Backend
from moespec.models.families import Config, family
from moespec.models.layers import MoeLayer, Output
from moespec.models.streams import NOISE, generator
from moespec.models.training.statistics import with_statistics
from moespec.spec.routing import Noise

__all__ = ["gating_noise", "make_features", "make_forward", "make_loss", "moe_metrics", "unflatten"]

Batch = dict[str, Any]


def make_loss(B: Backend, model: Config, kind: str) -> Callable[[Any, Batch], tuple[Any, dict[str, Any]]]:
    """`loss(params, batch) -> (loss, metrics)` for `make_step`.

    kind: "softmax" (targets are the probabilities of exclusive classes) or "sigmoid" (each class by itself, summed over
    classes). batch: images `(N, H, W, Ch)`, targets `(N, classes)` and, if there is gating noise, a list `noise`.
    """
    cross_entropy = {"softmax": B.softmax_cross_entropy, "sigmoid": B.sigmoid_cross_entropy}[kind]
    forward, layers = family(model).forward, family(model).moe_layers

    def loss(params: Any, batch: Batch) -> tuple[Any, dict[str, Any]]:
        output = forward(B, model, params, batch["images"], noise=batch.get("noise"), train=True)
        main = B.mean(cross_entropy(output.logits, batch["targets"]), 0)
        total = main
        for value in output.losses.values():
            total = total + value
        return total, {"cross_entropy": main, **moe_metrics(layers(model, batch["images"].shape[0]), output)}

    return loss


def make_forward(B: Backend, model: Config) -> Callable[[Any, Any], tuple[Any, dict[str, Any]]]:
    """`forward(params, images) -> (logits, metrics and statistics of the MoE layers)`, without noise."""
    module = family(model)

    def forward(params: Any, images: Any) -> tuple[Any, dict[str, Any]]:
        output = module.forward(B, model, params, images)
        layers = module.moe_layers(model, images.shape[0])
        return output.logits, moe_metrics(layers, with_statistics(B, layers, output))

    return forward


def make_features(B: Backend, model: Config) -> Callable[[Any, Any], Any]:
    """`features(params, images) -> (images, D)`: what the head sees, after the final norm and the pooling; no noise."""
    forward = family(model).forward
    return lambda params, images: forward(B, model, params, images).features


def gating_noise(model: Config, images: int, *, seed: int, step: int) -> list[NDArray[np.float32]] | None:
    """What each MoE layer takes as noise, a function of the seed and the step; None if the routers take none."""
    random = generator(seed, NOISE, step)
    return [_draw(random, noise) for noise in family(model).moe_noise(model, images)] or None


def _draw(random: np.random.Generator, noise: Noise) -> NDArray[np.float32]:
    if noise.interval is None:
        return random.standard_normal(noise.shape, np.float32)
    return random.uniform(*noise.interval, noise.shape).astype(np.float32)


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
