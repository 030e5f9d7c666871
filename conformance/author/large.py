"""Cases of routers at sizes that a kernel can run, whose inputs are drawn from a seed and whose results are computed then.

Each router has the layer at three sizes, in the second of which tokens are dropped where it has a capacity, and, but for
those in `SLOW`, a gradient by everything at the smallest. Nothing of them is stored. Their inputs are numbers that
bfloat16 and float16 have.

Every scale is the spread over a few probes: `|x| @ |w|` grows with the number of terms and errors with its root, so that
at these sizes a tolerance made of it would accept a layer of zeros in bfloat16.
"""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np

from moespec.conformance.author.definition import Definition, Routed, tensor
from moespec.conformance.author.inputs import grid, integers, scaled
from moespec.conformance.format import Case, Tensor
from moespec.spec import ROUTERS

__all__ = ["AXES", "LARGE", "SLOW", "Layer", "definition", "ids", "outlines"]

HIDDEN = 4
"""The hidden width of the experts, in widths."""
WEIGHT = 0.0625
"""Of every loss, where there is no gradient."""
IDS = 256
"""The size of the vocabulary of hash routing."""
AXES = {
    "kernel": "width columns",
    "noise_kernel": "width columns",
    "bias": "columns",
    "slots": "width experts capacity",
    "scale": "",
    "tables": "hashes ids",
    "thresholds": "experts",
    "projection": "width dimensions",
    "projection_bias": "dimensions",
    "embeddings": "dimensions columns",
    "temperature": "",
    "w1": "width hidden",
    "b1": "hidden",
    "w2": "hidden columns",
    "b2": "columns",
}
"""Of the parameters of routers."""


class Layer(NamedTuple):
    """The sizes of a case, its kind, and what it is for."""

    groups: int
    tokens: int
    width: int
    experts: int
    kind: str
    purpose: str


LARGE = {
    "large_64": Layer(2, 64, 64, 32, "value", "64 tokens of width 64, 32 experts."),
    "large_128": Layer(2, 128, 192, 16, "overflow", "128 tokens of width 192, 16 experts; a capacity factor of 1/2."),
    "large_256": Layer(1, 256, 384, 8, "value", "256 tokens of width 384, 8 experts."),
    "large_many": Layer(3, 264, 16, 264, "value", "Three groups of 264 tokens of width 16, 264 experts."),
    "large_gradient": Layer(
        1, 64, 64, 8, "gradient", "By tokens and all parameters; 64 tokens of width 64, 8 experts."
    ),
}
"""The cases of each router by name."""


SLOW = ("sparsity_constrained_expert_choice", "sparsity_constrained_token_choice")
"""Routers whose solver would take minutes for the cases in `LONG`."""
LONG = ("large_gradient", "large_many")


def ids() -> Iterator[str]:
    """Of all of them, router by router."""
    cases = ((router, name) for router in ROUTERS for name in LARGE)
    return (f"{router}/{name}" for router, name in cases if router not in SLOW or name not in LONG)


def outlines() -> Iterator[Case]:
    """All of them without inputs and results, for what is said of them."""
    for id in ids():
        router, _, name = id.partition("/")
        row = ROUTERS[router]
        yield Case(id, router, row.source, LARGE[name].purpose, LARGE[name].kind, (), {})


def definition(id: str) -> Definition:
    """The case with that id, its inputs drawn with the salt that there is."""
    router, _, name = id.partition("/")
    layer, key = LARGE[name], f"large/{id}"
    sizes: dict[str, Any] = {"tokens": layer.tokens, "experts": layer.experts, "width": layer.width}
    known = {field.name for field in fields(ROUTERS[router].Options)}
    if ROUTERS[router].needs == "ids":
        sizes["ids"] = IDS
    if layer.kind == "overflow" and "capacity_factor" in known:
        sizes["capacity_factor"] = 0.5
    if layer.kind != "gradient":
        sizes |= {option: WEIGHT for option in known if option.endswith("_weight")}
    shape = (layer.groups, layer.tokens)
    inputs = {"tokens": tensor(scaled(f"{key}/tokens", (*shape, layer.width), 1.0), "groups tokens width")}
    if ROUTERS[router].needs == "ids":
        inputs["ids"] = tensor(integers(f"{key}/ids", shape, 0, IDS - 1), "groups tokens")
    inputs |= {f"router/{part}": value for part, value in _router(key, router, layer, sizes).items()}
    inputs |= {f"experts/{part}": value for part, value in _experts(key, layer).items()}
    gradient = layer.kind == "gradient"
    return Definition(
        router,
        name,
        layer.kind,
        layer.purpose,
        inputs,
        of="moe_layer/output" if gradient else "",
        by=tuple(n for n, t in inputs.items() if t.array.dtype.kind == "f" and n != "router/tables")
        if gradient
        else (),
        sampled=True,
        routed=Routed(router, sizes, drawn=False, groups=layer.groups),
    )


def _router(key: str, router: str, layer: Layer, sizes: dict[str, Any]) -> dict[str, Tensor]:
    """The parameters of a router, with logits of about 1."""
    shapes = ROUTERS[router].init(np.random.default_rng(0), ROUTERS[router].options(**sizes))
    values = {}
    for name, array in shapes.items():
        place, shape = f"{key}/{name}", np.shape(array)
        if name == "tables":
            drawn: Any = integers(place, shape, 0, layer.experts - 1).astype(np.float32)
        elif name == "thresholds":  # about that of an even choice
            drawn = grid(place, shape, reach=0.5, centre=1.0) / layer.experts
        elif name == "scale":  # of a product of unit vectors, whose size is about 1 / sqrt(width)
            drawn = np.float32(16.0)
        elif name == "bias":
            drawn = scaled(place, shape, 0.125)
        else:
            drawn = scaled(place, shape, 1.0 if name == "slots" else layer.width**-0.5)
        values[name] = tensor(drawn, AXES[name])
    return values


def _experts(key: str, layer: Layer) -> dict[str, Tensor]:
    """The parameters of the experts, whose outputs are about 1."""
    e, d, h = layer.experts, layer.width, HIDDEN * layer.width
    return {
        "w1": tensor(scaled(f"{key}/w1", (e, d, h), d**-0.5), "experts width hidden"),
        "b1": tensor(scaled(f"{key}/b1", (e, h), 0.25), "experts hidden"),
        "w2": tensor(scaled(f"{key}/w2", (e, h, d), h**-0.5), "experts hidden width"),
        "b2": tensor(scaled(f"{key}/b2", (e, d), 0.25), "experts width"),
    }
