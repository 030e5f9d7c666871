"""Compile a training step of each recipe ahead of time for one TPU core. No TPU is needed.

    pip install 'moespec[jax]' libtpu
    python benchmarks/tpu_recipes.py [RECIPE ...] [--images 8] [--topology v5e:2x2]

A step consists of the loss, the backward pass, clipping and the optimiser, for the model of the recipe and `--images` images. A row
contains memory, the compilation time, and FLOPs relative to `moespec count` for the same images. If the step exceeds the memory of a core,
the row contains the error. A row replaces the row of the same recipe and topology in `benchmarks/results/recipes-tpu.json`.
"""

from dataclasses import replace
from typing import Any

import ahead  # isort: skip  # this import comes first, because it selects the compiler
import jax
import record

from moespec.models import families, parameters
from moespec.training.configuration import configfile
from moespec.training.configuration.config import Config, TrainingConfig
from moespec.training.loop.resolve import model_config, without_data
from moespec.training.objectives.table import objective_of, training_flops

LARGE = sorted(set(configfile.recipes()) - {"digits", "fashion_mnist"})


def compile_step(model: families.Config, config: Config, device: Any) -> dict[str, Any]:
    """Compile a training step of a resolved configuration (see `ahead.lowered_step`), and return its row of results."""
    images, own = config.training.batch, parameters.count(objective_of(config).layout(config, model))
    row: dict[str, Any] = {"parameters": families.family(model).parameter_count(model) + own}
    try:
        program, figures = ahead.compiled(ahead.lowered_step(model, config.optimizer, images, device, config=config))
    except jax.errors.JaxRuntimeError as error:
        return {**row, "error": str(error).splitlines()[0][:200]}
    cost, needed = program.cost_analysis(), program.memory_analysis()
    return {
        **row,
        "flops": cost["flops"],
        "flops_over_count": round(cost["flops"] / training_flops(config, model, images, batch=images), 4),
        "gigabytes_accessed": round(cost["bytes accessed"] / 1e9, 2),
        "arguments_mib": ahead.mib(needed.argument_size_in_bytes),
        **figures,
    }


def main() -> None:
    parser = record.parser(__doc__, images=8, topology="v5e:2x2")
    parser.add_argument("recipes", nargs="*", choices=[[], *LARGE], metavar="RECIPE", help=f"of {', '.join(LARGE)}")
    arguments = parser.parse_args()
    device = ahead.devices(arguments.topology)[0]
    for name in arguments.recipes or LARGE:
        config = configfile.read(configfile.find_recipe(name))
        model = model_config(without_data(config))
        training = TrainingConfig(batch=arguments.images, loss=config.training.loss)
        config = objective_of(config).settled(replace(config, training=training), model, None)
        figures = compile_step(model, config, device)
        row = {"recipe": name, "topology": arguments.topology, "images": arguments.images, **figures}
        ahead.add("recipes-tpu", row, ("recipe", "topology"))


if __name__ == "__main__":
    main()
