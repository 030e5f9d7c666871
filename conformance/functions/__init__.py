"""How the results of each public function are stored and compared, and what the function decides.

A module for each kind of function; `describe.py` says what a description has. Every case that calls a function, alone or
inside a router, is stored and compared as it says.
"""

from collections.abc import Mapping

from moespec.conformance.functions import affinities, allocations, hashing, layers, losses, models
from moespec.conformance.functions.affinities import UPDATE
from moespec.conformance.functions.describe import ROUTE, Function

__all__ = ["FUNCTIONS", "function"]

_MODULES = (affinities, allocations, hashing, layers, losses, models)

FUNCTIONS: Mapping[str, Function] = {
    known.name: known for known in (ROUTE, *(known for module in _MODULES for known in module.FUNCTIONS))
}
"""The descriptions by the name of the function."""


def function(path: str) -> Function:
    """The description of the function at a path, by the first part of it."""
    name = path.partition(".")[0]
    if name == ROUTE.name and path.endswith(".update"):
        return UPDATE
    if name not in FUNCTIONS:
        raise KeyError(f"{path}: no description of {name!r}")
    return FUNCTIONS[name]
