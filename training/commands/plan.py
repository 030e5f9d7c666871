"""The command `moespec plan`: memory, traffic and time of a step on each mesh, and the best mesh."""

import json
import re
from dataclasses import dataclass, replace
from typing import Annotated, Any

from moespec.backends.mesh import MeshSizes
from moespec.models.checks import Number
from moespec.models.families import fewest_images
from moespec.spec.errors import ConfigError
from moespec.spec.ranges import Range
from moespec.training.commandline.chosen import Configured, check_written, chosen
from moespec.training.commandline.parse import parse
from moespec.training.configuration.config import Config
from moespec.training.configuration.configfile import digits
from moespec.training.configuration.length import images_seen
from moespec.training.loop.resolve import model_config, without_data
from moespec.training.objectives.table import shapes_of, training_flops
from moespec.training.planning.chips import chip_of
from moespec.training.planning.footprint import rows
from moespec.training.planning.plan import Plan, best, plans, settled
from moespec.training.reports.cost import aligned, described, of_run

__all__ = ["main"]

NOT_PLANNED = r"--(data\.(?!name)|schedule\.|hash\.|init|backend|log\b|training\.(seed|keep|log|checkpoint|evaluate))"
"""Options of train that `moespec plan` rejects, because they do not affect a plan."""


@dataclass(frozen=True, kw_only=True)
class PlanArguments(Configured):
    """Estimate memory and time of a training step on other hardware, and find the best mesh.

    moespec plan --model vit_l16 --router soft_moe --experts 128 --devices 256 --chip v5p --training.batch 4096. Prints the memory,
    operations, traffic and minimum time of a step for each mesh that divides devices, batch and experts, or for the mesh that --mesh sets.
    Accepts the options of train for the model, optimiser, batch and computation, but not for data, schedule, logging and checkpoints.
    """

    devices: Number
    """number of devices in the mesh"""
    chip: str
    """v4, v5e, v5p, v6e, h100, h200, a100-40, a100-80, l40s, rtx4090, or another chip as
    flops=312e12,memory=80e9,bandwidth=2039e9,link=300e9: bfloat16 operations per second, bytes of memory, bytes per second to memory,
    bytes per second received over all links; optional: float32=156e12 (float32 operations per second), torus=3 (torus dimensions)"""
    utilisation: Annotated[float, Range(0, 1, above=True, below=False)] | None = None
    """assumed fraction of the chip's peak rate, to estimate the device-days of the run"""
    sharding: bool = False
    """print the sharding of each parameter, on the mesh that --mesh sets, or else on the best mesh"""
    json: bool = False
    """print JSON"""


def main(words: list[str]) -> None:
    """Prints the plan of each mesh and the cost of the run. With --sharding, prints how the requested or best mesh shards the parameters.

    utilisation: the assumed rate of the operations that `objectives.table.training_flops` counts, as a fraction of the chip's peak rate.
    """
    given = parse("plan", PlanArguments, words, settings=chosen(words, digits()))
    check_written(words, given.settings)
    if other := next(filter(re.compile(NOT_PLANNED).match, words), None):
        raise ConfigError(f"{other} has no effect: plan does not read data or train")
    devices, chip, utilisation = given.devices, chip_of(given.chip), given.utilisation
    config = replace(given.settings, model=without_data(given.settings))
    seen = images_seen(config.training)
    if utilisation is not None and given.sharding:
        raise ConfigError(f"utilisation={utilisation!r} has no effect with --sharding")
    if utilisation is not None and (epochs := config.training.epochs) is not None:
        unknown = f"training.epochs={epochs!r} needs the data, which plan does not read; set --training.examples"
        raise ConfigError(f"utilisation={utilisation!r}: {unknown}")
    model, training = model_config(config.model), config.training
    ranked = plans(config, devices, chip)
    fitting = best(ranked)
    config = settled(config)
    if given.sharding:
        _print_sharding(config, (fitting or ranked[0]).sizes, as_json=given.json)
        return
    batch = training.batch // training.accumulate
    operations = None if seen is None else training_flops(config, model, seen, batch=batch)
    peak = chip.peak(model.dtype)
    days = operations / peak / utilisation / 86_400 if operations and utilisation else None
    if given.json:
        run = {"images": seen, "flops": operations, "utilisation": utilisation, "device_days": days}
        report = {"devices": devices, "chip": {"name": given.chip, **chip._asdict()}, "run": run}
        rows = [_json(config, each) for each in ranked]
        print(json.dumps({**report, "plans": rows, "best": rows[ranked.index(fitting)] if fitting else None}, indent=1))
        return
    print(f"{config.model.name}: {described(model)}")
    if seen is not None:
        at = f"; {days:.4g} device-days at {utilisation:.0%} of the peak" if days else ""
        print(of_run(config, model, seen, batch=batch) + at)
    parts = f" in {training.accumulate} micro-batches" if training.accumulate > 1 else ""
    again = ", blocks recomputed" if training.recompute else ""
    where = f"per device, at {peak / 1e12:g} TFLOP/s in {model.dtype}"
    print(f"{training.batch} images per step{parts} on {devices} {given.chip}{again}; {where}:\n")
    print(aligned([HEADINGS, UNITS, *(_row(each) for each in ranked[:SHOWN])]))
    if ranked[SHOWN:]:
        print(f"and {len(ranked) - SHOWN} other meshes (list them with --json)")
    print(f"\n{COLUMNS}")
    if too_large := [str(each.sizes) for each in ranked if not each.fits]:
        print(f"Meshes that do not fit: {'; '.join(too_large)}")
    has = f"{_gib(chip.memory)} GiB"
    if fitting:
        print(f"\nBest mesh that fits into {has}: {fitting.sizes}\n  {options(config, fitting.sizes)}")
    else:
        less = "another mesh" if len(ranked) == 1 else "more devices"
        print(f"\nNo mesh fits into {has}. Reduce memory with --training.recompute, --training.accumulate or {less}.")


def options(config: Config, sizes: MeshSizes) -> str:
    """Returns the options of `moespec train` for a mesh. Rounds the evaluation batch up to full groups on every device."""
    named = zip(("data", "fsdp", "expert"), sizes.shape, strict=True)
    words = [f"--mesh.{name} {size}" for name, size in named if size > 1 or name == "data"]
    batch, unit = config.training.evaluation_batch, sizes.devices * fewest_images(model_config(config.model))
    if batch % unit:
        words.append(f"--training.evaluation-batch {-(-batch // unit) * unit}")
    return " ".join(words)


def _json(config: Config, each: Plan) -> dict[str, Any]:
    mesh = dict(zip(("data", "fsdp", "expert"), each.sizes.shape, strict=True))
    names = ("fits", "bytes", "memory", "links", "traffic", "flops", "seconds", "longest", "sum")
    return {"mesh": mesh, "options": options(config, each.sizes), **{name: getattr(each, name) for name in names}}


SHOWN = 10
"""Number of meshes in the table, which lists the best meshes first."""
HEADINGS = (
    *("mesh", "param.", "optim.", "grad.", "copies", "activ.", "batch", "all"),
    *("slots", "gathers", "reduced", "TFLOP", "compute", "memory", "links", "longest", "sum", ""),
)
COLUMNS = """param. to batch: memory by content; all: their sum. slots, gathers, reduced: bytes received from other devices.
compute, memory, links: minimum time of operations, memory traffic and link traffic. A step takes at least the longest of the
three, and about their sum if they do not overlap."""
"""The legend of the table."""
UNITS = ("", *["GiB"] * 7, *["GB"] * 3, "", *["ms"] * 5, "")


def _row(each: Plan) -> tuple[str, ...]:
    memory = [_gib(value) for value in (*each.memory.values(), each.bytes)]
    there = [f"{value / 1e9:.2f}" for value in each.links.values()]
    times = [f"{1e3 * value:.1f}" for value in (*each.seconds.values(), each.longest, each.sum)]
    fits = "" if each.fits else "does not fit"
    return str(each.sizes), *memory, *there, f"{each.flops / 1e12:.1f}", *times, fits


def _gib(size: float) -> str:
    return f"{size / 2**30:.2f}"


def _print_sharding(config: Config, sizes: MeshSizes, *, as_json: bool) -> None:
    table = rows(shapes_of(config, model_config(config.model)), sizes)
    if as_json:
        print(json.dumps({"mesh": sizes.__dict__, "parameters": [row._asdict() for row in table]}, indent=1))
        return
    print(f"{config.model.name} on {sizes}: float32 parameters, bytes per device\n")
    lines = [
        (
            row.names,
            " x ".join(map(str, row.shape)) or "1",
            ", ".join(axis or "-" for axis in row.split) if any(row.split) else "whole",
            f"{row.bytes:,}",
            str(row.parameters),
            f"{row.parameters * row.bytes:,}",
        )
        for row in table
    ]
    total = f"{sum(row.parameters * row.bytes for row in table):,}"
    headings = ("parameter", "shape", "split", "bytes each", "count", "bytes")
    print(aligned([headings, *lines, ("all", "", "", "", str(sum(row.parameters for row in table)), total)]))
