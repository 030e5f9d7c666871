"""Describes how another project's parameters ("theirs") store this project's parameters ("ours"), and converts in both directions.

If one of their parameters stores several of ours, our parameters are stacked in the order of `parameter_shapes`, such as query, key, value.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moespec.models.families import Config, family
from moespec.models.pytrees import flatten, nested
from moespec.models.vit import VitConfig
from moespec.spec.checks import check_floating
from moespec.spec.errors import ConfigError, ShapeError
from moespec.spec.routing import Params

__all__ = [
    *("SAME", "Array", "Convolution", "Entry", "Has", "Layout", "Linear", "Project", "Shape", "Table"),
    *("of_torch", "to_ours", "unwrapped"),
]

WRAPPERS = ("params", "state_dict")
"""Keys under which projects store the parameters, next to training state."""

LISTED = 4
"""Maximum number of mismatches that an error names."""

Array = NDArray[Any]
Shape = tuple[int, ...]


class Layout:
    """Describes how one of their parameters stores one or more of ours. This base class stores one of our parameters unchanged."""

    def shape(self, shapes: list[Shape]) -> Shape:
        return shapes[0]

    def pack(self, arrays: list[Array]) -> Array:
        return arrays[0]

    def unpack(self, array: Array, shapes: list[Shape]) -> list[Array]:
        return [array]


class Convolution(Layout):
    """The kernel of the patch embedding, (p, p, channels, D), stored with outputs and channels first."""

    def shape(self, shapes: list[Shape]) -> Shape:
        return tuple(shapes[0][axis] for axis in (3, 2, 0, 1))

    def pack(self, arrays: list[Array]) -> Array:
        return arrays[0].transpose(3, 2, 0, 1)

    def unpack(self, array: Array, shapes: list[Shape]) -> list[Array]:
        return [array.transpose(2, 3, 1, 0)]


class Linear(Layout):
    """A linear layer stored with outputs first and axes flattened. Several of our layers are concatenated along the output axis.

    inputs: the number of leading input axes in our kernel; 0 for a bias or a scale.
    """

    def __init__(self, inputs: int) -> None:
        self.inputs = inputs

    def shape(self, shapes: list[Shape]) -> Shape:
        rows = sum(math.prod(shape[self.inputs :]) for shape in shapes)
        return (rows, math.prod(shapes[0][: self.inputs])) if self.inputs else (rows,)

    def pack(self, arrays: list[Array]) -> Array:
        inputs = [(math.prod(a.shape[: self.inputs]), -1) if self.inputs else (-1,) for a in arrays]
        return np.concatenate([a.reshape(shape).T for a, shape in zip(arrays, inputs, strict=True)])

    def unpack(self, array: Array, shapes: list[Shape]) -> list[Array]:
        ends = np.cumsum([math.prod(shape[self.inputs :]) for shape in shapes])[:-1]
        return [rows.T.reshape(shape) for rows, shape in zip(np.split(array, ends), shapes, strict=True)]


SAME = Layout()

Table = Mapping[str, str | tuple[str, Layout]]
"""A regular expression for our names -> their name, and a layout if the parameter is stored differently."""


def of_torch(rows: Mapping[str, tuple[str, int]]) -> Table:
    """Returns the table for layers of torch. rows: our layer -> their layer, number of input axes (0 for a normalisation layer)."""
    table: dict[str, tuple[str, Layout]] = {}
    for ours, (theirs, inputs) in rows.items():
        table[f"{ours}/{'kernel' if inputs else 'scale'}"] = (f"{theirs}.weight", Linear(inputs))
        table[f"{ours}/bias"] = (f"{theirs}.bias", Linear(0))
    return table


class Entry(NamedTuple):
    """One of their parameters: its name, its layout, and, in order, the names and shapes of our parameters that it stores."""

    theirs: str
    layout: Layout
    ours: list[str]
    shapes: list[Shape]


Has = Mapping[str, Sequence[Any] | None]
"""Field of our configurations -> the values that another project supports; None: all."""

_SELDOM: Has = {
    **{"stem": [0], "registers": [0], "pre_norm": [False], "norm_epsilon": [1e-6], "layer_scale": [0.0]},
    **{"qkv_bias": [True], "group_tokens": [0], "round_experts": [False]},
    **{"expert_hidden": [0], "expert_activation": ["gelu"], "expert_bias": [True]},
    **{"shared_experts": [0], "block": [{}]},
}
"""Fields that a project's `has` may omit -> the values that the project then supports."""


@dataclass(frozen=True)
class Project:
    """Another project: the supported models, and the layouts of the project's parameters.

    argument, separator: the name of the parameters in errors, and the separator in parameter names ("/" if they are nested).
    extra: the part of the table that depends on the model and overrides `table`. check_extra: raises ConfigError for invalid combinations.
    prepared: renames the project's parameters to the names in the table. token_has_position: whether a class token has a position.
    """

    name: str
    table: Table
    has: Has
    kinds: tuple[type[Config], ...] = (VitConfig,)
    argument: str = "params"
    separator: str = "/"
    extra: Callable[[Any], Table] = lambda config: {}
    check_extra: Callable[[Any], None] = lambda config: None
    prepared: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict
    token_has_position: bool = True

    def from_theirs(self, params: Mapping[str, Any], config: Config) -> Params:
        """Converts their parameters to ours. `params` maps names to arrays or tensors, possibly under the key `params` or `state_dict`.

        The returned arrays may share memory with `params`. Raises ConfigError if the project has no model `config`, or if a parameter
        is missing or unexpected, and ShapeError or DtypeError for a wrong shape or dtype.
        """
        entries = self._entries(config)
        return nested(to_ours(self.argument, self.prepared(flatten(unwrapped(params), self.separator)), entries))

    def to_theirs(self, params: Params, config: Config) -> dict[str, Any]:
        """Converts our parameters to theirs, as NumPy arrays. This is the inverse of `from_theirs` and raises the same errors."""
        entries = self._entries(config)
        expected = {name: shape for entry in entries for name, shape in zip(entry.ours, entry.shapes, strict=True)}
        ours = _checked("params", flatten(params), expected)
        packed = {entry.theirs: entry.layout.pack([ours[name] for name in entry.ours]) for entry in entries}
        arrays = {name: np.asarray(array, order="C") for name, array in packed.items()}
        return nested(arrays) if self.separator == "/" else arrays

    def check(self, config: Config) -> None:
        """Raises ConfigError, naming the field, unless the project supports the model `config`."""
        if not isinstance(config, self.kinds):
            raise ConfigError(f"{type(config).__name__}: {self.name} has no such model")
        for field, values in {**_SELDOM, **self.has}.items():
            if values is not None and (value := getattr(config, field, values[0])) not in values:
                raise ConfigError(f"{field}={value!r}: {self.name} supports only {' and '.join(map(repr, values))}")
        self.check_extra(config)

    def counterpart(self, ours: str, config: Config | None = None) -> tuple[str, Layout]:
        """Returns the name and the layout of the parameter that stores `ours`. Raises ConfigError if there is no such parameter."""
        for table in (self.extra(config) if config else {}, self.table):
            for pattern, row in table.items():
                if match := re.fullmatch(pattern, ours):
                    theirs, layout = (row, SAME) if isinstance(row, str) else row
                    return match.expand(theirs), layout
        raise ConfigError(f"{ours}: {self.name} has no such parameter")

    def _entries(self, config: Config) -> list[Entry]:
        """Returns the project's parameters for the model `config`."""
        self.check(config)
        entries: dict[str, Entry] = {}
        for ours, shape in flatten(family(config).parameter_shapes(config)).items():
            theirs, layout = self.counterpart(ours, config)
            entry = entries.setdefault(theirs, Entry(theirs, layout, [], []))
            entry.ours.append(ours)
            entry.shapes.append(shape)
        return list(entries.values())


def to_ours(argument: str, arrays: Mapping[str, Any], entries: Sequence[Entry]) -> dict[str, Array]:
    """Converts their parameters to ours, by name. argument: the name of their parameters in errors."""
    theirs = _checked(argument, arrays, {entry.theirs: entry.layout.shape(entry.shapes) for entry in entries})
    return {
        name: np.asarray(array, order="C")
        for entry in entries
        for name, array in zip(entry.ours, entry.layout.unpack(theirs[entry.theirs], entry.shapes), strict=True)
    }


def _checked(argument: str, arrays: Mapping[str, Any], expected: Mapping[str, Shape]) -> dict[str, Array]:
    """Checks every name, shape and dtype, and returns the arrays as NumPy arrays."""
    checked = {name: _array(value) for name, value in arrays.items()}
    names = [f"missing {name} {shape}" for name, shape in expected.items() if name not in checked]
    names += [f"unexpected {name} {array.shape}" for name, array in checked.items() if name not in expected]
    if names:
        raise ConfigError(f"{argument} does not fit the config: {_listed(names)}")
    shapes = [
        f"{name} has shape {checked[name].shape}, expected {shape}"
        for name, shape in expected.items()
        if checked[name].shape != shape
    ]
    if shapes:
        raise ShapeError(f"{argument} does not fit the config: {_listed(shapes)}")
    for name, array in checked.items():
        check_floating(f"{argument}: {name}", array)
    return checked


def _listed(mismatches: list[str]) -> str:
    shown, more = mismatches[:LISTED], len(mismatches) - LISTED
    return "; ".join([*shown, f"and {more} more"] if more > 0 else shown)


def _array(value: Any) -> Array:
    """Converts an array, or a torch tensor on any device, to a NumPy array; bfloat16, which NumPy lacks, becomes float32."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if "bfloat16" in str(value.dtype) else value
    array = np.asarray(value)
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def unwrapped(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the parameters under the key `params` or `state_dict` of a tree. A tree without these keys is unchanged."""
    for wrapper in WRAPPERS:
        if isinstance(tree.get(wrapper), Mapping):
            return unwrapped(tree[wrapper])
    return tree
