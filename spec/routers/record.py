"""The record of a router: its options, initial parameters and routing function."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from functools import wraps
from typing import Any, Generic, TypeVar, cast

import numpy as np

from moespec.spec.algorithm import Algorithm
from moespec.spec.errors import ConfigError, ShapeError
from moespec.spec.names import warn_renamed
from moespec.spec.options import RouterOptions
from moespec.spec.routing import Noise, Params, RouterOutput, State, StateSpec

__all__ = ["Router"]

OptionsOf = TypeVar("OptionsOf", bound=RouterOptions)


def _no_noise(options: Any) -> None:
    """The router takes no noise."""


def _stateless(options: Any) -> dict[str, StateSpec]:
    """The router has no state."""
    return {}


def _no_update(options: Any, state: State, statistics: State) -> State:
    """The router has no state to update."""
    return {}


def _fields(options: Any) -> set[str]:
    """The field names of a dataclass; empty for anything else."""
    return {each.name for each in fields(options)} if is_dataclass(options) else set()


@dataclass(frozen=True)
class Router(Generic[OptionsOf]):
    """One router.

    name: the last part of its module's name. source: the publications that define it. Options: the class of its options.
    init: `init(generator, options)` returns NumPy parameters (float32).
    route: `route(params, tokens, options, *, state, noise, train)` returns the routing of the tokens, its losses, its
        metrics, and the statistics for `update`. `route` also takes `state` if the router has one, and the input that
        `requires` names. tokens: (tokens, width), in a backend (groups, tokens, width). params: as returned by `init`.
        options: an instance of `Options`, or of another class with the same fields. noise: with the shape of
        `noise(options)`, or None for no noise. train: whether this is a training step. `route` raises ConfigError for the options
        of another router, a missing parameter, or a state with other names. Like the public functions that it calls, it raises
        ShapeError, DtypeError or ContractError for invalid arrays.
    noise: `noise(options)` describes the noise that the router takes in training; None for no noise.
    state: `state(options)` describes, by name, the state kept from step to step. `route` reads it. No optimiser changes the state.
    update: `update(options, state, statistics)` returns the state after a step, from the state before it and the statistics
        summed over all tokens of the step. `update` raises ConfigError for a router without state or a state with other names.
    requires: an additional input of `route`: "ids", (tokens,) integers, or "" for none.
    decays, frozen: names of parameters: `decays` get weight decay; `frozen` are not trained and get no gradient.
    models: published models that use this router, some with non-default options.
    balances, drops: texts that say what the router balances and how, and which tokens may get no expert.
    cost: the cost of routing a group, as a text, in multiply-adds unless stated otherwise.
    compose, compose_update: `route` and `update` of a user router for JAX and torch. `compose(B, params, tokens, options, ...)`
        takes a backend `B` and arrays with a leading axis of groups. Built-in routers have both in `moespec.backends.routers`.
    revision, functions: the revision of its row in the conformance matrix, and the public functions in this row besides the router.
    """

    name: str
    source: str
    Options: type[OptionsOf]
    init: Callable[[np.random.Generator, Any], Params]
    route: Callable[..., RouterOutput]
    noise: Callable[[Any], Noise | None] = _no_noise
    state: Callable[[Any], dict[str, StateSpec]] = _stateless
    update: Callable[..., State] = _no_update
    requires: str = ""
    decays: tuple[str, ...] = ("kernel",)
    frozen: tuple[str, ...] = ()
    compose: Callable[..., RouterOutput] | None = field(kw_only=True, default=None)
    compose_update: Callable[..., State] | None = field(kw_only=True, default=None)
    models: tuple[str, ...] = field(kw_only=True, default=())
    balances: str = field(kw_only=True, default="")
    cost: str = field(kw_only=True, default="")
    drops: str = field(kw_only=True, default="")
    revision: int = field(kw_only=True, default=1)
    functions: tuple[str, ...] = field(kw_only=True, default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "__module__", self.name)  # user routers are looked up by module
        object.__setattr__(self, "name", self.name.rpartition(".")[2])
        self._check_functions()
        object.__setattr__(self, "route", self._checked_route(self.route))
        object.__setattr__(self, "update", self._checked_update(self.update))

    def __repr__(self) -> str:
        return f"Router({self.name!r})"

    @property
    def needs(self) -> str:
        """The deprecated name of `requires`."""
        warn_renamed("Router.needs", "requires")
        return self.requires

    def _check_functions(self) -> None:
        """Raises ConfigError unless `Options` is a class of options and each function accepts the arguments that it will get."""
        if not (isinstance(self.Options, type) and issubclass(self.Options, RouterOptions)):
            raise ConfigError(f"router {self.name!r}: Options={self.Options!r}: expected a subclass of RouterOptions")
        counts = {"init": 2, "noise": 1, "state": 1, "route": 3, "update": 3, "compose": 4, "compose_update": 4}
        named: dict[str, Any] = {"noise": None, "train": False, **({"state": {}} if self.stateful else {})}
        named |= {self.requires: None} if self.requires else {}
        for name, count in counts.items():
            given = named if name in ("route", "compose") else {}
            try:
                if (function := getattr(self, name)) is not None:
                    inspect.signature(function).bind(*range(count), **given)
            except TypeError as error:
                expected = f"expected a function that accepts {', '.join([f'{count} arguments', *given])}"
                raise ConfigError(f"router {self.name!r}: {name}: {expected}: {error}") from None

    def _check_output(self, output: Any) -> RouterOutput:
        """Returns the output of `route`. Raises ConfigError unless it is a RouterOutput whose losses are scalars (means over groups)."""
        if not isinstance(output, RouterOutput):
            raise ConfigError(f"router {self.name!r}: route: expected a RouterOutput, got {type(output).__name__}")
        for name, loss in output.losses.items():
            if shape := tuple(getattr(loss, "shape", ())):
                raise ConfigError(f"router {self.name!r}: losses[{name!r}]: expected a scalar, got shape {shape}")
        return output

    @property
    def options(self) -> type[OptionsOf]:
        """Creates options of this router, like the class `Options`: `router.options(width=384, experts=8, tokens=196)`.

        Raises ConfigError for an unknown option or an invalid value.
        """

        def options(**values: Any) -> OptionsOf:
            return self.Options.create(self.name, values)

        options.__signature__ = inspect.signature(self.Options)  # type: ignore[attr-defined]
        return cast("type[OptionsOf]", options)

    def initial_state(self, options: Any) -> State:
        """The state before the first step: NumPy arrays (float32) by name; empty for a router without state."""
        return {name: np.full(kept.shape, kept.value, np.float32) for name, kept in self.state(options).items()}

    def _checked_route(self, route: Callable[..., RouterOutput]) -> Callable[..., RouterOutput]:
        @wraps(route)
        def checked(
            params: Params, tokens: Any, options: Any, *, state: State | None = None, **given: Any
        ) -> RouterOutput:
            self._check_options(options)
            if self._check_state(options, state):
                given["state"] = state
            try:
                return self._check_output(route(params, tokens, options, **given))
            except KeyError as error:
                (name,) = error.args
                if name in params or not isinstance(name, str):
                    raise
                raise ConfigError(f"params: {self.name} needs {name!r}, got only {sorted(params)}") from None

        return checked

    def _checked_update(self, update: Callable[..., State]) -> Callable[..., State]:
        @wraps(update)
        def checked(options: Any, state: State, statistics: State) -> State:
            self._check_options(options)
            if not self._check_state(options, state):
                raise ConfigError(f"state: {self.name} has no state to update")
            new = update(options, state, statistics)
            self._check_state(options, new)
            return new

        return checked

    def _check_options(self, options: Any) -> None:
        if not isinstance(options, self.Options) and _fields(options) != _fields(self.Options):
            raise ConfigError(f"options: expected ROUTERS[{self.name!r}].options(...), got {options!r}")

    def _check_state(self, options: Any, state: State | None) -> bool:
        """Whether the router has a state. Raises ConfigError for wrong names, ShapeError for wrong shapes."""
        wanted = self.state(options)
        if sorted(wanted) != sorted(state or {}):
            expected = f"{sorted(wanted)}, as from `initial_state`" if wanted else "no state"
            raise ConfigError(f"state: {self.name} expects {expected}, got {sorted(state or {})}")
        for name, kept in wanted.items():
            shape = tuple(state[name].shape)  # type: ignore[index]
            if shape != kept.shape:
                raise ShapeError(f"state.{name}: expected shape {kept.shape}, got {shape}")
        return len(wanted) > 0

    @property
    def stateful(self) -> bool:
        """Whether the router keeps a state from step to step."""
        return self.state is not _stateless

    @property
    def algorithm(self) -> Algorithm:
        """The row of the router in the conformance matrix."""
        return Algorithm(self.name, self.source, self.revision, ("ROUTERS", *self.functions))
