"""The command `moespec predict`: classes of the images in a folder, and the experts of each MoE layer for each of them.

An image is routed alone, as by `moespec inspect`. The share of expert e in an image is its part of the combine weights:

    share[e] = sum_t,c |combine[t, e, c]| / sum_t,e,c |combine[t, e, c]|

which is the fraction of tokens that it handles if each token has one expert of weight 1.
"""

import io
import time
from collections import Counter
from collections.abc import Callable, Sequence
from csv import QUOTE_NONNUMERIC, DictWriter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from moespec.backends.contract import Backend
from moespec.models.checks import Number, check_output
from moespec.models.errors import DataError
from moespec.models.families import Config as Model
from moespec.models.families import family
from moespec.models.files import write_atomically
from moespec.models.options import option
from moespec.models.shown import on_one_line
from moespec.spec.errors import ConfigError
from moespec.spec.numerics import sigmoid, softmax
from moespec.training.commandline.chosen import OfRun
from moespec.training.commandline.parse import parse
from moespec.training.compilation import compile_if, pays
from moespec.training.data.dataset import Dataset, Split
from moespec.training.data.folder import find_pictures
from moespec.training.data.options import numbers
from moespec.training.data.pictures import Pictures, middle
from moespec.training.evaluation.evaluate import evaluation_size, over
from moespec.training.inspection.inspect_run import alone
from moespec.training.interruption import Interruption, check
from moespec.training.loop.resolve import choose_backend, load_backend, load_data, model_config
from moespec.training.loop.resume import trained_params
from moespec.training.loop.rundirectory import RunDirectory
from moespec.training.reports.templates import render
from moespec.training.runs import left_out

__all__ = ["Prediction", "main", "make_shares", "table"]

BATCH = 64
"""Most images of a batch: more are no faster on a CPU."""
ROWS, LETTERS = 20, 40
"""Pictures that the terminal shows, and letters of their names, at most."""
GALLERY, SIDE = 2000, 192
"""Pictures that a page can have, of 10 kB each, and their longer side in pixels."""
BUSIEST = 3
"""Experts of a layer that are named."""
LEAST = 1e-30
"""Added to a sum of weights, which may be 0."""


@dataclass(frozen=True, kw_only=True)
class PredictArguments(OfRun):
    """Say what the pictures of a folder are: the classes with their probabilities, and which experts handle them.

    moespec predict runs/x new --csv new.csv --html new.html. Pictures are read, resized and normalised as in training; those that
    cannot be read are named and left out. Each is routed alone, so that what is said of it does not depend on the others.
    The page is one file, a gallery with the least certain first, which are those to look at.
    """

    folder: Path = option(positional=True)
    """a folder of pictures, also in folders below it, or one picture"""
    csv: Path | None = None
    """the table to write: a row for each picture"""
    html: Path | None = None
    """the page to write: a gallery"""
    top: Number = 3
    """classes that are named for each picture, the most probable ones"""


class Prediction(NamedTuple):
    """Of a picture: its name, the most probable classes in order, the shares of the experts by layer, and a small JPEG of it."""

    name: str
    classes: list[tuple[str, float]]
    experts: dict[str, NDArray[Any]]
    picture: bytes = b""


@dataclass
class Reader:
    """Reads pictures as training does. What cannot be read is black, and named in `wrong`. small: JPEGs of the others, if wanted."""

    pictures: Pictures
    small: dict[int, bytes] | None
    wrong: dict[int, str] = field(default_factory=dict)

    def __call__(self, indices: NDArray[np.int64]) -> NDArray[np.uint8]:
        size = self.pictures.size
        images = np.zeros((len(indices), size, size, self.pictures.channels), np.uint8)
        for image, index in zip(images, indices.tolist(), strict=True):
            try:
                picture = self.pictures.picture(index)
            except DataError as error:
                self.wrong[index] = on_one_line(str(error))
                continue
            image[...] = middle(picture, size, self.pictures.resize).reshape(image.shape)
            if self.small is not None:
                picture.thumbnail((SIDE, SIDE))
                picture.save(buffer := io.BytesIO(), "JPEG", quality=80)
                self.small[index] = buffer.getvalue()
        return images


def main(words: list[str]) -> None:
    """Prints the classes of the images of a folder, or of one image, and writes a table and a page.

    Raises ConfigError, RunError or DataError before anything is loaded, DataError if no image can be read, and Interrupted.
    """
    given = parse("predict", PredictArguments, words)
    run, folder, csv, html = given.run, given.folder, given.csv, given.html
    for name, path in (("csv", csv), ("html", html)):
        if path is not None:
            check_output(name, path, [f".{name}"], [folder] * folder.is_file())
    files, notes = find_pictures(folder)
    print(*map(on_one_line, notes), sep="\n", end="\n" * len(notes))
    if html is not None and len(files) > GALLERY:
        raise ConfigError(f"html={str(html)!r}: {len(files)} pictures, a page has at most {GALLERY}; --csv has all")
    directory = RunDirectory(run)
    config = directory.begun_config()
    model, data, training = alone(model_config(config.model)), config.data, config.training
    if not model.classes or model.channels not in (1, 3):
        why = f"images of {model.channels} channels, no pictures" if model.classes else "no head, so no classes"
        raise ConfigError(f"run={str(run)!r}: its model has {why} (objective={config.objective!r})")
    B = load_backend(choose_backend(given.backend or config.backend)[0])
    params, found = trained_params(directory, config, step=given.step)
    names = [on_one_line(name) for name in directory.classes() or load_data(config).classes]
    rows = np.arange(len(files))
    pictures = Pictures(files, rows, model.image_size, data.resize, data.background, model.channels)
    read = Reader(pictures, None if html is None else {})
    split = Split(read, rows)
    scale: Any = {name: numbers(f"data.{name}", getattr(data, name)) for name in ("mean", "std")}
    shape = (model.image_size, model.image_size, model.channels)
    dataset = Dataset(folder.name, split, split, (), shape, 255, **scale)
    size = evaluation_size(B.sizes, model, min(BATCH, training.evaluation_batch), len(files))
    forward = compile_if(B, pays(B, -(-len(files) // size)), make_shares(B, model))
    layers = [layer.name for layer in family(model).moe_layers(model, 1)]
    likely = sigmoid if training.loss == "sigmoid" else softmax
    predictions: list[Prediction] = []
    start, places = time.monotonic(), iter(range(len(files)))
    with Interruption():
        for (logits, shares), _ in over(B, forward, B.from_numpy(params), dataset, split, batch=size):
            # The last batch is filled up: more rows than are left to do.
            for probabilities, index, *experts in zip(
                likely(np.asarray(logits, np.float64)), places, *shares, strict=False
            ):
                if index in read.wrong:
                    continue
                best = np.argsort(-probabilities, kind="stable")[: given.top]
                classes = [(names[label], float(probabilities[label])) for label in best]
                picture = (read.small or {}).get(index, b"")
                routed = dict(zip(layers, experts, strict=True))
                predictions.append(Prediction(on_one_line(files.names[index]), classes, routed, picture))
        check(B)
    wrong = [read.wrong[index] for index in sorted(read.wrong)]
    unread = left_out(folder, wrong, len(files))
    seconds = time.monotonic() - start
    count = f"{len(predictions)} picture{'s' * (len(predictions) > 1)}"
    model_of = f"{run}, step {found} of {config.training.steps}"
    print(f"{on_one_line(str(folder))}: {count} in {seconds:.1f} s, by {model_of}")
    counts = ", ".join(f"{name} {count}" for name, count in Counter(p.classes[0][0] for p in predictions).most_common())
    print(f"read as: {counts}", *table(predictions), sep="\n")
    if csv is not None:
        write_atomically(csv, _csv(predictions).encode())
    if html is not None:
        facts = {"model": model_of, "pictures": f"{count} of {on_one_line(str(folder))}", "read as": counts}
        title = f"{on_one_line(folder.resolve().name)} as read by {run.resolve().name}"
        gallery = sorted(predictions, key=lambda one: one.classes[0][1])  # as in the terminal
        how: Any = {"title": title, "facts": facts, "pictures": gallery, "busiest": _busiest, "wrong": wrong}
        write_atomically(html, render("predictions.html.jinja", **how).encode())
    for path in filter(None, (csv, html)):
        print(f"written: {path}")
    print(*unread, sep="\n  ", end="\n" * bool(wrong))


def make_shares(B: Backend, model: Model) -> Callable[[Any, Any], tuple[Any, list[Any]]]:
    """`forward(params, images)`: the logits, and of each MoE layer the share of each expert in each image, `(N, E)`; 0 of nothing."""
    module = family(model)

    def share(routing: Any, images: int) -> Any:
        weights = abs(routing.dense().combine).sum(axis=(1, 3))  # (G, E)
        weights = weights.reshape(images, -1, weights.shape[-1]).sum(axis=1)
        return weights / (weights.sum(axis=1)[:, None] + LEAST)

    def forward(params: Any, images: Any) -> tuple[Any, list[Any]]:
        output = module.forward(B, model, params, images)
        return output.logits, [share(routing, images.shape[0]) for routing in output.routings]

    return forward


def table(predictions: Sequence[Prediction]) -> list[str]:
    """The lines of the terminal: every picture in order, or of more than `ROWS` those that are least certain."""
    few = len(predictions) <= ROWS
    shown = predictions if few else sorted(predictions, key=lambda one: one.classes[0][1])[:ROWS]
    last = list(shown[0].experts)[-1:]
    rows = [["picture", "classes", *(f"experts of block {layer}" for layer in last)]]
    for one in shown:
        name = one.name if len(one.name) <= LETTERS else f"...{one.name[3 - LETTERS :]}"
        classes = ", ".join(f"{name} {likely:.3f}" for name, likely in one.classes)
        rows.append([name, classes, *(_busiest(one.experts[layer]) for layer in last)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return lines if few else [f"the {ROWS} least certain:", *lines]


def _busiest(shares: NDArray[Any]) -> str:
    """The experts with the largest shares, as text.

    >>> _busiest(np.array([0.2, 0.0, 0.8]))
    '2 (80 %), 0 (20 %)'
    """
    best = [expert for expert in np.argsort(-shares, kind="stable")[:BUSIEST] if shares[expert] >= 0.005]
    return ", ".join(f"{expert} ({shares[expert]:.0%})".replace("%", " %") for expert in best) or "none"


def _csv(predictions: Sequence[Prediction]) -> str:
    """A row for each picture: its classes with probabilities, and of each MoE layer the busiest expert with its share."""
    rows: list[dict[str, Any]] = []
    for one in predictions:
        rows.append({"image": _cell(one.name)})
        for rank, (name, likely) in enumerate(one.classes, start=1):
            rows[-1] |= {f"class_{rank}": _cell(name), f"probability_{rank}": round(likely, 6)}
        for layer, share in one.experts.items():
            busiest = {"expert": int(share.argmax()), "share": round(float(share.max()), 6)}
            rows[-1] |= {f"block_{layer}_{name}": value for name, value in busiest.items()}
    buffer = io.StringIO()
    file = DictWriter(buffer, rows[0], lineterminator="\n", quoting=QUOTE_NONNUMERIC)
    file.writeheader()
    file.writerows(rows)
    return buffer.getvalue()


def _cell(text: str) -> str:
    """A text of which no spreadsheet makes a formula.

    >>> _cell("=1+1.png"), _cell("a=1.png")
    ("'=1+1.png", 'a=1.png')
    """
    return f"'{text}" if normalize("NFKC", text).lstrip().startswith(("=", "+", "-", "@")) else text
