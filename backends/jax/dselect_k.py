"""DSelect-k: selectors of experts by binary codes, their mixture, and its losses.

Shape comments: G groups, T tokens, E experts, K choices, M bits. Everything is computed in float32 or better.
"""

import jax.numpy as jnp
from jax import lax
from jax.nn import softmax

from moespec.backends.jax.arrays import Array, wide
from moespec.backends.jax.slots import SlotRouting
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


def smooth_step(z: Array, *, gamma: float = 1.0) -> Array:
    """`-2 z^3 / gamma^3 + 3 z / (2 gamma) + 1/2` for `|z| < gamma / 2`, 0 below and 1 above; `t^2 (3 - 2 t)`.

    z: any shape; returns the same. Raises ConfigError for `gamma <= 0`.

    Source: DSelect-k, eq. (3). Section 13.1.
    """
    check_scores("z", z, "...")
    return _step(wide(z), check_positive("gamma", gamma))


def _step(z: Array, gamma: float) -> Array:
    t = jnp.clip(z / gamma + 0.5, 0, 1)
    return t * t * (3 - 2 * t)


def dselect_k_selectors(codes: Array, *, experts: int, gamma: float = 1.0) -> Array:
    """`r[n, e] = product over m of (S(z[n, m]) if digit m of e is 1, else 1 - S(z[n, m]))`, most significant first.

    codes: z, (..., choices, bits), `bits = ceil(log2 experts)`; returns (..., choices, experts).
    Raises ConfigError for `experts < 1` or `gamma <= 0`, ShapeError for another number of bits.

    Source: DSelect-k, eq. (4). Section 13.2.
    """
    check_scores("codes", codes, "... choices bits*")
    bits = code_bits(experts)
    check_size("codes", codes, codes.ndim - 1, bits, "ceil(log2 experts)")
    gamma, codes = check_positive("gamma", gamma), wide(codes)
    pairs = jnp.stack([_step(-codes, gamma), _step(codes, gamma)], axis=-1)
    selectors = jnp.ones((*codes.shape[:-1], 1), pairs.dtype)
    for bit in range(bits):  # each digit doubles the number of codes
        grown = selectors[..., :, None] * pairs[..., bit, None, :]
        selectors = grown.reshape(*codes.shape[:-1], 2 ** (bit + 1))
    return selectors[..., :experts]


def dselect_k_gate(selectors: Array, logits: Array) -> Array:
    """`q[e] = sum_n softmax(logits)[n] r[n, e]`.

    selectors: r, (..., choices, experts); logits: (..., choices); returns (..., experts).

    Source: DSelect-k, eq. (5). Section 13.3.
    """
    check_scores("selectors", selectors, "... choices experts")
    check_scores("logits", logits, "... choices")
    check_mixture(selectors, logits)
    return jnp.sum(softmax(wide(logits), axis=-1)[..., None] * wide(selectors), axis=-2)


def dselect_k_routing(gate: Array) -> SlotRouting:
    """Token t in slot t of every expert whose gate is greater than 0, with that weight: the capacity is T.

    gate: q, (groups, tokens, experts).

    Source: DSelect-k, section 2. Section 13.3.
    """
    check_scores("gate", gate, "groups tokens experts")
    _, tokens, experts = gate.shape
    by_expert = jnp.swapaxes(wide(gate), 1, 2)
    own = lax.broadcasted_iota(jnp.int32, by_expert.shape, 2)
    token = jnp.where(by_expert > 0, own, tokens)
    first = jnp.arange(experts, dtype=jnp.int32) * tokens
    place = lax.broadcasted_iota(jnp.int32, gate.shape, 1) + first
    return SlotRouting(token, by_expert, jnp.where(gate > 0, place, experts * tokens), tokens)


def dselect_k_entropy(selectors: Array) -> Array:
    """`-sum r log(r + 1e-6)` over selectors, experts and the tokens of a group; the mean over groups.

    selectors: r, (groups, tokens, choices, experts), or (choices, experts) of a static gate. Returns a scalar.

    Source: DSelect-k, section 3.1. Section 13.4.
    """
    groups = check_selectors(selectors)
    r = wide(selectors)
    return -jnp.sum(r * jnp.log(r + EPSILON)) / groups


def dselect_k_reachability(selectors: Array) -> Array:
    """`sum 1 / sum_e r[e]` over selectors and the tokens of a group; the mean over groups.

    selectors: r, (groups, tokens, choices, experts), or (choices, experts) of a static gate. Returns a scalar.

    Source: DSelect-k, appendix; its public code. Section 13.4.
    """
    groups = check_selectors(selectors)
    return jnp.sum(1 / jnp.sum(wide(selectors), axis=-1)) / groups
