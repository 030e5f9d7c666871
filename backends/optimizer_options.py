"""The options of each optimiser by its name, and what it keeps of a parameter from step to step.

What an update computes is said in `moespec.backends.numpy.optimizers`, in NumPy, with its source.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from moespec.spec.errors import ConfigError
from moespec.spec.ranges import LARGEST

__all__ = [
    "OPTIMIZERS",
    "SLOTS",
    "Adafactor",
    "Adam",
    "Lamb",
    "OptimizerName",
    "Options",
    "Sgd",
    "factored_axes",
    "options_of",
]

OptimizerName = Literal["adamw", "adam", "sgd", "lamb", "adafactor"]
Shape = tuple[int, ...]

SMALLEST, BELOW_ONE = 2.0**-126, 1 - 2.0**-24
"""Of float32: the least normal number, and the one below 1."""

SLOTS: Mapping[str, str] = {
    "mu": "the first moment",
    "nu": "the second moment",
    "row": "the row means of the second moment",
    "column": "the column means of the second moment",
    "trace": "the momentum",
    "ema": "the average",
}
"""What optimisers keep of a parameter, by the name that it has in an exported state."""


class Options:
    """The options of an optimiser. Raises ConfigError, which names the option, for a value outside its range."""

    def __post_init__(self) -> None:
        for name in ("b1", "b2", "momentum", "decay_cap"):
            value = getattr(self, name, 0.0)
            if not 0.0 <= value <= BELOW_ONE:
                raise ConfigError(f"{name}={value!r}: expected a number in [0, 1), below 1 as float32 too")
        for name in ("epsilon", "decay_rate"):
            value = getattr(self, name, 1.0)
            if not SMALLEST <= value <= LARGEST:
                raise ConfigError(f"{name}={value!r}: expected a positive number, as float32 too")
        dtype = getattr(self, "momentum_dtype", "float32")
        if dtype not in ("bfloat16", "float32"):
            raise ConfigError(f"momentum_dtype={dtype!r}: expected 'bfloat16' or 'float32'")

    def slots(self, shape: Shape) -> dict[str, Shape]:
        """The arrays that are kept of a parameter of this shape: name of the slot and shape."""
        raise NotImplementedError


@dataclass(frozen=True)
class Adam(Options):
    """AdamW, and Adam with the decay in the gradient."""

    b1: float = 0.9
    b2: float = 0.999
    epsilon: float = 1e-8
    momentum_dtype: Literal["bfloat16", "float32"] = "float32"

    def slots(self, shape: Shape) -> dict[str, Shape]:
        """Both moments."""
        return {"mu": shape, "nu": shape}


@dataclass(frozen=True)
class Lamb(Adam):
    """LAMB."""

    epsilon: float = 1e-6


@dataclass(frozen=True)
class Sgd(Options):
    """Stochastic gradient descent."""

    momentum: float = 0.9
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.nesterov) is not bool:
            raise ConfigError(f"nesterov={self.nesterov!r}: expected True or False")
        if self.nesterov and not self.momentum:
            raise ConfigError(f"nesterov={self.nesterov!r}: there is no momentum (momentum={self.momentum!r})")

    def slots(self, shape: Shape) -> dict[str, Shape]:
        """The momentum, if there is any."""
        return {"trace": shape} if self.momentum else {}


@dataclass(frozen=True)
class Adafactor(Options):
    """Adafactor as big_vision has it. The second moment of `factored_axes` is kept as its means along each of the two."""

    momentum: float = 0.9
    momentum_dtype: Literal["bfloat16", "float32"] = "bfloat16"
    decay_rate: float = 0.8
    decay_cap: float = 0.999
    factored_from: int = 32
    epsilon: float = 1e-30

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.factored_from) is not int or self.factored_from < 1:
            raise ConfigError(f"factored_from={self.factored_from!r}: expected an integer of at least 1")

    def slots(self, shape: Shape) -> dict[str, Shape]:
        """The momentum, if there is any; and the second moment, whole or as its means along two axes."""
        momentum = {"mu": shape} if self.momentum else {}
        axes = factored_axes(shape, self.factored_from)
        if axes is None:
            return {**momentum, "nu": shape}
        lesser, largest = axes
        return {**momentum, "row": _without(shape, largest), "column": _without(shape, lesser)}


OPTIMIZERS: Mapping[str, type[Options]] = {
    "adamw": Adam,
    "adam": Adam,
    "sgd": Sgd,
    "lamb": Lamb,
    "adafactor": Adafactor,
}
"""Name -> class of its options."""


def options_of(name: str, given: Mapping[str, Any]) -> Options:
    """The options of the optimiser `name`, where None stands for its default.

    Raises ConfigError for an unknown name, an option that this optimiser does not have, or a value outside its range.
    """
    if name not in OPTIMIZERS:
        raise ConfigError(f"name={name!r}: expected one of {', '.join(OPTIMIZERS)}")
    kind: Any = OPTIMIZERS[name]
    known = [field.name for field in fields(kind)]
    set_ = {option: value for option, value in given.items() if value is not None}
    for option, value in set_.items():
        if option not in known:
            raise ConfigError(
                f"{option}={value!r}: the optimizer {name!r} does not have this option; it has {', '.join(known)}"
            )
    options: Options = kind(**set_)
    return options


def factored_axes(shape: Sequence[int], least: int) -> tuple[int, int] | None:
    """The second largest and the largest axis (of equal ones the later is the larger), or None: not both have `least`.

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
