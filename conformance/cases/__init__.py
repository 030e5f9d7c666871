"""The cases and known variants, in one file for each specification module, router and model.

Every file in this folder is loaded. A file defines one or both of the following functions:

    cases()     yields case definitions (see `author/definition.py`)
    variants()  yields known or likely differences of implementations (see `author/variant.py`)
"""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

from moespec.conformance.author.definition import Definition
from moespec.conformance.author.inputs import salted
from moespec.conformance.author.variant import Variant

__all__ = ["definitions", "variants"]


@cache
def _modules() -> tuple[ModuleType, ...]:
    return tuple(import_module(module.name) for module in iter_modules(__path__, f"{__name__}."))


@cache
def definitions(salt: str = "") -> Mapping[str, Definition]:
    """Returns all cases except error cases, by id. A salt changes the inputs of the cases; see `author/inputs.py`."""
    by_id: dict[str, Definition] = {}
    with salted(salt):
        for module in _modules():
            for definition in module.cases() if hasattr(module, "cases") else ():
                if by_id.setdefault(definition.id, definition) is not definition:
                    raise ValueError(f"duplicate case {definition.id}")
    return by_id


@cache
def variants() -> Mapping[str, Variant]:
    """Returns the known variants by name."""
    by_name: dict[str, Variant] = {}
    for module in _modules():
        for variant in module.variants() if hasattr(module, "variants") else ():
            if by_name.setdefault(variant.name, variant) is not variant:
                raise ValueError(f"duplicate variant {variant.name}")
    return by_name
