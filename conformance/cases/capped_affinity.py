"""Cases of the capped affinity."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from moespec.backends.blocks import Array
from moespec.conformance.author.definition import Definition, single
from moespec.conformance.author.inputs import utilities
from moespec.conformance.author.variant import Spec, Variant, fixed, variant
from moespec.spec.numerics import logsumexp

NAME = "capped_affinity"

ONE = (1, 6, 3)
LOOSE: dict[str, Any] = {"capacity": 4, "cap": 2, "regularization": 0.25, "iterations": 5}


def cases() -> Iterator[Definition]:
    case = partial(single, NAME, NAME)
    few, size = "solver_steps", "degenerate_size"
    yield case("few", "value", "Five rounds.", few, scores=utilities("capped/few", ONE), **LOOSE)
    purpose = "A hundred rounds by default."
    loose = {name: value for name, value in LOOSE.items() if name != "iterations"}
    yield case("default", "value", purpose, few, scores=utilities("capped/default", ONE), **loose)
    purpose = "One round with the regularisation of the paper, the default."
    sharp: dict[str, Any] = {"capacity": 3, "cap": 2, "iterations": 1}
    yield case("sharp", "value", purpose, few, scores=utilities("capped/sharp", ONE), **sharp)
    purpose = "As many places as slots: every entry of a row of one expert is its share."
    tight = {**LOOSE, "capacity": 2, "cap": 1}
    yield case("tight", "degenerate", purpose, size, scores=utilities("capped/tight", ONE), **tight)


def _projected(B: Spec, scores: Array, options: dict[str, Any], *, order: str, corrected: bool = True) -> Any:
    """In each round, projects onto column sums ("c"), row sums ("r") and entries ("e") in the order of the letters in `order`."""
    right = B.capped_affinity(scores, **options)
    capacity, cap = options["capacity"], options["cap"]
    a = scores.real / options.get("regularization", 1e-3)
    corrections = {"r": np.zeros((*a.shape[:2], 1)), "e": np.zeros(a.shape)}
    for _ in range(options.get("iterations", 100)):
        for each in order:
            if each == "c":
                a = a + np.log(capacity) - logsumexp(a, axis=1)[:, None]
                continue
            a = a + corrections[each]
            excess = np.maximum(logsumexp(a, axis=2)[..., None] - np.log(cap) if each == "r" else a, 0)
            a = a - excess
            corrections[each] = excess if corrected else 0 * excess
    return np.exp(a).reshape(right.shape)


def column_sums_last(B: Spec, scores: Array, **options: Any) -> Array:
    """Dykstra's algorithm projects onto row sums, then entries, then column sums."""
    return _projected(B, scores, options, order="rec")


def capped_until_it_settles(B: Spec, scores: Array, **options: Any) -> Array:
    """Dykstra's algorithm stops once a round changes no entry by more than 1e-3."""
    affinity = B.capped_affinity(scores, **options)
    for count in range(2, options.get("iterations", 100) + 1):
        before, after = (B.capped_affinity(scores, **{**options, "iterations": n}) for n in (count - 1, count))
        if np.abs(after - before).max() <= 1e-3:
            return after
    return affinity


def variants() -> Iterator[Variant]:
    yield variant(column_sums_last, NAME, ledger="CP-1b")
    yield variant(capped_until_it_settles, NAME, ledger="CP-2b")
    computes = "The capped affinity always has the regularisation 0.001."
    yield fixed("regularization_of_the_paper", computes, NAME, "CP-4", regularization=0.001)
