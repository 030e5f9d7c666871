"""The codes of DSelect-k: trainable binary digits that assign an expert to each selector.

See `dselect_k` for the symbols.
"""

from typing import Any, NamedTuple

import numpy as np

from moespec.spec.checks import check_at_least, check_scores, check_size
from moespec.spec.numerics import Leading, Shared
from moespec.spec.values import as_array

__all__ = ["Codes", "dselect_k_codes"]


def code_bits(experts: int) -> int:
    """Returns the number M of binary digits in the code of an expert: `ceil(log2 E)`."""
    return (check_at_least("experts", experts, 1) - 1).bit_length()


class Codes(NamedTuple):
    """The codes and logits of selectors: `codes` (..., choices, bits) and `logits` (..., choices)."""

    codes: Any
    logits: Any


def check_codes(bias: Any, choices: Any, experts: int) -> int:
    """Returns the number of binary digits in a code. Raises `ShapeError` unless `bias` has one entry per digit and per logit."""
    bits = code_bits(experts)
    check_at_least("choices", choices, 1)
    check_scores("bias", bias, "columns")
    check_size("bias", bias, 0, choices * (bits + 1), "choices and their bits")
    return bits


def dselect_k_codes(
    tokens: Leading, bias: Shared, kernel: Shared | None = None, *, choices: int, experts: int
) -> Codes:
    """Returns the codes and logits of the selectors. Without a kernel, all tokens share the same codes and logits.

        z, alpha = tokens @ kernel + bias    or    z, alpha = bias

    The first K M columns of `kernel` and `bias` give the codes, selector by selector. The last K columns give the logits.

    Args:
        tokens: (..., width).
        bias: (K (M + 1),), with M = ceil(log2 E).
        kernel: (width, K (M + 1)) for a per-token gate, None for a static gate.
        choices: selectors K, at least 1.
        experts: E, at least 1.

    Returns:
        Codes: (..., K, M) and (..., K); for a static gate, (K, M) and (K,).

    Source: google-research/google-research, dselect_k_moe/dselect_k_moe.py, DSelectKGate.

    >>> found = dselect_k_codes([[1.0, 2.0]], [0.0, 0.0, 0.5], [[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]], choices=1, experts=4)
    >>> found.codes.tolist(), found.logits.tolist()
    ([[[1.0, 2.0]]], [[2.5]])
    """
    tokens, bias = as_array("tokens", tokens, "... width"), as_array("bias", bias, "columns")
    bits = check_codes(bias, choices, experts)
    if kernel is None:
        scores = bias
    else:
        kernel = as_array("kernel", kernel, "width columns")
        check_size("kernel", kernel, 0, tokens.shape[-1], "the width of tokens")
        check_size("kernel", kernel, 1, bias.shape[0], "the columns of bias")
        scores = np.einsum("...d,dc->...c", tokens, kernel) + bias
    codes = scores[..., : choices * bits].reshape(*scores.shape[:-1], choices, bits)
    return Codes(codes, scores[..., choices * bits :])
