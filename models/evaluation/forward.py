"""What evaluation computes of images, as functions of parameters for any backend: logits, features, and metrics of MoE layers."""

from collections.abc import Callable
from typing import Any

import numpy as np

from moespec.backends.contract import Backend
from moespec.models.evaluation.statistics import with_statistics
from moespec.models.families import Config, family
from moespec.models.layers import MoeLayer, Output

__all__ = ["make_features", "make_forward", "moe_metrics", "unflatten"]


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
