"""What classification minimises, by name, on the arrays of any backend."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from moespec.backends import numpy as reference
from moespec.backends.contract import Backend
from moespec.models.checks import called
from moespec.spec.errors import ConfigError
from moespec.spec.own import is_own, own_function

__all__ = ["loss_of", "try_loss"]

Array = Any


def loss_of(B: Backend | ModuleType, kind: str) -> Callable[[Array, Array], Array]:
    """`loss(logits, targets)`, both `(N, classes)`, to the loss of each image, `(N,)`.

    kind: "softmax" (targets are the probabilities of exclusive classes), "sigmoid" (each class by itself, summed over classes), or
    the user's `package.module:function`, called as `function(B, logits, targets)`: its operations are those of `B` and `B.xp`.
    Evaluation computes it with NumPy.
    """
    if not is_own(kind):
        return {"softmax": B.softmax_cross_entropy, "sigmoid": B.sigmoid_cross_entropy}[kind]
    function = own_function("training.loss", kind)

    def loss(logits: Array, targets: Array) -> Array:
        losses = function(B, logits, targets)
        if (shape := tuple(getattr(losses, "shape", ()))) != (images := logits.shape[0],):
            found = f"{type(losses).__name__} of the shape {shape}"
            raise ConfigError(f"training.loss={kind!r}: returned {found}, expected ({images},), the loss of each image")
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
