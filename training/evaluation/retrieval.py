"""Retrieval: whether the captions of an image are those nearest to it, and an image is nearest to its captions.

    s_ij        cosine of the features of image i and text j
    recall@k    how often one of the right ones is among the k of the largest s; among equals the lower index comes first

Source: google-research/big_vision, `big_vision/evaluators/proj/image_text/image_text_retrieval.py` (k = 1, 5, 10; an image
with several captions is right by any of them).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec.spec.errors import ConfigError
from moespec.training.evaluation.neighbours import CHUNK, unit

__all__ = ["RECALLS", "retrieval"]

RECALLS = (1, 5, 10)
Labelled = tuple[NDArray[Any], NDArray[np.integer[Any]]]


def retrieval(images: Labelled, texts: Labelled) -> dict[str, dict[str, float]]:
    """`{"image_to_text": {"recall_1", "recall_5", "recall_10"}, "text_to_image": {...}}`, fractions.

    images, texts: features `(N, D)` and labels `(N,)`; an image and its captions have the same label. Of images with the same
    label the first counts. Raises ConfigError for a label without an image or without a text.
    """
    labels, first = np.unique(images[1], return_index=True)
    order = np.sort(first)
    images = images[0][order], images[1][order]
    if len(alone := np.setxor1d(labels, texts[1])):
        raise ConfigError(f"labels: {alone[0]} is that of {'an image' if alone[0] in labels else 'a text'} alone")
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
