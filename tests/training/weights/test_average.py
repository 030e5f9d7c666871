"""Soups: the mean of the parameters of several sources, and what cannot be averaged."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moespec.models import vit
from moespec.models.pytrees import flatten, nested
from moespec.training.weights.files import read_safetensors
from moespec.training.weights.formats import Given, read, write
from moespec.training.weights.record import Weights

SIZES: dict[str, Any] = {"image_size": 8, "patch_size": 4, "channels": 1, "classes": 2, "width": 8, "heads": 2}
HASH = {"depth": 1, "hidden": 12, "moe": "last_1", "experts": 2, "router": "hash", "codes": 8}
CODES = "ids/codebook"


def source(path: Path, seed: int, changed: Any = (), classes: tuple[str, ...] = (), **fields: Any) -> Path:
    """A file of weights, with other values for the parameters `changed`, and constants of seed 0."""
    config = vit.VitConfig(**{**SIZES, **HASH, **fields})
    params, constants = (flatten(vit.init(config, number)) for number in (seed, 0))
    params |= {name: constants[name] for name in params if name.endswith(("tables", "codebook"))}
    write(path, Weights(config, nested({**params, **dict(changed)}), {"Source": f"seed {seed}"}, classes), "moespec")
    return path


def test_a_soup(tmp_path: Path, said: Any) -> None:
    """Of float32 values whose sum float32 does not hold; the names of the classes are those of the source that has them."""
    bias = [np.float32([value, -value]) for value in (2.0**25, 1.0, 2.0)]
    names: tuple[tuple[str, ...], ...] = ((), ("cat", "dog"), ())
    sources = [source(tmp_path / f"{i}.x", i, {"head/bias": bias[i]}, names[i]) for i in range(3)]
    target = tmp_path / "soup.safetensors"
    line = said(["convert", str(sources[0]), "--average", *map(str, sources[1:]), "--to", "moespec", str(target)])
    assert line.startswith(" + ".join(f"{path} (moespec)" for path in sources) + f" -> {target} (moespec): ")
    soup, parts = read(target, Given()), [flatten(read(path, Given()).params) for path in sources]
    for name, array in flatten(soup.params).items():
        assert array.dtype == np.float32
        expected = np.mean([part[name].astype(np.float64) for part in parts], axis=0).astype(np.float32)
        np.testing.assert_array_equal(array, expected, err_msg=name)
    assert soup.params["head"]["bias"][0] == np.float32((2**25 + 3) / 3) != np.float32(np.sum(bias, 0)[0] / 3)
    assert (soup.classes, soup.config) == (("cat", "dog"), read(sources[0], Given()).config)
    about = json.loads(read_safetensors(target)[1]["moespec.about"])
    assert about == {"Source": "average of 3", **{f"Source {i + 1}": f"seed {i}" for i in range(3)}}


NAN, MINUS_ZEROS = np.float32([0, np.nan]), -np.zeros((8, 16), np.float32)
OTHERS: list[tuple[dict[str, Any], str]] = [
    ({"heads": 4}, "heads is 2 in one, 4 in the other"),
    ({"router_options": {"capacity_factor": 2.0}}, "capacity_factor is 'the default' in one, 2.0 in the other"),
    ({"classes": ("cat", "dog")}, "classes: 1 is 'cow' in one, 'dog' in the other"),
    ({"changed": {"head/bias": np.zeros(2)}}, "dtype of head/bias is 'float32' in one, 'float64' in the other"),
    ({"changed": {"head/bias": NAN}}, "other.x: head/bias has nan at (1,), expected finite values"),
    ({"changed": {CODES: MINUS_ZEROS}}, f"not trained: {CODES}(0, 0) is '0.0' in one, '-0.0' in the other"),
]


@pytest.mark.parametrize(("fields", "message"), OTHERS)
def test_what_cannot_be_averaged(tmp_path: Path, fields: dict[str, Any], message: str, said: Any) -> None:
    zeros = {CODES: np.zeros((8, 16), np.float32)}
    first = source(tmp_path / "first.x", 0, zeros, ("cat", "cow"))
    other = source(tmp_path / "other.x", 1, **{**fields, "changed": {**zeros, **fields.get("changed", {})}})
    assert message in said(["convert", str(first), str(other), str(tmp_path / "soup.safetensors"), "--average"], 2)
    assert not (tmp_path / "soup.safetensors").exists()
