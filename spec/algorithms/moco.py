"""MoCo v3: the query of one view of an image must match the key that a momentum encoder computes from the other view.

| here | MoCo v3 (arXiv 2104.02057) | MoCo (arXiv 1911.05722) |
|---|---|---|
| `first_query`, `second_query` (n, D) | q1, q2 | q |
| `first_key`, `second_key` (n, D) | k1, k2 | k |
| `temperature` | tau | tau |
| `average`, `current` | f_m, f_b | theta_k, theta_q |
| `decay` | m | m |

Ambiguity ledger

MO-1: What does "dim 4096" in the table of Sparse-MLP refer to?
    Reading: the hidden layers of the projector and the predictor have width 4096. Both outputs have width 256.
        By: facebookresearch/moco-v3, moco/builder.py, MoCo (the defaults).
    Alternative b: the outputs of the projector and the predictor, which the loss compares, have width 4096.
MO-2: What does "t 1" in the table of Sparse-MLP mean?
    Reading: the temperature is 1, and "m 0.99" is the decay of the momentum encoder. Both are constant in training.
        By: facebookresearch/moco-v3, main_moco.py (the defaults).
    Alternative b: the temperature is 0.2, and the decay increases from 0.99 to 1 along a half cosine.
        By: facebookresearch/moco-v3, CONFIG.md, for vision transformers.
MO-3: Is the cross-entropy multiplied by twice the temperature?
    Reading: yes, the cross-entropy is multiplied by twice the temperature.
        By: the paper, Algorithm 1; facebookresearch/moco-v3, moco/builder.py, MoCo.contrastive_loss.
    Alternative b: no, the cross-entropy is not multiplied by a factor.
        By: MoCo (arXiv 1911.05722), eq. (1).
MO-4: When is the momentum encoder updated?
    Reading: the encoder is updated from the parameters that compute the queries. The keys are computed after the update.
        By: facebookresearch/moco-v3, moco/builder.py, MoCo.forward.
    Alternative b: after the optimiser step, from the new parameters. The keys are the same because both encoders start equal.
        By: the paper, Algorithm 1.
    Alternative c: the encoder is updated after the keys are computed, but before the optimiser step.
MO-5: Over which images does batch normalisation compute the mean and variance?
    Reading: the statistics cover the images of one view on all devices, in both encoders.
        By: facebookresearch/moco-v3, main_moco.py, main_worker (SyncBatchNorm).
    Alternative b: the statistics cover the images on one device.
MO-6: How do routers in the momentum encoder route?
    Reading: routers behave as at evaluation, with the evaluation capacity, no noise and no auxiliary losses. No source specifies this.
    Alternative b: routers behave as in training, with the training capacity, but without noise.
MO-7: How does the l2 normalisation use epsilon?
    Reading: epsilon is the smallest denominator: `x / max(norm, 1e-12)`, as in torch's `normalize`.
        By: facebookresearch/moco-v3, moco/builder.py, MoCo.contrastive_loss.
    Alternative b: epsilon is added to the norm: `x / (norm + 1e-8)`, as in `contrastive_loss`.
"""

from typing import Any

import numpy as np

from moespec.spec.algorithm import Algorithm
from moespec.spec.checks import check_positive, check_same_shape
from moespec.spec.errors import ContractError, ShapeError
from moespec.spec.numerics import Array, Leading, Shared, logsumexp, normalize_l2, stop_gradient, variance
from moespec.spec.values import as_array, as_scalar

__all__ = ["batch_norm", "moco_loss", "momentum_update"]

ALGORITHMS = (
    Algorithm(
        "moco", "Chen et al. 2021 (arXiv 2104.02057), Algorithm 1", 2, ("batch_norm", "moco_loss", "momentum_update")
    ),
)

EPSILON = 1e-12
"""Lower bound on the norms in the denominators."""


def moco_loss(
    first_query: Shared, second_query: Shared, first_key: Shared, second_key: Shared, *, temperature: float = 1.0
) -> Array:
    """Computes the symmetric contrastive loss that matches each query with the key of the other view of the same image:

        loss = ctr(first_query, second_key) + ctr(second_query, first_key)
        ctr(q, k) = 2 temperature / n sum_i (log sum_j exp(l[i, j]) - l[i, i])
        l[i, j] = <l2n(q[i]), l2n(k[j])> / temperature,    l2n(x) = x / max(norm(x), 1e-12)

    Keys carry no gradient.

    Args:
        first_query: (batch, width), the predictor's outputs for the first views, not normalised.
        second_query: (batch, width), the predictor's outputs for the second views.
        first_key: (batch, width), the momentum encoder's projector outputs for the first views.
        second_key: (batch, width), the momentum encoder's projector outputs for the second views.
        temperature: greater than 0.

    Returns:
        A scalar, at least 0.

    Source: MoCo v3 (arXiv 2104.02057), Algorithm 1; facebookresearch/moco-v3, moco/builder.py, MoCo.forward.

    >>> views = [[1.0, 0.0], [0.0, 2.0]], [[3.0, 4.0], [0.0, 1.0]]
    >>> round(float(moco_loss(*views, *views, temperature=0.5)), 10)
    0.9081204916
    """
    temperature = check_positive("temperature", temperature)
    rows = {"first_query": first_query, "second_query": second_query}
    rows |= {"first_key": first_key, "second_key": second_key}
    units: dict[str, Array] = {}
    for name, value in rows.items():
        array = as_array(name, value, "batch width")
        check_same_shape(name, array, "first_query", units.get("first_query", array))
        units[name] = normalize_l2(array, 1, form="clamped", epsilon=EPSILON)
    ways = (units["first_query"], units["second_key"]), (units["second_query"], units["first_key"])
    first, second = (_contrast(query, stop_gradient(key), temperature) for query, key in ways)
    return first + second


def _contrast(query: Array, key: Array, temperature: float) -> Array:
    """Computes `ctr` of `moco_loss` for normalised rows."""
    logits = np.einsum("id,jd->ij", query, key) / temperature
    own = np.sum(logits * np.eye(len(logits)), axis=1)
    return 2 * temperature * np.mean(logsumexp(logits, axis=1) - own)


def momentum_update(average: Leading, current: Leading, decay: Shared) -> Array:
    """Returns `decay * average + (1 - decay) * current` for one parameter array.

    Args:
        average: any shape, parameters of the momentum encoder.
        current: the same shape, parameters of the trained encoder.
        decay: a scalar, from 0 to 1.

    Returns:
        The new average, of the same shape.

    Raises:
        ContractError: `decay` is out of range.

    Source: MoCo (arXiv 1911.05722), eq. (2); facebookresearch/moco-v3, moco/builder.py, MoCo._update_momentum_encoder.

    >>> momentum_update([1.0, 0.0], [0.0, 4.0], 0.75).tolist()
    [0.75, 1.0]
    """
    average = as_array("average", average, "...")
    current = as_array("current", current, "...")
    check_same_shape("current", current, "average", average)
    decay = as_scalar("decay", decay)
    if not 0 <= decay.real <= 1:
        raise ContractError(f"decay: expected a number from 0 to 1, got {decay.real:g}")
    return decay * average + (1 - decay) * current


def batch_norm(x: Shared, *, epsilon: float = 1e-5) -> Array:
    """Computes `(x - mean) / sqrt(variance + epsilon)` for each feature, with the mean and the population variance of the batch.

    The normalisation has no scale and no bias. Evaluation skips the layers that use it, so running statistics are not needed.

    Args:
        x: (batch, width), all images of the batch.
        epsilon: greater than 0.

    Returns:
        (batch, width).

    Raises:
        ShapeError: the batch has only one image, for which all features would become 0.

    Source: Ioffe and Szegedy 2015 (arXiv 1502.03167), Algorithm 1; facebookresearch/moco-v3, moco/builder.py,
    MoCo._build_mlp.

    >>> batch_norm([[1.0, 5.0], [3.0, 5.0]], epsilon=3.0).tolist()
    [[-0.5, 0.0], [0.5, 0.0]]
    """
    x = as_array("x", x, "batch width")
    check_batch(x)
    check_positive("epsilon", epsilon)
    return (x - np.mean(x, axis=0)) / np.sqrt(variance(x, axis=0) + epsilon)


def check_batch(x: Any) -> None:
    """Raises `ShapeError` for a batch of one image."""
    if x.shape[0] < 2:
        raise ShapeError(f"x: batch normalisation needs at least 2 images, got shape {tuple(x.shape)}")
