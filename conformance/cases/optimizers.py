"""Cases of the optimisers: steps with prescribed gradients on a few parameters of each kind, and the full optimiser
state. Each variant reproduces a mistake or choice that other implementations make or are likely to make.

The cases belong to the algorithm `vit`, which trains with the optimisers. The loss of a step is the dot
product of the parameters and the prescribed gradients, so its gradients are the prescribed gradients.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any
from unittest.mock import patch

import numpy as np

from moespec.backends.blocks import Array
from moespec.conformance.author.definition import Definition, composed, tensor
from moespec.conformance.author.inputs import grid
from moespec.conformance.author.models import stage_of
from moespec.conformance.author.variant import Spec, Variant, variant

SHAPES: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "head": {"kernel": (4, 3), "bias": (3,)},
    "experts": {"w1": (2, 3, 4), "b1": (2,)},
    "router": {"scale": ()},
}
AROUND: dict[str, Any] = {"weight_decay": 0.25, "decay": "head/kernel=0.5", "clip": 2.0}
ADAM: dict[str, Any] = {"b1": 0.75, "b2": 0.9375, "epsilon": 2.0**-10}
OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "adamw": (
        "AdamW with rates by pattern, a frozen parameter and the average of the others.",
        {"name": "adamw", **ADAM, "rates": "experts/b1=0, head/=0.5", "ema": 0.75},
    ),
    "adam": ("Adam, whose decay is in the gradient, after the clip.", {"name": "adam", **ADAM}),
    "sgd": ("Momentum, which the decay does not go through.", {"name": "sgd", "momentum": 0.75}),
    "sgd_nesterov": ("Nesterov's momentum.", {"name": "sgd", "momentum": 0.75, "nesterov": True}),
    "lamb": ("LAMB, also of a parameter that is 0.", {"name": "lamb", **ADAM}),
    "adafactor": (
        "Adafactor; experts are the least of the three axes, along which nothing is factored.",
        {"name": "adafactor", "factored_from": 3, "momentum": 0.75, "decay_cap": 0.5, "momentum_dtype": "float32"},
    ),
    "adafactor_bfloat16": (
        "Adafactor whose momentum is kept in bfloat16.",
        {"name": "adafactor", "factored_from": 4, "momentum": 0.75, "momentum_dtype": "bfloat16"},
    ),
}
"""Case -> (purpose, optimiser)."""
RATES = [2.0**-4, 2.0**-5, 2.0**-4]


def cases() -> Iterator[Definition]:
    for name, (purpose, options) in OPTIMIZERS.items():
        inputs = {}
        for part, leaves in SHAPES.items():
            for leaf, shape in leaves.items():
                key, names = f"optimizer/{part}/{leaf}", [f"axis{axis}" for axis in range(len(shape))]
                values = np.zeros(shape) if leaf == "bias" else grid(f"{key}/value", shape, reach=1.0)
                inputs[f"params/{part}/{leaf}"] = tensor(values, " ".join(names))
                drawn = grid(f"{key}/gradient", (len(RATES), *shape), reach=1.0)
                # Only the first step has gradients that are too small to be clipped.
                drawn[0] /= 8
                inputs[f"gradients/{part}/{leaf}"] = tensor(drawn, " ".join(["steps", *names]))
        stage = stage_of("optimizer_steps", inputs, optimizer={**AROUND, **options}, rates=RATES)
        yield composed("vit", f"optimizer_{name}", "value", purpose, "model", inputs=inputs, stages=(stage,))


def _updates() -> Any:
    """Returns the module of the reference's update functions. Imports the module when a variant runs, not when cases are listed."""
    return import_module("moespec.backends.numpy.optimizers")


def _updating(optimizer: str, name: str, computes: str, update: Any, who: str = "") -> Variant:
    """Returns the variant that replaces the update function of `optimizer` with `update`."""

    def make_step(B: Spec, *arguments: Any, **options: Any) -> Any:
        step = B.make_step(*arguments, **options)

        def changed(state: Any, batch: Any, rate: float) -> Any:
            with patch.dict(_updates().UPDATES, {optimizer: update}):
                return step(state, batch, rate)

        return changed

    return Variant(name, computes, {"make_step": make_step}, "", who)


def _decay_in_momentum(p: Array, g: Array, kept: Any, n: int, d: float, options: Any) -> Any:
    return _updates().sgd(p, g + d * p, kept, n, 0.0, options)


def _ratio_only_with_decay(p: Array, g: Array, kept: Any, n: int, d: float, options: Any) -> Any:
    return (_updates().lamb if d else _updates().adamw)(p, g, kept, n, d, options)


def decay_without_rate(B: Spec, loss_function: Any, optimizer: Any, **options: Any) -> Any:
    """The learning-rate multiplier of a parameter does not multiply its weight decay."""
    if not optimizer.rates or optimizer.name != "adamw":
        return B.make_step(loss_function, optimizer, **options)
    paths = [path.split("/") for path in ("head/kernel", "experts/w1", "router/scale")]
    decays = {"/".join(p): optimizer.decay_of(p) / optimizer.rate_of(p) for p in paths if optimizer.rate_of(p)}
    decay = ", ".join(f"{name}={value}" for name, value in decays.items())
    return B.make_step(loss_function, replace(optimizer, decay=decay), **options)


def norm_with_frozen(B: Spec, loss_function: Any, optimizer: Any, **options: Any) -> Any:
    """The gradient norm includes the gradients of frozen parameters."""
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


def variants() -> Iterator[Variant]:
    computes = "The decay of SGD goes through the momentum."
    yield _updating("sgd", "decay_in_momentum", computes, _decay_in_momentum, "torch")
    computes = "LAMB scales only the parameters that decay."
    yield _updating("lamb", "trust_ratio_only_with_decay", computes, _ratio_only_with_decay, "timm, apex")
    yield variant(decay_without_rate, "make_step", who="big_vision")
    yield variant(norm_with_frozen, "make_step", who="vmoe")
