"""Cases of dropout and stochastic depth."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from moespec.backends.blocks import Array
from moespec.conformance.author.definition import Definition, call, composed, single, tensor
from moespec.conformance.author.inputs import grid, integers
from moespec.conformance.author.variant import Spec, Variant, scaled, variant

NAME = "dropout"
AXES = "examples tokens width"


def cases() -> Iterator[Definition]:
    shape = (2, 3, 4)

    def case(name: str, kind: str, purpose: str, *, rate: float, draws: Any = None, shape: Any = shape) -> Definition:
        uniforms = integers(f"{NAME}/{name}/draws", shape, 0, 127) / 128 if draws is None else draws
        inputs: dict[str, Any] = {"x": tensor(grid(f"{NAME}/{name}", shape), AXES), "draws": tensor(uniforms, AXES)}
        return single(NAME, "dropout", name, kind, purpose, **inputs, rate=rate, by=("x",))

    yield case("units", "value", "Each entry has its own draw.", rate=0.375)
    branches = np.array([0.125, 0.875]).reshape(2, 1, 1)
    purpose = "Stochastic depth: one draw for all entries of an example."
    yield case("branches", "value", purpose, rate=0.5, draws=branches)
    edge = np.array([[[0.0, 0.25 - 2.0**-6, 0.25, 0.25 + 2.0**-6]]])
    yield case("equal", "tie", "A draw that equals the rate keeps its entry.", rate=0.25, draws=edge, shape=(1, 1, 4))
    yield case("none", "degenerate", "A rate of 0 keeps everything.", rate=0.0, draws=np.zeros(shape))
    yield case("gradient", "gradient", "By the entries.", rate=0.375)

    rates = [(0.5, 0, 3), (0.5, 1, 3), (0.5, 2, 3), (0.25, 0, 1), (0.0, 1, 2)]
    stages = tuple(
        call("branch_rate", name=f"rate_{number}", rate=rate, block=block, depth=depth)
        for number, (rate, block, depth) in enumerate(rates, 1)
    )
    purpose = "From 0 for the first block on; of one block alone, 0."
    yield composed(NAME, "rates", "value", purpose, inputs={}, stages=stages)


def dropout_of_the_small(B: Spec, x: Array, draws: Array, *, rate: float) -> Array:
    """Dropout keeps an entry if its random draw is below 1 - rate."""
    return np.where(draws < 1.0 - rate, x / (1.0 - rate), 0.0)


def rates_from_the_first_block(B: Spec, rate: float, *, block: int, depth: int) -> float:
    """The first block already drops branches: its rate is the full rate divided by the number of blocks."""
    return rate * (block + 1) / depth


def variants() -> Iterator[Variant]:
    computes = "What is kept is not divided by the chance that it is kept."
    who = "google-research/big_vision"
    yield scaled("dropout_not_scaled", computes, "DO-1b", who, dropout=lambda rate, **_: 1.0 - rate)
    yield variant(dropout_of_the_small, "dropout", who="google/flax")
    yield variant(rates_from_the_first_block, "branch_rate", ledger="DO-2b")
