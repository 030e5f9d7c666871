"""What an exported program says of itself: its model, where the weights come from, and the images that it expects."""

import json
from pathlib import Path

from moespec.models.data.options import numbers
from moespec.models.families import Config, fewest_images
from moespec.models.training.rundirectory import RunDirectory
from moespec.models.weights.own import metadata_of
from moespec.models.weights.record import Weights

__all__ = ["IMAGES", "image_shape", "metadata"]

IMAGES = "moespec.images"


def image_shape(config: Config) -> tuple[int, int, int]:
    """Height, width and channels of an image."""
    return config.image_size, config.image_size, config.channels


def metadata(weights: Weights, source: Path) -> dict[str, str]:
    """The metadata of moespec's own files (`moespec.models.weights.own`) and `moespec.images`, each as JSON.

    `moespec.images` has the axes of the input, its shape, its dtype and what the batch is a multiple of; of a run, the `mean`
    and `std` of its data too: a value is `(x / white - mean) / std`, each one number or one for each channel.
    """
    config = weights.config
    images = {
        "axes": ["images", "height", "width", "channels"],
        "shape": ["batch", *image_shape(config)],
        "dtype": "float32",
        "batch_multiple_of": fewest_images(config),
    }
    run = RunDirectory(source).config()
    if run is not None:
        images |= {name: numbers(f"data.{name}", getattr(run.data, name)) for name in ("mean", "std")}
    return {**metadata_of(weights), IMAGES: json.dumps(images)}
