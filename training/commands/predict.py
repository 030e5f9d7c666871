"""The command `moespec predict`: classes of the images in a folder, and the experts that handle each image in each MoE layer.

Each image is routed separately, as in `moespec inspect`.
"""

import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec.models.checks import Number
from moespec.models.errors import DataError
from moespec.models.options import option
from moespec.models.shown import on_one_line
from moespec.spec.errors import ConfigError
from moespec.training.commandline.chosen import OfRun
from moespec.training.commandline.parse import parse
from moespec.training.compilation import compile_if, pays
from moespec.training.data.dataset import Dataset, Split
from moespec.training.data.folder import find_pictures
from moespec.training.data.options import numbers
from moespec.training.data.pictures import Pictures, middle
from moespec.training.evaluation.evaluate import evaluation_size
from moespec.training.inspection.inspect_run import alone
from moespec.training.interruption import Interruption, check
from moespec.training.loop.resolve import choose_backend, load_backend, load_data, model_config
from moespec.training.loop.resume import trained_params
from moespec.training.loop.rundirectory import RunDirectory
from moespec.training.reports import predictions
from moespec.training.reports.predictions import GALLERY, TOP, Prediction, link, thumbnail
from moespec.training.runs import left_out

__all__ = ["PredictArguments", "main", "predict_command"]

BATCH = 64
"""Maximum batch size: larger batches are no faster on a CPU."""


@dataclass(frozen=True, kw_only=True)
class PredictArguments(OfRun):
    """Classify the images in a folder; list the most probable classes and the experts that process each image.

    moespec predict runs/x new --csv new.csv --html new.html. Images are read, resized and normalised as in training; unreadable
    images are listed and skipped. Each image is routed separately, so the result for an image does not depend on the other images.
    The page is one file with a gallery of the images; the images with the least certain predictions come first.
    """

    folder: Path = option(positional=True)
    """folder of images, searched recursively, or one image"""
    csv: Path | None = None
    """write a table with one row per image"""
    html: Path | None = None
    """write a page with a gallery of the images"""
    top: Number = TOP
    """number of classes to list for each image, the most probable first"""


@dataclass
class Reader:
    """Reads images as training does. An unreadable image becomes black and is listed in `wrong`. small: JPEGs of the readable images."""

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
                self.small[index] = thumbnail(picture)
        return images


def main(words: list[str]) -> None:
    """Runs the command."""
    predict_command(parse("predict", PredictArguments, words))


def predict_command(given: PredictArguments) -> list[Prediction]:
    """Predicts the class of each image, prints the predictions, writes the requested table and page, and returns the predictions.

    Raises ConfigError, RunError or DataError before the model runs, DataError if no image is readable, and Interrupted after a signal.
    """
    run, folder, csv, html = given.run, given.folder, given.csv, given.html
    predictions.check_outputs(csv, html, folder if folder.is_file() else None)
    files, notes = find_pictures(folder)
    print(*map(on_one_line, notes), sep="\n", end="\n" * len(notes))
    if html is not None and len(files) > GALLERY:
        raise ConfigError(f"html={str(html)!r}: a page shows at most {GALLERY} images, got {len(files)}; use --csv")
    directory = RunDirectory(run)
    config = directory.begun_config()
    model, data, training = alone(model_config(config.model)), config.data, config.training
    predictions.check_model(run, config.objective, model)
    B = load_backend(choose_backend(given.backend or config.backend)[0])
    params, found = trained_params(directory, config, step=given.step)
    classes = directory.classes() or load_data(config).classes
    rows = np.arange(len(files))
    pictures = Pictures(files, rows, model.image_size, data.resize, data.background, model.channels)
    read = Reader(pictures, None if html is None else {})
    split = Split(read, np.full(len(files), -1))
    scale: Any = {name: numbers(f"data.{name}", getattr(data, name)) for name in ("mean", "std")}
    shape = (model.image_size, model.image_size, model.channels)
    dataset = Dataset(folder.name, split, split, classes, shape, 255, **scale)
    size = evaluation_size(B.sizes, model, min(BATCH, training.evaluation_batch), len(files))
    forward = compile_if(B, pays(B, -(-len(files) // size)), predictions.make_shares(B, model))
    how: Any = {"batch": size, "kind": training.loss, "top": given.top}
    seen: list[Prediction] = []
    start = time.monotonic()
    with Interruption():
        for one in predictions.predicted(B, forward, model, B.from_numpy(params), dataset, **how):
            if (number := one.number) not in read.wrong:
                picture, address = (read.small or {}).get(number, b""), link(files.name(number), html or folder)
                one = one._replace(name=on_one_line(files.names[number]), picture=picture, link=address)
                seen.append(one)
        check(B)
    wrong = [read.wrong[index] for index in sorted(read.wrong)]
    unread = left_out(folder, wrong, len(files))
    seconds = time.monotonic() - start
    count = f"{len(seen)} image{'s' * (len(seen) > 1)}"
    model_of = f"{run}, step {found} of {config.training.steps}"
    counts = ", ".join(f"{name} {count}" for name, count in Counter(p.classes[0][0] for p in seen).most_common())
    facts = {"model": model_of, "images": f"{count} of {on_one_line(str(folder))}", "predicted classes": counts}
    title = f"{on_one_line(folder.resolve().name)} as classified by {run.resolve().name}"
    page: Any = {"title": title, "facts": facts, "wrong": wrong, "results": None, "pictures": predictions.shown(seen)}
    written = predictions.write(seen, csv, html, **page)
    print(f"{on_one_line(str(folder))}: {count} in {seconds:.1f} s, by {model_of}")
    print(f"predicted classes: {counts}", *predictions.table(seen), sep="\n")
    print(*written, sep="\n", end="\n" * bool(written))
    print(*unread, sep="\n  ", end="\n" * bool(wrong))
    return seen
