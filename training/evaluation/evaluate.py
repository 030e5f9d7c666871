"""Computes accuracy, loss and routing metrics over all images of a split."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec.backends import numpy as reference
from moespec.backends.contract import Backend
from moespec.backends.mesh import MeshSizes
from moespec.models.checks import called
from moespec.models.families import Tower, family
from moespec.spec.errors import ConfigError, SpecError
from moespec.spec.own import is_own, own_function, shown
from moespec.training.data.dataset import Dataset, Split
from moespec.training.data.loader import evaluation_batch, prepared
from moespec.training.data.prefetch import Prefetcher
from moespec.training.evaluation.classes import by_class
from moespec.training.evaluation.metrics import unflatten
from moespec.training.interruption import check
from moespec.training.progress_bar import Bar

__all__ = ["evaluate", "evaluation_size", "features", "loss_of", "over", "try_loss"]

TOP = 5


def evaluation_size(sizes: MeshSizes, model: Tower, batch: int, images: int) -> int:
    """Returns the smallest batch size that evaluates `images` images in as many batches as `batch` does.

        size >= images / ceil(images / batch)

    A batch of this size can be split over the devices and has router groups of the same size as a batch of `batch` images. If each
    batch is one group and all images fit into one batch, the group contains all images.
    """
    layers_of, parts = family(model).moe_layers, -(-images // batch)

    def groups(size: int) -> list[int]:
        return [layer.settings.tokens for layer in layers_of(model, size // sizes.devices)]

    for size in range(-(-images // parts), batch):
        with suppress(SpecError):  # raised if a batch of this size does not fill the groups
            if size % sizes.devices == 0 and (groups(size) == groups(batch) or parts == 1):
                return size
    return batch


def loss_of(B: Backend | ModuleType, kind: str) -> Callable[[Any, Any], Any]:
    """Returns the function `loss(logits, targets)`, which computes the loss `(N,)` of each image from arrays `(N, classes)`.

    kind: "softmax" (exclusive classes), "sigmoid" (a sum over independent classes), or the user's function of `(B, logits, targets)`.
    """
    if is_own(kind):
        return partial(own_function("training.loss", kind), B)
    return {"softmax": B.softmax_cross_entropy, "sigmoid": B.sigmoid_cross_entropy}[kind]


def try_loss(kind: str, classes: int, backend: str) -> None:
    """Raises ConfigError unless the loss, tried on three images in NumPy and in the backend, returns one finite number per image."""
    what, logits = f"training.loss={kind!r}", np.random.default_rng(0).normal(size=(3, max(classes, 1)))
    for B in (reference, import_module(f"moespec.backends.{backend}")):
        given = B.from_numpy((logits, np.ones_like(logits) / logits.shape[1]))
        losses = called(what, loss_of(B, kind), *given)
        right = type(losses) is type(given[0]) and losses.shape == (3,) and B.to_numpy(losses).dtype.kind == "f"
        if not right or not np.isfinite(B.to_numpy(losses)).all():
            raise ConfigError(
                f"{what}: returned {shown(losses)} for three images, expected a {B.name} array of 3 finite numbers"
            )


def evaluate(
    B: Backend,
    forward: Callable[[Any, Any], tuple[Any, dict[str, Any]]],
    params: Any,
    dataset: Dataset,
    *,
    batch: int,
    kind: str,
    labels: Sequence[Sequence[int]] | None = None,
) -> dict[str, Any]:
    """Returns means over the validation images: "accuracy", the results of `by_class`, "top5", "loss" (of kind `kind`), "images" and "moe".

    "accuracy" is the precision at 1. "top5" is the fraction of images with a correct label among the five largest logits. A data set
    with at most five classes has no "top5". `forward` comes from `make_forward`; `params` are arrays of `B`. The routing metrics are means
    over batches, weighted by the numbers of images, and include the padding of the last batch.

    labels: one or more correct labels per image, instead of the data set's labels. With `labels`, images without labels are ignored, and
    the results contain neither "loss" nor the results of `by_class`. ImageNet-ReaL has several labels per image (Beyer et al. 2020,
    arXiv 2006.07159; google-research/big_vision, `big_vision/evaluators/classification.py`).
    """
    losses = loss_of(reference, kind)
    seen, images, right, among, loss = 0, 0, 0, 0, 0.0
    metrics: dict[str, Any] = {}
    read: list[NDArray[np.int64]] = []
    for (logits, part_metrics), part in over(B, forward, params, dataset, dataset.validation, batch=batch):
        count = part["count"]
        logits, targets = np.asarray(logits, np.float64)[:count], part["targets"][:count]
        correct = np.zeros(targets.shape, bool)  # True where a class is a correct label of an image
        for row, right_ones in enumerate(
            targets.argmax(axis=1)[:, None] if labels is None else labels[seen : seen + count]
        ):
            correct[row, list(right_ones)] = True
        images += int(correct.any(axis=1).sum())
        read.append(logits.argmax(axis=1))
        right += int(correct[np.arange(count), read[-1]].sum())
        best = np.argpartition(-logits, min(TOP, logits.shape[1]) - 1, axis=1)[:, :TOP]
        among += int(np.take_along_axis(correct, best, 1).any(axis=1).sum())
        loss += float(np.sum(losses(logits, targets)))
        seen += count
        for name, value in part_metrics.items():
            metrics[name] = metrics.get(name, 0.0) + count * np.asarray(value, np.float64)
    means = {name: total / seen for name, total in metrics.items()}
    each = by_class(dataset.validation.labels, np.concatenate(read)) if labels is None else {}
    results = {"accuracy": right / images, **each} | ({"top5": among / images} if len(dataset.classes) > TOP else {})
    return {**results, **({"loss": loss / images} if labels is None else {}), "images": images, **unflatten(means)}


def over(
    B: Backend, function: Callable[[Any, Any], Any], params: Any, dataset: Dataset, split: Split, *, batch: int
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yields `function(params, images)` (as NumPy) and the batch, for all batches of a split in order.

    The last batch is padded with images from the start of the split; only the first `batch["count"]` images are valid. The device computes
    the next batch while the caller uses the current batch. Within an `Interruption`, a signal raises Interrupted between two batches.
    """

    def make(index: int) -> dict[str, Any]:
        return evaluation_batch(dataset, split, batch=batch, index=index, rows=B.rows(batch))

    batches = -(-len(split) // batch)
    shown: Any = {"unit": "batch", "desc": "images", "position": 0, "leave": False, "delay": 0.5}
    before: list[tuple[Any, dict[str, Any]]] = []
    with Prefetcher(make, 0, batches, ahead=1) as parts:
        for _, part in Bar(parts, total=batches, shown=B.process == 0, **shown):
            check(B)
            images = prepared(B, dataset, B.put(part["images"]))
            before.append((function(params, images), part))
            if len(before) > 1:
                result, earlier = before.pop(0)
                yield B.to_numpy(result), earlier
        for result, earlier in before:
            yield B.to_numpy(result), earlier


def features(
    B: Backend, function: Callable[[Any, Any], Any], params: Any, dataset: Dataset, split: Split, *, batch: int
) -> NDArray[Any]:
    """Returns the head's input for every image of a split, `(images, D)`; `function` comes from `make_features`."""
    parts = over(B, function, params, dataset, split, batch=batch)
    return np.concatenate([np.asarray(rows)[: part["count"]] for rows, part in parts])
