"""What classification minimises, by name, on the arrays of any backend."""

from collections.abc import Callable
from typing import Any

import numpy as np

from moespec.backends import numpy as reference
from moespec.backends.contract import Backend
from moespec.models.checks import called
from moespec.spec.errors import ConfigError
from moespec.spec.own import is_own, own_function

__all__ = ["loss_of", "try_loss"]

Array = Any


def loss_of(B: Backend, kind: str) -> Callable[[Array, Array], Array]:
    """`loss(logits, targets)`, both `(N, classes)`, to the loss of each image, `(N,)`.

    kind: "softmax" (targets are the probabilities of exclusive classes), "sigmoid" (each class by itself, summed over classes), or
    the user's `package.module:function`, called as `function(B, logits, targets)`: it takes its operations from `B` and `B.xp`, so that
    it is the same with NumPy, which evaluates it, JAX and torch. Raises ConfigError for one that returns something else.
    """
    if not is_own(kind):
        return {"softmax": B.softmax_cross_entropy, "sigmoid": B.sigmoid_cross_entropy}[kind]
    function, what = own_function("training.loss", kind), f"training.loss={kind!r}"

    def loss(logits: Array, targets: Array) -> Array:
        losses = function(B, logits, targets)
        if (shape := getattr(losses, "shape", None)) is None or tuple(shape) != tuple(logits.shape[:1]):
            found = type(losses).__name__ if shape is None else f"an array {tuple(shape)}"
            raise ConfigError(f"{what}: returned {found}, expected the loss of each image, ({logits.shape[0]},)")
        return losses

    return loss


def try_loss(kind: str, classes: int) -> None:
    """ConfigError for a loss of the user that NumPy cannot compute of a few images, or that is not finite."""
    if is_own(kind):
        logits = np.random.default_rng(0).normal(size=(3, classes))
        what, targets = f"training.loss={kind!r}", np.eye(classes)[np.arange(3) % classes]
        losses = called(what, loss_of(reference, kind), logits, targets)
        if not np.isfinite(losses).all():
            raise ConfigError(f"{what}: returned {losses}, expected finite numbers")
