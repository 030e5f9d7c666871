"""Soft MoE: every slot is a convex combination of all tokens, and every token of all slot outputs.

| here | SoftMoE (arXiv 2308.00951) |
|---|---|
| `tokens` (T, D) | X (m, d) |
| `slots` (D, E, C) | Phi (d, n, p) |
| `dispatch` (T, E, C) | D |
| `combine` (T, E, C) | C |

Ambiguity ledger

SM-1: Where does epsilon enter the l2 norm?
    Reading: `x / (norm + epsilon)`, as in the paper.
    Alternatives: `x / sqrt(norm**2 + epsilon)` (`norm_form="rsqrt"`, the code of V-MoE).
SM-2: Which slots belong to which expert?
    Reading: slot i of the flattened list to expert `i // C`.
    Alternatives: round-robin (the caption of a figure).
SM-3: Do the slots mix the tokens or the normalised tokens?
    Reading: the tokens; normalised ones only make the logits.
    Alternatives: the normalised tokens (two public packages).
"""

import numpy as np
from numpy.typing import ArrayLike

from moespec.spec.checks import as_array, as_scalar, check_option, check_size
from moespec.spec.errors import ConfigError, ShapeError
from moespec.spec.numerics import Array, normalize_l2, softmax
from moespec.spec.routing import Routing

__all__ = ["soft_routing"]


def soft_routing(
    tokens: ArrayLike,
    slots: ArrayLike,
    *,
    scale: ArrayLike = 1.0,
    normalize: bool = True,
    norm_form: str = "paper",
    dispatch: str = "soft",
    combine: str = "soft",
) -> Routing:
    """Soft routing from the logits `L[t, e, c] = <l2n(x[t]), scale * l2n(phi[:, e, c])>`:

        D[t, e, c] = exp(L[t, e, c]) / sum_t' exp(L[t', e, c])            a softmax over the tokens
        C[t, e, c] = exp(L[t, e, c]) / sum_e',c' exp(L[t, e', c'])        a softmax over all slots

    Args:
        tokens: (tokens, width), the tokens of one image.
        slots: (width, experts, capacity).
        scale: a number, trainable.
        normalize: use the l2-normalised tokens and slots in the logits; otherwise `L = x phi`, without `scale`.
        norm_form: "paper" or "rsqrt", see `normalize_l2`.
        dispatch, combine: "soft" as above; the ablations "uniform" (1 / T and 1 / (E C)) and "identity" (token t in
            slot t of the flattened list; for both tensors or neither, with as many slots as tokens).

    Returns:
        Routing, each (tokens, experts, capacity).

    Source: SoftMoE, eqs. (1)-(2), Algorithms 1-2, Table 2. Section 9.

    >>> slots = np.array([[1.0, 0.0], [1.0, 2.0]])[:, :, None]
    >>> routing = soft_routing([[3.0, 4.0], [0.0, 2.0], [1.0, 0.0]], slots, scale=2.0)
    >>> routing.dispatch[:, :, 0].round(10).tolist()
    [[0.4681776988, 0.371233815], [0.2659112446, 0.5538152865], [0.2659110566, 0.0749508986]]
    >>> routing.combine[:, :, 0].round(10).tolist()
    [[0.5938485766, 0.4061514234], [0.3576022914, 0.6423977086], [0.8044293027, 0.1955706973]]
    """
    tokens = as_array("tokens", tokens, "tokens width")
    slots = as_array("slots", slots, "width experts capacity")
    check_size("slots", slots, 0, tokens.shape[1], "the width of tokens")
    scale = as_scalar("scale", scale)
    check_forms(norm_form, dispatch, combine)
    shape = (len(tokens), *slots.shape[1:])
    if dispatch == "identity":
        weights = _identity(shape)
        return Routing(weights, weights)

    # Scores.
    if normalize:
        tokens = normalize_l2(tokens, 1, form=norm_form)
        slots = scale * normalize_l2(slots, 0, form=norm_form)
    logits = np.einsum("td,dec->tec", tokens, slots)

    # Dispatch and combine; nothing is selected, and every slot is full.
    return Routing(
        softmax(logits, axis=0) if dispatch == "soft" else np.full(shape, 1 / shape[0]),
        softmax(logits, axis=(1, 2)) if combine == "soft" else np.full(shape, 1 / (shape[1] * shape[2])),
    )


def check_forms(norm_form: str, dispatch: str, combine: str) -> None:
    """`ConfigError` for an unknown form, or for an identity on one side only."""
    check_option("norm_form", norm_form, ("paper", "rsqrt"))
    check_option("dispatch", dispatch, ("soft", "uniform", "identity"))
    check_option("combine", combine, ("soft", "uniform", "identity"))
    if (dispatch == "identity") != (combine == "identity"):
        raise ConfigError(f"dispatch: {dispatch!r} does not go with combine={combine!r}: identity is both or neither")


def _identity(shape: tuple[int, ...]) -> Array:
    tokens, experts, capacity = shape
    if tokens != experts * capacity:
        raise ShapeError(
            f"slots: identity needs as many slots as tokens, got {experts} x {capacity} for {tokens} tokens"
        )
    return np.eye(tokens).reshape(shape)
