"""Defines a wrapper of the specification that records each public function call of a router, with the arguments.

The calls become the stages of the router's vectors. An argument must be an input, an earlier call's result, or a named
part of such a result. Any other argument raises an error, because its origin is unknown.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from types import ModuleType
from typing import Any

from moespec import spec
from moespec.conformance.format import Stage
from moespec.conformance.functions import FUNCTIONS
from moespec.spec.own import is_own
from moespec.spec.routers import Router, common, plan
from moespec.spec.routing import RouterOutput

__all__ = ["Recorder", "TraceError"]

ALIASES = ("stop_gradient", "cast")
"""Operations that return their argument or cast it. The recorder gives the result the same reference as the argument."""
PLAIN = (bool, int, float, str)
EXTENSIONS: Mapping[str, Mapping[str, str]] = {
    "token_choice": {"hold": "keep", "slot_order": ""},
    "normalize_selected": {"norm": "", "epsilon": ""},
}
"""Options that extend a paper's function, each with its related argument, if any. A stage omits the default of such an
option if the related argument is absent. Therefore, an implementation of the paper does not need the option."""

_signature = cache(inspect.signature)


@cache
def _imported(router: ModuleType) -> list[tuple[dict[str, Any], str, Any, str]]:
    """Find the functions to record among the imports of a router's module and of shared modules. For a custom router, also
    search the other modules of its package and the specification. Return (namespace, name, function, path) of each function.
    """
    package = router.__name__.partition(".")[0]
    of_package = [module for name, module in sys.modules.items() if name.partition(".")[0] == package]
    return [
        (vars(module), name, value, path)
        for module in ([router, common, plan] if package == "moespec" else [*of_package, common, plan, spec])
        for name, value in vars(module).items()
        for path in (f"{getattr(value, '__module__', '')}:{name}", name)
        if callable(value) and (path in FUNCTIONS or path in ALIASES)
    ]


class TraceError(Exception):
    """Raised if a router passes an array that is neither an input nor a public call's result. The message names the call and argument."""


class Recorder:
    """Records calls of public functions of the specification or of another backend `B`. `router(name)` returns a recorded router.

    inputs: arrays by reference. stages: the recorded calls, in order. given: the original arguments of each stage.
    change: `(stage, result) -> result`, called with each recorded call and its result.
    followed: whether every argument must be an input or a recorded result; False for models, which compute with arrays between calls.
    """

    def __init__(
        self,
        B: Any,
        inputs: Mapping[str, Any],
        change: Callable[[Stage, Any], Any] = lambda stage, result: result,
        *,
        followed: bool = True,
    ) -> None:
        self.B, self.change, self.followed = B, change, followed
        self.stages: list[Stage] = []
        self.given: dict[str, dict[str, Any]] = {}
        self._inside = False  # True inside a custom function, where calls are not recorded
        self._known = {id(array): (name, array) for name, array in inputs.items()}
        self._made: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.B, name)
        if name in ALIASES:
            return self._alias(attribute)
        return self._noted(name, attribute) if name in FUNCTIONS else attribute

    def router(self, name: str) -> Router[Any]:
        """Return the specification's router `name`. The recorder records the calls inside the router."""
        router = spec.ROUTERS[name]

        def route(*arguments: Any, **options: Any) -> RouterOutput:
            with self._in_place_of(name):
                return router.route(*arguments, **options)

        return replace(router, route=route)

    @contextmanager
    def _in_place_of(self, router: str) -> Iterator[None]:
        """Replace the functions that a router's modules import with functions that record their calls."""
        imported = _imported(sys.modules[spec.ROUTERS[router].Options.__module__])
        for names, name, function, path in imported:
            names[name] = self._noted(path, function) if is_own(path) else getattr(self, name)
        try:
            yield
        finally:
            for names, name, function, _ in imported:
                names[name] = function

    def name_of(self, value: Any) -> str:
        """Return the reference of a routing. Raises TraceError if no recorded call returned the routing."""
        if id(value) not in self._known:
            raise TraceError("the routing is not the result of a public call, such as token_choice")
        return self._known[id(value)][0]

    def _alias(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def alias(array: Any, *options: Any) -> Any:
            array_alias = operation(array, *options)
            if id(array) in self._known:
                self._know(self._known[id(array)][0], array_alias)
            return array_alias

        return alias

    def _know(self, reference: str, value: Any) -> None:
        """Remember the reference of a value. Also keep the value alive, so that no other object gets the same id."""
        self._known.setdefault(id(value), (reference, value))

    def _noted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        parameters = _signature(function)

        @functools.wraps(function)
        def note(*positional: Any, **named: Any) -> Any:
            if self._inside:
                return function(*positional, **named)
            given = parameters.bind(*positional, **named).arguments
            defaults = {k: parameter.default for k, parameter in parameters.parameters.items()}
            given = {k: v for k, v in given.items() if v is not None or defaults[k] is not None}
            for option, argument in EXTENSIONS.get(name, {}).items():
                if argument not in given and given.get(option) == defaults[option]:
                    given.pop(option, None)
            if is_own(name):
                given.pop("B", None)
            arguments = {k: self._reference(name, k, v) for k, v in given.items() if not isinstance(v, PLAIN)}
            options = {k: v for k, v in given.items() if isinstance(v, PLAIN)}
            for stage in self.stages if self.followed else ():
                if (stage.call, stage.arguments, stage.options) == (name, arguments, options):
                    return self._made[stage.name]
            count = sum(stage.call == name for stage in self.stages)
            called = name.rpartition(":")[2]
            stage = Stage(called if not count else f"{called}_{count + 1}", name, arguments, options)
            self.stages.append(stage)
            self.given[stage.name] = given
            self._inside = is_own(name)
            returned = function(*positional, **named)
            self._inside = False
            result = self._made[stage.name] = self.change(stage, returned)
            self._know(stage.name, result)
            parts = result._asdict() if hasattr(result, "_asdict") else result if isinstance(result, Mapping) else {}
            for part, value in parts.items():
                self._know(f"{stage.name}/{part}", value)
            return result

        return note

    def _reference(self, call: str, argument: str, value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, Mapping):
            return {key: self._reference(call, f"{argument}[{key!r}]", part) for key, part in value.items()}
        if id(value) not in self._known and not self.followed:
            return None
        if id(value) not in self._known:
            raise TraceError(f"{call}: the argument {argument} is neither an input nor the result of a public call")
        return self._known[id(value)][0]
