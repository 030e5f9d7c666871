"""Load the case definitions of custom routers for `moespec conformance golden --cases MODULE`."""

import importlib
import inspect
import sys
from dataclasses import replace
from functools import partial
from typing import Any

from moespec import spec
from moespec.conformance.author.definition import Definition
from moespec.conformance.author.reference import SPEC
from moespec.conformance.functions import FUNCTIONS
from moespec.conformance.golden.derived import three_each, valid_definitions
from moespec.conformance.matrix_rows import ALGORITHMS
from moespec.models.options import help_texts
from moespec.spec.errors import ConfigError
from moespec.spec.own import load_own, raised
from moespec.spec.routers import ROUTERS

__all__ = ["described", "read"]


def read(name: str) -> tuple[dict[str, Definition], dict[str, str]]:
    """Import a module, register its routers and functions, and return its case definitions by id and its routers by matrix row.

    The definitions include derived error cases. Raises ConfigError if the module fails or reuses the name of a moespec router.
    """
    try:
        module: Any = importlib.import_module(name)
        for each in getattr(module, "FUNCTIONS", ()):
            function, FUNCTIONS[each.name] = load_own("FUNCTIONS", each.name), each
            takes_backend = "B" in inspect.signature(function).parameters
            setattr(SPEC, function.__name__, partial(function, spec) if takes_backend else function)
        written = [*module.cases()]
        routers = {ROUTERS[each.routed.router].name: each.routed.router for each in written}
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        raise ConfigError(f"cases={name!r}: {raised(error)}") from error
    if taken := spec.ALGORITHMS.keys() & routers.keys():
        raise ConfigError(
            f"cases={name!r}: moespec already has a router {min(taken)!r}; choose another name (first argument of Router)"
        )
    ALGORITHMS.update({row: replace(ROUTERS[router].algorithm, functions=(router,)) for row, router in routers.items()})
    written += three_each(valid_definitions(written), ())
    return {each.id: each for each in written}, routers


def described(name: str) -> str:
    """Return a router's description as Markdown: the docstring of the module, and the options."""
    router: Any = ROUTERS[name]
    texts, options = help_texts(router.Options), inspect.signature(router.Options).parameters.values()
    text = inspect.cleandoc(sys.modules[router.Options.__module__].__doc__ or "")
    lines = "".join(f"* `{each.replace(annotation=each.empty)}`: {texts.get(each.name, '')}\n" for each in options)
    return f"# {router.name}\n\n{text}\n\n`{name}`, revision {router.revision}; {router.source}.\n\n{lines}\n"
