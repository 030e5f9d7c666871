"""Data sets by name: `load(name, path, ...)` returns a `Dataset`, from the embedded digits or from the user's files.

The names: `digits` (in the package), `npz` (`moespec.models.data.npz`), `idx` (the format of MNIST and Fashion-MNIST,
`moespec.models.data.idx`) and `folder` (a folder of images per class, `moespec.models.data.folder`).
"""

from pathlib import Path

from moespec.models.data.dataset import Dataset
from moespec.models.data.folder import load_folder
from moespec.models.data.idx import load_idx
from moespec.models.data.npz import load_npz
from moespec.spec.errors import ConfigError

__all__ = ["DATASETS", "load"]

DATASETS = {
    "digits": "1 797 handwritten digits of 8 x 8 pixels, in the package",
    "npz": "a NumPy .npz file: train_images, train_labels, validation_images, validation_labels; or images, labels",
    "idx": "the four IDX files of MNIST or Fashion-MNIST in a folder, .gz or not",
    "folder": "a folder with one folder of images per class, or with such folders under train/ and val/",
}
DIGITS = Path(__file__).parent / "digits.npz"


def load(name: str, path: str = "", *, image_size: int | None = None, validation_share: float = 0.2) -> Dataset:
    """The data set `name`, read from `path`.

    image_size: side to which the images of a folder are resized and cropped (the other sets keep their own size).
    validation_share: part of each class that is held out when the files have no validation part.

    Raises ConfigError for an unknown name or a share outside (0, 1), DataError for files that cannot be used.
    """
    if name not in DATASETS:
        raise ConfigError(f"data.name={name!r}: expected one of {', '.join(DATASETS)}")
    if not 0 < validation_share < 1:
        raise ConfigError(f"data.validation_share={validation_share!r}: expected a scalar between 0 and 1")
    if name == "digits":
        if path:
            raise ConfigError(f"data.path={path!r}: the data set 'digits' is in the package and has no path")
        return load_npz(DIGITS, name="digits", validation_share=validation_share)
    if not path:
        raise ConfigError(f"data.path is not set: the data set {name!r} is read from a path ({DATASETS[name]})")
    if name == "npz":
        return load_npz(Path(path), name=Path(path).stem, validation_share=validation_share)
    if name == "idx":
        return load_idx(Path(path))
    if image_size is None:
        raise ConfigError("model.image_size is not set: images of a folder are resized to it")
    return load_folder(Path(path), image_size=image_size, validation_share=validation_share)
