"""What pages and a terminal show of an evaluation: the accuracy beside that of the largest class, and the results of each class."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from moespec.training.data.dataset import Dataset
from moespec.training.evaluation.classes import Counts, always, confused, recall_and_precision
from moespec.training.loop.progress import called

__all__ = ["class_lines", "class_tables", "headline"]

CLASSES = 20
"""Most classes that have a whole table; of more, the classes of the lowest recall are shown, and as many pairs as are confused most."""


def headline(results: Mapping[str, Any], dataset: Dataset) -> dict[str, Any]:
    """What a page opens with, for its template."""
    right = round(results["accuracy"] * results["images"]) if "loss" in results else None
    about = {name: results.get(name) for name in ("accuracy", "images", "balanced_accuracy")}
    return {
        **about,
        "called": called(dict(results)),
        "right": right,
        "always": always(dataset) if dataset.classes else None,
    }


def class_tables(counts: Counts, names: Sequence[str], *, of: int) -> dict[str, Any]:
    """What the template of a page needs to show `confusion`: all of it, or of many classes what stands out. of: images there are."""
    images, (recall, precision) = counts.sum(axis=1), recall_and_precision(counts)
    whole = len(names) <= CLASSES
    rows = [
        {
            **{"number": i, "name": names[i], "images": int(images[i]), "read": counts[i]},
            **{"recall": _percent(recall[i]), "precision": _percent(precision[i])},
        }
        for i in (range(len(names)) if whole else np.argsort(recall, kind="stable")[:CLASSES].tolist())
    ]
    pairs = [(names[i], names[j], int(counts[i, j]), int(images[i])) for i, j in confused(counts, CLASSES)]
    return {"names": names, "rows": rows, "pairs": pairs, "whole": whole, "images": int(images.sum()), "all": of}


def class_lines(tables: Mapping[str, Any]) -> list[list[str]]:
    """The rows of `class_tables` for a terminal, with a header."""
    rows = [[row["name"], str(row["images"]), row["recall"], row["precision"]] for row in tables["rows"]]
    return [["class" if tables["whole"] else "class of low recall", "images", "recall", "precision"], *rows]


def _percent(fraction: float) -> str:
    return "-" if np.isnan(fraction) else f"{fraction:.1%}"
