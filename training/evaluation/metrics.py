"""Computes logits, features and metrics of MoE layers at evaluation, for any backend."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from moespec.backends.contract import Backend
from moespec.models.families import Config, family
from moespec.models.hashing import multi_hash
from moespec.models.layers import MoeLayer, Output
from moespec.models.pytrees import nested

__all__ = ["line", "make_features", "make_forward", "moe_metrics", "unflatten", "with_statistics"]

EXPERTS = ("experts_min", "experts_max", "at_least_1", "at_least_2", "at_least_4")
SHOWN = ("coverage", "dropped", "entropy", "dispatch_max", "combine_max", *EXPERTS)
"""The scalar metrics that `line` shows, in this order. Metrics that a layer lacks are omitted."""


def make_forward(B: Backend, model: Config) -> Callable[[Any, Any], tuple[Any, dict[str, Any]]]:
    """Returns `forward(params, images) -> (logits, metrics and statistics of the MoE layers)`, without noise."""
    module = family(model)

    def forward(params: Any, images: Any) -> tuple[Any, dict[str, Any]]:
        output = module.forward(B, model, params, images)
        layers = module.moe_layers(model, images.shape[0])
        return B.over_devices(output.logits, moe_metrics(layers, with_statistics(B, layers, output)))

    return forward


def make_features(B: Backend, model: Config) -> Callable[[Any, Any], Any]:
    """Returns `features(params, images) -> (images, D)`, the head's input after the final norm and the pooling, without noise."""
    forward = family(model).forward
    return lambda params, images: B.over_devices(forward(B, model, params, images).features, {})[0]


def moe_metrics(layers: list[MoeLayer], output: Output) -> dict[str, Any]:
    """Returns the routing metrics of all MoE layers in one flat dict, `moe/<layer>/<metric>`."""
    pairs = zip(layers, output.metrics, strict=True)
    return {f"moe/{layer.name}/{name}": value for layer, metrics in pairs for name, value in metrics.items()}


def unflatten(metrics: dict[str, Any]) -> dict[str, Any]:
    """Converts `{"moe/1/load": array}` to nested dicts of floats and lists, `{"moe": {"1": {"load": [...]}}}`."""
    return nested({path: np.asarray(value, np.float64).tolist() for path, value in metrics.items()})


def with_statistics(B: Backend, layers: Sequence[MoeLayer], output: Output) -> Output:
    """Adds statistics to the metrics of each layer in the output of a model. Training steps do not compute these statistics.

    Soft routings get `collapse_metrics`, and other routings get `experts_per_token`. MultiHash gets no statistics, since
    it mixes the experts of a token inside the MLP and a routing cannot describe this mixture.
    """

    def statistics(layer: MoeLayer, routing: Any) -> dict[str, Any]:
        if multi_hash.chosen(layer.settings):
            return {}
        soft = hasattr(routing, "dispatch")  # only a soft routing has dense tensors
        return B.collapse_metrics(routing) if soft else B.experts_per_token(routing)

    layered = zip(layers, output.routings, output.metrics, strict=True)
    return output._replace(metrics=[{**metrics, **statistics(layer, routing)} for layer, routing, metrics in layered])


def line(metrics: Mapping[str, Any]) -> str:
    """Formats the evaluation metrics of a layer as one line."""
    scalars = [f"{name} {metrics[name]:.3f}" for name in SHOWN if name in metrics]
    return ", ".join([*scalars, "load " + " ".join(f"{value:.3f}" for value in metrics["load"])])
