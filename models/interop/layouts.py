"""How parameters of another project hold ours: names, shapes and the conversion in both directions.

A table has our name, as a pattern -> their name, and how their parameter holds ours. Ours that share a name of theirs
are stacked in the order of `parameter_shapes`: query, key, value.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moespec.models.families import Config, family
from moespec.models.trees import flatten
from moespec.spec.checks import check_floating
from moespec.spec.errors import ConfigError, ShapeError

__all__ = [
    "SAME",
    "Array",
    "Convolution",
    "Entry",
    "Layout",
    "Linear",
    "Shape",
    "entries",
    "to_ours",
    "to_theirs",
    "unwrapped",
]

WRAPPERS = ("params", "state_dict")
"""Keys under which projects put the parameters, beside what they keep of the training."""

LISTED = 4
"""Mismatches that an error names."""

Array = NDArray[Any]
Shape = tuple[int, ...]


class Layout:
    """How a parameter of theirs holds ours: one of ours, as it is, unless a subclass overrides it."""

    def shape(self, shapes: list[Shape]) -> Shape:
        return shapes[0]

    def pack(self, arrays: list[Array]) -> Array:
        return arrays[0]

    def unpack(self, array: Array, shapes: list[Shape]) -> list[Array]:
        return [array]


class Convolution(Layout):
    """The kernel of the patch embedding, with its outputs and channels in front: (p, p, channels, D) reordered."""

    def shape(self, shapes: list[Shape]) -> Shape:
        return tuple(shapes[0][axis] for axis in (3, 2, 0, 1))

    def pack(self, arrays: list[Array]) -> Array:
        return arrays[0].transpose(3, 2, 0, 1)

    def unpack(self, array: Array, shapes: list[Shape]) -> list[Array]:
        return [array.transpose(2, 3, 1, 0)]


class Linear(Layout):
    """A linear layer, outputs first and its axes flattened; several of ours are stacked along the outputs.

    inputs: how many leading axes of our kernel are inputs; 0 for a bias.
    """

    def __init__(self, inputs: int) -> None:
        self.inputs = inputs

    def shape(self, shapes: list[Shape]) -> Shape:
        rows = sum(math.prod(shape[self.inputs :]) for shape in shapes)
        return (rows, math.prod(shapes[0][: self.inputs])) if self.inputs else (rows,)

    def pack(self, arrays: list[Array]) -> Array:
        return np.concatenate([a.reshape(self._matrix(a.shape)).T for a in arrays])

    def unpack(self, array: Array, shapes: list[Shape]) -> list[Array]:
        ends = np.cumsum([math.prod(shape[self.inputs :]) for shape in shapes])[:-1]
        return [rows.T.reshape(shape) for rows, shape in zip(np.split(array, ends), shapes, strict=True)]

    def _matrix(self, shape: Shape) -> Shape:
        """(inputs, outputs), or (outputs,) of a bias."""
        return (math.prod(shape[: self.inputs]), -1) if self.inputs else (-1,)


SAME = Layout()


class Entry(NamedTuple):
    """One parameter of theirs: its name, how it holds ours, and the names and shapes of ours, in order."""

    theirs: str
    layout: Layout
    ours: list[str]
    shapes: list[Shape]


def entries(config: Config, table: Mapping[str, tuple[str, Layout]]) -> list[Entry]:
    """The parameters that the other project has for a model like `config`."""
    entries: dict[str, Entry] = {}
    for ours, shape in flatten(family(config).parameter_shapes(config)).items():
        theirs, layout = _counterpart(ours, table)
        entry = entries.setdefault(theirs, Entry(theirs, layout, [], []))
        entry.ours.append(ours)
        entry.shapes.append(shape)
    return list(entries.values())


def check_lacking(project: str, config: Config, *allowed: str) -> None:
    """Raises ConfigError where `config` has an option of our ViT that the project lacks, of those not `allowed`."""
    fields: Mapping[str, Any] = type(config).__dataclass_fields__
    for name in _SELDOM:
        if name in fields and name not in allowed and getattr(config, name) != fields[name].default:
            raise ConfigError(f"{name}={getattr(config, name)!r}: {project} has {fields[name].default!r} only")


_SELDOM = ("stem", "registers", "pre_norm", "norm_epsilon", "layer_scale", "qkv_bias", "group_tokens", "round_experts")
"""Fields of `VitConfig` that not every project has a counterpart for."""


def _counterpart(ours: str, table: Mapping[str, tuple[str, Layout]]) -> tuple[str, Layout]:
    for pattern, (theirs, layout) in table.items():
        if match := re.fullmatch(pattern, ours):
            return match.expand(theirs), layout
    raise ConfigError(f"{ours}: the other project has no such parameter")


def to_ours(argument: str, arrays: Mapping[str, Any], entries: Sequence[Entry]) -> dict[str, Array]:
    given = _checked(argument, arrays, {entry.theirs: entry.layout.shape(entry.shapes) for entry in entries})
    return {
        name: np.asarray(array, order="C")
        for entry in entries
        for name, array in zip(entry.ours, entry.layout.unpack(given[entry.theirs], entry.shapes), strict=True)
    }


def to_theirs(argument: str, arrays: Mapping[str, Any], entries: Sequence[Entry]) -> dict[str, Array]:
    expected = {name: shape for entry in entries for name, shape in zip(entry.ours, entry.shapes, strict=True)}
    given = _checked(argument, arrays, expected)
    return {
        entry.theirs: np.asarray(entry.layout.pack([given[name] for name in entry.ours]), order="C")
        for entry in entries
    }


def _checked(argument: str, arrays: Mapping[str, Any], expected: Mapping[str, Shape]) -> dict[str, Array]:
    """The arrays as NumPy arrays, after a look at every name, shape and dtype."""
    given = {name: _array(value) for name, value in arrays.items()}
    mismatches = [f"missing {name} {shape}" for name, shape in expected.items() if name not in given]
    mismatches += [f"unexpected {name} {array.shape}" for name, array in given.items() if name not in expected]
    if mismatches:
        raise ConfigError(f"{argument} does not fit the config: {_listed(mismatches)}")
    mismatches = [
        f"{name} has shape {given[name].shape}, expected {shape}"
        for name, shape in expected.items()
        if given[name].shape != shape
    ]
    if mismatches:
        raise ShapeError(f"{argument} does not fit the config: {_listed(mismatches)}")
    for name, array in given.items():
        check_floating(f"{argument}: {name}", array)
    return given


def _listed(mismatches: list[str]) -> str:
    shown, more = mismatches[:LISTED], len(mismatches) - LISTED
    return "; ".join([*shown, f"and {more} more"] if more > 0 else shown)


def _array(value: Any) -> Array:
    """An array, or a tensor of torch wherever it is, as a NumPy array; bfloat16, which NumPy lacks, as float32."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if "bfloat16" in str(value.dtype) else value
    array = np.asarray(value)
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def unwrapped(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """The parameters of a tree that has them under `params` or `state_dict`; any other tree as it is."""
    for wrapper in WRAPPERS:
        if isinstance(tree.get(wrapper), Mapping):
            return unwrapped(tree[wrapper])
    return tree
