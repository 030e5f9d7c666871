"""Zero-shot classification assigns an image to the class whose prompts have the most similar features.

    w_c     mean of z / |z| over the prompts of class c, where z are the features of a prompt; the mean is then scaled to length 1
    label   arg max over c of the cosine of w_c and the image's features

Source: google-research/big_vision, `big_vision/evaluators/proj/image_text/discriminative_classifier.py`, _average_embeddings,
after openai/CLIP, `notebooks/Prompt_Engineering_for_ImageNet.ipynb`. This module uses names and prompts unchanged, whereas
`prompt_engineering.py` of big_vision converts both to lower case and removes punctuation.

Retrieval finds the captions of an image among all texts, and the image of a caption among all images.

    s_ij        cosine of the features of image i and text j
    recall@k    fraction of queries for which a correct item is among the k items with the largest s; in a tie, the lower index comes first

Source: google-research/big_vision, `big_vision/evaluators/proj/image_text/image_text_retrieval.py` (k = 1, 5, 10; for an image with several
captions, any of them counts).
"""

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moespec.models.errors import DataError
from moespec.models.files import read_json
from moespec.spec.errors import ConfigError
from moespec.training.data.captions import caption
from moespec.training.evaluation.neighbours import CHUNK, unit

__all__ = ["PLACE", "RECALLS", "Prompts", "class_embeddings", "read_prompts", "retrieval", "zero_shot"]

PLACE = "{}"
"""Placeholder for a class name in a prompt."""
RECALLS = (1, 5, 10)
Labelled = tuple[NDArray[Any], NDArray[np.integer[Any]]]


class Prompts(NamedTuple):
    """The class names, in label order, and the prompts; each name is inserted into every prompt."""

    classes: tuple[str, ...]
    prompts: tuple[str, ...]

    @property
    def texts(self) -> list[str]:
        """The prompts of all classes, class by class."""
        return [prompt.replace(PLACE, name) for name in self.classes for prompt in self.prompts]


def read_prompts(path: Path) -> Prompts:
    """Reads class names and prompts from a JSON file, `{"classes": ["cat", "dog"], "prompts": ["a photo of a {}."]}`.

    Raises DataError, naming the file, for invalid content.
    """
    table = read_json(path, DataError, object)
    lists: list[Any] = [table.get(key) for key in Prompts._fields] if isinstance(table, dict) else []
    if not lists or not all(isinstance(each, list) and each for each in lists):
        raise DataError(f'{path}: expected {{"classes": ["cat", ...], "prompts": ["a photo of a {PLACE}.", ...]}}')
    classes, prompts = (
        tuple(caption(each, f"{path}, {key}[{row}]") for row, each in enumerate(values))
        for key, values in zip(Prompts._fields, lists, strict=True)
    )
    if without := [prompt for prompt in prompts if PLACE not in prompt]:
        raise DataError(f"{path}: the prompt {without[0]!r:.80} has no {PLACE} for the class name")
    if twice := [name for name, count in Counter(classes).items() if count > 1]:
        raise DataError(f"{path}: duplicate class {twice[0]!r:.80}")
    return Prompts(classes, prompts)


def class_embeddings(features: NDArray[Any], classes: int) -> NDArray[np.float64]:
    """Returns class embeddings `(classes, D)` of length 1, from the features `(classes * prompts, D)` of `Prompts.texts`."""
    return unit(unit(features).reshape(classes, -1, features.shape[1]).mean(axis=1))


def zero_shot(images: Labelled, embeddings: NDArray[Any]) -> dict[str, float]:
    """Returns `{"accuracy"}` for images with features `(N, D)` and labels `(N,)`. embeddings: the class embeddings `(classes, D)`.

    Raises ConfigError if features and embeddings have different widths, or if a label is not a class.
    """
    features, labels = images
    if features.shape[1] != embeddings.shape[1]:
        raise ConfigError(f"embeddings: expected the images' width {features.shape[1]}, got {embeddings.shape[1]}")
    if labels.max() >= len(embeddings):
        raise ConfigError(f"labels: expected labels below {len(embeddings)}, the number of classes, got {labels.max()}")
    nearest = (unit(features) @ unit(embeddings).T).argmax(axis=1)
    return {"accuracy": float(np.mean(nearest == labels))}


def retrieval(images: Labelled, texts: Labelled) -> dict[str, dict[str, float]]:
    """Returns the recalls as fractions, `{"image_to_text": {"recall_1", "recall_5", "recall_10"}, "text_to_image": {...}}`.

    images, texts: features `(N, D)` and labels `(N,)`; an image and its captions have the same label. If several images have
    the same label, only the first image counts. Raises ConfigError for a label without an image or without a text.
    """
    labels, first = np.unique(images[1], return_index=True)
    order = np.sort(first)
    images = images[0][order], images[1][order]
    if len(alone := np.setxor1d(labels, texts[1])):
        raise ConfigError(f"labels: {alone[0]} occurs only in the {'images' if alone[0] in labels else 'texts'}")
    return {"image_to_text": _recalls(images, texts), "text_to_image": _recalls(texts, images)}


def _recalls(queries: Labelled, references: Labelled) -> dict[str, float]:
    x, y = unit(queries[0]), unit(references[0])
    ranks = []
    step, places = max(1, CHUNK // len(y)), np.arange(len(y))
    for start in range(0, len(x), step):
        cosines = x[start : start + step] @ y.T
        right = np.where(queries[1][start : start + step, None] == references[1], cosines, -np.inf)
        nearest, best = right.argmax(axis=1)[:, None], right.max(axis=1, keepdims=True)
        ranks.append(np.sum((cosines > best) | ((cosines == best) & (places < nearest)), axis=1))
    rank = np.concatenate(ranks)
    return {f"recall_{k}": float(np.mean(rank < k)) for k in RECALLS}
