"""The options of each optimiser, and the arrays that each optimiser keeps for a parameter between steps.

`moespec.backends.numpy.optimizers` defines the updates in NumPy and cites the sources of the updates.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from moespec.spec import namespace
from moespec.spec.errors import ConfigError
from moespec.spec.own import OwnName, find_own, is_own
from moespec.spec.ranges import LARGEST

__all__ = ["OPTIMIZERS", "OWN_SLOTS", "SLOTS", "Optimizer", "OptimizerName", "factored_axes", "options_of", "slots_of"]

OptimizerName = Literal["adamw", "adam", "sgd", "lamb", "adafactor"] | OwnName
Shape = tuple[int, ...]

SMALLEST, BELOW_ONE = 2.0**-126, 1 - 2.0**-24
"""For float32: the smallest normal number, and the largest number below 1."""

SLOTS: Mapping[str, str] = {
    "mu": "the first moment",
    "nu": "the second moment",
    "row": "the row means of the second moment",
    "column": "the column means of the second moment",
    "trace": "the momentum",
    "ema": "the average",
}
"""The arrays that optimisers keep for parameters, by their names in an exported state."""
OWN_SLOTS = ("mu", "nu")


ADAM = {"b1": 0.9, "b2": 0.999, "epsilon": 1e-8, "momentum_dtype": "float32"}
ADAFACTOR = {
    **{"momentum": 0.9, "momentum_dtype": "bfloat16", "decay_rate": 0.8, "decay_cap": 0.999},
    **{"factored_from": 32, "epsilon": 1e-30},
}
OPTIMIZERS: Mapping[str, Mapping[str, Any]] = {
    "adamw": ADAM,
    "adam": ADAM,
    "sgd": {"momentum": 0.9, "nesterov": False},
    "lamb": {**ADAM, "epsilon": 1e-6},
    "adafactor": ADAFACTOR,
}
"""For each optimiser name, the options and their defaults."""


@dataclass(frozen=True)
class Optimizer:
    """A user-defined optimiser. `moespec.backends.optimizer` adds clipping, weight decay, rates and the average.

    update: a function `update(xp, p, g, kept, n) -> (u, kept)` of the parameter `p`, the clipped gradient `g`, the slots `kept` and the
        step `n = 1, 2, ...`. It returns the update `u` and the new slots. `update` must compute elementwise, with the operations of
        `xp` (NumPy, JAX or torch), because on a mesh, `p` is only a shard of the parameter.
    slots: the slots in use, from `mu` and `nu`. Slots have the shape of `p` and start at 0. Other slots and shapes raise ConfigError.
    """

    update: Callable[[Any, Any, Any, Mapping[str, Any], Any], tuple[Any, Mapping[str, Any]]]
    slots: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        tried, shapes = np.ones((2, 3)), dict.fromkeys(("u", *self.slots), (2, 3))
        u, kept = self.update(namespace, tried, tried, dict.fromkeys(self.slots, tried), 1)
        made = {name: np.shape(each) for name, each in {"u": u, **kept}.items()}
        if made != shapes or not set(self.slots) <= set(OWN_SLOTS):
            raise ConfigError(f"slots={self.slots!r}: expected slots from {OWN_SLOTS} and shapes {shapes}, got {made}")

    def in_numpy(self, p: Any, g: Any, kept: Mapping[str, Any], n: int, d: float, _: Any) -> tuple[Any, dict[str, Any]]:
        """Returns `u + d p` and the new slots, with the signature of the functions in `moespec.backends.numpy.optimizers`."""
        u, new = self.update(namespace, p, g, kept, n)
        return u + d * p, dict(new)


def options_of(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of the optimiser `name`, with the default for each option that is missing or None.

    Raises ConfigError for an unknown name, an option that this optimiser does not have, or a value out of range.
    """
    if name not in OPTIMIZERS and not is_own(name):
        raise ConfigError(f"name={name!r}: expected one of {', '.join(OPTIMIZERS)}, or package.module:object")
    known, changed = OPTIMIZERS.get(name, {}), {option: value for option, value in given.items() if value is not None}
    for option, value in changed.items():
        if option not in known:
            raise ConfigError(
                f"{option}={value!r}: the optimizer {name!r} does not have this option; it has {', '.join(known) or 'none'}"
            )
    options = {**known, **changed}
    _check(options)
    return options


def _check(options: Mapping[str, Any]) -> None:
    for name in ("b1", "b2", "momentum", "decay_cap"):
        if not 0.0 <= (value := options.get(name, 0.0)) <= BELOW_ONE:
            raise ConfigError(f"{name}={value!r}: expected a number in [0, 1), below 1 in float32")
    for name in ("epsilon", "decay_rate"):
        if not SMALLEST <= (value := options.get(name, 1.0)) <= LARGEST:
            raise ConfigError(f"{name}={value!r}: expected a number > 0 in float32")
    if (dtype := options.get("momentum_dtype", "float32")) not in ("bfloat16", "float32"):
        raise ConfigError(f"momentum_dtype={dtype!r}: expected 'bfloat16' or 'float32'")
    if type(nesterov := options.get("nesterov", False)) is not bool:
        raise ConfigError(f"nesterov={nesterov!r}: expected True or False")
    if nesterov and not options["momentum"]:
        raise ConfigError(f"nesterov={nesterov!r}: needs momentum, got momentum={options['momentum']!r}")
    if type(size := options.get("factored_from", 1)) is not int or size < 1:
        raise ConfigError(f"factored_from={size!r}: expected an integer >= 1")


def slots_of(name: str, options: Mapping[str, Any], shape: Shape) -> dict[str, Shape]:
    """Returns the shape of each array that an optimiser keeps for a parameter of this shape, by slot.

    Adam and LAMB keep both moments. SGD and Adafactor keep the momentum if `momentum` is not 0. If the shape has `factored_axes`, Adafactor
    keeps the means of the second moment along each of the two axes, and otherwise the whole second moment.
    """
    if is_own(name):
        return dict.fromkeys(find_own("optimizer.name", name, Optimizer).slots, shape)
    if name not in ("sgd", "adafactor"):
        return {"mu": shape, "nu": shape}
    slot = "trace" if name == "sgd" else "mu"
    momentum = {slot: shape} if options["momentum"] else {}
    if name == "sgd":
        return momentum
    axes = factored_axes(shape, options["factored_from"])
    if axes is None:
        return {**momentum, "nu": shape}
    lesser, largest = axes
    return {**momentum, "row": _without(shape, largest), "column": _without(shape, lesser)}


def factored_axes(shape: Sequence[int], least: int) -> tuple[int, int] | None:
    """The two largest axes, largest last, or None if fewer than two axes have at least `least` entries. Of equal axes, the later is larger.

    Source: optax, optax/_src/factorized.py, _factored_dims.

    >>> factored_axes((8, 64, 32), 16), factored_axes((8, 64), 16)
    ((2, 1), None)
    """
    if len(shape) < 2:
        return None
    *_, lesser, largest = sorted(range(len(shape)), key=lambda axis: shape[axis])
    return (lesser, largest) if shape[lesser] >= least else None


def _without(shape: Shape, axis: int) -> Shape:
    return shape[:axis] + shape[axis + 1 :]
