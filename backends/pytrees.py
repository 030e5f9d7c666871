"""Functions that map over nested containers of arrays, and that flatten nested dicts with string keys by path."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

__all__ = ["Path", "flatten", "leaves", "tree_map", "unflatten"]

Path = tuple[str, ...]


def tree_map(function: Callable[[Any], Any], tree: Any) -> Any:
    """Applies `function` to each leaf of nested dicts, lists, tuples and named tuples. None stays None."""
    if tree is None:
        return None
    if isinstance(tree, dict):
        return {key: tree_map(function, value) for key, value in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(tree_map(function, value) for value in tree))
    if isinstance(tree, list | tuple):
        return type(tree)(tree_map(function, value) for value in tree)
    return function(tree)


def leaves(tree: Mapping[str, Any], path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yields the path and the value of each leaf of a nested dict, in order."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from leaves(value, (*path, name))
        else:
            yield (*path, name), value


def flatten(tree: Mapping[str, Any]) -> dict[Path, Any]:
    """Maps the path of each leaf of a nested dict to the leaf."""
    return dict(leaves(tree))


def unflatten(flat: Mapping[Path, Any]) -> dict[str, Any]:
    """Returns the nested dict with these leaves, the inverse of `flatten`."""
    tree: dict[str, Any] = {}
    for (*parents, name), leaf in flat.items():
        branch = tree
        for parent in parents:
            branch = branch.setdefault(parent, {})
        branch[name] = leaf
    return tree
