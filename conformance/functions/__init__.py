"""How the results of each public function are stored and compared, and what the function decides.

A module for each kind of function; `describe.py` says what a description has. Every case that calls a function, alone or
inside a router, is stored and compared as it says.
"""

from moespec.conformance.format import path_parts
from moespec.conformance.functions import affinities, allocations, hashing, layers, losses, models
from moespec.conformance.functions.affinities import UPDATE
from moespec.conformance.functions.describe import ROUTE, Function, Output
from moespec.spec.own import is_own

__all__ = ["FUNCTIONS", "function"]

_MODULES = (affinities, allocations, hashing, layers, losses, models)

FUNCTIONS: dict[str, Function] = {
    known.name: known for known in (ROUTE, *(known for module in _MODULES for known in module.FUNCTIONS))
}
"""The descriptions by the name of the function; `golden --cases` adds those of the user's own, `package.module:function`."""


def function(path: str) -> Function:
    """The description of the function at a path, by the first part of it. One of somebody's own is known by its vectors alone."""
    name = path_parts(path)[0]
    if name == ROUTE.name and path.endswith(".update"):
        return UPDATE
    if is_own(name) and name not in FUNCTIONS:
        return Function(name, {"*": Output()})
    if name not in FUNCTIONS:
        raise KeyError(f"{path}: {name!r} has no description")
    return FUNCTIONS[name]
