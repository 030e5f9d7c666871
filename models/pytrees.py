"""Nested dicts, and the same flat, by the paths of their leaves, such as `head/kernel`."""

from collections.abc import Mapping
from typing import Any

__all__ = ["flatten", "nested"]


def flatten(tree: Mapping[str, Any], separator: str = "/", prefix: str = "") -> dict[str, Any]:
    """The leaves by their paths: `{"a": {"b": 1}}` -> `{"a/b": 1}`."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        flat |= flatten(value, separator, name + separator) if isinstance(value, Mapping) else {name: value}
    return flat


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `flatten` for names separated by "/"."""
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        *parents, leaf = name.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = value
    return tree
