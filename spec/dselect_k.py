"""DSelect-k: K selectors, each a binary code of one expert that a smooth step lets training move, and their mixture.

| here | DSelect-k (arXiv 2106.03760) |
|---|---|
| `smooth_step(z, gamma=gamma)` | S(z), eq. (3) |
| `codes` (..., K, M), M = ceil(log2 E) | z^(i), m-dimensional |
| `selectors` (..., K, E) | r(z^(i)), the single-expert selectors, eq. (4) |
| `logits` (..., K) | alpha or w, softmax of which weighs the selectors |
| gate (..., E) | q(alpha, Z), eq. (5) |

A static gate has one code for each selector, the same for every token: (K, M). In a gate by token the codes are a linear
function of the token: (tokens, K, M).

Ambiguity ledger

DK-1: Which expert has which code?
    Reading: expert i, counted from 0, has the binary digits of i, the most significant first.
    Alternatives: the least significant first, which relabels the experts.
DK-2: What if the number of experts is no power of two?
    Reading: the codes without an expert keep their mass, so that the gate sums to less than 1; a loss
        (`dselect_k_reachability`) moves it to the experts.
    Alternatives: the gate is divided by its sum.
DK-3: Are the losses of a gate by token summed or averaged over the tokens?
    Reading: summed over the tokens of a group (and averaged over groups, as every loss is).
    Alternatives: averaged over the tokens.
DK-4: Which weights of the losses are the default?
    Reading: 1e-6 for the entropy and 1 for the reachability, as in the public code.
    Alternatives: a schedule that raises the weight of the entropy in training (the paper tunes it).
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from moespec.spec.checks import as_array, check_at_least, check_positive, check_scores, check_size
from moespec.spec.errors import ContractError, ShapeError
from moespec.spec.numerics import Array, softmax
from moespec.spec.routing import Routing

__all__ = [
    "check_mixture",
    "check_selectors",
    "code_bits",
    "dselect_k_entropy",
    "dselect_k_gate",
    "dselect_k_reachability",
    "dselect_k_routing",
    "dselect_k_selectors",
    "smooth_step",
]

EPSILON = 1e-6
"""Inside the logarithm of the entropy."""


def code_bits(experts: int) -> int:
    """Binary digits M of the codes of `experts`: `ceil(log2 E)`, none for one expert."""
    return (check_at_least("experts", experts, 1) - 1).bit_length()


def check_selectors(selectors: Any) -> int:
    """The number of groups of the selectors that a backend is given, 1 for those of a static gate; a static check."""
    static = len(selectors.shape) == 2
    check_scores("selectors", selectors, "choices experts" if static else "groups tokens choices experts")
    return 1 if static else int(selectors.shape[0])


def check_mixture(selectors: Any, logits: Any) -> None:
    """`ShapeError` unless there is one logit for each selector; a static check."""
    if tuple(logits.shape) != tuple(selectors.shape[:-1]):
        raise ShapeError(
            f"logits: expected {tuple(selectors.shape[:-1])}, as selectors have, got {tuple(logits.shape)}"
        )


def smooth_step(z: ArrayLike, *, gamma: float = 1.0) -> Array:
    """The cubic that rises from 0 at `-gamma / 2` to 1 at `gamma / 2` with a continuous derivative:

        S(z) = -2 z^3 / gamma^3 + 3 z / (2 gamma) + 1/2    for |z| < gamma / 2

    and 0 below, 1 above. Computed as `t^2 (3 - 2 t)` with `t = z / gamma + 1/2`, which does not cancel where S is small
    and is never negative; and `1 - S(z) = S(-z)`.

    Args:
        z: any shape.
        gamma: the width of the step, greater than 0.

    Returns:
        The shape of `z`.

    Raises:
        ConfigError: `gamma` is not greater than 0.
        ShapeError, DtypeError, ContractError: of `z`.

    Source: DSelect-k, eq. (3). Section 13.1.

    >>> smooth_step([-0.5, -0.3, 0.0, 0.25, 0.6]).round(12).tolist()
    [0.0, 0.104, 0.5, 0.84375, 1.0]
    """
    return _step(as_array("z", z, "..."), check_positive("gamma", gamma))


def _step(z: Array, gamma: float) -> Array:
    t = z / gamma + 0.5
    return np.where(t.real <= 0, 0.0, np.where(t.real >= 1, 1.0, t * t * (3.0 - 2.0 * t)))


def dselect_k_selectors(codes: ArrayLike, *, experts: int, gamma: float = 1.0) -> Array:
    """How much of each selector is on each expert: with the binary digits of the expert, most significant first,

        r[n, e] = product over m of  S(z[n, m]) if digit m of e is 1, else 1 - S(z[n, m])

    Args:
        codes: z, (..., choices, bits) with `bits = ceil(log2 experts)`.
        experts: E, at least 1.
        gamma: the width of the smooth step.

    Returns:
        (..., choices, experts); not negative, sums over experts to 1 if E is a power of two, else to at most 1.

    Raises:
        ConfigError: `experts` or `gamma` out of range.
        ShapeError: also if there are not `ceil(log2 experts)` bits.
        DtypeError, ContractError: of `codes`.

    Source: DSelect-k, eq. (4). Section 13.2.

    >>> selectors = dselect_k_selectors([[0.25, -0.1], [-0.3, 0.6]], experts=4)
    >>> selectors.round(12).tolist()
    [[0.10125, 0.055, 0.54675, 0.297], [0.0, 0.896, 0.0, 0.104]]
    """
    codes = as_array("codes", codes, "... choices bits*")
    bits, gamma = code_bits(experts), check_positive("gamma", gamma)
    check_size("codes", codes, codes.ndim - 1, bits, "ceil(log2 experts)")
    digits = (np.arange(experts)[:, None] >> np.arange(bits)[::-1]) & 1  # (E, M)
    codes = codes[..., None, :]
    return np.prod(np.where(digits == 1, _step(codes, gamma), _step(-codes, gamma)), axis=-1)


def _selectors(selectors: ArrayLike) -> Array:
    return as_array("selectors", selectors, "... choices experts")


def dselect_k_gate(selectors: ArrayLike, logits: ArrayLike) -> Array:
    """The mixture of the selectors, `q[e] = sum_n softmax(logits)[n] r[n, e]`.

    Args:
        selectors: r, (..., choices, experts), of `dselect_k_selectors`.
        logits: (..., choices).

    Returns:
        (..., experts), at most `choices` of them not 0 once every code is outside the step.

    Raises:
        ShapeError, DtypeError, ContractError: of an array.

    Source: DSelect-k, eq. (5). Section 13.3.

    >>> selectors = dselect_k_selectors([[0.25, -0.1], [-0.3, 0.6]], experts=4)
    >>> dselect_k_gate(selectors, [0.0, 1.0]).round(10).tolist()
    [0.0272303189, 0.6698202646, 0.1470437221, 0.1559056943]
    """
    selectors = _selectors(selectors)
    logits = as_array("logits", logits, "... choices")
    check_mixture(selectors, logits)
    return np.sum(softmax(logits)[..., None] * selectors, axis=-2)


def dselect_k_routing(gate: ArrayLike) -> Routing:
    """Every token in every expert that the gate gives it, in the slot of its own index: the capacity is T.

        dispatch[t, e, t] = [q[t, e] > 0],    combine[t, e, t] = q[t, e]

    Args:
        gate: q, (tokens, experts); a static gate has equal rows.

    Returns:
        Routing of (tokens, experts, tokens).

    Raises:
        ShapeError, DtypeError, ContractError: of `gate`.

    Source: DSelect-k, section 2. Section 13.3.

    >>> from moespec.spec import slot_tokens
    >>> slot_tokens(dselect_k_routing([[0.25, 0.75], [0.0, 1.0]])).tolist()  # 2 marks an empty slot
    [[0, 2], [0, 1]]
    """
    gate = as_array("gate", gate, "tokens experts")
    own = np.eye(len(gate))[:, None]
    return Routing((gate.real > 0)[..., None] * own, gate[..., None] * own)


def dselect_k_entropy(selectors: ArrayLike) -> Array:
    """`-sum r log(r + 1e-6)` over selectors and experts, and over tokens: it is 0 when each selector has one expert.

    Args:
        selectors: r, (..., choices, experts).

    Returns:
        A number.

    Raises:
        ShapeError, DtypeError, ContractError: of `selectors`.

    Source: DSelect-k, section 3.1. Section 13.4.

    >>> selectors = dselect_k_selectors([[0.25, -0.1], [-0.3, 0.6]], experts=4)
    >>> round(float(dselect_k_entropy(selectors)), 12)
    1.415852822694
    """
    selectors = _selectors(selectors)
    return -np.sum(selectors * np.log(selectors + EPSILON))


def dselect_k_reachability(selectors: ArrayLike) -> Array:
    """`sum 1 / sum_e r[e]` over selectors, and over tokens: it keeps them off codes that no expert has.

    Args:
        selectors: r, (..., choices, experts).

    Returns:
        A number, at least the number of selectors (times tokens), which it is when all mass is on experts.

    Raises:
        ContractError: a selector has no mass on any expert.
        ShapeError, DtypeError, ContractError: of `selectors`.

    Source: DSelect-k, appendix; its public code. Section 13.4.

    >>> round(float(dselect_k_reachability(dselect_k_selectors([[0.0, 0.0], [-0.5, 0.0]], experts=3))), 12)
    2.333333333333
    """
    mass = np.sum(_selectors(selectors), axis=-1)
    if (mass.real == 0).any():
        raise ContractError("selectors: a selector is on a code that no expert has, so its reachability is infinite")
    return np.sum(1.0 / mass)
