"""Inputs and calls that model cases share."""

from collections.abc import Iterator, Mapping
from typing import Any

from moespec.conformance.author.definition import call, tensor
from moespec.conformance.author.inputs import grid, integers, to_bfloat16
from moespec.conformance.format import Stage, Tensor
from moespec.conformance.functions.models import prepare

__all__ = ["inputs_of", "stage_of"]


def inputs_of(
    name: str, model: Mapping[str, Any], key: str, images: int = 2, *, noisy: bool = False
) -> dict[str, Tensor]:
    """Return images and model parameters on a grid. Most biases differ from 0 and most scales from 1, to detect targets that omit one.

    noisy: whether to add noise (tokens, experts) for each MoE layer.
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
        if name == "tables":  # a table holds one expert for each id
            array = integers(seed, shape, 0, experts - 1).astype("float32")
        else:
            centre, reach = (1.0, 0.25) if name == "scale" else (0.0, 0.25) if name.startswith("b") else (0.0, 0.75)
            array = to_bfloat16(grid(seed, shape, reach=reach, step=0.0625, centre=centre))
        yield below, tensor(array, " ".join(f"axis{i}" for i in range(len(shape))))


def stage_of(path: str, inputs: Mapping[str, Tensor], /, *, name: str = "", **options: Any) -> Stage:
    """Return a stage that passes all inputs of a case to the function at `path`, such as a model."""
    arguments: dict[str, Any] = {}
    for reference in inputs:
        *above, last = reference.split("/")
        node = arguments
        for part in above:
            node = node.setdefault(part, {})
        node[last] = reference
    return call(path, arguments, name=name or path.rpartition("_")[2], **options)
