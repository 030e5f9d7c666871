"""What evaluation reports of each MoE layer besides its routing metrics; a training step does not compute it."""

from collections.abc import Mapping, Sequence
from typing import Any

from moespec.backends.contract import Backend
from moespec.models.hashing import multi_hash
from moespec.models.layers import MoeLayer, Output

__all__ = ["line", "with_statistics"]

Metrics = dict[str, Any]
EXPERTS = ("experts_min", "experts_max", "at_least_1", "at_least_2", "at_least_4")
SHOWN = ("coverage", "dropped", "entropy", "dispatch_max", "combine_max", *EXPERTS)
"""The scalars that are shown, in this order, as far as a layer has them."""


def with_statistics(B: Backend, layers: Sequence[MoeLayer], output: Output) -> Output:
    """The output of a model with these scalars added to the metrics of each layer.

    A soft routing has those of `collapse_metrics`, any other those of `experts_per_token`. MultiHash has none, since
    it mixes several experts for each token inside their MLP.
    """
    layered = zip(layers, output.routings, output.metrics, strict=True)
    return output._replace(metrics=[{**metrics, **_of_layer(B, layer, routing)} for layer, routing, metrics in layered])


def _of_layer(B: Backend, layer: MoeLayer, routing: Any) -> Metrics:
    if multi_hash.chosen(layer.settings):
        return {}
    soft = hasattr(routing, "dispatch")  # what is stored by slot has no dense tensors
    return B.collapse_metrics(routing) if soft else B.experts_per_token(routing)


def line(metrics: Mapping[str, Any]) -> str:
    """The metrics of a layer at evaluation in one line."""
    scalars = [f"{name} {metrics[name]:.3f}" for name in SHOWN if name in metrics]
    return ", ".join([*scalars, "load " + " ".join(f"{value:.3f}" for value in metrics["load"])])
