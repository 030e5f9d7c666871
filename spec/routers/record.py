"""What a router is: its record, with its options, initial parameters and routing function."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar, cast

import numpy as np

from moespec.spec.algorithm import Algorithm
from moespec.spec.errors import ConfigError, ShapeError
from moespec.spec.options import RouterOptions
from moespec.spec.routing import Kept, Noise, Params, RouterOutput, State

__all__ = ["Router"]

OptionsOf = TypeVar("OptionsOf", bound=RouterOptions)


def _no_noise(options: Any) -> None:
    """The router takes no noise."""


def _stateless(options: Any) -> dict[str, Kept]:
    """The router keeps nothing."""
    return {}


def _fields(options: Any) -> set[str]:
    """The names of the fields of a dataclass, none of anything else."""
    return set(getattr(options, "__dataclass_fields__", ()))


@dataclass(frozen=True)
class Router(Generic[OptionsOf]):
    """One router.

    name: the last part of the name of its module. source: where the literature defines it. Options: the class of its options.
    init: `init(generator, options)` returns NumPy parameters (float32).
    compose: `compose(B, params, tokens, options, *, noise, train)`, the function `route` of its module; with `state=`, too, if it
        keeps one.
    noise: `noise(options)` says what noise the router takes in training, None for none.
    state: `state(options)` says what the router keeps from step to step, by name: what no optimiser touches, which `route` reads.
    renew: `renew(B, options, state, statistics)`, the function `update` of its module.
    needs: what `route` takes besides the tokens: "ids", (tokens,) integers, or nothing.
    decays, frozen: names of parameters: of those that weight decay applies to, and of what is kept among the parameters but not
        trained, which no gradient reaches.
    models: published models that route with it, some with options of it.
    balances, cost, drops: in words, what it keeps in balance and by what means; what the routing of a group costs, in
        multiply-adds unless it says something else; which tokens may be left without an expert.
    revision, functions: of its row in the conformance matrix; `functions` are public functions that belong to this row,
        besides the router itself.
    B: what `route` computes with, the specification or a backend; see `bind`.
    """

    name: str
    source: str
    Options: type[OptionsOf]
    init: Callable[[np.random.Generator, Any], Params]
    compose: Callable[..., RouterOutput]
    noise: Callable[[Any], Noise | None] = _no_noise
    state: Callable[[Any], dict[str, Kept]] = _stateless
    renew: Callable[..., State] | None = None
    needs: str = ""
    decays: tuple[str, ...] = ("kernel",)
    frozen: tuple[str, ...] = ()
    models: tuple[str, ...] = field(kw_only=True, default=())
    balances: str = field(kw_only=True)
    cost: str = field(kw_only=True)
    drops: str = field(kw_only=True)
    revision: int = field(kw_only=True, default=1)
    functions: tuple[str, ...] = field(kw_only=True, default=())
    B: Any = field(kw_only=True, default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name.rpartition(".")[2])

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

    def route(
        self,
        params: Params,
        tokens: Any,
        options: Any,
        *,
        state: State | None = None,
        noise: Any = None,
        train: bool = False,
        **needed: Any,
    ) -> RouterOutput:
        """The routing of the tokens, its losses, its metrics, and the statistics that `update` takes.

        params: as from `init`. tokens: (tokens, width), of a backend (groups, tokens, width). options: those of this
        router, of its class or of another with the same fields. state: as from `initial_state` or `update`.
        noise: of the shape that `noise(options)` says, or None
        for none. train: whether it is training. needed: the arguments that `needs` names.

        Raises ConfigError for the options of another router, a parameter that is missing, or a state with other names; ShapeError,
        DtypeError or ContractError, as the public functions that it calls do, for arrays that they do not accept.
        """
        self._check_options(options)
        if self._check_state(options, state):
            needed["state"] = state
        try:
            return self.compose(self.B, params, tokens, options, noise=noise, train=train, **needed)
        except KeyError as error:
            (name,) = error.args
            if name in params or not isinstance(name, str):
                raise
            raise ConfigError(f"params: {self.name} needs {name!r}, and it is missing from {sorted(params)}") from None

    def update(self, options: Any, state: State, statistics: State) -> State:
        """The state after a step: of that before it, and the statistics of all tokens of the step, summed.

        Raises ConfigError for a router that keeps no state, and for a state with other names.
        """
        self._check_options(options)
        if not self._check_state(options, state) or self.renew is None:
            raise ConfigError(f"state: {self.name} keeps none")
        return self.renew(self.B, options, state, statistics)

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

    def bind(self, B: Any) -> "Router[OptionsOf]":
        """The router whose `route` is computed by `B`, the specification or a backend."""
        return replace(self, B=B)

    @property
    def algorithm(self) -> Algorithm:
        """Its row in the conformance matrix."""
        return Algorithm(self.name, self.source, self.revision, ("ROUTERS", *self.functions))
