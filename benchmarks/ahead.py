"""Compile layers and training steps for a TPU ahead of time. No TPU is needed. Import this module before JAX, because
this module sets environment variables that JAX reads at import.

`pip install 'moespec[jax]' libtpu` installs the TPU compiler.
"""

import json
import math
import os
import re
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

for variable, value in {
    "JAX_PLATFORMS": "cpu",  # JAX's default platform; `devices` requests the TPU compiler
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "JAX_OPTIMIZATION_LEVEL": "O0",
}.items():
    os.environ.setdefault(variable, value)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from jax.experimental import topologies  # noqa: E402
from record import RESULTS, save  # noqa: E402

import moespec.backends.jax as single  # noqa: E402
from moespec.backends.jax.mesh import OnMesh  # noqa: E402
from moespec.backends.optimizer import OptimizerConfig  # noqa: E402
from moespec.models import memory  # noqa: E402
from moespec.models.families import Config  # noqa: E402
from moespec.models.parameters import shaped  # noqa: E402
from moespec.training.configuration.config import Config as Run  # noqa: E402
from moespec.training.objectives.table import draws, objective_of, shapes_of  # noqa: E402
from moespec.version import version  # noqa: E402

INSTRUCTION = re.compile(r"^ +(?:ROOT )?%?([\w.-]+) = (.*?) ([\w-]+)\((.*)", re.M)
"""The name, types, operation and operands of an instruction in the text of a compiled program."""
WIDTHS = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "s16": 2, "u16": 2, "f32": 4, "s32": 4, "u32": 4}
TYPE = re.compile(rf"\b({'|'.join(WIDTHS)})\[([\d,]*)\]")


def devices(name: str) -> Any:
    """Return the devices of a TPU topology. Disable the check that a model fits into memory, since nothing is allocated."""
    memory.of_machine = lambda: float("inf")
    return topologies.get_topology_desc(name, platform="tpu").devices


def on(device: Any, tree: Any) -> Any:
    """Return the shapes and dtypes of a pytree of arrays, with a sharding for one device."""
    sharding = jax.sharding.SingleDeviceSharding(device)
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree)


def lowered_step(
    model: Config,
    optimizer: OptimizerConfig,
    images: int,
    where: Any,
    *,
    config: Run = Run(),  # noqa: B008
    random: bool = True,
) -> Any:
    """Return a lowered training step, ready to compile. where: a device or an `OnMesh` backend. config: the resolved configuration
    of a run, with objective, loss, gradient accumulation and recomputation. random: whether to include noise and dropout."""
    config = replace(config, training=replace(config.training, batch=images))
    objective = objective_of(config)
    size, shapes = model.image_size, shapes_of(config, model)
    arrays: dict[str, tuple[tuple[int, ...], Any]] = {
        "images": ((images, size, size, model.channels), jnp.float32),
        "targets": ((images, model.classes), jnp.float32),
    }
    if random and draws(config, model):
        arrays["random"] = ((images, 4), jnp.int32)
    batch: Any = {name: jax.ShapeDtypeStruct(*array) for name, array in arrays.items()}
    if config.objective == "moco":
        batch = {"first": batch, "second": batch}
    elif config.objective == "lit":
        batch = {"image": batch, "text": {"ids": jax.ShapeDtypeStruct((images, config.text.length), jnp.int32)}}
    if isinstance(where, OnMesh):
        B: Any = where
        state = B.state_shapes(shaped(shapes), optimizer)
        batch = jax.tree.map(lambda one: one.update(sharding=B.by_image), batch)
    else:
        B = single
        params = jax.tree.map(
            partial(jax.ShapeDtypeStruct, dtype=jnp.float32), shapes, is_leaf=lambda leaf: type(leaf) is tuple
        )
        state, batch = on(where, (jax.eval_shape(partial(B.init_state, optimizer=optimizer), params), batch))
    how: Any = {"accumulate": config.training.accumulate, "averaged": objective.averaged}
    step: Any = B.make_step(objective.make_loss(B, config, model), optimizer, **how)
    return step.__wrapped__.lower(state, batch, 0.1)


def compiled(lowered: Any) -> tuple[Any, dict[str, Any]]:
    """Return the compiled program, with its temporary memory in MiB and its compilation time in seconds."""
    start = time.perf_counter()
    program = lowered.compile()
    seconds = round(time.perf_counter() - start, 1)
    return program, {"temporary_mib": mib(program.memory_analysis().temp_size_in_bytes), "compile_seconds": seconds}


def bytes_of_buffers(program: Any) -> int:
    """Return the bytes that a compiled program reads and writes if each instruction reads its operands once and writes its results.

    The compiler's own count has a whole tile for each gathered row, and the estimates that kernels report for themselves. This
    function counts the buffers between instructions, and a kernel or loop as a single instruction.
    """
    _, _, entry = program.as_text().partition("ENTRY")
    sizes: dict[str, int] = {}
    total = 0
    for name, types, operation, rest in INSTRUCTION.findall(entry):
        sizes[name] = sum(
            WIDTHS[dtype] * math.prod(map(int, filter(None, shape.split(",")))) for dtype, shape in TYPE.findall(types)
        )
        if operation not in ("parameter", "constant", "tuple", "get-tuple-element", "bitcast"):
            operands = re.findall(r"%([\w.-]+)", rest.partition("), ")[0])
            total += sizes[name] + sum(sizes[operand] for operand in operands)
    return total


def mib(size: float) -> float:
    """Convert bytes to MiB."""
    return round(size / 2**20, 1)


def recorded(name: str, part: str = "rows") -> Any:
    """Return the value of the key `part` in a result file."""
    return json.loads((RESULTS / f"{name}.json").read_text())[part]


def add(name: str, row: dict[str, Any], of: tuple[str, ...]) -> None:
    """Print a row and write the row to a result file. The new row replaces any row with the same values for the keys `of`."""
    print(json.dumps(row), flush=True)
    rows = {json.dumps([one[key] for key in of]): one for one in [*recorded(name), row]}
    write(name, {"rows": list(rows.values())})


def write(name: str, figures: dict[str, Any]) -> None:
    """Write a result file, which also records the command and the versions of packages."""
    report = {
        "command": f"python benchmarks/{Path(sys.argv[0]).name}",
        "optimization_level": os.environ["JAX_OPTIMIZATION_LEVEL"],
        "versions": {package: version(package) for package in ("moespec", "jax", "libtpu")},
    }
    save(RESULTS / f"{name}.json", {**report, **figures})
