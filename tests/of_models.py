"""What several tests of models use: parameters and images drawn at random, pictures in files, and what a run has saved."""

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from moespec.models.families import family
from moespec.models.pytrees import flatten, nested
from moespec.training.loop import checkpoint
from moespec.training.loop.resolve import model_config
from moespec.training.loop.resume import trained_params
from moespec.training.loop.rundirectory import RunDirectory

__all__ = ["drawn", "encoded", "images_for", "params_of", "saved", "write_shard"]


def drawn(tree, seed=1, reach=0.3):
    """Initial parameters with normal numbers added, so that no bias, scale or head is at a value that hides it."""
    generator = np.random.default_rng(seed)
    return nested(
        {
            name: (leaf + reach * generator.standard_normal(leaf.shape)).astype(leaf.dtype)
            if leaf.dtype.kind == "f"
            else leaf
            for name, leaf in flatten(tree).items()
        }
    )


def images_for(config, count, seed=0):
    """So many images of the size that a model takes."""
    shape = (count, config.image_size, config.image_size, config.channels)
    return np.random.default_rng(seed).standard_normal(shape)


def encoded(number: int, ending: str = "png") -> bytes:
    """A picture of one colour, by which it is known."""
    buffer = io.BytesIO()
    Image.new("RGB", (9, 7), (10 * number % 256, 5, 90)).save(buffer, "jpeg" if ending == "jpg" else ending)
    return buffer.getvalue()


def write_shard(path: Path, members: list[tuple[str, bytes]]) -> None:
    """A tar file of these members."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as file:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))


def saved(run: Path, step: int) -> checkpoint.Checkpoint:
    """The checkpoint of a step of a run."""
    config: Any = RunDirectory(run).config()
    model = model_config(config.model)
    return checkpoint.read(run / "checkpoints" / f"{step:08d}", family(model).parameter_shapes(model))


def params_of(run: Path, **options: bool) -> Any:
    """The parameters of the newest checkpoint of a run, checked."""
    config: Any = RunDirectory(run).config()
    return trained_params(RunDirectory(run), config, **options)[0]
