"""Predicts the class of each image, lists the experts that process the image, and shows the results in a terminal, a table or a page.

The share of expert e in an image is the expert's fraction of the combine weights:

    share[e] = sum_t,c |combine[t, e, c]| / sum_t,e,c |combine[t, e, c]|

If each token has one expert of weight 1, the share is the fraction of tokens that the expert processes.
"""

import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from csv import QUOTE_NONNUMERIC, DictWriter
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unicodedata import normalize
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from moespec.backends.contract import Backend
from moespec.models.checks import check_output
from moespec.models.families import Config as Model
from moespec.models.families import family
from moespec.models.files import write_atomically
from moespec.models.shown import on_one_line
from moespec.spec.errors import ConfigError
from moespec.spec.numerics import sigmoid, softmax
from moespec.training.data.dataset import Dataset
from moespec.training.evaluation.evaluate import over
from moespec.training.reports.templates import render

__all__ = [
    *("Prediction", "check_model", "check_outputs", "link", "make_shares", "predicted", "shown", "table", "thumbnail"),
    "write",
]

TOP = 3
"""Number of classes listed for each image."""
ROWS, LETTERS = 20, 40
"""Maximum number of pictures listed in the terminal, and maximum length of a listed name."""
GALLERY, SIDE = 2000, 192
"""Maximum number of pictures on a page (a picture takes 10 kB), and maximum side of a picture in pixels."""
BUSIEST = 3
"""Number of experts listed per layer."""
LEAST = 1e-30
"""Added to a sum of weights to avoid a division by 0."""


class Prediction(NamedTuple):
    """The prediction for an image: the number and the name of the image, the most probable classes, the shares of the experts by layer, and
    the predicted class (`read`). label, true_class: the true class; -1 and "" if unknown. picture: a JPEG. link: the image's address.
    """

    number: int
    name: str
    classes: list[tuple[str, float]]
    experts: dict[str, NDArray[Any]]
    read: int
    label: int
    true_class: str
    picture: bytes = b""
    link: str = ""

    def __repr__(self) -> str:
        """Describes the prediction in one line, without the arrays."""
        return f"<{self.name}: {', '.join(f'{name} {likely:.3f}' for name, likely in self.classes)}>"

    def drawn(self, dataset: Dataset, page: Path) -> "Prediction":
        """Returns a copy of this prediction with the picture of its validation image and the link for `page`."""
        picture = thumbnail(dataset.validation.picture(self.number), maximum=dataset.maximum)
        return self._replace(picture=picture, link=link(dataset.validation.name(self.number), page))


def check_model(run: Path, objective: str, model: Model) -> None:
    """Raises ConfigError unless a run's model classifies images with 1 or 3 channels."""
    if not model.classes or model.channels not in (1, 3):
        why = f"{model.channels} channels, expected 1 or 3" if model.classes else "no head and therefore no classes"
        raise ConfigError(f"run={str(run)!r}: its model has {why} (objective={objective!r})")


def check_outputs(csv: Path | None, html: Path | None, source: Path | None) -> None:
    """Raises RunError unless the requested table and page can be written without replacing the input."""
    for name, path in (("csv", csv), ("html", html)):
        if path is not None:
            check_output(name, path, [f".{name}"], [source] if source else [])


def predicted(
    B: Backend, forward: Callable[[Any, Any], tuple[Any, Any]], model: Model, params: Any, dataset: Dataset, **how: Any
) -> Iterator[Prediction]:
    """Yields predictions for validation images, in order. `forward` is a compiled `make_shares` function; `params` are arrays of `B`.

    how: `batch` (images per batch), `kind` (of the loss), `top` (number of listed classes) and `rows` (image numbers, by default all).
    """
    split, names = dataset.validation, [on_one_line(name) for name in dataset.classes]
    rows = how.get("rows", np.arange(len(split)))
    part = replace(split, read=lambda places: split.read(rows[places]), labels=split.labels[rows])
    likely, left = sigmoid if how["kind"] == "sigmoid" else softmax, iter(rows.tolist())
    layers = [layer.name for layer in family(model).moe_layers(model, how["batch"])]
    for (logits, shares), _ in over(B, forward, params, dataset, part, batch=how["batch"]):
        scores = np.asarray(logits, np.float64)
        # Padding gives the last batch more rows than there are images left.
        for row, probabilities, index, *experts in zip(scores, likely(scores), left, *shares, strict=False):
            best = np.argsort(-row, kind="stable")[: how.get("top", TOP)].tolist()
            classes = [(names[label], float(probabilities[label])) for label in best]
            routed, own = dict(zip(layers, experts, strict=False)), int(split.labels[index])
            name, true_class = on_one_line(split.name(index)), names[own] if own >= 0 else ""
            yield Prediction(index, name, classes, routed, best[0], own, true_class)


def make_shares(B: Backend, model: Model) -> Callable[[Any, Any], tuple[Any, list[Any]]]:
    """Returns `forward(params, images)`, which computes the logits and, for each MoE layer, each expert's share of each image, `(N, E)`."""
    module = family(model)

    def share(routing: Any, images: int) -> Any:
        weights = abs(routing.dense().combine).sum(axis=3)  # (G, T, E); a group has several images, or part of an image
        weights = weights.reshape(images, -1, weights.shape[-1]).sum(axis=1)
        return weights / (weights.sum(axis=1)[:, None] + LEAST)

    def forward(params: Any, images: Any) -> tuple[Any, list[Any]]:
        output = module.forward(B, model, params, images)
        return output.logits, [share(routing, images.shape[0]) for routing in output.routings]

    return forward


def thumbnail(picture: Image.Image, *, maximum: int = 255) -> bytes:
    """Encodes a picture, in which white is `maximum`, as a small JPEG."""
    small = picture.convert("RGB").point(lambda value: value * 255 / maximum)
    small.thumbnail((SIDE, SIDE))
    small.save(buffer := io.BytesIO(), "JPEG", quality=80)
    return buffer.getvalue()


def link(name: str, page: Path) -> str:
    """Returns the address of `name` relative to `page`, or "" if `name` is not a file (for example, in a shard) or is on another drive."""
    with suppress(ValueError):
        address = os.path.relpath(name, page.parent) if os.path.isfile(name) else ""
        return quote(os.fsencode(address).replace(os.sep.encode(), b"/"))
    return ""


def shown(predictions: Sequence[Prediction]) -> list[Prediction]:
    """Returns the mistakes, the most confident first, or, if the labels are unknown, all predictions, the least certain first."""
    those = [one for one in predictions if one.label != one.read]
    return sorted(those, key=lambda one: one.classes[0][1], reverse=predictions[0].label >= 0)


def table(predictions: Sequence[Prediction]) -> list[str]:
    """Formats the mistakes for a terminal. Without labels, formats the `ROWS` least certain predictions, or all if there are fewer."""
    labelled, those = predictions[0].label >= 0, shown(predictions)
    title = [f"the {ROWS} least certain images:"] if len(those) > ROWS else []
    if labelled:
        most = f"; these are the {ROWS} most confident mistakes" if title else ""
        title = [f"{len(those)} of {len(predictions)} images are misclassified{most}:"]
    last = list(predictions[0].experts)[-1:]
    rows = [["image", *["true class"] * labelled, "classes", *(f"experts of block {layer}" for layer in last)]]
    for one in those[:ROWS] if title else predictions:
        name = one.name if len(one.name) <= LETTERS else f"...{one.name[3 - LETTERS :]}"
        classes = ", ".join(f"{name} {likely:.3f}" for name, likely in one.classes)
        rows.append([name, *[one.true_class] * labelled, classes, *(busiest(one.experts[layer]) for layer in last)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [*title, *("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)]


def busiest(shares: NDArray[Any]) -> str:
    """Formats the experts with the largest shares.

    >>> busiest(np.array([0.2, 0.0, 0.8]))
    '2 (80 %), 0 (20 %)'
    """
    best = [expert for expert in np.argsort(-shares, kind="stable")[:BUSIEST] if shares[expert] >= 0.005]
    return ", ".join(f"{expert} ({shares[expert]:.0%})".replace("%", " %") for expert in best) or "none"


def write(predictions: Sequence[Prediction], csv: Path | None, html: Path | None, **page: Any) -> list[str]:
    """Writes the requested table and page, and returns a line about each file. page: the values of the template."""
    if csv is not None:
        write_atomically(csv, _csv(predictions))
    if html is not None:
        write_atomically(html, render("predictions.html.jinja", busiest=busiest, **page).encode())
    return [f"written: {path}" for path in (csv, html) if path is not None]


def _csv(predictions: Sequence[Prediction]) -> bytes:
    """Returns a CSV table with a row for each picture: the true class if known, the predicted classes with probabilities, and the busiest
    expert of each MoE layer with its share."""
    rows: list[dict[str, Any]] = []
    for one in predictions:
        rows.append({"image": _cell(one.name)})
        if one.label >= 0:
            rows[-1] |= {"true_class": _cell(one.true_class), "right": int(one.label == one.read)}
        for rank, (name, likely) in enumerate(one.classes, start=1):
            rows[-1] |= {f"class_{rank}": _cell(name), f"probability_{rank}": round(likely, 6)}
        for layer, share in one.experts.items():
            most = {"expert": int(share.argmax()), "share": round(float(share.max()), 6)}
            rows[-1] |= {f"block_{layer}_{name}": value for name, value in most.items()}
    buffer = io.StringIO()
    file = DictWriter(buffer, rows[0], lineterminator="\n", quoting=QUOTE_NONNUMERIC)
    file.writeheader()
    file.writerows(rows)
    return buffer.getvalue().encode()


def _cell(text: str) -> str:
    """Returns the text in a form that no spreadsheet interprets as a formula.

    >>> _cell("=1+1.png"), _cell("a=1.png")
    ("'=1+1.png", 'a=1.png')
    """
    return f"'{text}" if normalize("NFKC", text).lstrip().startswith(("=", "+", "-", "@")) else text
