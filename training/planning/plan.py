"""Computes the cost of a training step for each possible mesh of a given number of chips, and chooses the best mesh.

A step takes at least as long as the longest of three parts. If the parts do not overlap, the step takes about the sum of the parts:

    compute      The chip executes the operations of all towers at its peak rate in the model's dtype. An image or text that trains a
                 tower costs three forward passes (four with recomputation); any other input costs one. Each device also
                 computes the loss (with projector and predictor, if any) for the images of all devices.
    memory       The chip reads and writes parameters, gradients and optimiser state at its memory bandwidth.
    links        The device receives data from other devices at the total bandwidth of its links. A slot travels over several links
                 and counts once for each link.

The best mesh fits into memory and minimises the longest part. Among meshes whose longest parts agree to four digits, the smallest
sum of the parts wins. Among meshes whose sums agree to two digits, the smallest `fsdp` wins, then the smallest `expert`.
"""

import math
from dataclasses import dataclass
from typing import Any

from moespec.backends.mesh import MeshSizes, mesh_sizes
from moespec.models import families
from moespec.models.families import family, fewest_images
from moespec.spec.errors import ConfigError, SpecError
from moespec.spec.routing import Params
from moespec.training.configuration.config import Config, MeshConfig
from moespec.training.loop.devices import check_batch, check_expert_axis
from moespec.training.loop.resolve import model_config
from moespec.training.objectives.table import forward_passes, objective_of, shapes_of, training_flops
from moespec.training.planning.activations import activations, padded
from moespec.training.planning.chips import Chip
from moespec.training.planning.footprint import links, memory_traffic, owned

__all__ = ["Plan", "best", "plan", "plans", "settled"]


@dataclass(frozen=True)
class Plan:
    """The cost of a step on a mesh, per device: bytes by purpose, operations, and seconds at the chip's peak."""

    sizes: MeshSizes
    memory: dict[str, float]
    links: dict[str, float]
    traffic: float
    flops: float
    chip: Chip

    @property
    def bytes(self) -> float:
        """Total memory."""
        return sum(self.memory.values())

    @property
    def fits(self) -> bool:
        """Whether the chip has enough memory."""
        return self.bytes <= self.chip.memory

    @property
    def seconds(self) -> dict[str, float]:
        """The minimum times for compute, memory and links."""
        hops = self.chip.hops(self.sizes.expert)
        return {
            "compute": self.flops / self.chip.flops,
            "memory": self.traffic / self.chip.bandwidth,
            "links": (sum(self.links.values()) + self.links["slots"] * (hops - 1)) / self.chip.link,
        }

    @property
    def longest(self) -> float:
        """The longest part: the minimum time of a step if the parts overlap."""
        return max(self.seconds.values())

    @property
    def sum(self) -> float:
        """The sum of the parts: the time of a step if the parts do not overlap."""
        return math.fsum(self.seconds.values())


def plan(config: Config, sizes: MeshSizes, chip: Chip) -> Plan:
    """Returns the cost of a step on a mesh. Raises ConfigError for a mesh that does not divide batch, groups or experts."""
    config = settled(config)
    model = model_config(config.model)
    return _plan(model, shapes_of(config, model), config, sizes, chip)


def settled(config: Config) -> Config:
    """Returns the configuration with the settings that its objective requires."""
    return objective_of(config).settled(config, model_config(config.model), None)


def _plan(model: families.Config, shapes: Params, config: Config, sizes: MeshSizes, chip: Chip) -> Plan:
    training = config.training
    objective, split = objective_of(config), sizes.expert > 1
    towers = objective.towers(config, model)
    for tower in dict.fromkeys([model, *(tower for tower, *_ in towers)]):
        check_batch(sizes, tower, f"training.batch={training.batch!r}", training.batch, training.accumulate)
        check_expert_axis(sizes, tower, training.batch // training.accumulate)
    images = training.batch // sizes.devices
    part = images // training.accumulate
    how: Any = {"accumulate": training.accumulate, "recompute": training.recompute}
    kept, besides = objective.of_batch(config, model)
    of_device = owned(shapes, config.optimizer, sizes)
    of_towers = [n * activations(tower, part, split=split, recompute=training.recompute) for tower, n, _ in towers]
    numbers = [max(times) * (_padded(tower.input_shape) + tower.classes) for tower, *times in towers]
    memory = {
        "parameters": of_device.parameters,
        "optimizer": of_device.optimizer,
        "gradients": of_device.gradients * (2 if training.accumulate > 1 else 1),
        "copies": _copies(model, shapes, config, sizes),
        "activations": 12 * training.batch * kept + sum(of_towers),
        "batch": 4 * images * sum(numbers),
    }
    passes = max(times for _, times in forward_passes(config, model))
    operations = training_flops(config, model, images, batch=part, every_slot=split)
    return Plan(
        sizes,
        {name: float(value) for name, value in memory.items()},
        links(towers, shapes, config.optimizer, sizes, images=images, transport=config.mesh.transport, **how),
        memory_traffic(of_device, **how),
        operations + passes * training.batch * besides,
        chip._replace(flops=chip.peak(model.dtype)),
    )


def _padded(shape: tuple[int, ...]) -> int:
    """Returns the number of values that an image or text occupies in a TPU's memory, where rows of pixels are padded to tiles."""
    return math.prod((*shape[:1], *map(padded, shape[1:2]), *shape[2:]))


def _copies(model: families.Config, shapes: Params, config: Config, sizes: MeshSizes) -> float:
    """Returns the bytes of gathered block parameters plus the bytes of bfloat16 copies of block parameters for the backward pass. With
    recomputation, only one block at a time needs these bytes; otherwise, all blocks do."""
    found = []
    for tower, of_tower in ((model, shapes), *([(config.text, shapes["text"])] if "text" in shapes else [])):
        for number, block in of_tower["blocks"].items():
            of_block = owned({"blocks": {number: block}}, config.optimizer, sizes)
            gathered = of_block.computed if of_block.computed > of_block.parameters else 0
            found.append(gathered + (of_block.computed / 2 if tower.dtype == "bfloat16" else 0))
    return max(found) if config.training.recompute else sum(found)


def plans(config: Config, devices: int, chip: Chip) -> list[Plan]:
    """Returns plans, best first, for all meshes of `devices` devices that divide batch, groups and experts evenly.

    If `config` sets a mesh, plans only this mesh. If no mesh is possible, raises ConfigError with the reason for the first mesh.
    """
    if config.mesh != MeshConfig():
        return [plan(config, mesh_sizes(devices, **config.mesh.axes), chip)]
    candidates: list[Plan] = []
    reasons: list[SpecError] = []
    config = settled(config)
    model = model_config(config.model)
    shapes, experts = shapes_of(config, model), bool(family(model).moe_layers(model, fewest_images(model)))
    for expert in _divisors(devices) if experts else (1,):
        for fsdp in _divisors(devices // expert):
            try:
                sizes = MeshSizes(devices // expert // fsdp, fsdp, expert)
                candidates.append(_plan(model, shapes, config, sizes, chip))
            except ConfigError as error:
                reasons.append(error)
    if not candidates:
        raise reasons[0]
    return sorted(candidates, key=_order)


def best(found: list[Plan]) -> Plan | None:
    """The first plan that fits into memory, if any."""
    return next((each for each in found if each.fits), None)


def _order(each: Plan) -> tuple[bool, float, float, int, int]:
    return not each.fits, float(f"{each.longest:.3e}"), float(f"{each.sum:.1e}"), each.sizes.fsdp, each.sizes.expert


def _divisors(number: int) -> list[int]:
    small = [each for each in range(1, math.isqrt(number) + 1) if number % each == 0]
    return sorted({*small, *(number // each for each in small)})
