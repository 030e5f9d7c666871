"""What the cases of whole models have in common.

A model is written against a backend, so it is loaded by name, as a target is. In bfloat16 the parameters stay float32
and the model computes in bfloat16.
"""

import importlib
import warnings
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from moespec.conformance.author.definition import call, tensor
from moespec.conformance.author.describe import DENSE, Choice, Function, Output
from moespec.conformance.author.draw import grid, integers, to_bfloat16
from moespec.conformance.format import Stage, Tensor, routing_arrays

__all__ = ["forward_function", "inputs_of", "prepare", "stage_of"]

BLOCKS = 4
CONFIGS = {"vit": "VitConfig", "mixer": "MixerConfig", "sparse_mlp": "SparseMlpConfig"}
"""The models by the name of their module, with that of their configuration."""


def prepare(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """The module of the model, and its configuration made of the options `model` and, if given, `dtype`, that of the
    computation: nothing of this is for a compiler to trace."""
    rest = {key: value for key, value in options.items() if key != "dtype"}
    module = importlib.import_module(f"moespec.models.{name}")
    with warnings.catch_warnings(action="ignore"):  # of routers that train badly, which are cases, too
        config = getattr(module, CONFIGS[name])(**options["model"], dtype=options.get("dtype", "float32"))
    return {**rest, "model": module, "config": config}


def forward(
    B: Any,
    *,
    params: Any,
    images: Any,
    model: Any,
    config: Any,
    noise: Any = None,
    random: Any = None,
    train: bool = False,
) -> dict[str, Any]:
    """The results of a model by name. noise: of each MoE layer, by its number. random: what dropout is drawn from."""
    drawn = [noise[number] for number in sorted(noise)] if noise else None
    output = model.forward(B, config, params, images, noise=drawn, random=random, train=train)
    sparse = getattr(config, "router", "") != "soft_moe"
    results = {"logits": output.logits, "features": output.features}
    results |= {f"losses/{term}": value for term, value in output.losses.items()}
    for block, routing in enumerate(output.routings):
        results |= {f"block{block}/{part}": array for part, array in routing_arrays(routing, sparse=sparse).items()}
    return results


def forward_function(name: str, *needs: str, routed: bool = True) -> Function:
    """The forward pass of a model as a function, with the public names that a target needs for it."""

    def output(axes: str = "") -> Output:
        return Output(axes, scale="spread", constant="model", rounded=True)

    outputs = {"logits": output("images classes"), "features": output("images width"), "losses/*": output()}
    for block in range(BLOCKS if routed else 0):
        outputs |= {
            f"block{block}/slots": Output("groups experts capacity", "int"),
            f"block{block}/weights": output("groups experts capacity"),
            f"block{block}/dispatch": output(DENSE),
            f"block{block}/combine": output(DENSE),
        }
    return Function(
        f"{name}_forward",
        outputs,
        Choice(forward, scale="spread", constant="model") if routed else None,
        run=forward,
        needs=needs,
        prepare=partial(prepare, name),
        batched=True,
    )


def inputs_of(
    name: str, model: Mapping[str, Any], key: str, images: int = 2, *, noisy: bool = False
) -> dict[str, Tensor]:
    """Images, and parameters of a model on a grid: no bias and no scale is left at a value that hides it.

    noisy: with noise for each of its MoE layers, tokens by experts.
    """
    module, config = prepare(name, {"model": dict(model)}).values()
    size = (images, config.image_size, config.image_size, config.channels)
    parameters = dict(_drawn(module.parameter_shapes(config), key, "params", getattr(config, "experts", 0)))
    noise = {
        f"noise/{number}": tensor(grid(f"{key}/noise/{number}", drawn.shape), "groups tokens experts")
        for number, drawn in enumerate(module.moe_noise(config, images) if noisy else ())
    }
    return {"images": tensor(grid(f"{key}/images", size), "images height width channels"), **noise, **parameters}


def _drawn(shapes: Mapping[str, Any], key: str, path: str, experts: int) -> Iterator[tuple[str, Tensor]]:
    for name, shape in shapes.items():
        below, seed = f"{path}/{name}", f"{key}{path.removeprefix('params')}/{name}"
        if isinstance(shape, dict):
            yield from _drawn(shape, key, below, experts)
            continue
        if name == "tables":  # an expert for each id
            array = integers(seed, shape, 0, experts - 1).astype("float32")
        else:
            centre, reach = (1.0, 0.25) if name == "scale" else (0.0, 0.25) if name.startswith("b") else (0.0, 0.75)
            array = to_bfloat16(grid(seed, shape, reach=reach, step=0.0625, centre=centre))
        yield below, tensor(array, " ".join(f"axis{i}" for i in range(len(shape))))


def stage_of(path: str, inputs: Mapping[str, Tensor], /, *, name: str = "", **options: Any) -> Stage:
    """The call of a model, or of its training, on all inputs of a case."""
    arguments: dict[str, Any] = {}
    for reference in inputs:
        *above, last = reference.split("/")
        node = arguments
        for part in above:
            node = node.setdefault(part, {})
        node[last] = reference
    return call(path, arguments, name=name or path.rpartition("_")[2], **options)
