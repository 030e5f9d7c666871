"""Cases of a router of the user's own: what a module for `moespec conformance golden --cases my_package.cases` is written with.

    FUNCTIONS   descriptions of the module's own building blocks, whose calls become steps of the vectors (optional)
    cases()     yields the cases: those that every router has (`common`), and others (`case`)

A router has the name "package.module:ROUTER"; its module is imported.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec.conformance.author.definition import Definition, Draws, Noise, call, tensor
from moespec.conformance.author.inputs import grid
from moespec.conformance.author.routers import router_case
from moespec.conformance.author.wide_routers import EVERYWHERE, STEP
from moespec.conformance.format import Tensor
from moespec.conformance.functions.describe import Function, Output
from moespec.spec.own import load_own
from moespec.spec.routers import ROUTERS

__all__ = ["Definition", "Function", "Noise", "Output", "Tensor", "call", "case", "common", "tensor"]

SIZES = (6, 3, 4)
"""Tokens, experts and width, which tell the axes of an array apart."""


def case(
    router: str,
    name: str,
    kind: str,
    purpose: str,
    *flags: str,
    sizes: tuple[int, int, int] = SIZES,
    zero: bool = False,
    step: float = 0.125,
    **given: Any,
) -> Definition:
    """A case: `router_case`, whose parameters, state and noise are drawn as the router's `init`, `state` and `noise` say.

    kind: "value", "tie", "overflow" or "gradient", by the tokens and all parameters. zero: what `init` draws is 0. step: of the grid of
    the drawn numbers. given: options of the router, and of `router_case`: `params`, `state`, `inputs`, `train`, `groups` and others.
    """
    load_own("router", router)
    row, named = ROUTERS[router], dict(zip(("tokens", "experts", "width"), sizes, strict=True))
    known = _options(router)
    options = row.options(**named, **{option: value for option, value in given.items() if option in known})
    key = f"routers/{row.name}/{name}"
    for part, arrays in (
        ("params", row.init(np.random.default_rng(0), options)),
        ("state", row.initial_state(options)),
    ):
        drawn = {each: _drawn(f"{key}/{each}", np.asarray(a), named, zero, step) for each, a in arrays.items()}
        given.setdefault(part, drawn)
    if given.get("train") and (noise := row.noise(options)) is not None:
        low, high = noise.interval or (-2.0, 2.0)
        given.setdefault("noise", Noise(_axes(noise.shape, named), (high - low) / 2, step, (high + low) / 2))
    if kind == "gradient":
        trained = [f"router/{each}" for each, value in given["params"].items() if each not in row.frozen]
        given.setdefault("by", ("tokens", *trained, "experts/w1"))
        given.setdefault("losses", any(getattr(options, each) for each in known if each.endswith("_weight")))
    return router_case(router, name, kind, purpose, *flags, sizes=sizes, **given)


def common(router: str, **options: Any) -> Iterator[Definition]:
    """The cases that every router has: its defaults, too few slots, training, equal scores, gradients, odd sizes.

    options: of the router, in every case.
    """
    load_own("router", router)
    known = _options(router)
    everywhere: dict[str, Any] = {name: value for name, value in EVERYWHERE.items() if name in known} | options
    made = partial(case, router)
    yield made("values", "value", "The defaults, at evaluation.", "generated_code", **options)
    if "capacity_factor" in known:
        fewer: dict[str, Any] = {"capacity_factor": 0.5, **options}
        yield made("overflow", "overflow", "Half the slots: tokens are dropped.", "overflow_drop", **fewer)
    yield made("training", "value", "Training, with other options than the defaults.", train=True, **everywhere)
    zero = made("zero", "tie", "It starts at 0.", "tie_order", zero=True, sizes=(8, 5, 3), exact_ties=True, **options)
    if any(not value.array.any() for name, value in zero.inputs.items() if name.startswith("router/")):
        yield zero
    yield made("gradient", "gradient", "By the tokens and the parameters.", train=True, **options)
    purpose = "Three groups, odd sizes, numbers of more bits than bfloat16 has."
    fine: dict[str, Any] = {"groups": 3, "step": STEP, "draws": Draws(step=STEP, tries=40, enough=0.01)}
    yield made("wide", "gradient", purpose, "low_precision", sizes=(7, 5, 3), **fine, **everywhere)


def _options(router: str) -> set[str]:
    return {field.name for field in fields(ROUTERS[router].Options)}


def _axes(shape: tuple[int, ...], sizes: Mapping[str, int]) -> str:
    """The names of axes, by their sizes."""
    names = {size: name for name, size in sizes.items()}
    return " ".join(names.get(size, "entries") for size in shape)


def _drawn(key: str, initial: NDArray[Any], sizes: Mapping[str, int], zero: bool, step: float) -> Tensor:
    """A parameter or a state: near its initial value where all entries are equal, integers as they are, else random numbers."""
    if initial.dtype.kind != "f":
        return tensor(initial, _axes(initial.shape, sizes))
    is_constant = initial.size > 0 and (initial == initial.flat[0]).all()
    reach, centre = (0.25, np.round(initial.flat[0] / step) * step) if is_constant else (1.0, 0.0)
    return tensor(
        grid(key, initial.shape, reach=0.0 if zero else reach, step=step, centre=centre), _axes(initial.shape, sizes)
    )
