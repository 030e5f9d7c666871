"""Compile a training step of the package's recipes for one TPU core that need not be there.

    pip install 'moespec[jax]' libtpu
    python benchmarks/tpu_recipes.py [RECIPE ...] [--images 8] [--topology v5e:2x2]

The whole step: loss, backward pass, clip and optimiser, with the recipe's model and `--images` images. A row has
what the compiler says of it: FLOPs beside three times those of a forward pass as `moespec count` has them, memory, seconds to
compile; or its message, for a step that a core has no memory for. They are written to `benchmarks/results/recipes-tpu.json`, where
rows of other recipes and topologies stay.
"""

import argparse
import importlib.metadata
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import tpu_layers  # isort: skip  # noqa: F401  # before jax: it sets which compiler is used
import jax
import jax.numpy as jnp
from jax.experimental import topologies

import moespec.backends.jax as B
from moespec.models import counts, families, memory
from moespec.models.training import configfile
from moespec.models.training.objective import draws, make_loss
from moespec.models.training.resolve import model_config, without_data

RESULT = Path(__file__).parent / "results" / "recipes-tpu.json"
LARGE = sorted(set(configfile.recipes()) - {"digits", "fashion_mnist"})


def compile_recipe(name: str, images: int, device: Any) -> dict[str, Any]:
    """The figures of a recipe."""
    config = configfile.read(configfile.find_recipe(name))
    model = model_config(without_data(config.model, config.data))
    return compile_step(model, partial(make_loss, B, kind=config.training.loss), config.optimizer, images, device)


def lowered_step(
    model: families.Config, loss: Callable[..., Any], optimizer: B.OptimizerConfig, images: int, device: Any
) -> Any:
    """A training step, ready to be compiled. loss: makes the loss of a model."""
    family = families.family(model)

    def shaped(tree: Any) -> Any:
        if isinstance(tree, dict):
            return {key: shaped(value) for key, value in tree.items()}
        return jax.ShapeDtypeStruct(tree, jnp.float32)

    batch = {
        "images": jax.ShapeDtypeStruct((images, model.image_size, model.image_size, 3), jnp.float32),
        "targets": jax.ShapeDtypeStruct((images, model.classes), jnp.float32),
    }
    if draws(model, images):
        batch["random"] = jax.ShapeDtypeStruct((images, 4), jnp.int32)
    state = jax.eval_shape(partial(B.init_state, optimizer=optimizer), shaped(family.parameter_shapes(model)))
    place = partial(jax.tree.map, lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=device))
    step = B.make_step(loss(model), optimizer).__wrapped__  # type: ignore[attr-defined]
    return step.lower(place(state), place(batch), 0.1)


def compile_step(
    model: families.Config, loss: Callable[..., Any], optimizer: B.OptimizerConfig, images: int, device: Any
) -> dict[str, Any]:
    """The figures of a training step, as of `lowered_step`."""
    row: dict[str, Any] = {"parameters": families.family(model).parameter_count(model)}
    start = time.perf_counter()
    try:
        compiled = lowered_step(model, loss, optimizer, images, device).compile()
    except jax.errors.JaxRuntimeError as error:
        return {**row, "error": str(error).splitlines()[0][:200]}
    # A count is of an evaluation; with the capacity of training it is that of a forward pass in training.
    if options := getattr(model, "router_options", {}):
        model = replace(model, router_options={key: options[key] for key in options if key != "eval_capacity_factor"})
    cost, needed = compiled.cost_analysis(), compiled.memory_analysis()
    return {
        **row,
        "flops": cost["flops"],
        "flops_over_count": round(cost["flops"] / (3 * images * sum(counts.flops(model, images).values())), 4),
        "gigabytes_accessed": round(cost["bytes accessed"] / 1e9, 2),
        "arguments_mib": round(needed.argument_size_in_bytes / 2**20, 1),
        "temporary_mib": round(needed.temp_size_in_bytes / 2**20, 1),
        "compile_seconds": round(time.perf_counter() - start, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", choices=[[], *LARGE], metavar="RECIPE", help=f"of {', '.join(LARGE)}")
    parser.add_argument("--images", type=int, default=8, help="images in the batch (default: %(default)s)")
    parser.add_argument("--topology", default="v5e:2x2", help="name of the TPU topology (default: %(default)s)")
    arguments = parser.parse_args()
    memory.of_machine = lambda: float("inf")  # nothing is allocated
    topology = topologies.get_topology_desc(arguments.topology, platform="tpu")
    device = jax.sharding.SingleDeviceSharding(topology.devices[0])
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    if RESULT.is_file():
        rows = {(row["recipe"], row["topology"]): row for row in json.loads(RESULT.read_text())["rows"]}
    for name in arguments.recipes or LARGE:
        row = {"recipe": name, "topology": arguments.topology, "images": arguments.images}
        rows[name, arguments.topology] = row = {**row, **compile_recipe(name, arguments.images, device)}
        print(json.dumps(row), flush=True)
        report = {
            "command": "python benchmarks/tpu_recipes.py",
            "optimization_level": os.environ["JAX_OPTIMIZATION_LEVEL"],
            "versions": {name: importlib.metadata.version(name) for name in ("jax", "libtpu")},
            "rows": [rows[key] for key in sorted(rows)],
        }
        RESULT.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
