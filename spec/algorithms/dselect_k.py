"""DSelect-k: a mixture of K selectors. A smooth step makes the binary expert code of each selector trainable.

| here | DSelect-k (arXiv 2106.03760) |
|---|---|
| `smooth_step(z, gamma=gamma)` | S(z) |
| `codes` (..., K, M), M = ceil(log2 E) | z^(i), m-dimensional |
| `selectors` (..., K, E) | r(z^(i)), the single-expert selectors |
| `logits` (..., K) | alpha or w, whose softmax weights the selectors |
| gate (..., E) | q(alpha, Z) |

A static gate uses the same codes (K, M) for all tokens. A per-token gate computes the codes (tokens, K, M) as a linear
function of each token.

Ambiguity ledger

DK-1: Which binary code does each expert have?
    Reading: expert i (counted from 0) has the binary digits of i, most significant digit first.
        By: google-research/google-research, dselect_k_moe/dselect_k_moe.py, DSelectKGate.build.
    Alternative b: expert i has the binary digits of i, least significant digit first, which relabels the experts.
DK-2: What happens if the number of experts is not a power of two?
    Reading: codes without an expert keep their mass, so the gate sums to less than 1. The loss `dselect_k_reachability`
        moves this mass to the experts.
        By: google-research/google-research, dselect_k_moe/dselect_k_moe.py,
        DSelectKGate._add_regularization_loss.
    Alternative b: the gate is divided by its sum.
"""

from typing import Any

import numpy as np

from moespec.spec.algorithm import Algorithm
from moespec.spec.algorithms.dselect_k_codes import code_bits
from moespec.spec.algorithms.smooth_step import step
from moespec.spec.array_like import ArrayLike
from moespec.spec.checks import check_positive, check_scores, check_size
from moespec.spec.errors import ShapeError
from moespec.spec.numerics import Array, Leading, softmax
from moespec.spec.routing import Routing
from moespec.spec.values import as_array, even

__all__ = ["dselect_k_gate", "dselect_k_routing", "dselect_k_selectors"]

ALGORITHMS = (
    Algorithm(
        "dselect_k_gate",
        "Hazimeh et al. 2021 (arXiv 2106.03760)",
        2,
        (
            "dselect_k_codes",
            "dselect_k_entropy",
            "dselect_k_reachability",
            "dselect_k_gate",
            "dselect_k_routing",
            "dselect_k_selectors",
            "smooth_step",
        ),
    ),
)


def check_selectors(selectors: Any) -> int:
    """Returns the number of groups in a backend's selectors, or 1 for a static gate. Uses only the shape of `selectors`."""
    static = len(selectors.shape) == 2
    check_scores("selectors", selectors, "choices experts" if static else "groups tokens choices experts")
    groups: int = 1 if static else selectors.shape[0]  # the number of groups may be symbolic while tracing
    return groups


def check_mixture(selectors: Any, logits: Any) -> None:
    """Raises `ShapeError` unless there is one logit for each selector. Uses only the shapes of the arrays."""
    if tuple(logits.shape) != tuple(selectors.shape[:-1]):
        raise ShapeError(
            f"logits: expected {tuple(selectors.shape[:-1])}, the axes of selectors, got {tuple(logits.shape)}"
        )


def dselect_k_selectors(codes: Leading, *, experts: int, gamma: float = 1.0) -> Array:
    """Computes the weight of each expert in each selector from the selector's code and the expert's binary digits:

        r[n, e] = product over m of  S(z[n, m]) if digit m of e is 1, else 1 - S(z[n, m])

    Args:
        codes: z, (..., choices, bits) with `bits = ceil(log2 experts)`.
        experts: E, at least 1.
        gamma: the width of the smooth step, greater than 0.

    Returns:
        (..., choices, experts), not negative. The weights of each selector sum to 1 if E is a power of two, else to at most 1.

    Raises:
        ShapeError: `codes` does not have `ceil(log2 experts)` bits.

    Source: google-research/google-research, dselect_k_moe/dselect_k_moe.py,
    DSelectKGate._compute_expert_weights.

    >>> selectors = dselect_k_selectors([[0.25, -0.1], [-0.3, 0.6]], experts=4)
    >>> selectors.round(12).tolist()
    [[0.10125, 0.055, 0.54675, 0.297], [0.0, 0.896, 0.0, 0.104]]
    """
    codes = as_array("codes", codes, "... choices bits*")
    bits, gamma = code_bits(experts), check_positive("gamma", gamma)
    check_size("codes", codes, codes.ndim - 1, bits, "ceil(log2 experts)")
    digits = (np.arange(experts)[:, None] >> np.arange(bits)[::-1]) & 1  # (E, M)
    codes = codes[..., None, :]
    return np.prod(np.where(digits == 1, step(codes, gamma), step(-codes, gamma)), axis=-1)


def selectors_of(selectors: ArrayLike) -> Array:
    """Returns `selectors` as an array, after checking its axes."""
    return as_array("selectors", selectors, "... choices experts")


def dselect_k_gate(selectors: Leading, logits: Leading) -> Array:
    """Computes the mixture of the selectors, `q[e] = sum_n softmax(logits)[n] r[n, e]`.

    Args:
        selectors: r, (..., choices, experts), from `dselect_k_selectors`.
        logits: (..., choices).

    Returns:
        (..., experts). If every smooth step returns 0 or 1, at most `choices` entries are nonzero.

    Source: google-research/google-research, dselect_k_moe/dselect_k_moe.py,
    DSelectKGate._compute_expert_weights.

    >>> selectors = dselect_k_selectors([[0.25, -0.1], [-0.3, 0.6]], experts=4)
    >>> dselect_k_gate(selectors, [0.0, 1.0]).round(10).tolist()
    [0.0272303189, 0.6698202646, 0.1470437221, 0.1559056943]
    """
    selectors = selectors_of(selectors)
    logits = as_array("logits", logits, "... choices")
    check_mixture(selectors, logits)
    return np.sum(softmax(logits)[..., None] * selectors, axis=-2)


def dselect_k_routing(gate: ArrayLike, *, like: ArrayLike | None = None) -> Routing:
    """Sends token t to slot t of every expert with a positive gate. The capacity is therefore T.

        dispatch[t, e, t] = [q[t, e] > 0],    combine[t, e, t] = q[t, e]

    Args:
        gate: q, (tokens, experts), or (experts,) for a static gate.
        like: (tokens, width), the tokens; required for a static gate.

    Returns:
        Routing of (tokens, experts, tokens).

    Source: google-research/google-research, dselect_k_moe/dselect_k_moe.py,
    DSelectKGate.call.

    >>> from moespec.spec import slot_tokens
    >>> slot_tokens(dselect_k_routing([[0.25, 0.75], [0.0, 1.0]])).tolist()  # 2 marks an empty slot
    [[0, 2], [0, 1]]
    """
    gate = even("gate", gate)
    if gate.ndim == 1 and like is not None:
        tokens = as_array("like", like, "tokens width")
        gate = np.broadcast_to(gate, (len(tokens), len(gate)))
    gate = as_array("gate", gate, "tokens experts")
    own = np.eye(len(gate))[:, None]
    return Routing((gate.real > 0)[..., None] * own, gate[..., None] * own)
