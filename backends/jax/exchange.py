"""What experts of other devices are to compute goes there, and comes back: inside of a `shard_map` over a mesh.

Shape comments: G groups of a device, E experts, C capacity, D width, n devices along the axes that split the experts.
"""

from collections.abc import Sequence
from typing import Any, cast

from jax import Array, lax

# What JAX has declared no types for.
collective = cast(Any, lax)


def there(slots: Array, axes: str | Sequence[str]) -> Array:
    """(G, E, C, D) of the device's groups to (n G, E / n, C, D) of its experts."""
    return cast(Array, collective.all_to_all(slots, axes, 1, 0, tiled=True))


def back(slots: Array, axes: str | Sequence[str]) -> Array:
    """The reverse."""
    return cast(Array, collective.all_to_all(slots, axes, 0, 1, tiled=True))
