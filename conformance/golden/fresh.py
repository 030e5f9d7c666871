"""Builds fresh cases from a seed. A fresh case has the definition of a committed case, but other random numbers.

A target could copy the expected results of committed vectors, but not the results of fresh cases. The same seed always gives the same
cases. All expected results, tolerances and margins are recomputed. If a drawn case is invalid, or if float32 rounding could change its
choices, the seed's next draw is used. Error, training and model cases, and cases without random inputs, have no fresh version.
"""

from collections.abc import Callable

import numpy as np

from moespec.conformance.author import large
from moespec.conformance.author.build import build
from moespec.conformance.author.definition import Definition
from moespec.conformance.author.inputs import salted
from moespec.conformance.cases import definitions
from moespec.conformance.compare import DTYPES, certified
from moespec.conformance.format import Case, GoldenError
from moespec.conformance.functions import function
from moespec.conformance.suite import problems

__all__ = ["fresh", "ids", "is_drawn", "kind", "made"]

TRIES = 12
"""The maximum number of draws for one seed and case."""


def fresh(seed: int, only: Callable[[str], bool] = lambda id: True, *, size: str = "small") -> list[Case]:
    """Return the fresh cases of a seed, limited to the case ids that `only` accepts. Raises GoldenError if every draw of a case fails."""
    return [made(seed, id) for id in ids(seed, size) if only(id)]


def ids(seed: int, size: str = "small") -> list[str]:
    """Return the ids of a seed's fresh cases. Small cases are derived from committed cases. `author/large.py` defines large cases."""
    if size == "large":
        return list(large.ids())
    return [id for id, definition in definitions(_salt(seed, 0)).items() if is_drawn(definition)]


def kind(id: str) -> str:
    """Return the kind of a case, such as "value" or "gradient"."""
    name = id.partition("/")[2]
    return large.LARGE[name].kind if name in large.LARGE else definitions()[id].kind


def is_drawn(definition: Definition) -> bool:
    """Return whether a seed changed the inputs of a definition, and the definition is not an error, training or model case."""
    if definition.kind in ("negative", "trajectory") or any(function(s.call).batched for s in definition.stages):
        return False
    committed = definitions()[definition.id].inputs
    changed = any(not np.array_equal(t.array, committed[name].array) for name, t in definition.inputs.items())
    return changed or (definition.routed is not None and definition.routed.drawn)


def _salt(seed: int, attempt: int) -> str:
    return f"{seed}/{attempt}/"


def made(seed: int, id: str) -> Case:
    """Return the case from the first draw whose choices float32 rounding cannot change, or else from the first valid draw.

    Raises GoldenError if every draw fails.
    """
    uncertain, failure = None, ""
    for attempt in range(TRIES):
        salt = _salt(seed, attempt)
        try:
            with salted(salt):
                is_large = id.partition("/")[2] in large.LARGE
                case = build(large.definition(id) if is_large else definitions(salt)[id])
        except (GoldenError, ValueError) as error:
            failure = str(error)
            continue
        for problem in problems(case):
            raise GoldenError(f"{id}: {problem}")
        if all(certified(decision, DTYPES["float32"]) for decision in case.decisions.values()):
            return case
        uncertain = uncertain or case
    if uncertain is None:
        raise GoldenError(f"{id}: seed {seed} gives no valid draw: {failure}")
    return uncertain
