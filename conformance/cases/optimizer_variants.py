"""What implementations of the optimisers do, or may do, differently."""

from dataclasses import replace
from importlib import import_module
from typing import Any
from unittest.mock import patch

import numpy as np

from moespec.conformance.author.variant import Variant, variant


def _updates() -> Any:
    """What the reference updates parameters with; a backend is imported where it runs, not where cases are listed."""
    return import_module("moespec.backends.numpy.optimizers")


def _updating(optimizer: str, name: str, computes: str, update: Any, who: str = "") -> Variant:
    """The variant in which the optimiser has another update."""

    def make_step(B: Any, *arguments: Any, **options: Any) -> Any:
        step = B.make_step(*arguments, **options)

        def changed(state: Any, batch: Any, rate: float) -> Any:
            with patch.dict(_updates().UPDATES, {optimizer: update}):
                return step(state, batch, rate)

        return changed

    return Variant(name, computes, {"make_step": make_step}, "", who)


def _decay_in_momentum(p: Any, g: Any, kept: Any, n: int, d: float, options: Any) -> Any:
    return _updates().sgd(p, g + d * p, kept, n, 0.0, options)


def _ratio_only_with_decay(p: Any, g: Any, kept: Any, n: int, d: float, options: Any) -> Any:
    return (_updates().lamb if d else _updates().adamw)(p, g, kept, n, d, options)


def decay_without_rate(B: Any, loss_function: Any, optimizer: Any, **options: Any) -> Any:
    """The rate of a parameter does not multiply its decay."""
    if not optimizer.rates or optimizer.name != "adamw":
        return B.make_step(loss_function, optimizer, **options)
    paths = [path.split("/") for path in ("head/kernel", "experts/w1", "router/scale")]
    decays = {"/".join(p): optimizer.decay_of(p) / optimizer.rate_of(p) for p in paths if optimizer.rate_of(p)}
    decay = ", ".join(f"{name}={value}" for name, value in decays.items())
    return B.make_step(loss_function, replace(optimizer, decay=decay), **options)


def norm_with_frozen(B: Any, loss_function: Any, optimizer: Any, **options: Any) -> Any:
    """The gradients of frozen parameters count in the norm."""
    if not optimizer.rates:
        return B.make_step(loss_function, optimizer, **options)

    def reported(params: Any, batch: Any) -> tuple[Any, Any]:
        loss, metrics = loss_function(params, batch)
        squares = [
            (batch[n][k][0] ** 2).sum() for n, part in params.items() for k in part if not optimizer.rate_of((n, k))
        ]
        return loss, {**metrics, "frozen": sum(squares)}

    step = B.make_step(reported, optimizer, **options)

    def changed(state: Any, batch: Any, rate: float) -> Any:
        after, metrics = step(state, batch, rate)
        norm = np.sqrt(metrics["grad_norm"] ** 2 + metrics.pop("frozen"))
        return after, {**metrics, "grad_norm": norm}

    return changed


VARIANTS = (
    _updating("sgd", "decay_in_momentum", "The decay of SGD goes through the momentum.", _decay_in_momentum, "torch"),
    _updating(
        "lamb", "trust_ratio_only_with_decay", "LAMB scales only what decays.", _ratio_only_with_decay, "timm, apex"
    ),
    variant(decay_without_rate, "make_step", who="big_vision"),
    variant(norm_with_frozen, "make_step", who="vmoe"),
)
