"""The softmax affinity and the gating noise of V-MoE.

| here | Routers (arXiv 2401.15969) | V-MoE (arXiv 2106.05974) |
|---|---|---|
| `tokens` (T, D) | X | x |
| `kernel` (D, E) | W | W |
| `logits` (T, E) | XW | Wx |
| `noise` (T, E), standard normal | epsilon | epsilon / sigma |
| `multiplier / E` | sigma | sigma = 1/E |

Ambiguity ledger

SA-1: Which scores are noisy in training?
    Reading: selection and combine weights use the same noisy softmax; the importance loss uses the clean one.
    Alternatives: clean combine weights; noise added after the softmax.
SA-2: Is 1/E the standard deviation or the variance of the noise?
    Reading: the standard deviation.
    Alternatives: the variance.
SA-3: Are the K selected weights of a token divided by their sum?
    Reading: no, a combine weight is the probability itself.
    Alternatives: renormalised before capacity drops (GShard), or after them (Upcycling).
"""

import numpy as np
from numpy.typing import ArrayLike

from moespec.spec.checks import as_array, check_same_shape, check_size
from moespec.spec.errors import ConfigError
from moespec.spec.numerics import Array, softmax

__all__ = ["add_gating_noise", "router_logits", "softmax_affinity"]


def router_logits(tokens: ArrayLike, kernel: ArrayLike) -> Array:
    """Logits `tokens @ kernel`, without a bias.

    Args:
        tokens: (tokens, width).
        kernel: (width, experts).

    Returns:
        (tokens, experts).

    Source: Routers, eq. (1). Section 2.1.
    """
    tokens = as_array("tokens", tokens, "tokens width")
    kernel = as_array("kernel", kernel, "width experts")
    check_size("kernel", kernel, 0, tokens.shape[1], "the width of tokens")
    return np.einsum("td,de->te", tokens, kernel)


def add_gating_noise(logits: ArrayLike, noise: ArrayLike | None, *, multiplier: float = 1.0) -> Array:
    """`logits + multiplier / experts * noise`; with `noise=None` the logits unchanged.

    Args:
        logits: (tokens, experts).
        noise: (tokens, experts), a draw of the standard normal, or None (evaluation).
        multiplier: the standard deviation times the number of experts, at least 0.

    Source: V-MoE, section 2; the code of V-MoE. Section 2.2.
    """
    logits = as_array("logits", logits, "tokens experts")
    if not multiplier >= 0 or not np.isfinite(multiplier):
        raise ConfigError(f"multiplier: expected a finite number of at least 0, got {multiplier!r}")
    if noise is None:
        return logits
    noise = as_array("noise", noise, "tokens experts")
    check_same_shape("noise", noise, "logits", logits)
    return logits + multiplier / logits.shape[1] * noise


def softmax_affinity(logits: ArrayLike) -> Array:
    """`A[t, e] = exp(L[t, e]) / sum_e' exp(L[t, e'])`: the share of each expert in a token.

    Args:
        logits: (tokens, experts).

    Returns:
        (tokens, experts); rows sum to 1.

    Source: Routers, eqs. (1), (6), (7). Section 2.1.

    >>> from moespec.spec.examples import LOGITS
    >>> softmax_affinity(LOGITS)[0].round(10).tolist()
    [0.6652409558, 0.2447284711, 0.0900305732]
    """
    return softmax(as_array("logits", logits, "tokens experts"))
