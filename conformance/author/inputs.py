"""Inputs that the cases of several algorithms are made of, each from its key."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec.conformance.author.definition import tensor
from moespec.conformance.author.draw import grid, permutation, to_bfloat16
from moespec.conformance.format import Tensor
from moespec.spec.examples import TIED_SCORES
from moespec.spec.numerics import softmax

__all__ = [
    *("CROWD", "TIED", "both", "distinct", "experts", "groups_tokens", "kernel", "logits", "rows", "scores"),
    *("tokens", "utilities"),
]

G, T, E, D, H = 2, 6, 3, 4, 3


def rows(text: str) -> NDArray[np.float64]:
    """The matrix of numbers that stand in a text, a row up to each semicolon."""
    return np.array([[float(number) for number in row.split()] for row in text.split(";")])


CROWD = rows("0.75 0.25 0; 0.875 0 0.125; 0.5 0.25 0.25; 0.625 0 0.375; 0.75 0.125 0.125; 0.5 0.375 0.125")
"""Scores of tokens whose first choice is expert 0, all of them."""

TIED = np.concatenate([TIED_SCORES, [[0.25, 0.25, 0.5]]])
"""The tie matrix of the specification, and one more row."""


def groups_tokens(values: Any) -> Tensor:
    """`(groups, tokens, experts)`; a missing groups axis is added."""
    array = np.asarray(values, np.float32)
    return tensor(array if array.ndim == 3 else array[None], "groups tokens experts")


def both(values: Any) -> Tensor:
    """Two groups: `(tokens, experts)` values, and the same with the tokens in reverse order."""
    return groups_tokens(np.stack([values, np.asarray(values)[::-1]]))


def tokens(key: str, shape: tuple[int, int, int] = (G, T, D)) -> Tensor:
    """Random tokens."""
    return tensor(grid(key, shape), "groups tokens width")


def kernel(key: str, width: int = D, count: int = E, reach: float = 1.0) -> Tensor:
    """A kernel for router logits."""
    return tensor(grid(key, (width, count), reach=reach), "width experts")


def logits(key: str, shape: tuple[int, ...] = (G, T, E), reach: float = 3.0, step: float = 0.125) -> Tensor:
    """Random logits on a grid."""
    return groups_tokens(grid(key, shape, reach=reach, step=step))


def utilities(key: str, shape: tuple[int, ...] = (G, T, E), reach: float = 3.0) -> Tensor:
    """Softmax scores rounded to bfloat16."""
    return groups_tokens(to_bfloat16(softmax(grid(key, shape, reach=reach, step=0.125).astype(np.float64))))


def scores(key: str, shape: tuple[int, ...] = (G, T, E), step: float = 1 / 256) -> Tensor:
    """Positive scores on a grid, nearly all different."""
    return groups_tokens(grid(key, shape, reach=0.46875, step=step, centre=0.5))


def distinct(key: str, shape: tuple[int, int, int]) -> Tensor:
    """Positive scores that are all different within a group."""
    count = shape[1] * shape[2]
    return groups_tokens(
        np.stack([(permutation(f"{key}/{g}", count).reshape(shape[1:]) + 8) / 64 for g in range(shape[0])])
    )


def experts(
    key: str, e: int = E, d: int = D, h: int = H, out: int = D, *, gated: bool = False, biased: bool = True
) -> dict[str, Tensor]:
    """The parameters of expert MLPs; biases are not 0, so that an empty slot has an output."""
    gate = {
        "w3": tensor(grid(f"{key}/w3", (e, d, h), reach=1.0), "experts width hidden"),
        "b3": tensor(grid(f"{key}/b3", (e, h), reach=0.5, centre=0.25), "experts hidden"),
    }
    values = {
        "w1": tensor(grid(f"{key}/w1", (e, d, h), reach=1.0), "experts width hidden"),
        "b1": tensor(grid(f"{key}/b1", (e, h), reach=0.5, centre=0.25), "experts hidden"),
        "w2": tensor(grid(f"{key}/w2", (e, h, out), reach=1.0), "experts hidden width"),
        "b2": tensor(grid(f"{key}/b2", (e, out), reach=0.5, centre=0.25), "experts width"),
        **(gate if gated else {}),
    }
    return {name: value for name, value in values.items() if biased or name.startswith("w")}
