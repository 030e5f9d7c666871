"""Errors: targets that compute what is right, and do not reject what is wrong as they should."""

from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

from moespec.conformance.engine.variant import Replacement, Variant
from moespec.spec import ALGORITHMS, ConfigError, ContractError, DtypeError, ShapeError, SpecError

__all__ = ["VARIANTS"]

TABLES = {"CAPACITY_RULES", "ROUTERS"}
NAMES = {name for algorithm in ALGORITHMS.values() for name in algorithm.functions} - TABLES
"""The public functions."""


def _everywhere(reject: Callable[[SpecError], Any]) -> dict[str, Replacement]:
    """Every function, router and rule, with what they do about an error: `reject(error)` raises or returns."""

    def guarded(right: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        try:
            return right(*arguments, **options)
        except SpecError as error:
            return reject(error)

    def changed(name: str) -> Replacement:
        def function(B: Any, *arguments: Any, **options: Any) -> Any:
            return guarded(getattr(B, name), *arguments, **options)

        return function

    def rules(B: Any) -> Any:
        return {rule: partial(guarded, slots) for rule, slots in B.CAPACITY_RULES.items()}

    def routers(found: Mapping[str, Any]) -> Any:
        return {
            name: SimpleNamespace(options=partial(guarded, router.options), route=partial(guarded, router.route))
            for name, router in found.items()
        }

    functions = {name: changed(name) for name in sorted(NAMES)}
    return {**functions, "CAPACITY_RULES": rules, "ROUTERS": routers}


def _accept(*kinds: type[SpecError]) -> Callable[[SpecError], Any]:
    """Errors of some kinds are not raised; None stands for whatever is computed then."""

    def reject(error: SpecError) -> None:
        if not isinstance(error, kinds):
            raise error

    return reject


def _other_class(error: SpecError) -> Any:
    raise ValueError(str(error)) from error


def _other_argument(error: SpecError) -> Any:
    raise type(error)("something: is wrong") from error


VARIANTS = (
    Variant(
        "options_not_checked", "Options and scalars out of range are not rejected.", _everywhere(_accept(ConfigError))
    ),
    Variant("shapes_not_checked", "Wrong shapes are not rejected.", _everywhere(_accept(ShapeError))),
    Variant("dtypes_not_checked", "Wrong dtypes are not rejected.", _everywhere(_accept(DtypeError))),
    Variant("values_not_checked", "Values that are not finite are not rejected.", _everywhere(_accept(ContractError))),
    Variant("another_error", "What is wrong is rejected with an error of another class.", _everywhere(_other_class)),
    Variant("another_argument", "The message of an error does not name the argument.", _everywhere(_other_argument)),
)
