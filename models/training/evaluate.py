"""Evaluation: accuracy, loss and routing metrics over all images of a split."""

from collections.abc import Callable
from typing import Any

import numpy as np

from moespec.backends.contract import Backend
from moespec.models.data.dataset import Dataset
from moespec.models.data.loader import evaluation_batch
from moespec.models.data.prefetch import Prefetcher
from moespec.models.training.objective import unflatten
from moespec.spec import sigmoid_cross_entropy, softmax_cross_entropy

__all__ = ["evaluate"]


def evaluate(
    B: Backend,
    forward: Callable[[Any, Any], tuple[Any, dict[str, Any]]],
    params: Any,
    dataset: Dataset,
    *,
    batch: int,
    kind: str,
) -> dict[str, Any]:
    """Means over the validation images: "accuracy", "loss" (cross-entropy of `kind`), "images" and "moe".

    `forward` is `make_forward`'s; `params` are arrays of `B`. Batches have one size; the last is filled up with images
    from the start of the split, which count neither for the accuracy nor for the loss. The routing metrics are means
    over batches, weighted by their images, and see the filling.
    """
    cross_entropy = {"softmax": softmax_cross_entropy, "sigmoid": sigmoid_cross_entropy}[kind]
    images, correct, loss = 0, 0, 0.0
    metrics: dict[str, Any] = {}

    def make(index: int) -> dict[str, Any]:
        return evaluation_batch(dataset, dataset.validation, batch=batch, index=index)

    with Prefetcher(make, 0, -(-len(dataset.validation) // batch), ahead=1) as parts:
        for _, part in parts:
            logits, part_metrics = B.to_numpy(forward(params, B.from_numpy(part["images"])))
            count = part["count"]
            targets = part["targets"][:count]
            logits = np.asarray(logits, np.float64)[:count]
            images += count
            correct += int(np.sum(logits.argmax(axis=1) == targets.argmax(axis=1)))
            loss += float(np.sum(cross_entropy(logits, targets)))
            for name, value in part_metrics.items():
                metrics[name] = metrics.get(name, 0.0) + count * np.asarray(value, np.float64)
    means = {name: total / images for name, total in metrics.items()}
    return {"accuracy": correct / images, "loss": loss / images, "images": images, **unflatten(means)}
