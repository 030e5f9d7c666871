"""Descriptions of public functions: how to store and compare their results, and which choices they make.

Each module describes one kind of function. `describe.py` defines the form of a description. A description applies to
every case that calls the function, directly or inside a router.
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
"""The descriptions by function name. `golden --cases` adds custom functions, `package.module:function`."""


def function(path: str) -> Function:
    """Return the description of the function at a path. An unregistered custom function gets a default description."""
    name = path_parts(path)[0]
    if name == ROUTE.name and path.endswith(".update"):
        return UPDATE
    if is_own(name) and name not in FUNCTIONS:
        return Function(name, {"*": Output()})
    if name not in FUNCTIONS:
        raise KeyError(f"{path}: {name!r} has no description")
    return FUNCTIONS[name]
