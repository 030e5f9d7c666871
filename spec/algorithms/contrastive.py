"""Contrastive losses: the features of an image should be more similar to its own text's features than to any other text's.

| here | SigLIP (arXiv 2303.15343) | CLIP (arXiv 2103.00020), Figure 3 |
|---|---|---|
| `first` (n, D) | x, of images | I_e, before the norm |
| `second` (n, D) | y, of texts | T_e, before the norm |
| `log_scale` s | t' | t |
| `bias` | b | |
| sign z (n, n) | z | |

Ambiguity ledger

CO-1: With which rows is a row compared if several devices share the batch?
    Reading: a row is compared with the rows of all devices. The gradient is the same as on one device.
        By: google-research/big_vision, big_vision/trainers/proj/image_text/siglip.py, update_fn.
    Alternative b: a row is compared with the rows of all devices. The rows of other devices are treated as constants.
        By: mlfoundations/open_clip, src/open_clip/loss.py, gather_features (without gather_with_grad).
    Alternative c: a row is compared only with the rows of the same device.
CO-2: Is the scale limited by an upper bound?
    Reading: no, the scale is not limited.
        By: google-research/big_vision, big_vision/models/proj/image_text/two_towers.py, Model; google-research/vmoe,
        vmoe/projects/contrastive/models.py, TwoTower.
    Alternative b: yes, the scale is limited to at most 100.
        By: CLIP (arXiv 2103.00020), section 2.5.
CO-3: How does the l2 normalisation use epsilon?
    Reading: epsilon is added to the norm: `x / (norm + 1e-8)`.
        By: google-research/big_vision, big_vision/models/proj/image_text/two_towers.py, Model; google-research/vmoe,
        vmoe/projects/contrastive/models.py, TwoTower.
    Alternative b: the l2 normalisation uses no epsilon.
        By: openai/CLIP, clip/model.py, CLIP.forward.
CO-4: Are the two directions of the softmax loss averaged?
    Reading: yes, the loss is the mean of both directions.
        By: CLIP (arXiv 2103.00020), Figure 3; google-research/big_vision,
        big_vision/trainers/proj/image_text/_deprecated_contrastive.py, softmax_loss.
    Alternative b: no, the two directions are summed.
        By: ALIGN (arXiv 2102.05918), section 4.1.
CO-5: By which number does the sigmoid loss divide the sum over pairs?
    Reading: the loss divides by the number of rows, n.
        By: the paper, eq. (1); google-research/big_vision, big_vision/trainers/proj/image_text/siglip.py,
        update_fn; google-research/vmoe, vmoe/projects/contrastive/trainer.py, sigmoid_loss.
    Alternative b: the loss divides by the number of pairs, n^2.
CO-6: What are the initial values of the scale and the bias?
    Reading: the scale starts at 10 and the bias at -10.
        By: the paper, section 3.2.
    Alternative b: the scale starts at 1 / 0.07, and there is no bias.
        By: CLIP (arXiv 2103.00020), section 2.5.
    Alternative c: the scale starts at 10 and the bias at -2.71.
        By: google-research/big_vision, big_vision/configs/proj/image_text/siglip_lit_coco.py, get_config.
"""

import numpy as np

from moespec.spec.algorithm import Algorithm
from moespec.spec.checks import check_same_shape
from moespec.spec.numerics import Array, Shared, logsumexp, normalize_l2, softplus
from moespec.spec.values import as_array, as_scalar

__all__ = ["contrastive_loss", "sigmoid_loss"]

ALGORITHMS = (
    Algorithm("contrastive_loss", "Radford et al. 2021 (arXiv 2103.00020), Figure 3", 1, ("contrastive_loss",)),
    Algorithm("sigmoid_loss", "Zhai et al. 2023 (arXiv 2303.15343), eq. (1)", 1, ("sigmoid_loss",)),
)

EPSILON = 1e-8
"""Added to the norms in the denominators."""


def contrastive_loss(first: Shared, second: Shared, log_scale: Shared) -> Array:
    """Computes the mean cross-entropy of matching each image to its text and each text to its image:

        l[i, j] = exp(log_scale) <l2n(first[i]), l2n(second[j])>,    l2n(x) = x / (norm(x) + 1e-8)
        loss = 1 / (2 n) sum_i (log sum_j exp(l[i, j]) + log sum_j exp(l[j, i]) - 2 l[i, i])

    Args:
        first: (pairs, width), the features of one tower, not normalised.
        second: (pairs, width), the features of the other tower; row i matches row i of `first`.
        log_scale: a trainable scalar, the negative logarithm of the temperature.

    Returns:
        A scalar, at least 0; log n if all features are equal.

    Source: CLIP (arXiv 2103.00020), Figure 3; LiT (arXiv 2111.07991), section 3;
    google-research/big_vision, big_vision/trainers/proj/image_text/_deprecated_contrastive.py, softmax_loss.

    >>> first, second = [[1.0, 0.0], [0.0, 2.0]], [[3.0, 4.0], [0.0, 1.0]]
    >>> round(float(contrastive_loss(first, second, np.log(10.0))), 10)
    0.5640942829
    """
    logits = logits_of(first, second, log_scale)
    directions = logsumexp(logits, axis=0) + logsumexp(logits, axis=1)
    return np.mean(directions) / 2 - np.mean(np.sum(logits * np.eye(len(logits)), axis=1))


def sigmoid_loss(first: Shared, second: Shared, log_scale: Shared, bias: Shared) -> Array:
    """Computes the loss of classifying every pair of rows as matching or not, summed over all pairs and divided by n:

        loss = -1 / n sum_i,j log sigmoid(z[i, j] (l[i, j] + bias)),    z[i, i] = 1, else -1

    with the logits l of `contrastive_loss`.

    Args:
        first: (pairs, width), the features of one tower, not normalised.
        second: (pairs, width), the features of the other tower; row i matches row i of `first`.
        log_scale: a trainable scalar, as in `contrastive_loss`.
        bias: a trainable scalar that compensates for the larger number of pairs that do not match.

    Returns:
        A scalar, at least 0.

    Source: SigLIP (arXiv 2303.15343), eq. (1); google-research/vmoe, vmoe/projects/contrastive/trainer.py, sigmoid_loss.

    >>> first, second = [[1.0, 0.0], [0.0, 2.0]], [[3.0, 4.0], [0.0, 1.0]]
    >>> round(float(sigmoid_loss(first, second, np.log(10.0), -10.0)), 10)
    2.4191353287
    """
    logits = logits_of(first, second, log_scale) + as_scalar("bias", bias)
    signs = 2 * np.eye(len(logits)) - 1
    return np.mean(np.sum(softplus(-signs * logits), axis=1))


def logits_of(first: Shared, second: Shared, log_scale: Shared) -> Array:
    """Returns the scaled cosine of each row of `first` with each row of `second`, (pairs, pairs)."""
    first = as_array("first", first, "pairs width")
    second = as_array("second", second, "pairs width")
    check_same_shape("second", second, "first", first)
    scale = np.exp(as_scalar("log_scale", log_scale))
    first, second = (normalize_l2(rows, 1, form="paper", epsilon=EPSILON) for rows in (first, second))
    return scale * np.einsum("id,jd->ij", first, second)
