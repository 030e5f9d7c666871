"""Initialises a model from the parameters of a source, according to these rules.

| parameter | result |
|---|---|
| the same name and shape | copied |
| the head, if the number of classes differs | new |
| positions on another grid | resized, bilinearly; positions of class token and registers are copied |
| positions of registers that the source lacks | new |
| the MLP of a block that becomes MoE | copied into every expert, unless the experts are gated; the router is new |
| tables and codebook of hash layers of another size | new |
| anything that matches `skip` | new; omitted if the model lacks it |
| anything else that is missing, left over or of another shape | an error that names it |

Sources: upcycling, Komatsuzaki et al. 2022 (arXiv 2212.05055), section 3.1; positions, google-research/vmoe,
`vmoe/initialization/rules.py`, VitZoomRule, and big_vision, `resample_posemb`: `scipy.ndimage.zoom` of order 1.
"""

import math
import re
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moespec.models.families import Config
from moespec.models.pytrees import flatten, nested
from moespec.models.vit import VitConfig
from moespec.spec.errors import ConfigError
from moespec.spec.routing import Params
from moespec.training.weights.record import Weights

__all__ = ["Transferred", "resized_positions", "transferred"]

Array = NDArray[Any]


class Transferred(NamedTuple):
    """params: the initial parameters. new, resized, upcycled: names of the parameters that are new, resized or upcycled."""

    params: Params
    new: list[str]
    resized: list[str]
    upcycled: list[str]


def transferred(source: Weights, config: Config, initial: Params, *, skip: str | None = None) -> Transferred:
    """Returns the parameters of a model with `config`. The rules above take each parameter from `source` or from `initial`.

    skip: a regular expression. Parameters whose names contain a match are not copied. Raises ConfigError for an invalid
    `skip`, a source of another model family, and a parameter that the rules do not cover.
    """
    if type(source.config) is not type(config):
        raise ConfigError(f"init: expected a {type(config).__name__}, got a {type(source.config).__name__}")
    try:
        skipped = re.compile(skip) if skip is not None else None
    except re.error as error:
        raise ConfigError(f"init_skip={skip!r}: not a regular expression ({error})") from error
    trained, wanted = flatten(source.params), flatten(initial)
    found: dict[str, Array] = {}
    result = Transferred({}, [], [], [])
    used = {name for name in trained if skipped is not None and skipped.search(name)}
    for name, fresh in wanted.items():
        dense = re.sub(r"/moe/experts/", "/mlp/", name)
        if skipped is not None and skipped.search(name):
            found[name] = _new(name, fresh, result)
            used |= {name, dense}
        elif name in trained:
            if name == "positions":
                found[name] = _positions(trained[name], fresh, source.config, config, result)
            else:
                found[name] = _fitted(name, trained[name], fresh, result)
            used.add(name)
        elif dense in trained:
            if (shape := trained[dense].shape) != fresh.shape[1:]:
                raise ConfigError(f"init: {name} has shape {fresh.shape[1:]} per expert, but {shape} in the source")
            result.upcycled.append(name)
            found[name] = np.broadcast_to(trained[dense], fresh.shape)  # a copy for each expert
            used.add(dense)
        elif name.startswith(_FREE) or (
            "/moe/router/" in name and re.sub("/moe/router/.*", "/mlp/w1", name) in trained
        ):
            found[name] = _new(name, fresh, result)
        else:
            part = re.search("moe/(router|shared|latent|constants)/", name)
            where = part[0] if part else name
            if dense != name and re.sub("w3$", "w1", dense) in trained:
                raise ConfigError(f"init: {name}: gated experts need a gated MLP in the source")
            raise ConfigError(f"init: {name} {fresh.shape} is not in the source; --init-skip {where} initializes it")
    if left := sorted(name for name in trained if name not in used and not name.startswith(_FREE)):
        raise ConfigError(f"init: {left[0]} {trained[left[0]].shape} is unexpected; --init-skip {left[0]} ignores it")
    return result._replace(params=nested({name: np.asarray(value, np.float32) for name, value in found.items()}))


_FREE = ("head/", "ids/")
"""Prefixes of the names of parameters that the source or the model may lack."""


def _new(name: str, fresh: Array, result: Transferred) -> Array:
    result.new.append(name)
    return fresh


def _fitted(name: str, given: Array, fresh: Array, result: Transferred) -> Array:
    """Returns a parameter that both models have: the source's value if the shapes agree, or a new value where the rules allow it."""
    if given.shape == fresh.shape:
        return given
    if name.startswith(_FREE) or name.endswith("/router/tables"):
        return _new(name, fresh, result)
    advice = ""
    if name.endswith("/router/slots") and given.shape[:2] == fresh.shape[:2]:
        advice = f"; --model.router-options.slots-per-expert {given.shape[2]} keeps them, as in the paper"
    raise ConfigError(f"init: {name} has shape {given.shape} in the source, but {fresh.shape} in the model{advice}")


def _positions(given: Array, fresh: Array, source: Config, config: Config, result: Transferred) -> Array:
    """Resizes the source's position embeddings to the model's grid. The class token and the registers come first."""
    before, wanted = _prefix(source), _prefix(config)
    patches = fresh.shape[1] - wanted
    if given.shape[2] != fresh.shape[2] or before > wanted:
        shapes = f"shape {given.shape} with {before} before the patches, but {fresh.shape} with {wanted} in the model"
        raise ConfigError(f"init: positions has {shapes}; --init-skip positions initializes them")
    if given.shape[1] - before != patches or before != wanted:
        result.resized.append("positions")
    if given.shape[1] - before != patches:
        given = resized_positions(given, before + patches, prefix=before)
    return np.concatenate([given[:, :before], fresh[:, before:wanted], given[:, before:]], axis=1)


def _prefix(config: Config) -> int:
    """The number of positions before the patch positions."""
    return config.prefix if isinstance(config, VitConfig) and config.positions == "learned" else 0


def resized_positions(positions: Array, tokens: int, *, prefix: int) -> Array:
    """Resizes position embeddings `(1, S, D)` to another square grid, `(1, tokens, D)`.

    prefix: the number of positions of a class token and registers, which come first and are copied. The corners of the grid
    keep their values; all other values are interpolated bilinearly. Raises ConfigError unless both grids are square.

    >>> resized_positions(np.array([[[1.0], [2.0], [3.0], [4.0]]]), 9, prefix=0).reshape(3, 3).tolist()
    [[1.0, 1.5, 2.0], [2.0, 2.5, 3.0], [3.0, 3.5, 4.0]]
    """
    before, grid, patches = positions[:, :prefix], positions[0, prefix:], tokens - prefix
    old, new = math.isqrt(len(grid)), math.isqrt(patches)
    if old * old != len(grid) or new * new != patches or not old:
        raise ConfigError(f"init: positions: expected square grids, got grids of {len(grid)} and {patches} patches")
    square = grid.reshape(old, old, -1)
    from scipy.ndimage import zoom  # imported here, since this import is slow

    resized = zoom(square, (new / old, new / old, 1), order=1).reshape(1, new * new, -1)
    return np.concatenate([before, resized], axis=1)
