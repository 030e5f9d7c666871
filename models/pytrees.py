"""Converts between nested dicts and flat dicts whose keys are the paths of leaves, such as `head/kernel`."""

from collections.abc import Mapping
from typing import Any

from moespec.backends.pytrees import leaves, unflatten

__all__ = ["flatten", "nested"]


def flatten(tree: Mapping[str, Any], separator: str = "/") -> dict[str, Any]:
    """Returns the leaves by path: `{"a": {"b": 1}}` -> `{"a/b": 1}`."""
    return {separator.join(map(str, path)): leaf for path, leaf in leaves(tree)}


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `flatten` for names separated by "/"."""
    return unflatten({tuple(name.split("/")): value for name, value in flat.items()})
