"""What implementations of the optimisers do, or may do, differently."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from typing import Any
from unittest.mock import patch

import numpy as np

from moespec.backends import optimizer_options
from moespec.conformance.author.variant import Variant, variant

__all__ = ["VARIANTS"]

Patches = Mapping[str, Any]


def _updates() -> Any:
    """What the reference updates parameters with; a backend is imported where it runs, not where cases are listed."""
    return import_module("moespec.backends.numpy.optimizers")


def _as(name: str) -> Callable[..., Any]:
    """The update of the optimiser of that name."""
    return lambda *given: getattr(_updates(), name)(*given)


def _patched(B: Any, patches: Patches, loss_function: Any, optimizer: Any, **options: Any) -> Any:
    """`make_step` whose steps see `patches`: other updates by the name of the optimiser, or other `factored_axes`."""
    step = B.make_step(loss_function, optimizer, **options)

    def changed(state: Any, batch: Any, rate: float) -> Any:
        with _seen(patches):
            return step(state, batch, rate)

    return changed


@contextmanager
def _seen(patches: Patches) -> Iterator[None]:
    axes = patches.get("factored_axes", optimizer_options.factored_axes)
    with (
        patch.dict(_updates().UPDATES, {name: patches[name] for name in patches.keys() & _updates().UPDATES.keys()}),
        patch.object(_updates(), "factored_axes", axes),
        patch.object(optimizer_options, "factored_axes", axes),
    ):
        yield


def _updating(optimizer: str, name: str, computes: str, update: Any, who: str = "") -> Variant:
    """The variant in which the optimiser has another update."""

    def make_step(B: Any, *arguments: Any, **options: Any) -> Any:
        return _patched(B, {optimizer: update}, *arguments, **options)

    return Variant(name, computes, {"make_step": make_step}, "", who)


def _uncorrected(p: Any, g: Any, kept: Any, n: int, d: float, options: Any) -> Any:
    _, moments = _updates().adamw(p, g, kept, n, d, options)
    return moments["mu"] / (np.sqrt(moments["nu"]) + options.epsilon) + d * p, moments


def _dampened(p: Any, g: Any, kept: Any, n: int, d: float, options: Any) -> Any:
    return _updates().sgd(p, (1 - options.momentum) * g, kept, n, d, options)


def _decay_in_momentum(p: Any, g: Any, kept: Any, n: int, d: float, options: Any) -> Any:
    return _updates().sgd(p, g + d * p, kept, n, 0.0, options)


def _without_nesterov(p: Any, g: Any, kept: Any, n: int, d: float, options: Any) -> Any:
    return _updates().sgd(p, g, kept, n, d, replace(options, nesterov=False))


def _ratio_without_decay(p: Any, g: Any, kept: Any, n: int, d: float, options: Any) -> Any:
    u, moments = _updates().lamb(p, g, kept, n, 0.0, options)
    return u + d * p, moments


def _ratio_of_zero(p: Any, g: Any, kept: Any, n: int, d: float, options: Any) -> Any:
    u, moments = _updates().lamb(p, g, kept, n, d, options)
    return (u if np.any(p) else 0 * u), moments


def _ratio_only_with_decay(p: Any, g: Any, kept: Any, n: int, d: float, options: Any) -> Any:
    return (_updates().lamb if d else _updates().adamw)(p, g, kept, n, d, options)


def _capped_above(p: Any, g: Any, kept: Any, n: int, d: float, options: Any) -> Any:
    return _updates().adafactor(p, g, kept, n, d, replace(options, decay_cap=1 - 2.0**-24))


def _step_later(p: Any, g: Any, kept: Any, n: int, d: float, options: Any) -> Any:
    return _updates().adafactor(p, g, kept, n + 1, d, options)


def _momentum_debiased(p: Any, g: Any, kept: Any, n: int, d: float, options: Any) -> Any:
    u, new = _updates().adafactor(p, g, kept, n, 0.0, options)
    return u / (1 - options.momentum**n) + d * p, new


def _momentum_of_rounded(p: Any, g: Any, kept: Any, n: int, d: float, options: Any) -> Any:
    _, new = _updates().adafactor(p, g, kept, n, d, options)
    return new["mu"] + d * p, new


def _momentum_whole(p: Any, g: Any, kept: Any, n: int, d: float, options: Any) -> Any:
    return _updates().adafactor(p, g, kept, n, d, replace(options, momentum_dtype="float32"))


def _first_axes(shape: Any, least: int) -> tuple[int, int] | None:
    return (0, 1) if len(shape) > 1 and min(shape[:2]) >= min(least, 2) else None


def _never(shape: Any, least: int) -> None:
    return None


def _factored(name: str, computes: str, axes: Any) -> Variant:
    """The variant that factors along other axes."""

    def init_state(B: Any, *arguments: Any) -> Any:
        with _seen({"factored_axes": axes}):
            return B.init_state(*arguments)

    def make_step(B: Any, *arguments: Any, **options: Any) -> Any:
        return _patched(B, {"factored_axes": axes}, *arguments, **options)

    return Variant(name, computes, {"init_state": init_state, "make_step": make_step})


def clip_with_decay(B: Any, loss_function: Any, optimizer: Any, **options: Any) -> Any:
    """The decay of Adam is in the gradient before this is clipped."""
    if optimizer.name != "adam":
        return B.make_step(loss_function, optimizer, **options)

    def decayed(params: Any, batch: Any) -> tuple[Any, Any]:
        loss, metrics = loss_function(params, batch)
        terms = [optimizer.decay_of((n, k)) * (v * v).sum() / 2 for n, part in params.items() for k, v in part.items()]
        return loss + sum(terms), metrics

    return B.make_step(decayed, replace(optimizer, weight_decay=0.0, decay=""), **options)


def clip_of_each_tensor(B: Any, loss_function: Any, optimizer: Any, **options: Any) -> Any:
    """The gradient of each tensor is clipped by its own norm."""
    if optimizer.clip is None:
        return B.make_step(loss_function, optimizer, **options)
    right = _updates().UPDATES[optimizer.name]

    def update(p: Any, g: Any, *more: Any) -> Any:
        norm = np.sqrt(np.sum(g * g))
        return right(p, g * min(1.0, optimizer.clip / norm) if norm > 0 else g, *more)

    return _patched(B, {optimizer.name: update}, loss_function, replace(optimizer, clip=None), **options)


def rates_left_out(B: Any, loss_function: Any, optimizer: Any, **options: Any) -> Any:
    """All parameters have the same rate, but for those that are frozen."""
    frozen = ", ".join(part for part in optimizer.rates.split(", ") if part.endswith("=0"))
    return B.make_step(loss_function, replace(optimizer, rates=frozen), **options)


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


def average_of_before(B: Any, loss_function: Any, optimizer: Any, **options: Any) -> Any:
    """The average takes in the parameters from before the step."""
    if optimizer.ema is None:
        return B.make_step(loss_function, optimizer, **options)
    step = B.make_step(loss_function, optimizer, **options)

    def changed(state: Any, batch: Any, rate: float) -> Any:
        held, _ = step(state, batch, 0.0)
        after, metrics = step(state, batch, rate)
        return {**after, "ema": held["ema"]}, metrics

    return changed


def average_from_zero(B: Any, params: Any, optimizer: Any) -> Any:
    """The average begins with 0."""
    state = B.init_state(params, optimizer)
    if "ema" in state:
        state["ema"] = {n: {k: 0 * v for k, v in part.items()} for n, part in state["ema"].items()}
    return state


VARIANTS = (
    _updating(
        "adamw", "bias_correction_left_out", "The moments of Adam are not corrected for their bias.", _uncorrected
    ),
    _updating("adamw", "decay_in_gradient", "The decay of AdamW is in the gradient, as Adam's is.", _as("adam")),
    _updating(
        "adam", "decay_decoupled", "The decay of Adam is outside of what is scaled, as AdamW's is.", _as("adamw")
    ),
    variant(clip_with_decay, "make_step"),
    variant(clip_of_each_tensor, "make_step"),
    _updating(
        "sgd", "momentum_dampened", "The momentum is a mean, whose new gradient has the weight 1 - b.", _dampened
    ),
    _updating("sgd", "decay_in_momentum", "The decay of SGD goes through the momentum.", _decay_in_momentum, "torch"),
    _updating("sgd", "nesterov_left_out", "The momentum is not Nesterov's.", _without_nesterov),
    _updating("lamb", "trust_ratio_left_out", "LAMB's update is that of AdamW.", _as("adamw")),
    _updating("lamb", "trust_ratio_without_decay", "LAMB scales the update without its decay.", _ratio_without_decay),
    _updating("lamb", "trust_ratio_of_zero", "LAMB never moves a parameter that is 0.", _ratio_of_zero),
    _updating(
        "lamb", "trust_ratio_only_with_decay", "LAMB scales only what decays.", _ratio_only_with_decay, "timm, apex"
    ),
    _updating("adafactor", "second_moment_without_cap", "The decay of the second moment comes near 1.", _capped_above),
    _updating("adafactor", "second_moment_from_second_step", "Adafactor counts its steps from 2.", _step_later),
    _updating("adafactor", "momentum_debiased", "Adafactor's momentum is corrected for its bias.", _momentum_debiased),
    _updating(
        "adafactor", "update_rounded", "Adafactor's update has the momentum that is rounded.", _momentum_of_rounded
    ),
    _updating("adafactor", "momentum_not_rounded", "Adafactor keeps its momentum as it is.", _momentum_whole),
    _factored("factored_along_first_axes", "Adafactor factors along the first two axes, the experts.", _first_axes),
    _factored("factored_never", "Adafactor keeps whole second moments.", _never),
    variant(rates_left_out, "make_step"),
    variant(decay_without_rate, "make_step", who="big_vision"),
    variant(norm_with_frozen, "make_step", who="vmoe"),
    variant(average_of_before, "make_step"),
    variant(average_from_zero, "init_state"),
)
