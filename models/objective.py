"""What training minimises and what evaluation measures, as functions of parameters and a batch for any backend.

loss = mean over images of the cross-entropy + auxiliary losses of the routers (already weighted)
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec.models import vit
from moespec.models.streams import NOISE, generator
from moespec.spec.routing import Noise

__all__ = ["gating_noise", "make_forward", "make_loss", "moe_metrics", "unflatten"]

Batch = dict[str, Any]


def make_loss(B: Any, model: vit.VitConfig, kind: str) -> Callable[[Any, Batch], tuple[Any, dict[str, Any]]]:
    """`loss(params, batch) -> (loss, metrics)` for `make_step`.

    kind: "softmax" (targets are the probabilities of exclusive classes) or "sigmoid" (each class by itself, summed over
    classes). batch: images `(N, H, W, Ch)`, targets `(N, classes)` and, if there is gating noise, a list `noise`.
    """
    cross_entropy = {"softmax": B.softmax_cross_entropy, "sigmoid": B.sigmoid_cross_entropy}[kind]

    def loss(params: Any, batch: Batch) -> tuple[Any, dict[str, Any]]:
        output = vit.forward(B, model, params, batch["images"], noise=batch.get("noise"), train=True)
        main = B.mean(cross_entropy(output.logits, batch["targets"]), 0)
        total = main
        for value in output.losses.values():
            total = total + value
        return total, {"cross_entropy": main, **moe_metrics(model, output)}

    return loss


def make_forward(B: Any, model: vit.VitConfig) -> Callable[[Any, Any], tuple[Any, dict[str, Any]]]:
    """`forward(params, images) -> (logits, metrics of the MoE blocks)`, without noise."""

    def forward(params: Any, images: Any) -> tuple[Any, dict[str, Any]]:
        output = vit.forward(B, model, params, images)
        return output.logits, moe_metrics(model, output)

    return forward


def gating_noise(model: vit.VitConfig, images: int, *, seed: int, step: int) -> list[NDArray[np.float32]] | None:
    """What each MoE block takes as noise, a function of the seed and the step; None if the router takes none."""
    random = generator(seed, NOISE, step)
    return [_draw(random, noise) for noise in vit.moe_noise(model, images)] or None


def _draw(random: np.random.Generator, noise: Noise) -> NDArray[np.float32]:
    if noise.interval is None:
        return random.standard_normal(noise.shape, np.float32)
    return random.uniform(*noise.interval, noise.shape).astype(np.float32)


def moe_metrics(model: vit.VitConfig, output: vit.Output) -> dict[str, Any]:
    """The routing metrics of all MoE blocks in one flat dict, `moe/<block>/<metric>`."""
    pairs = zip(vit.moe_blocks(model), output.metrics, strict=True)
    return {f"moe/{block}/{name}": value for block, metrics in pairs for name, value in metrics.items()}


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
