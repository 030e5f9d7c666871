"""What a backend has for one device of what a mesh of devices needs: all rows are its own, and there is nobody to ask.

See the methods of the same names of `OnMesh` in `moespec.backends.jax.mesh` and `moespec.backends.torch.mesh`.
"""

from typing import Any

from moespec.backends.mesh import MeshSizes

__all__ = ["exchanged", "over_devices", "process", "processes", "rows", "sizes", "whole"]

sizes = MeshSizes()
process, processes = 0, 1


def whole(params: Any) -> Any:
    """`params` as they are."""
    return params


def over_devices(by_image: Any, means: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Both as they are."""
    return by_image, means


def rows(batch: int) -> range:
    """All of them."""
    return range(batch)


def exchanged(value: str) -> list[str]:
    """`value` alone."""
    return [value]
