"""Inside a `shard_map` over a mesh, sends slots to the devices that hold the experts, and sends the outputs back.

Shape comments: G groups per device, E experts, C capacity, D width, n devices along the axes that split the experts.
"""

from collections.abc import Sequence
from typing import Any, cast

from jax import Array, lax

# JAX does not declare the types of collective operations.
collective = cast(Any, lax)


def there(slots: Array, axes: str | Sequence[str]) -> Array:
    """Sends the slots (G, E, C, D) of this device's groups to the devices that hold the experts. Returns (n G, E / n, C, D)."""
    return cast(Array, collective.all_to_all(slots, axes, 1, 0, tiled=True))


def back(slots: Array, axes: str | Sequence[str]) -> Array:
    """The inverse of `there`: sends the outputs of experts back to the devices that sent the slots."""
    return cast(Array, collective.all_to_all(slots, axes, 0, 1, tiled=True))
