"""Changes of a router, of which variants are made: `(B, route, params, tokens, options, noise=None, train=False)`."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from moespec.conformance.author.reorder import weighted_by

__all__ = ["configured", "noiseless", "rerouted", "reweighted"]


def configured(**changed: Any) -> Callable[..., Any]:
    """The router with some of its options, where it has them, as they are here."""

    def change(B: Any, route: Any, params: Any, tokens: Any, options: Any, **more: Any) -> Any:
        route(params, tokens, options, **more)
        own = {field.name for field in fields(options)}
        options = replace(options, **{name: value for name, value in changed.items() if name in own})
        return route(params, tokens, options, **more)

    return change


def noiseless(
    B: Any, route: Any, params: Any, tokens: Any, options: Any, *, noise: Any = None, train: bool = False
) -> Any:
    """The router without the noise that it is given."""
    route(params, tokens, options, noise=noise, train=train)
    return route(params, tokens, options, train=train)


def rerouted(B: Any, output: Any, routing: Any) -> Any:
    """The output of a router with another routing, and the metrics of that."""
    return output._replace(routing=routing, metrics={**output.metrics, **B.routing_metrics(routing)})


def reweighted(B: Any, output: Any, scores: Any) -> Any:
    """The output of a router with the combine weights taken from `scores` (groups, tokens, experts)."""
    return rerouted(B, output, weighted_by(output.routing, scores))
