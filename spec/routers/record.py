"""The class `Router`: the options, the initial parameters and the routing function of a router."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Generic, TypeVar, cast

import numpy as np

from moespec.spec.algorithm import Algorithm
from moespec.spec.errors import ConfigError, ShapeError
from moespec.spec.names import warn_renamed
from moespec.spec.options import RouterOptions, field_names
from moespec.spec.routing import Noise, Params, RouterOutput, State, StateSpec

__all__ = ["Router"]

OptionsOf = TypeVar("OptionsOf", bound=RouterOptions)


def _no_noise(options: Any) -> None:
    """Returns None: the router uses no noise."""


def _stateless(options: Any) -> dict[str, StateSpec]:
    """Returns an empty dict: the router has no state."""
    return {}


def _no_update(options: Any, state: State, statistics: State) -> State:
    """Returns an empty dict: the router has no state to update."""
    return {}


@dataclass(frozen=True)
class Router(Generic[OptionsOf]):
    """A router: its options, functions and description.

    name: the name of the router, the last component of the module name. source: the publications that define the router.
    Options: the class of the options. init: `init(generator, options)` returns the initial parameters as float32 NumPy arrays.
    route: `route(params, tokens, options, *, state, noise, train)` returns the routing of the tokens, the losses, the
        metrics, and the statistics for `update`. `route` takes `state` only if the router has a state. `requires` names an additional
        input. tokens: (tokens, width), in a backend (groups, tokens, width). params: parameters like the result of `init`.
        options: an instance of `Options`, or of another class with the same fields. noise: an array that `noise(options)`
        describes, or None for no noise. train: whether to route for training. `route` raises ConfigError for the options
        of another router, a missing parameter, or a state with wrong names. `route` raises ShapeError, DtypeError or
        ContractError for invalid arrays.
    noise: `noise(options)` describes the noise array that the router takes in training, or returns None for no noise.
    state: `state(options)` describes, by name, the arrays that the router keeps from step to step. No optimiser changes the state.
    update: `update(options, state, statistics)` returns the state after a step. `statistics` is the sum over all groups of the step.
        `update` raises ConfigError for a router without a state, or for a state with wrong names.
    requires: an additional input of `route`: "ids" for (tokens,) integers, or "". replays: whether `route` takes recorded `choices`, too.
    decays: the names of parameters with weight decay. frozen: the names of parameters without gradients.
    models: published models that use this router, some with non-default options.
    balances: what the router balances, and how. drops: which tokens may get no expert. cost: multiply-adds for routing one group.
    compose, compose_update: `route` and `update` of a user router for JAX and torch. `compose(B, params, tokens, options, ...)`
        takes a backend `B` and arrays with a leading groups axis. `moespec.backends.routers` implements the built-in routers.
    revision: the revision of the router's row in the conformance matrix. functions: other public functions that this row covers.
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
    replays: bool = field(kw_only=True, default=False)
    revision: int = field(kw_only=True, default=1)
    functions: tuple[str, ...] = field(kw_only=True, default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "__module__", self.name)  # `own_name` searches this module for the router first
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
        """Raises ConfigError unless `Options` is a subclass of `RouterOptions` and each function accepts the required arguments."""
        if not (isinstance(self.Options, type) and issubclass(self.Options, RouterOptions)):
            raise ConfigError(f"router {self.name!r}: Options={self.Options!r}: expected a subclass of RouterOptions")
        counts = {"init": 2, "noise": 1, "state": 1, "route": 3, "update": 3, "compose": 4, "compose_update": 4}
        named: dict[str, Any] = {"noise": None, "train": False, **({"state": {}} if self.stateful else {})}
        named |= {self.requires: None} if self.requires else {}
        named |= {"choices": None} if self.replays else {}
        for name, count in counts.items():
            given = named if name in ("route", "compose") else {}
            try:
                if (function := getattr(self, name)) is not None:
                    inspect.signature(function).bind(*range(count), **given)
            except TypeError as error:
                expected = f"expected a function that accepts {', '.join([f'{count} arguments', *given])}"
                raise ConfigError(f"router {self.name!r}: {name}: {expected}: {error}") from None

    def _check_output(self, output: Any) -> RouterOutput:
        """Returns `output`. Raises ConfigError unless `output` is a RouterOutput and every loss is a scalar (a mean over groups)."""
        if not isinstance(output, RouterOutput):
            raise ConfigError(f"router {self.name!r}: route: expected a RouterOutput, got {type(output).__name__}")
        for name, loss in output.losses.items():
            if shape := tuple(getattr(loss, "shape", ())):
                raise ConfigError(f"router {self.name!r}: losses[{name!r}]: expected a scalar, got shape {shape}")
        return output

    @property
    def options(self) -> type[OptionsOf]:
        """Creates options of this router, for example by `router.options(width=384, experts=8, tokens=196)`.

        Raises ConfigError for an unknown option or an invalid value.
        """

        def options(**values: Any) -> OptionsOf:
            return self.Options.create(self.name, values)

        options.__signature__ = inspect.signature(self.Options)  # type: ignore[attr-defined]
        return cast("type[OptionsOf]", options)

    def initial_state(self, options: Any) -> State:
        """The state before the first step: float32 NumPy arrays by name, or an empty dict for a router without a state."""
        return {name: np.full(kept.shape, kept.value, np.float32) for name, kept in self.state(options).items()}

    def _checked_route(self, route: Callable[..., RouterOutput]) -> Callable[..., RouterOutput]:
        @wraps(route)
        def checked(
            params: Params, tokens: Any, options: Any, *, state: State | None = None, **given: Any
        ) -> RouterOutput:
            self._check_options(options)
            if self._check_state(options, state):
                given["state"] = state
            if self.replays:
                given.setdefault("choices")
            elif given.pop("choices", None) is not None:
                raise ConfigError(f"choices: {self.name} cannot replay recorded choices; expected None")
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
        if not isinstance(options, self.Options) and field_names(options) != field_names(self.Options):
            raise ConfigError(f"options: expected ROUTERS[{self.name!r}].options(...), got {options!r}")

    def _check_state(self, options: Any, state: State | None) -> bool:
        """Whether the router has a state. Raises ConfigError for wrong names in `state`, and ShapeError for wrong shapes."""
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
