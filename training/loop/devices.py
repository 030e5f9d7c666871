"""Connects devices and processes for training, checks that all processes have the same inputs, and runs shared work on process 0.

Only process 0 writes to the terminal and to the folder of the run; other processes write only their shards of checkpoints. Every process
reads the configuration and the data, and exits with an error if they differ between processes.
"""

import importlib
import json
import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any, TypeVar

from moespec.backends.contract import Backend
from moespec.backends.mesh import MeshSizes, check_experts, mesh_sizes
from moespec.backends.processes import Process, process_of
from moespec.models import families
from moespec.models.errors import Interrupted, RunError
from moespec.models.families import family
from moespec.models.hashing import multi_hash
from moespec.spec.errors import ConfigError, ShapeError, SpecError
from moespec.training.compilation import check_cuda_graph
from moespec.training.configuration.config import Config, MeshConfig
from moespec.training.configuration.configfile import flat
from moespec.training.data.dataset import Dataset
from moespec.training.loop.resolve import load_backend, model_config
from moespec.training.loop.watchdog import Watchdog, ended
from moespec.training.objectives.table import objective_of

__all__ = ["check_batch", "check_expert_axis", "check_layout", "check_same", "connected", "led"]

Result = TypeVar("Result")


@contextmanager
def connected(name: str, mesh: MeshConfig) -> Iterator[Backend]:
    """Yields the backend on all devices of all connected processes. With torch, each process has one device.

    Raises ConfigError for a mesh that does not fit the devices, and RunError if other processes do not connect.
    """
    process = process_of(os.environ)
    if name == "numpy":
        for axis, size in mesh.axes.items():
            if process is not None or size not in (None, 1):
                raise ConfigError(f"mesh.{axis}={size!r}: expected 1, since backend='numpy' uses one device")
        yield load_backend(name)
    elif process is None:
        yield on_devices(name, mesh)
    else:
        with joined(name, process, mesh.timeout):
            yield on_devices(name, mesh)


def on_devices(name: str, mesh: MeshConfig) -> Backend:
    """Returns the backend on all devices that are visible to its framework."""
    on_mesh: Any = importlib.import_module(f"moespec.backends.{name}.mesh")
    sizes = mesh_sizes(on_mesh.devices(), **mesh.axes)
    backend: Backend = on_mesh.OnMesh(sizes, transport=mesh.transport) if sizes.devices > 1 else load_backend(name)
    return backend


@contextmanager
def joined(name: str, process: Process, timeout: float) -> Iterator[None]:
    """Connects the processes within this context. If a process is lost or fails, all other processes report the failure and exit."""
    watchdog = Watchdog(process, timeout)
    on_mesh: Any = importlib.import_module(f"moespec.backends.{name}.mesh")
    try:
        on_mesh.join(process, watchdog.address, timeout)
        yield
        on_mesh.leave()
    except BaseException as error:
        if isinstance(error, RuntimeError):
            watchdog.settle()
        watchdog.leave(None if isinstance(error, Interrupted) else str(error) or type(error).__name__, well=False)
        if isinstance(error, RuntimeError):
            raise RunError(f"{type(error).__name__}: {error}") from error
        if not isinstance(error, SpecError | OSError | MemoryError | KeyboardInterrupt):
            traceback.print_exc()
            ended(1)
        raise
    watchdog.leave()


def check_layout(B: Backend, config: Config) -> None:
    """Raises ConfigError for a resolved configuration that cannot be trained on these devices.

    Each device routes complete groups, so that the routing is the same as on a single device.
    """
    sizes, model, training = B.sizes, model_config(config.model), config.training
    if training.cuda_graph:
        check_cuda_graph(B, accumulate=training.accumulate, wish=training.compile)
    if sizes.devices == 1:
        return
    for tower in dict.fromkeys([model, *(passes.tower for passes in objective_of(config).towers(config, model))]):
        for field, images, parts in (
            ("batch", training.batch, training.accumulate),
            ("evaluation_batch", training.evaluation_batch, 1),
        ):
            check_batch(sizes, tower, f"training.{field}={images!r}", images, parts)
        check_expert_axis(sizes, tower, training.batch // training.accumulate)


def check_batch(sizes: MeshSizes, model: families.Tower, where: str, images: int, parts: int) -> None:
    """Raises a ConfigError that begins with `where` for a batch that cannot be split evenly over the devices, or whose groups span devices.

    parts: the number of micro-batches that each device computes sequentially.
    """
    layers_of = family(model).moe_layers
    if images % (sizes.devices * parts):
        among = f"{sizes.devices} devices ({sizes})" + (f" with {parts} parts each (accumulate)" if parts > 1 else "")
        raise ConfigError(f"{where} cannot be split evenly among {among}")
    part = images // sizes.devices // parts
    try:
        of_device = layers_of(model, part)
    except ShapeError as error:
        raise ConfigError(f"{where}: each device gets {part} images ({sizes}). {error}") from error
    for alone, here in zip(layers_of(model, images // parts), of_device, strict=True):
        if alone.settings.tokens != here.settings.tokens:
            group = f"a group of {alone.settings.tokens} {alone.items} of layer {alone.name}"
            advice = "set model.group_images, model.group_size or text.group_texts"
            raise ConfigError(f"{where}: {group} would span several devices ({sizes}); {advice}")


def check_expert_axis(sizes: MeshSizes, model: families.Tower, images: int) -> None:
    """Raises ConfigError if the mesh axis `expert` does not divide the number of experts, or if the experts cannot be sharded."""
    for layer in family(model).moe_layers(model, images) if sizes.expert > 1 else ():
        check_experts(layer.settings.experts, sizes, f"MoE layer {layer.name}")
        if multi_hash.chosen(layer.settings):
            raise ConfigError(f"mesh.expert={sizes.expert!r}: expected 1, since MultiHash cannot split its experts")


def check_same(B: Backend, config: Config, dataset: Dataset, version: str) -> None:
    """Raises RunError, naming the difference, unless all processes have the same configuration, data and version."""
    own = {
        **flat(asdict(replace(config, mesh=MeshConfig()))),
        "mesh.transport": config.mesh.transport,
        "the version of moespec": version,
        "the data": [dataset.name, *dataset.shape, len(dataset.train), len(dataset.validation), *dataset.classes],
        **dataset.stamp,
    }
    first, *others = map(json.loads, B.exchanged(json.dumps(own, default=str)))
    for index, other in enumerate(others, start=1):
        for key in sorted(first.keys() | other.keys()):
            if first.get(key) != other.get(key):
                raise RunError(f"{key} is {first.get(key)!r} in process 0, {other.get(key)!r} in process {index}")


def led(B: Backend, function: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """Runs `function` on process 0 and returns its JSON result on all processes. If the call fails, the other processes raise RunError."""
    error: Exception | None = None
    answer: dict[str, Any] = {}
    if B.process == 0:
        try:
            answer = {"result": dict(function())}
        except Exception as caught:
            error, answer = caught, {"error": f"process 0: {caught}"}
    answer = json.loads(B.exchanged(json.dumps(answer, default=str))[0])
    if error is not None:
        raise error
    if "error" in answer:
        raise RunError(answer["error"])
    result: dict[str, Any] = answer["result"]
    return result
