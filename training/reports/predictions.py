"""Predictions for images: what a model reads each as, and which experts handle it; for a terminal, as a table and for a page.

The share of expert e in an image is its part of the combine weights:

    share[e] = sum_t,c |combine[t, e, c]| / sum_t,e,c |combine[t, e, c]|

which is the fraction of tokens that it handles if each token has one expert of weight 1.
"""

import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from csv import QUOTE_NONNUMERIC, DictWriter
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple
from unicodedata import normalize
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from moespec.backends.contract import Backend
from moespec.models.families import Config as Model
from moespec.models.families import family
from moespec.models.shown import on_one_line
from moespec.spec.errors import ConfigError
from moespec.spec.numerics import sigmoid, softmax
from moespec.training.compilation import compile_if, pays
from moespec.training.data.dataset import Dataset, Split
from moespec.training.evaluation.evaluate import over
from moespec.training.reports.templates import render

__all__ = [
    *(
        "GALLERY",
        "Prediction",
        "busiest",
        "check_model",
        "csv_of",
        "link",
        "make_shares",
        "mistakes",
        "page",
        "predicted",
    ),
    *("table", "thumbnail"),
]

TOP = 3
"""Classes that are named for each image."""
ROWS, LETTERS = 20, 40
"""Pictures that the terminal shows, and letters of their names, at most."""
GALLERY, SIDE = 2000, 192
"""Pictures that a page can have, of 10 kB each, and their longer side in pixels."""
BUSIEST = 3
"""Experts of a layer that are named."""
LEAST = 1e-30
"""Added to a sum of weights, which may be 0."""


class Prediction(NamedTuple):
    """Of an image: its name, the most probable classes in order, the shares of the experts by layer, and the number of the first class.

    label, true_class: number and name of its own class, if known. picture: a small JPEG, and link: the address of the file, for a page.
    """

    name: str
    classes: list[tuple[str, float]]
    experts: dict[str, NDArray[Any]]
    read: int
    label: int | None = None
    true_class: str = ""
    picture: bytes = b""
    link: str = ""


def check_model(run: Path, objective: str, model: Model) -> None:
    """ConfigError if the model of a run does not say what a picture is."""
    if not model.classes or model.channels not in (1, 3):
        why = f"images of {model.channels} channels, no pictures" if model.classes else "no head, so no classes"
        raise ConfigError(f"run={str(run)!r}: its model has {why} (objective={objective!r})")


def predicted(
    B: Backend,
    model: Model,
    params: Any,
    dataset: Dataset,
    split: Split,
    *,
    names: Callable[[int], str],
    classes: Sequence[str],
    batch: int,
    kind: str,
    top: int = TOP,
) -> Iterator[Prediction]:
    """Of each image of a split, in order; with labels if the data set has classes.

    params: arrays of `B`. names: what an image is called, by its number. batch: images that go together. kind: that of the loss.
    """
    shown, likely = [on_one_line(name) for name in classes], {"softmax": softmax, "sigmoid": sigmoid}[kind]
    forward = compile_if(B, pays(B, -(-len(split) // batch)), make_shares(B, model))
    layers, numbers = [layer.name for layer in family(model).moe_layers(model, batch)], count()
    for (logits, shares), part in over(B, forward, params, dataset, split, batch=batch):
        scores = np.asarray(logits, np.float64)[: part["count"]]
        for row, index, probabilities, *experts in zip(scores, numbers, likely(scores), *shares, strict=False):
            best = np.argsort(-row, kind="stable")[:top].tolist()
            ranked = [(shown[label], float(probabilities[label])) for label in best]
            one = Prediction(on_one_line(names(index)), ranked, dict(zip(layers, experts, strict=True)), best[0])
            own = int(split.labels[index])
            yield one._replace(label=own, true_class=shown[own]) if dataset.classes else one


def make_shares(B: Backend, model: Model) -> Callable[[Any, Any], tuple[Any, list[Any]]]:
    """`forward(params, images)`: the logits, and of each MoE layer the share of each expert in each image, `(N, E)`; 0 of nothing."""
    module = family(model)

    def share(routing: Any, images: int) -> Any:
        weights = abs(routing.dense().combine).sum(
            axis=3
        )  # (G, T, E), a group may have several images or a part of one
        weights = weights.reshape(images, -1, weights.shape[-1]).sum(axis=1)
        return weights / (weights.sum(axis=1)[:, None] + LEAST)

    def forward(params: Any, images: Any) -> tuple[Any, list[Any]]:
        output = module.forward(B, model, params, images)
        return output.logits, [share(routing, images.shape[0]) for routing in output.routings]

    return forward


def thumbnail(picture: Image.Image, *, maximum: int = 255) -> bytes:
    """A small JPEG of a picture, in which white is `maximum`; it may change the picture."""
    small = picture if maximum == 255 else picture.point(lambda value: value * 255 / maximum)
    small.thumbnail((SIDE, SIDE))
    small.save(buffer := io.BytesIO(), "JPEG", quality=80)
    return buffer.getvalue()


def link(name: str, page: Path) -> str:
    """The address of the file `name` for a page; empty for what is no file, such as a member of a shard, or on another drive."""
    with suppress(ValueError):
        address = os.path.relpath(name, page.parent) if os.path.isfile(name) else ""
        return quote(os.fsencode(address).replace(os.sep.encode(), b"/"))
    return ""


def shown(predictions: Sequence[Prediction]) -> list[int]:
    """The places of those to look at, in this order: the least certain, or with labels the mistakes, the most probable first."""
    labelled = predictions[0].label is not None
    places = [place for place, one in enumerate(predictions) if one.label is None or one.label != one.read]
    return sorted(places, key=lambda place: predictions[place].classes[0][1], reverse=labelled)


def table(predictions: Sequence[Prediction]) -> list[str]:
    """The lines of the terminal: every picture in order, or of more than `ROWS` those that are least certain; with labels the mistakes."""
    labelled, places = predictions[0].label is not None, shown(predictions)
    title = [f"the {ROWS} least certain:"] if len(places) > ROWS else []
    if labelled:
        most = f"; the {ROWS} most probable" if title else ""
        title = [f"{len(places)} of {len(predictions)} are read as another class{most}:"]
    last = list(predictions[0].experts)[-1:]
    rows = [["picture", *["true class"] * labelled, "classes", *(f"experts of block {layer}" for layer in last)]]
    for one in (predictions[place] for place in (places[:ROWS] if labelled or title else sorted(places))):
        name = one.name if len(one.name) <= LETTERS else f"...{one.name[3 - LETTERS :]}"
        classes = ", ".join(f"{name} {likely:.3f}" for name, likely in one.classes)
        rows.append([name, *[one.true_class] * labelled, classes, *(busiest(one.experts[layer]) for layer in last)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [*title, *("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)]


def page(predictions: Sequence[Prediction], drawn: Callable[[int], Prediction], **values: Any) -> bytes:
    """The page: a gallery of those that are `shown`, at most `GALLERY`.

    drawn: a prediction with its picture and link, by its place. values: title, facts, what could not be read ("wrong"), and with
    labels "headline" and "tables" (`reports.classes`).
    """
    places = shown(predictions)
    how = {"headline": None, "tables": None, "busiest": busiest, "count": len(places), **values}
    return render("predictions.html.jinja", pictures=[drawn(place) for place in places[:GALLERY]], **how).encode()


def busiest(shares: NDArray[Any]) -> str:
    """The experts with the largest shares, as text.

    >>> busiest(np.array([0.2, 0.0, 0.8]))
    '2 (80 %), 0 (20 %)'
    """
    best = [expert for expert in np.argsort(-shares, kind="stable")[:BUSIEST] if shares[expert] >= 0.005]
    return ", ".join(f"{expert} ({shares[expert]:.0%})".replace("%", " %") for expert in best) or "none"


def csv_of(predictions: Sequence[Prediction]) -> bytes:
    """A row for each picture: its own class if known, its classes with probabilities, and of each MoE layer the busiest expert with
    its share."""
    rows: list[dict[str, Any]] = []
    for one in predictions:
        rows.append({"image": _cell(one.name)})
        if one.label is not None:
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
    """A text of which no spreadsheet makes a formula.

    >>> _cell("=1+1.png"), _cell("a=1.png")
    ("'=1+1.png", 'a=1.png')
    """
    return f"'{text}" if normalize("NFKC", text).lstrip().startswith(("=", "+", "-", "@")) else text
