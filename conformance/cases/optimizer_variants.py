"""What implementations of the optimisers do, or may do, differently."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from typing import Any
from unittest.mock import patch

import numpy as np

from moespec.backends import optimizers
from moespec.conformance.author.variant import Variant, variant

__all__ = ["VARIANTS"]

Patches = Mapping[str, Any]


def _updates() -> Any:
    """What the reference updates parameters with; a backend is imported where it runs, not where cases are listed."""
    return import_module("moespec.backends.numpy.optimizers")


def _patched(B: Any, patches: Patches, loss_function: Any, optimizer: Any, **options: Any) -> Any:
    """`make_step` whose steps see `patches`: other updates by the name of the optimiser, or other `factored_axes`."""
    step = B.make_step(loss_function, optimizer, **options)

    def changed(state: Any, batch: Any, rate: float) -> Any:
        with _seen(patches):
            return step(state, batch, rate)

    return changed


@contextmanager
def _seen(patches: Patches) -> Iterator[None]:
    axes = patches.get("factored_axes", optimizers.factored_axes)
    with (
        patch.dict(_updates().UPDATES, {name: patches[name] for name in patches.keys() & _updates().UPDATES.keys()}),
        patch.object(_updates(), "factored_axes", axes),
        patch.object(optimizers, "factored_axes", axes),
    ):
        yield


def _updating(optimizer: str, name: str, computes: str, update: Any, who: str = "") -> Variant:
    """The variant in which the optimiser has another update."""

    def make_step(B: Any, *arguments: Any, **options: Any) -> Any:
        return _patched(B, {optimizer: update}, *arguments, **options)

    return Variant(name, computes, {"make_step": make_step}, "", who)


def _decay_in_momentum(p: Any, g: Any, kept: Any, n: int, d: float, options: Any) -> Any:
    return _updates().sgd(p, g + d * p, kept, n, 0.0, options)


def _ratio_only_with_decay(p: Any, g: Any, kept: Any, n: int, d: float, options: Any) -> Any:
    return (_updates().lamb if d else _updates().adamw)(p, g, kept, n, d, options)


def decay_without_rate(B: Any, loss_function: Any, optimizer: Any, **options: Any) -> Any:
    """The rate of a parameter does not multiply its decay."""
    if not optimizer.rates or optimizer.name != "adamw":
        return B.make_step(loss_function, optimizer, **options)
    rates = [optimizer.rate_of(path.split("/")) for path in ("head/kernel", "experts/w1", "router/scale")]
    decays = [optimizer.decay_of(path.split("/")) for path in ("head/kernel", "experts/w1", "router/scale")]
    names = ("head/kernel", "experts/w1", "router/scale")
    text = ", ".join(f"{n}={d / r}" for n, d, r in zip(names, decays, rates, strict=True) if r)
    return B.make_step(loss_function, replace(optimizer, decay=text), **options)


def norm_with_frozen(B: Any, loss_function: Any, optimizer: Any, **options: Any) -> Any:
    """The gradients of frozen parameters count in the norm."""
    if not optimizer.rates:
        return B.make_step(loss_function, optimizer, **options)

    def reported(params: Any, batch: Any) -> tuple[Any, Any]:
        loss, metrics = loss_function(params, batch)
        found = [
            (batch[n][k][0] ** 2).sum() for n, part in params.items() for k in part if not optimizer.rate_of((n, k))
        ]
        return loss, {**metrics, "frozen": sum(found)}

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
