"""What a case states; the specification computes the rest."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from moespec.conformance.format import Expectation, Tensor

__all__ = ["Definition", "both", "groups_tokens", "tensor"]

GTE = ("groups", "tokens", "experts")


@dataclass(frozen=True)
class Definition:
    """One case before it is computed.

    kind: value, tie, near_tie, overflow, degenerate, negative, gradient, trajectory. stages: names, all of the program
    if empty. gradient: `(output, names of inputs)` of the last stage. expect: of a negative. exact_ties: the scores of
    every choice are equal by symmetry, so that every implementation computes equal numbers.
    """

    algorithm: str
    name: str
    kind: str
    purpose: str
    inputs: Mapping[str, Tensor] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    stages: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    gradient: tuple[str, tuple[str, ...]] | None = None
    expect: Expectation | None = None
    exact_ties: bool = False

    @property
    def id(self) -> str:
        """`algorithm/name`."""
        return f"{self.algorithm}/{self.name}"


def tensor(values: Any, axes: str) -> Tensor:
    """A float32 or int32 tensor whose axes are named in one string."""
    array = np.asarray(values)
    array = array.astype(np.float32 if array.dtype.kind == "f" else np.int32)
    if array.ndim != len(axes.split()):
        raise ValueError(f"shape {array.shape} does not have the axes {axes!r}")
    return Tensor(array, tuple(axes.split()))


def groups_tokens(values: Any) -> Tensor:
    """`(groups, tokens, experts)`; a missing groups axis is added."""
    array = np.asarray(values, np.float32)
    return Tensor(array if array.ndim == 3 else array[None], GTE)


def both(values: Any) -> Tensor:
    """Two groups: `(tokens, experts)` values, and the same with the tokens in reverse order."""
    return groups_tokens(np.stack([values, np.asarray(values)[::-1]]))
