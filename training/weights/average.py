"""A model whose parameters are the means of those of several: a soup.

    parameter = (1 / n) * sum over the n sources

The uniform soup of Wortsman et al. 2022 (arXiv 2203.05482, section 2), which Puigcerver et al. 2024 (arXiv 2308.00951, Table 3)
use, of sources that were trained from the same weights. Constants, such as the tables of hash layers, must be equal in all sources.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec.backends.optimizer import CONSTANTS
from moespec.models.pytrees import flatten, nested
from moespec.spec.errors import ConfigError
from moespec.training.weights.record import Weights, described

__all__ = ["average"]


def average(sources: Sequence[Path], read: Callable[[Path], Weights]) -> Weights:
    """The average of the sources: summed in float64, in the dtype of the sources. `about` describes each of them.

    Raises ConfigError for fewer than two sources, for sources that differ in the model, the names of the classes, the dtype of a
    parameter or a constant, naming both values, and for a parameter with NaN or infinity.
    """
    if len(sources) < 2:
        raise ConfigError(f"average: expected several sources, got {', '.join(map(str, sources)) or 'none'}")
    first = read(sources[0])
    params, classes, images = flatten(first.params), first.classes, first.images
    about = {"Source": f"average of {len(sources)}", "Source 1": _told(first)}
    totals = {name: _finite(sources[0], name, array) for name, array in params.items()}
    for number, path in enumerate(sources[1:], start=2):
        weights = read(path)
        between = f"{sources[0]} and {path} cannot be averaged"
        _check_same(between, *(flatten(described(each.config), separator=".") for each in (first, weights)))
        if classes and weights.classes:
            _check_same(f"{between}, classes", dict(enumerate(classes)), dict(enumerate(weights.classes)))
        for name, array in flatten(weights.params).items():
            pair = params[name], array
            _check_same(between, *({f"dtype of {name}": each.dtype.name} for each in pair))
            if name.rpartition("/")[2] in CONSTANTS:
                one, two = (each.view(f"u{each.itemsize}") for each in pair)
                for place in map(tuple, np.argwhere(one != two)[:1].tolist()):
                    _check_same(f"{between}, not trained", *({f"{name}{place}": str(each[place])} for each in pair))
            else:
                totals[name] += _finite(path, name, array)
        classes, about[f"Source {number}"] = classes or weights.classes, _told(weights)
        images = images if images == weights.images else {}
    for name, array in params.items():
        if name.rpartition("/")[2] not in CONSTANTS:
            params[name] = (totals[name] / len(sources)).astype(array.dtype)
    return Weights(first.config, nested(params), about, classes, images)


def _told(weights: Weights) -> str:
    """What is known of a source, on one line: `moespec train, x; Data: digits; ...`."""
    return "; ".join(text if title == "Source" else f"{title}: {text}" for title, text in weights.about.items())


def _finite(path: Path, name: str, array: NDArray[Any]) -> NDArray[np.float64]:
    wrong = np.argwhere(~np.isfinite(array))
    if len(wrong):
        place = tuple(wrong[0].tolist())
        raise ConfigError(f"{path}: {name} has {array[place]} at {place}, expected finite values")
    return array.astype(np.float64)


def _check_same(between: str, first: Mapping[Any, Any], other: Mapping[Any, Any]) -> None:
    for name in {**first, **other}:
        one, two = (values.get(name, "the default") for values in (first, other))
        if one != two:
            raise ConfigError(f"{between}: {name} is {one!r} in one, {two!r} in the other")
