"""Compile a training step of the package's recipes for one TPU core that need not be there.

    pip install 'moespec[jax]' libtpu
    python benchmarks/tpu_recipes.py [RECIPE ...] [--images 8] [--topology v5e:2x2]

The whole step: loss, backward pass, clip and optimiser, with the recipe's model and `--images` images. A row has
what the compiler says of it: FLOPs beside three times those of a forward pass as `moespec count` has them, memory, seconds to
compile; or its message, for a step that a core has no memory for. They are written to `benchmarks/results/recipes-tpu.json`, where
rows of other recipes and topologies stay.
"""

from dataclasses import replace
from typing import Any

import ahead  # isort: skip  # first: it sets which compiler is used
import jax
import record

from moespec.models import counts, families
from moespec.models.training import configfile
from moespec.models.training.resolve import model_config, without_data

LARGE = sorted(set(configfile.recipes()) - {"digits", "fashion_mnist"})


def compile_step(model: families.Config, optimizer: Any, images: int, device: Any, **options: Any) -> dict[str, Any]:
    """The figures of a training step, as of `ahead.lowered_step`."""
    row: dict[str, Any] = {"parameters": families.family(model).parameter_count(model)}
    try:
        program, figures = ahead.compiled(ahead.lowered_step(model, optimizer, images, device, **options))
    except jax.errors.JaxRuntimeError as error:
        return {**row, "error": str(error).splitlines()[0][:200]}
    # A count is of an evaluation; with the capacity of training it is that of a forward pass in training.
    if options := getattr(model, "router_options", {}):
        model = replace(model, router_options={key: options[key] for key in options if key != "eval_capacity_factor"})
    cost, needed = program.cost_analysis(), program.memory_analysis()
    return {
        **row,
        "flops": cost["flops"],
        "flops_over_count": round(cost["flops"] / (3 * images * sum(counts.flops(model, images).values())), 4),
        "gigabytes_accessed": round(cost["bytes accessed"] / 1e9, 2),
        "arguments_mib": ahead.mib(needed.argument_size_in_bytes),
        **figures,
    }


def main() -> None:
    parser = record.parser(__doc__)
    parser.add_argument("recipes", nargs="*", choices=[[], *LARGE], metavar="RECIPE", help=f"of {', '.join(LARGE)}")
    parser.add_argument("--images", type=int, default=8, help="images in the batch (default: %(default)s)")
    parser.add_argument("--topology", default="v5e:2x2", help="name of the TPU topology (default: %(default)s)")
    arguments = parser.parse_args()
    device = ahead.devices(arguments.topology)[0]
    for name in arguments.recipes or LARGE:
        config = configfile.read(configfile.find_recipe(name))
        model = model_config(without_data(config.model, config.data))
        figures = compile_step(model, config.optimizer, arguments.images, device, loss=config.training.loss)
        row = {"recipe": name, "topology": arguments.topology, "images": arguments.images, **figures}
        ahead.add("recipes-tpu", row, ("recipe", "topology"), "jax", "libtpu")


if __name__ == "__main__":
    main()
