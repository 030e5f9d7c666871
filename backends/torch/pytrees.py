"""Nested containers of arrays: mapping over them, and parameter trees as flat dictionaries keyed by path.

A parameter tree is a nested dict with string keys and array leaves. Other trees may also hold lists, tuples, named
tuples and None.
"""

from collections.abc import Callable, Iterator
from typing import Any

Path = tuple[str, ...]


def tree_map(function: Callable[[Any], Any], tree: Any) -> Any:
    """`tree` with `function` applied to each leaf; None stays None."""
    if tree is None:
        return None
    if isinstance(tree, dict):
        return {key: tree_map(function, value) for key, value in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(tree_map(function, value) for value in tree))
    if isinstance(tree, list | tuple):
        return type(tree)(tree_map(function, value) for value in tree)
    return function(tree)


def flatten(params: dict[str, Any]) -> dict[Path, Any]:
    """The leaves of a nested dict by their path, in the order of the dict."""
    return dict(_leaves(params, ()))


def _leaves(params: dict[str, Any], path: Path) -> Iterator[tuple[Path, Any]]:
    for key, value in params.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*path, key))
        else:
            yield (*path, key), value


def unflatten(leaves: dict[Path, Any]) -> dict[str, Any]:
    """The nested dict with these leaves: the inverse of `flatten`."""
    tree: dict[str, Any] = {}
    for path, leaf in leaves.items():
        branch = tree
        for key in path[:-1]:
            branch = branch.setdefault(key, {})
        branch[path[-1]] = leaf
    return tree
