"""Which parameter is split how on a mesh, as a table; blocks with the same shapes are one row."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from moespec.backends.mesh import MeshSizes, Split, leaves, split_axes
from moespec.models.planning.footprint import part

__all__ = ["Row", "rows"]

_BLOCK = re.compile(r"^(\D+)/(\d+)/(.+)$")


class Row(NamedTuple):
    """Parameters with the same name, shape and split. names: a pattern, such as `blocks/{1,3-5}/mlp/w1`; parameters: how
    many. bytes: of one, of a device, in float32."""

    names: str
    parameters: int
    shape: tuple[int, ...]
    split: Split
    bytes: int


def rows(shapes: Mapping[str, Any], sizes: MeshSizes) -> list[Row]:
    """The rows, in the order of the parameters, from a nested dict of their shapes."""
    numbers: dict[tuple[str, tuple[int, ...], Split], list[int]] = {}
    for path, shape in leaves(shapes):
        split, name, number = split_axes(path, shape, sizes), "/".join(path), -1
        if match := _BLOCK.match(name):
            name, number = f"{match[1]}/*/{match[3]}", int(match[2])
        numbers.setdefault((name, tuple(shape), split), []).append(number)
    return [
        Row(name.replace("*", ranges(which), 1), len(which), shape, split, 4 * part(shape, split, sizes))
        for (name, shape, split), which in numbers.items()
    ]


def ranges(numbers: list[int]) -> str:
    """Ascending numbers, runs of them as ranges.

    >>> ranges([1]), ranges([0, 1, 2, 5])
    ('1', '{0-2,5}')
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return texts[0] if len(numbers) == 1 else f"{{{','.join(texts)}}}"
