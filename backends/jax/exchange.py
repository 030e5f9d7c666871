"""Sends the contents of slots to the devices that hold their experts, and back, inside a `shard_map` over a mesh.

Shape comments: G groups of a device, E experts, C capacity, D width, n devices along the axes that split the experts.
"""

from collections.abc import Sequence
from typing import Any, cast

from jax import Array, lax

# JAX declares no types for these functions.
collective = cast(Any, lax)


def there(slots: Array, axes: str | Sequence[str]) -> Array:
    """Sends the slots (G, E, C, D) of the groups of this device to the devices of their experts. Returns (n G, E / n, C, D)."""
    return cast(Array, collective.all_to_all(slots, axes, 1, 0, tiled=True))


def back(slots: Array, axes: str | Sequence[str]) -> Array:
    """The reverse of `there`."""
    return cast(Array, collective.all_to_all(slots, axes, 0, 1, tiled=True))
