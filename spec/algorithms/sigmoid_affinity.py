"""Affinities that score each expert independently: the sigmoid and the square root of the softplus."""

import numpy as np

from moespec.spec.array_like import ArrayLike
from moespec.spec.numerics import Array, sigmoid, softplus
from moespec.spec.values import as_array

__all__ = ["sigmoid_affinity", "sqrt_softplus_affinity"]


def sigmoid_affinity(logits: ArrayLike) -> Array:
    """Computes the sigmoid of each logit, `1 / (1 + exp(-L[t, e]))`. The score of an expert depends only on the logit of this expert.

    Args:
        logits: L, (tokens, experts).

    Returns:
        (tokens, experts), from 0 to 1.

    Source: NVIDIA/Megatron-LM, megatron/core/transformer/moe/router.py, TopKRouter.sinkhorn_load_balancing (topk == 1).

    >>> sigmoid_affinity([[0.0, 1.0]]).round(10).tolist()
    [[0.5, 0.7310585786]]
    """
    return sigmoid(as_array("logits", logits, "tokens experts"))


def sqrt_softplus_affinity(logits: ArrayLike) -> Array:
    """Computes the square root of the softplus of each logit, `sqrt(log(1 + exp(L[t, e])))`.

    Args:
        logits: L, (tokens, experts).

    Returns:
        (tokens, experts), at least 0.

    Source: NVIDIA/Megatron-LM, megatron/core/transformer/moe/moe_utils.py, topk_routing_with_score_function.

    >>> sqrt_softplus_affinity([[0.0, 1.0]]).round(10).tolist()
    [[0.8325546112, 1.1459763032]]
    """
    return np.sqrt(softplus(as_array("logits", logits, "tokens experts")))
