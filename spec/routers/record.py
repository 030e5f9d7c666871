"""What a router is: its record, with its options, initial parameters and routing function."""

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
    """The router keeps nothing."""
    return {}


def _no_update(options: Any, state: State, statistics: State) -> State:
    """The router keeps nothing, so that nothing is updated."""
    return {}


def _fields(options: Any) -> set[str]:
    """The names of the fields of a dataclass, none of anything else."""
    return {each.name for each in fields(options)} if is_dataclass(options) else set()


@dataclass(frozen=True)
class Router(Generic[OptionsOf]):
    """One router.

    name: the last part of the name of its module. source: where the literature defines it. Options: the class of its options.
    init: `init(generator, options)` returns NumPy parameters (float32).
    route: `route(params, tokens, options, *, state, noise, train)` returns the routing of the tokens, its losses, its metrics,
        and the statistics that `update` takes; with `state` for a router that keeps one, and what `requires` names. tokens:
        (tokens, width), in a backend (groups, tokens, width). params: as `init` returns them. options: of the class `Options`,
        or of another class with the same fields. noise: of the shape that `noise(options)` says, or None for none. train:
        whether it is training. It raises ConfigError for the options of another router, a parameter that is missing, or a
        state with other names; ShapeError, DtypeError or ContractError, as the public functions that it calls do, for arrays
        that they do not accept.
    noise: `noise(options)` says what noise the router takes in training, None for none.
    state: `state(options)` says what the router keeps from step to step, by name: what no optimiser touches, which `route` reads.
    update: `update(options, state, statistics)` returns the state after a step: of that before it, and the statistics of all
        tokens of the step, summed. It raises ConfigError for a router that keeps no state, and for a state with other names.
    requires: what `route` takes besides the tokens: "ids", (tokens,) integers, or nothing.
    decays, frozen: names of parameters: of those that weight decay applies to, and of what is kept among the parameters but not
        trained, which no gradient reaches.
    models: published models that route with it, some with options of it.
    balances, cost, drops: in words, what it keeps in balance and by what means; what the routing of a group costs, in
        multiply-adds unless it says something else; which tokens may be left without an expert.
    compose, compose_update: of a router of the user's own, `route` and `update` for JAX and torch: with a backend `B` as first argument,
        on arrays with a leading axis of groups, `compose(B, params, tokens, options, ...)`. moespec has its own in
        `moespec.backends.routers`.
    revision, functions: of its row in the conformance matrix; `functions` are public functions that belong to this row,
        besides the router itself.
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
        object.__setattr__(self, "__module__", self.name)  # of a router of the user's own, by which it is found
        object.__setattr__(self, "name", self.name.rpartition(".")[2])
        self._check_functions()
        object.__setattr__(self, "route", self._checked_route(self.route))
        object.__setattr__(self, "update", self._checked_update(self.update))

    def __repr__(self) -> str:
        return f"Router({self.name!r})"

    @property
    def needs(self) -> str:
        """The old name of `requires`."""
        warn_renamed("Router.needs", "requires")
        return self.requires

    def _check_functions(self) -> None:
        """ConfigError for a class of options that is none, or a function that cannot be called as it will be."""
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
                expected = f"expected a function of {', '.join([f'{count} arguments', *given])}"
                raise ConfigError(f"router {self.name!r}: {name}: {expected}: {error}") from None

    def _check_output(self, output: Any) -> RouterOutput:
        """What `route` returns. Raises ConfigError unless it is a RouterOutput, whose losses are scalars: means over the groups."""
        if not isinstance(output, RouterOutput):
            raise ConfigError(f"router {self.name!r}: route: expected a RouterOutput, got {type(output).__name__}")
        for name, loss in output.losses.items():
            if shape := tuple(getattr(loss, "shape", ())):
                raise ConfigError(f"router {self.name!r}: losses[{name!r}]: expected a scalar, got the shape {shape}")
        return output

    @property
    def options(self) -> type[OptionsOf]:
        """Makes its options, as its class `Options` does: `router.options(width=384, experts=8, tokens=196)`.

        Raises ConfigError for an option that it does not have, or a value that an option cannot have.
        """

        def options(**values: Any) -> OptionsOf:
            return self.Options.create(self.name, values)

        options.__signature__ = inspect.signature(self.Options)  # type: ignore[attr-defined]
        return cast("type[OptionsOf]", options)

    def initial_state(self, options: Any) -> State:
        """The state before the first step: NumPy arrays (float32) by name, none for a router that keeps nothing."""
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
                raise ConfigError(
                    f"params: {self.name} needs {name!r}, and it is missing from {sorted(params)}"
                ) from None

        return checked

    def _checked_update(self, update: Callable[..., State]) -> Callable[..., State]:
        @wraps(update)
        def checked(options: Any, state: State, statistics: State) -> State:
            self._check_options(options)
            if not self._check_state(options, state):
                raise ConfigError(f"state: {self.name} keeps none")
            new = update(options, state, statistics)
            self._check_state(options, new)
            return new

        return checked

    def _check_options(self, options: Any) -> None:
        if not isinstance(options, self.Options) and _fields(options) != _fields(self.Options):
            raise ConfigError(
                f"options: expected those of {self.name}, ROUTERS[{self.name!r}].options(...), got {options!r}"
            )

    def _check_state(self, options: Any, state: State | None) -> bool:
        """Whether there is a state. ConfigError unless it has the names that it must have, ShapeError for other shapes."""
        wanted = self.state(options)
        if sorted(wanted) != sorted(state or {}):
            expected = f"{sorted(wanted)}, as of `initial_state`" if wanted else "none"
            raise ConfigError(f"state: {self.name} keeps {expected}, got {sorted(state or {})}")
        for name, kept in wanted.items():
            shape = tuple(state[name].shape)  # type: ignore[index]
            if shape != kept.shape:
                raise ShapeError(f"state.{name}: expected the shape {kept.shape}, got {shape}")
        return len(wanted) > 0

    @property
    def stateful(self) -> bool:
        """Whether it keeps something from step to step."""
        return self.state is not _stateless

    @property
    def algorithm(self) -> Algorithm:
        """Its row in the conformance matrix."""
        return Algorithm(self.name, self.source, self.revision, ("ROUTERS", *self.functions))
