"""The optimiser that all backends share: AdamW with decoupled weight decay and a global-norm clip.

One update of a parameter `p` with gradient `g` at step `n = 1, 2, ...` and learning rate `r`:

    g  <- g * min(1, clip / ||all gradients||_2)          (when `clip` is given)
    mu <- b1 mu + (1 - b1) g
    nu <- b2 nu + (1 - b2) g^2
    p  <- p - r * (mu / (1 - b1^n)) / (sqrt(nu / (1 - b2^n)) + epsilon)  -  r * weight_decay * p    (if `decays(path)`)

A constant that travels with the parameters (`CONSTANTS`) has the gradient 0 and no decay, so it stays as it is, bit for
bit: mu and nu stay 0, and so does the update.

Source: Loshchilov and Hutter 2019, Algorithm 2 (decoupled decay, times the learning rate, as in optax and torch).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from moespec.spec.errors import ConfigError
from moespec.spec.ranges import LARGEST

__all__ = ["CONSTANTS", "DECAYED", "OptimizerConfig", "decays"]

DECAYED = frozenset({"kernel", "w1", "w2", "slots"})
"""Names of the parameters that weight decay applies to: matrices, but neither biases, norms, positions nor scales."""


CONSTANTS = frozenset({"codebook", "tables"})
"""Names of what is kept among the parameters but not trained: no gradient reaches it."""


def decays(path: Sequence[str]) -> bool:
    """Whether weight decay applies to the parameter at `path` (the keys from the root of the parameter tree)."""
    return bool(path) and path[-1] in DECAYED


SMALLEST, BELOW_ONE = 2.0**-126, 1 - 2.0**-24
"""Of float32: the least normal number, and the one below 1."""


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW: the static arguments of the optimiser. Raises ConfigError for a value outside its range."""

    b1: float = 0.9
    """decay of Adam's first moment"""
    b2: float = 0.999
    """decay of Adam's second moment"""
    epsilon: float = 1e-8
    """added to the square root of the bias-corrected second moment"""
    weight_decay: float = 0.0
    """decoupled decay, multiplied by the learning rate, for matrices (see `decays`)"""
    clip: float | None = None
    """largest global norm of the gradient, or None"""

    def __post_init__(self) -> None:
        for name in ("b1", "b2"):
            value = getattr(self, name)
            if not 0.0 <= value <= BELOW_ONE:
                raise ConfigError(f"{name}={value!r}: expected a number in [0, 1), below 1 as float32 too")
        if not SMALLEST <= self.epsilon <= LARGEST:
            raise ConfigError(f"epsilon={self.epsilon!r}: expected a positive number, as float32 too")
        if not 0.0 <= self.weight_decay <= LARGEST:
            raise ConfigError(f"weight_decay={self.weight_decay!r}: expected a number >= 0 that is finite as float32")
        if self.clip is not None and not SMALLEST <= self.clip <= LARGEST:
            raise ConfigError(f"clip={self.clip!r}: expected a positive number, as float32 too, or None")
