"""The single-device versions of the mesh functions: all rows are local, and there are no other processes.

`OnMesh` in `moespec.backends.jax.mesh` and `moespec.backends.torch.mesh` has methods of the same names.
"""

from typing import Any

from moespec.backends.mesh import MeshSizes

__all__ = ["exchanged", "over_devices", "process", "processes", "rows", "sizes", "whole"]

sizes = MeshSizes()
process, processes = 0, 1


def whole(params: Any) -> Any:
    """`params` unchanged."""
    return params


def over_devices(by_image: Any, means: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Both arguments unchanged."""
    return by_image, means


def rows(batch: int) -> range:
    """All rows."""
    return range(batch)


def exchanged(value: str) -> list[str]:
    """Only `value`."""
    return [value]
