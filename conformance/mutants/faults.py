"""Targets that compute what is right, and do not refuse what is wrong as they should: for the negatives."""

from collections.abc import Callable
from functools import partial
from typing import Any

from moespec.conformance.mutants.definition import Mutant, Replacement
from moespec.spec import ALGORITHMS, ROUTERS, ConfigError, ContractError, DtypeError, ShapeError, SpecError

__all__ = ["MUTANTS"]

TABLES = {"CAPACITY_RULES", "ROUTERS"}
NAMES = {name for algorithm in ALGORITHMS.values() for name in algorithm.functions} - TABLES
"""The public functions."""


def _everywhere(refuse: Callable[[SpecError], Any]) -> dict[str, Replacement]:
    """Every function, router and rule, with what they do about a fault: `refuse(error)` raises or returns."""

    def guarded(right: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        try:
            return right(*arguments, **options)
        except SpecError as error:
            return refuse(error)

    def changed(name: str) -> Replacement:
        def function(B: Any, *arguments: Any, **options: Any) -> Any:
            right = B.ROUTERS[name].route if name in ROUTERS else getattr(B, name)
            return guarded(right, *arguments, **options)

        return function

    def rules(B: Any) -> Any:
        return {rule: partial(guarded, slots) for rule, slots in B.CAPACITY_RULES.items()}

    return {name: changed(name) for name in (*sorted(NAMES), *ROUTERS)} | {"CAPACITY_RULES": rules}


def _accept(*kinds: type[SpecError]) -> Callable[[SpecError], Any]:
    """Faults of some kinds are not noticed; None stands for whatever is computed then."""

    def refuse(error: SpecError) -> None:
        if not isinstance(error, kinds):
            raise error

    return refuse


def _other_class(error: SpecError) -> Any:
    raise ValueError(str(error)) from error


def _other_argument(error: SpecError) -> Any:
    raise type(error)("something: is wrong") from error


MUTANTS = (
    Mutant(
        "options_not_checked", "Options and numbers out of range are not refused.", _everywhere(_accept(ConfigError))
    ),
    Mutant("shapes_not_checked", "Wrong shapes are not refused.", _everywhere(_accept(ShapeError))),
    Mutant("dtypes_not_checked", "Wrong dtypes are not refused.", _everywhere(_accept(DtypeError))),
    Mutant("values_not_checked", "Values that are not finite are not refused.", _everywhere(_accept(ContractError))),
    Mutant("another_error", "What is wrong is refused with an error of another class.", _everywhere(_other_class)),
    Mutant("another_argument", "The message of an error does not name the argument.", _everywhere(_other_argument)),
)
"""The mutants of this module."""
