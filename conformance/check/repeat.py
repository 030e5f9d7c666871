"""Repeatability: whether a second call on the same arrays returns the same bits."""

from collections.abc import Mapping
from math import inf
from typing import Any

import numpy as np

from moespec.conformance.compare import Outcome
from moespec.conformance.failure import Failure

__all__ = ["repeated"]


def repeated(stage: str, first: Mapping[str, Any] | Failure, second: Mapping[str, Any] | Failure) -> list[Outcome]:
    """A failure for each result of a stage that is not the same in both calls.

    One without results is a failure already if it is the first, and an error if it is the second alone.
    """
    if isinstance(first, Failure):
        return []
    if isinstance(second, Failure):
        return [Outcome(stage, "error", inf, f"in the second call: {second.text}")]
    outcomes = []
    for name, array in first.items():
        a, b = np.asarray(array), np.asarray(second.get(name))
        if (a.shape, a.dtype) == (b.shape, b.dtype) and a.tobytes() == b.tobytes():
            continue
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            text = f"{a.dtype} {a.shape}, then {b.dtype} {b.shape}"
        else:
            text = f"{np.count_nonzero(a != b)} of {a.size} entries are others the second time"
        outcomes.append(Outcome(f"{stage}/{name}", "fail", inf, f"not repeatable: {text}"))
    return outcomes
