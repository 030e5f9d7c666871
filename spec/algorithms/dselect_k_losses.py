"""The losses of DSelect-k, which drive each selector to a single expert and away from codes without an expert.

See `dselect_k` for the symbols.

Ambiguity ledger

DK-3: Are the losses of a per-token gate summed or averaged over the tokens?
    Reading: the losses are summed over the tokens of a group and averaged over the groups, like every other loss.
        By: google-research/google-research, dselect_k_moe/dselect_k_moe.py,
        EntropyRegularizer and DSelectKGate._add_regularization_loss.
    Alternative b: the losses are averaged over the tokens.
DK-4: What are the default weights of the losses of DSelect-k?
    Reading: 1e-6 for the entropy, as in the public regularizer, and 1e-4 for the reachability, which is summed over the
        tokens of a group. With the public code's weight of 1, a gate over 5 experts starts with a loss of 1.6 per token and selector.
    Alternative b: no entropy loss unless a regularizer is passed, and a weight of 1 for the reachability.
        By: google-research/google-research, dselect_k_moe/dselect_k_moe.py,
        DSelectKGate (entropy_reg=None).
    Alternative c: a schedule increases the weight of the entropy during training.
DK-5: Are the losses of DSelect-k also computed at evaluation?
    Reading: yes, as in most routers, although nothing is trained at evaluation.
    Alternative b: no, the losses are computed only in training.
        By: google-research/google-research, dselect_k_moe/dselect_k_moe.py,
        DSelectKGate.call.
DK-6: What is the reachability loss of a selector without mass on any expert?
    Reading: 1e6, without a gradient. A mass below 1e-6 is replaced with 1e-6, so the loss stays finite.
    Alternative b: the reachability loss is infinite.
        By: google-research/google-research, dselect_k_moe/dselect_k_moe.py,
        DSelectKGate._add_regularization_loss.
"""

import numpy as np

from moespec.spec.algorithms.dselect_k import selectors_of
from moespec.spec.array_like import ArrayLike
from moespec.spec.numerics import Array

__all__ = ["dselect_k_entropy", "dselect_k_reachability"]

EPSILON = 1e-6
"""The entropy loss adds this number inside the logarithm. The reachability loss replaces smaller masses with it."""


def dselect_k_entropy(selectors: ArrayLike) -> Array:
    """Computes `-sum r log(r + 1e-6)` over selectors, experts and tokens. The loss is close to 0 if each selector chooses one expert.

    Args:
        selectors: r, (..., choices, experts).

    Returns:
        A scalar.

    Source: google-research/google-research, dselect_k_moe/dselect_k_moe.py,
    EntropyRegularizer.

    >>> from moespec.spec import dselect_k_selectors
    >>> selectors = dselect_k_selectors([[0.25, -0.1], [-0.3, 0.6]], experts=4)
    >>> round(float(dselect_k_entropy(selectors)), 12)
    1.415852822694
    """
    selectors = selectors_of(selectors)
    return -np.sum(selectors * np.log(selectors + EPSILON))


def dselect_k_reachability(selectors: ArrayLike) -> Array:
    """Computes `sum 1 / max(sum_e r[e], 1e-6)` over selectors and tokens. The loss drives selectors away from codes without an expert.

    Where the mass `sum_e r[e]` is below 1e-6, the gradient is 0.

    Args:
        selectors: r, (..., choices, experts).

    Returns:
        A scalar, at least the number of selectors of all tokens, and equal to it if no selector puts weight on codes without an expert.

    Source: google-research/google-research, dselect_k_moe/dselect_k_moe.py,
    DSelectKGate._add_regularization_loss.

    >>> from moespec.spec import dselect_k_selectors
    >>> round(float(dselect_k_reachability(dselect_k_selectors([[0.0, 0.0], [-0.5, 0.0]], experts=3))), 12)
    2.333333333333
    """
    mass = np.sum(selectors_of(selectors), axis=-1)
    counted = np.where(mass.real < EPSILON, EPSILON, mass)
    return np.asanyarray(np.sum(1.0 / counted))
