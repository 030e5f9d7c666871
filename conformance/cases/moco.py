"""Cases of MoCo v3: the loss, the moving average of the encoder, and the normalisation of projector and predictor."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from moespec.backends.blocks import Array
from moespec.conformance.author.definition import Definition, single, tensor
from moespec.conformance.author.inputs import grid
from moespec.conformance.author.variant import Spec, Variant, scaled, variant
from moespec.conformance.format import Tensor
from moespec.conformance.functions.losses import cosines
from moespec.spec.numerics import logsumexp

AXES = "batch width"
ROWS = ("first_query", "second_query", "first_key", "second_key")
case = partial(single, "moco")


def cases() -> Iterator[Definition]:
    yield from _moco_loss()
    yield from _momentum_update()
    yield from _batch_norm()


def _moco_loss() -> Iterator[Definition]:
    def drawn(name: str, batch: int = 4) -> dict[str, Any]:
        return {n: grid(f"moco/{name}/{n}", (batch, 3)) for n in ROWS}

    def loss(name: str, kind: str, purpose: str, *flags: str, rows: Any = None, **options: Any) -> Definition:
        tensors: dict[str, Any] = {n: tensor(array, AXES) for n, array in (rows or drawn(name)).items()}
        return case("moco_loss", name, kind, purpose, *flags, **tensors, **options)

    yield loss("values", "value", "A temperature of 1, the default.")
    purpose, six = "Logits whose exponential overflows.", drawn("large", 6)
    yield loss("large", "value", purpose, "large_logits", rows=six, temperature=2.0**-10)
    purpose, faint = "Features so small that an epsilon which is added counts.", drawn("faint")
    faint |= {n: faint[n] * 2.0**-26 for n in ROWS[:2]}
    yield loss("faint", "value", purpose, "norm_form", rows=faint, temperature=0.2)
    zero, equal = drawn("zero"), drawn("equal_views")
    zero["first_query"] *= 0
    yield loss("zero", "degenerate", "Features of 0.", "norm_form", rows=zero)
    equal |= {f"second_{n}": equal[f"first_{n}"] for n in ("query", "key")}
    yield loss("one_image", "degenerate", "One image.", "degenerate_size", rows=drawn("one_image", 1))
    yield loss("gradient", "gradient", "By the queries.", temperature=0.2, by=ROWS[:2])


def _momentum_update() -> Iterator[Definition]:
    """Returns cases without gradients, since a backend may update the moving average outside the gradient computation."""

    def update(name: str, kind: str, purpose: str, decay: float) -> Definition:
        rows = {n: tensor(grid(f"moco/{name}/{n}", (2, 3)), "inputs outputs") for n in ("average", "current")}
        inputs: dict[str, Any] = {**rows, "decay": tensor(np.float32(decay), "")}
        return case("momentum_update", f"update_{name}", kind, purpose, **inputs)

    yield update("slow", "value", "A decay near 1.", 0.98828125)
    yield update("replaced", "degenerate", "A decay of 0 replaces it.", 0.0)


def _batch_norm() -> Iterator[Definition]:
    def norm(name: str, kind: str, purpose: str, *flags: str, x: Tensor | None = None, **options: Any) -> Definition:
        x = tensor(grid(f"moco/norm/{name}", (6, 4)), AXES) if x is None else x
        return case("batch_norm", f"norm_{name}", kind, purpose, *flags, x=x, **options)

    population = "population_variance"
    yield norm("values", "value", "Of each feature.", population)
    two = tensor(grid("moco/norm/two", (2, 4)), AXES)
    yield norm("two_images", "degenerate", "The smallest batch.", population, "degenerate_size", x=two)
    shifted = tensor(grid("moco/norm/shifted", (6, 4), centre=20.0), AXES)
    yield norm("shifted", "value", "A mean that is larger than the spread.", x=shifted)
    yield norm("epsilon", "value", "A large epsilon.", epsilon=0.5)
    yield norm("constant", "degenerate", "Constant features become 0.", x=tensor(np.full((3, 2), 0.75), AXES))
    yield norm("gradient", "gradient", "By the features.", population)


def epsilon_added_to_the_norm(B: Spec, *, temperature: float = 1.0, **rows: Any) -> Array:
    """The MoCo loss adds 1e-8 to the norms."""
    logits = [each / temperature for each in cosines(rows, "paper", 1e-8)]
    return 2 * temperature * sum(np.mean(logsumexp(each, axis=1) - np.diag(each)) for each in logits)


def norm_of_half(B: Spec, x: Array, **options: Any) -> Array:
    """The batch norm computes mean and variance per half of the batch, as on two devices."""
    halves = np.split(x, [len(x) // 2]) if len(x) > 3 else [x]
    return np.concatenate([B.batch_norm(half, **options) for half in halves])


def variants() -> Iterator[Variant]:
    computes = "The cross-entropies of MoCo are not multiplied by twice the temperature."
    yield scaled("loss_without_its_factor", computes, "MO-3b", moco_loss=lambda temperature, **_: 0.5 / temperature)
    computes = "The loss is the mean over both views, not their sum."
    yield scaled("mean_over_both_views", computes, "MO-3", moco_loss=lambda **_: 0.5)
    yield variant(epsilon_added_to_the_norm, "moco_loss", ledger="MO-7b")
    yield variant(norm_of_half, "batch_norm", ledger="MO-5b")
