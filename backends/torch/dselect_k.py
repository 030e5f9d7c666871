"""DSelect-k: selectors of experts by binary codes, their mixture, and its losses.

Shapes: G groups, T tokens, E experts, K choices, M bits. Everything is computed in float32 or better.
"""

import torch
from torch import Tensor

from moespec.backends.torch.arrays import widen
from moespec.backends.torch.slots import SlotRouting
from moespec.spec.checks import check_positive, check_scores, check_size
from moespec.spec.dselect_k import EPSILON, check_mixture, check_selectors, code_bits

__all__ = [
    "dselect_k_entropy",
    "dselect_k_gate",
    "dselect_k_reachability",
    "dselect_k_routing",
    "dselect_k_selectors",
    "smooth_step",
]


def smooth_step(z: Tensor, *, gamma: float = 1.0) -> Tensor:
    """`-2 z^3 / gamma^3 + 3 z / (2 gamma) + 1/2` for `|z| < gamma / 2`, 0 below and 1 above; `t^2 (3 - 2 t)`.

    Args:
        z: any shape.
        gamma: the width of the step, greater than 0.

    Raises:
        ConfigError, DtypeError.

    Source: DSelect-k, eq. (3). Section 13.1.
    """
    check_scores("z", z, "...")
    return _step(widen(z), check_positive("gamma", gamma))


def _step(z: Tensor, gamma: float) -> Tensor:
    t = (z / gamma + 0.5).clamp(0, 1)
    return t * t * (3 - 2 * t)


def dselect_k_selectors(codes: Tensor, *, experts: int, gamma: float = 1.0) -> Tensor:
    """`r[n, e] = product over m of (S(z[n, m]) if digit m of e is 1, else 1 - S(z[n, m]))`, most significant first.

    Args:
        codes: z, (..., choices, bits), `bits = ceil(log2 experts)`.
        experts: E, at least 1.
        gamma: the width of the smooth step.

    Returns:
        (..., choices, experts).

    Raises:
        ConfigError, ShapeError, DtypeError.

    Source: DSelect-k, eq. (4). Section 13.2.
    """
    check_scores("codes", codes, "... choices bits*")
    bits = code_bits(experts)
    check_size("codes", codes, codes.ndim - 1, bits, "ceil(log2 experts)")
    gamma, codes = check_positive("gamma", gamma), widen(codes)
    pairs = torch.stack([_step(-codes, gamma), _step(codes, gamma)], dim=-1)
    selectors = pairs.new_ones(*codes.shape[:-1], 1)
    for bit in range(bits):  # each digit doubles the number of codes
        selectors = (selectors[..., :, None] * pairs[..., bit, None, :]).flatten(-2)
    return selectors[..., :experts]


def dselect_k_gate(selectors: Tensor, logits: Tensor) -> Tensor:
    """`q[e] = sum_n softmax(logits)[n] r[n, e]`.

    Args:
        selectors: r, (..., choices, experts).
        logits: (..., choices).

    Returns:
        (..., experts).

    Raises:
        ShapeError, DtypeError.

    Source: DSelect-k, eq. (5). Section 13.3.
    """
    check_scores("selectors", selectors, "... choices experts")
    check_scores("logits", logits, "... choices")
    check_mixture(selectors, logits)
    return (torch.softmax(widen(logits), dim=-1)[..., None] * widen(selectors)).sum(dim=-2)


def dselect_k_routing(gate: Tensor) -> SlotRouting:
    """Token t in slot t of every expert whose gate is greater than 0, with that weight: the capacity is T.

    Args:
        gate: q, (groups, tokens, experts).

    Returns:
        SlotRouting whose `slot` is (groups, tokens, experts).

    Raises:
        ShapeError, DtypeError.

    Source: DSelect-k, section 2. Section 13.3.
    """
    check_scores("gate", gate, "groups tokens experts")
    _, tokens, experts = gate.shape
    own = torch.arange(tokens, device=gate.device, dtype=torch.int32)
    first = torch.arange(experts, device=gate.device, dtype=torch.int32) * tokens
    used = gate.detach() > 0
    token = torch.where(used.mT, own, tokens)
    slot = torch.where(used, own[:, None] + first, experts * tokens)
    return SlotRouting(token, widen(gate).mT.contiguous(), slot, tokens)


def dselect_k_entropy(selectors: Tensor) -> Tensor:
    """`-sum r log(r + 1e-6)` over selectors, experts and the tokens of a group; the mean over groups.

    Args:
        selectors: r, (groups, tokens, choices, experts), or (choices, experts) of a static gate.

    Raises:
        ShapeError, DtypeError.

    Source: DSelect-k, section 3.1. Section 13.4.
    """
    groups = check_selectors(selectors)
    r = widen(selectors)
    return -(r * (r + EPSILON).log()).sum() / groups


def dselect_k_reachability(selectors: Tensor) -> Tensor:
    """`sum 1 / sum_e r[e]` over selectors and the tokens of a group; the mean over groups.

    Args:
        selectors: r, (groups, tokens, choices, experts), or (choices, experts) of a static gate.

    Raises:
        ShapeError, DtypeError.

    Source: DSelect-k, appendix; its public code. Section 13.4.
    """
    groups = check_selectors(selectors)
    return (1 / widen(selectors).sum(dim=-1)).sum() / groups
