"""How a target is run: op by op, compiled, op by op on strided arrays, or on a mesh of devices, which its mode names.

eager    compiled    strided    mesh data 2 x expert 2
"""

import re
from collections.abc import Iterator, Sequence
from itertools import product

from moespec.backends.mesh import AXES, MeshSizes
from moespec.conformance.engine.format import Case

__all__ = ["DEFAULT", "MESH", "MODES", "STRIDED", "is_mode", "mesh_mode", "mesh_of", "meshes", "run_in"]

STRIDED = "strided"
"""Arrays that are not contiguous in any order of their axes: some cases in one dtype, of targets in torch."""
MODES = ("eager", "compiled", STRIDED)
"""The modes of one device."""
DEFAULT = ("eager", STRIDED)
"""Those of a run that names none."""
MESH = "mesh"
"""What the names of the others begin with."""


def mesh_mode(sizes: MeshSizes) -> str:
    """The name of the mode that runs on a mesh.

    >>> mesh_mode(MeshSizes(data=2, expert=2))
    'mesh data 2 x expert 2'
    """
    return f"{MESH} {sizes}"


def mesh_of(mode: str) -> MeshSizes | None:
    """The mesh that a mode is named after, None if it is not named after one."""
    axes = dict(re.findall(r"(\w+) ([1-9]\d{0,3})", mode))
    if not set(axes) <= set(AXES):
        return None
    sizes = MeshSizes(**{name: int(size) for name, size in axes.items()})
    return sizes if mesh_mode(sizes) == mode else None


def run_in(mode: str, cases: Sequence[Case], dtype: str, dtypes: Sequence[str]) -> list[Case]:
    """The cases of one algorithm that a run in some dtypes has in one of them and a mode: of strided arrays the first with
    values and the first with a gradient, in float32 or else the first dtype."""
    if mode != STRIDED:
        return list(cases)
    if dtype != ("float32" if "float32" in dtypes else dtypes[0]):
        return []
    return [case for kind in ("value", "gradient") for case in [c for c in cases if c.kind == kind][:1]]


def is_mode(mode: str) -> bool:
    """Whether there is a mode of this name."""
    return mode in MODES or mesh_of(mode) is not None


def meshes(devices: int) -> Iterator[MeshSizes]:
    """All meshes of some devices, those that split fewer things first.

    >>> [str(sizes) for sizes in meshes(4)]
    ['data 4', 'fsdp 4', 'data 2 x fsdp 2', 'expert 4', 'data 2 x expert 2', 'fsdp 2 x expert 2']
    """
    numbers = [number for number in range(1, devices + 1) if devices % number == 0]
    for expert, fsdp, data in product(numbers, numbers, numbers):
        if data * fsdp * expert == devices:
            yield MeshSizes(data, fsdp, expert)
