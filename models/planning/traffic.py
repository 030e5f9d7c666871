"""Bytes of a training step that a device has to receive from others, and to move between its memory and its cores.

On the links, each way as many:

    slots        what is in the slots of the device's groups, without the part that stays: it goes to the experts and back, forward
                 and backward, and once more forward where blocks are recomputed
    gathers      parts of parameters that other devices along `fsdp` have, in float32, in each part of a batch
    reductions   gradients: of n devices with the same part of a parameter, 2 (n - 1)/n of it, once in a step; along `fsdp`,
                 where gradients are scattered, n - 1 parts in each part of a batch

Of the memory, with the optimiser: parameters are read forward, backward (where blocks are recomputed, forward again) and by the
optimiser, and written; gradients are written and read in each part of a batch; what the optimiser keeps is read and written.
Activations come on top.
"""

import math

from moespec.backends.mesh import AXES, MeshSizes, leaves, split_axes
from moespec.backends.optimizer import OptimizerConfig
from moespec.models.counts import slots
from moespec.models.families import Config, family
from moespec.models.planning.footprint import Owned
from moespec.spec.routing import Params

__all__ = ["links", "memory_traffic"]


def links(
    model: Config,
    shapes: Params,
    optimizer: OptimizerConfig,
    sizes: MeshSizes,
    *,
    images: int,
    accumulate: int,
    recompute: bool,
    slot_bytes: int,
) -> dict[str, float]:
    """Bytes that a device receives in a step, with `images` images of its own, by what they are for.

    slot_bytes: of a number in a slot that travels.
    """
    found = {"slots": 0.0, "gathers": 0.0, "reductions": 0.0}
    for layer in family(model).moe_layers(model, images // accumulate) if sizes.expert > 1 else ():
        there = layer.groups * slots(layer, train=True) * layer.settings.width * slot_bytes
        found["slots"] += (6 if recompute else 4) * accumulate * there * (1 - 1 / sizes.expert)
    for path, shape in leaves(shapes):
        split = split_axes(path, shape, sizes)
        own = 4 * math.prod(shape) / sizes.size([axis for axis in split if axis])
        trained = bool(optimizer.rate_of(path))
        if "fsdp" in split:
            again = recompute and path[0] == "blocks"
            found["gathers"] += (2 if again else 1) * accumulate * own * (sizes.fsdp - 1)
            found["reductions"] += trained * accumulate * own * (sizes.fsdp - 1)
        others = sizes.size([axis for axis in AXES if axis not in split])
        found["reductions"] += trained * 2 * own * (1 - 1 / others)
    return found


def memory_traffic(owned: Owned, *, accumulate: int, recompute: bool) -> float:
    """Bytes between memory and cores in a step, without activations."""
    passes = (3 if recompute else 2) * accumulate
    return passes * owned.computed + 2 * owned.parameters + 2 * accumulate * owned.gradients + 2 * owned.optimizer
