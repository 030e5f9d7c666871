"""Router cases at sizes that kernels support. Inputs are drawn from a seed, and expected results are computed on demand.

Each router has the layer cases `large_64`, `large_128` and `large_256`. In `large_128`, routers with a capacity factor drop tokens. Each
router that is not in `SLOW` also has the layer case `large_many` and a gradient case. Routers in `DROPLESS` also have a layer case and a
gradient case without a capacity. Large cases are not stored. All inputs are exact in bfloat16 and float16.

A few probes estimate the scale of every result. For n terms, `|x| @ |w|` grows like n, but rounding errors grow like
sqrt(n). At these sizes, a tolerance based on `|x| @ |w|` would accept a layer of zeros in bfloat16.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from moespec.conformance.author.definition import Definition, Routed, tensor
from moespec.conformance.author.inputs import grid, integers, scaled
from moespec.conformance.format import Case, Tensor
from moespec.spec import ROUTERS

__all__ = ["AXES", "LARGE", "SLOW", "Layer", "definition", "ids", "outlines"]

HIDDEN = 4
"""Hidden width of the experts as a multiple of the width."""
WEIGHT = 0.0625
"""Weight of every loss in cases without a gradient."""
IDS = 300
"""Vocabulary size of hash routing."""
DIMENSIONS = 16
"""Dimension of the space in which cosine routing measures angles."""
AXES = {
    "kernel": "width columns",
    "noise_kernel": "width columns",
    "bias": "columns",
    "slots": "width experts capacity",
    "scale": "",
    "tables": "hashes ids",
    "thresholds": "experts",
    "controller": "pair",
    "cutoffs": "pair experts",
    "penalty": "",
    "projection": "width dimensions",
    "projection_bias": "dimensions",
    "embeddings": "dimensions experts",
    "temperature": "",
    "w1": "width hidden",
    "b1": "hidden",
    "w2": "hidden experts",
    "b2": "experts",
}
"""Axes of router parameters and states."""
NO_OPTIONS: Mapping[str, Any] = {}


class Layer(NamedTuple):
    """The sizes, kind and purpose of a case. A router ignores the options that it does not define."""

    groups: int
    tokens: int
    width: int
    experts: int
    kind: str
    purpose: str
    options: Mapping[str, Any] = NO_OPTIONS


HALF, NO_LIMIT = {"capacity_factor": 0.5}, {"capacity_factor": math.inf, "choices": 3}
LARGE = {
    "large_64": Layer(2, 64, 64, 32, "value", "64 tokens of width 64, 32 experts."),
    "large_128": Layer(
        2, 128, 192, 16, "overflow", "128 tokens of width 192, 16 experts; a capacity factor of 1/2.", HALF
    ),
    "large_256": Layer(1, 256, 384, 8, "value", "256 tokens of width 384, 8 experts."),
    "large_many": Layer(1, 264, 64, 264, "value", "264 tokens of width 64, 264 experts."),
    "large_gradient": Layer(
        1, 64, 64, 8, "gradient", "By tokens and all parameters; 64 tokens of width 64, 8 experts."
    ),
    "large_dropless": Layer(
        3, 331, 64, 5, "value", "331 tokens of width 64, each with 3 of 5 experts; none is dropped.", NO_LIMIT
    ),
    "large_dropless_gradient": Layer(
        1, 67, 64, 8, "gradient", "67 tokens of width 64, each with 3 of 8 experts; none is dropped.", NO_LIMIT
    ),
}
"""Maps the name of each large case to its sizes, kind and purpose, which all routers share."""

DROPLESS = ("sigmoid_token_choice", "softmax_token_choice")
"""Routers that also have the cases with the options `NO_LIMIT`, which drop no tokens."""

SLOW = ("sparsity_constrained_expert_choice", "sparsity_constrained_token_choice")
"""Routers whose solver would take minutes on the cases in `LONG`."""
LONG = ("large_gradient", "large_many")


def ids() -> Iterator[str]:
    """Yield the ids of all large cases, ordered by router."""
    for router, name in product(ROUTERS, LARGE):
        slow, dropless = router in SLOW and name in LONG, LARGE[name].options == NO_LIMIT
        if (dropless and router in DROPLESS) or not (dropless or slow):
            yield f"{router}/{name}"


def outlines() -> Iterator[Case]:
    """Yield an outline of each large case: the case without inputs and results."""
    for id in ids():
        router, _, name = id.partition("/")
        row = ROUTERS[router]
        yield Case(id, router, row.source, LARGE[name].purpose, LARGE[name].kind, (), {})


def definition(id: str) -> Definition:
    """Return the large case with the given id. The salt of `salted` changes the inputs of the case."""
    router, _, name = id.partition("/")
    layer, key = LARGE[name], f"large/{id}"
    sizes: dict[str, Any] = {"tokens": layer.tokens, "experts": layer.experts, "width": layer.width}
    known = {field.name for field in fields(ROUTERS[router].Options)}
    wanted = {"ids": IDS, "dimensions": DIMENSIONS, **layer.options}
    if layer.kind != "gradient":
        wanted |= {option: WEIGHT for option in known if option.endswith("_weight")}
    sizes |= {name: value for name, value in wanted.items() if name in known}
    shape = (layer.groups, layer.tokens)
    inputs = {"tokens": tensor(scaled(f"{key}/tokens", (*shape, layer.width), 1.0), "groups tokens width")}
    if ROUTERS[router].requires == "ids":
        inputs["ids"] = tensor(integers(f"{key}/ids", shape, 0, IDS - 1), "groups tokens")
    options = ROUTERS[router].options(**sizes)
    params, kept = ROUTERS[router].init(np.random.default_rng(0), options), ROUTERS[router].initial_state(options)
    for part, arrays in (("router", params), ("state", kept)):
        inputs |= {f"{part}/{name}": _drawn(key, name, np.shape(array), layer) for name, array in arrays.items()}
    inputs |= {f"experts/{part}": value for part, value in _experts(key, layer).items()}
    gradient = layer.kind == "gradient"
    return Definition(
        router,
        name,
        layer.kind,
        layer.purpose,
        inputs,
        of="moe_layer/output" if gradient else "",
        by=tuple(
            n for n in inputs if gradient and n.partition("/")[0] != "state" and n not in ("ids", "router/tables")
        ),
        sampled=True,
        routed=Routed(router, sizes, drawn=False, groups=layer.groups),
    )


def _drawn(key: str, name: str, shape: tuple[int, ...], layer: Layer) -> Tensor:
    """Return a router parameter or state, scaled so that logits are about 1."""
    place = f"{key}/{name}"
    if name == "tables":
        drawn: Any = integers(place, shape, 0, layer.experts - 1).astype(np.float32)
    elif name == "thresholds":  # thresholds near 1 / experts spread the choices evenly
        drawn = grid(place, shape, reach=0.5, centre=1.0) / layer.experts
    elif name == "scale":  # `scale` multiplies products of unit vectors, which are about 1 / sqrt(width)
        drawn = np.float32(16.0)
    elif name == "temperature":  # about the logarithm of `scale` above
        drawn = np.float32(2.75)
    elif name == "penalty":
        drawn = np.float32(2.0**-6)
    elif name.endswith("bias") or name in ("b1", "b2"):
        drawn = scaled(place, shape, 0.125)
    else:
        drawn = scaled(place, shape, 1.0 if name == "slots" else layer.width**-0.5)
    return tensor(drawn, AXES[name])


def _experts(key: str, layer: Layer) -> dict[str, Tensor]:
    """Return the experts' parameters, scaled so that outputs are about 1."""
    e, d, h = layer.experts, layer.width, HIDDEN * layer.width
    return {
        "w1": tensor(scaled(f"{key}/w1", (e, d, h), d**-0.5), "experts width hidden"),
        "b1": tensor(scaled(f"{key}/b1", (e, h), 0.25), "experts hidden"),
        "w2": tensor(scaled(f"{key}/w2", (e, h, d), h**-0.5), "experts hidden width"),
        "b2": tensor(scaled(f"{key}/b2", (e, d), 0.25), "experts width"),
    }
