"""Cases of a custom router, "package.module:ROUTER", for `moespec conformance golden --cases MODULE`.

MODULE defines a generator `cases()`. An optional `FUNCTIONS` describes functions of the package whose calls become stages of the vectors.
"""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import numpy as np

from moespec.conformance.author.definition import Definition, Draws, Noise, tensor
from moespec.conformance.author.inputs import grid
from moespec.conformance.author.routers import router_case
from moespec.conformance.author.wide_routers import EVERYWHERE, STEP
from moespec.conformance.functions.describe import Function, Output
from moespec.spec.own import load_own

__all__ = ["Definition", "Function", "Output", "case", "common"]


def common(router: str, **options: Any) -> Iterator[Definition]:
    """Yield the standard cases of a router with the given options."""
    known = {field.name for field in fields(load_own("router", router).Options)}
    other: dict[str, Any] = {name: value for name, value in EVERYWHERE.items() if name in known} | options
    yield case(router, "values", "value", "The defaults, at evaluation.", "generated_code", **options)
    yield case(router, "gradient", "gradient", "By the tokens and the parameters.", train=True, **options)
    purpose = "Odd sizes, other options than the defaults, numbers of more bits than bfloat16 has."
    other |= {"sizes": (7, 5, 3), "groups": 3, "step": STEP, "draws": Draws(step=STEP, tries=40, enough=0.01)}
    yield case(router, "wide", "gradient", purpose, "low_precision", train=True, **other)


def case(
    router: str, *words: str, sizes: tuple[int, int, int] = (6, 3, 4), step: float = 0.125, **given: Any
) -> Definition:
    """Return a `router_case` with parameters, state and noise on a grid, centred on 0 or on the value of a constant initial array."""
    row, axes = load_own("router", router), dict(zip(sizes, ("tokens", "experts", "width"), strict=True))
    known = {field.name: given[field.name] for field in fields(row.Options) if field.name in given}
    options = row.options(**{axis: size for size, axis in axes.items()}, **known)
    for part, arrays in (
        ("params", row.init(np.random.default_rng(0), options)),
        ("state", row.initial_state(options)),
    ):
        tensors = given.setdefault(part, {})
        for name, array in arrays.items() if not tensors else ():
            reach, centre = (0.25, np.round(array.flat[0] / step) * step) if np.ptp(array) == 0 else (1.0, 0.0)
            for tries in range(9):  # draw again, as equal numbers would hide mistakes
                key = f"routers/{router}/{words[0]}/{name}" + "/again" * tries
                values = grid(key, array.shape, reach=reach, step=step, centre=centre)
                if array.size == 1 or np.ptp(values):
                    break
            tensors[name] = tensor(values, " ".join(axes.get(size, "entries") for size in array.shape))
    if given.get("train") and (noise := row.noise(options)) is not None:
        low, high = noise.interval or (-2.0, 2.0)
        given["noise"] = Noise(" ".join(axes[size] for size in noise.shape), (high - low) / 2, step, (high + low) / 2)
    if words[1] == "gradient":
        given["by"] = ("tokens", *(f"router/{name}" for name in given["params"] if name not in row.frozen))
        given["losses"] = any(getattr(options, f.name) for f in fields(row.Options) if f.name.endswith("_weight"))
    return router_case(router, *words, sizes=sizes, **given)
