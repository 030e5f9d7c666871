"""DSelect-k: selectors that choose experts by binary codes, and the mixture, the routing and the losses of the selectors.

Shape comments: M bits.
"""

from moespec.backends.common.affinities import router_logits
from moespec.backends.common.namespace import Array, BySlot, Dense, Namespace, RoutingNamespace
from moespec.spec.algorithms.dselect_k import check_mixture, check_selectors
from moespec.spec.algorithms.dselect_k_codes import Codes, check_codes, code_bits
from moespec.spec.algorithms.dselect_k_losses import EPSILON
from moespec.spec.checks import check_positive, check_scores, check_size

__all__ = [
    "dselect_k_codes",
    "dselect_k_entropy",
    "dselect_k_gate",
    "dselect_k_reachability",
    "dselect_k_routing",
    "dselect_k_selectors",
    "smooth_step",
]


def dselect_k_codes(
    xp: Namespace[Array], tokens: Array, bias: Array, kernel: Array | None = None, *, choices: int, experts: int
) -> Codes:
    """tokens (G, T, D) -> codes (G, T, K, M) and logits (G, T, K). For a static gate, codes are (K, M) and logits are (K,)."""
    check_scores("tokens", tokens, "groups tokens width")
    bits = check_codes(bias, choices, experts)
    scores = xp.promote(bias)
    if kernel is not None:
        logits = router_logits(xp, tokens, kernel)
        check_size("kernel", kernel, 1, bias.shape[0], "the columns of bias")
        scores = logits + scores
    codes = scores[..., : choices * bits].reshape(*scores.shape[:-1], choices, bits)
    return Codes(codes, scores[..., choices * bits :])


def smooth_step(xp: Namespace[Array], z: Array, *, gamma: float = 1.0) -> Array:
    """z (...) -> (...)."""
    check_scores("z", z, "...")
    return _step(xp, xp.promote(z), check_positive("gamma", gamma))


def _step(xp: Namespace[Array], z: Array, gamma: float) -> Array:
    t = xp.clip(z / gamma + 0.5, 0.0, 1.0)
    return t * t * (3 - 2 * t)


def dselect_k_selectors(xp: Namespace[Array], codes: Array, *, experts: int, gamma: float = 1.0) -> Array:
    """codes (..., K, M) -> (..., K, E)."""
    check_scores("codes", codes, "... choices bits*")
    bits = code_bits(experts)
    check_size("codes", codes, codes.ndim - 1, bits, "ceil(log2 experts)")
    gamma, codes = check_positive("gamma", gamma), xp.promote(codes)
    pairs = xp.stack([_step(xp, -codes, gamma), _step(xp, codes, gamma)], -1)
    selectors = xp.full((*codes.shape[:-1], 1), 1.0, codes)
    for bit in range(bits):  # each bit doubles the number of codes
        doubled = selectors[..., :, None] * pairs[..., bit, None, :]
        selectors = doubled.reshape(*codes.shape[:-1], 2 ** (bit + 1))
    return selectors[..., :experts]


def dselect_k_gate(xp: Namespace[Array], selectors: Array, logits: Array) -> Array:
    """selectors (..., K, E), logits (..., K) -> (..., E)."""
    check_scores("selectors", selectors, "... choices experts")
    check_scores("logits", logits, "... choices")
    check_mixture(selectors, logits)
    return xp.sum(xp.softmax(xp.promote(logits), -1)[..., None] * xp.promote(selectors), -2)


def dselect_k_routing(xp: RoutingNamespace[Array, BySlot, Dense], gate: Array, *, like: Array | None = None) -> BySlot:
    """gate (G, T, E), or, for a static gate, gate (E,) and like (G, T, D) -> SlotRouting whose `slot` is (G, T, E)."""
    if gate.ndim == 1 and like is not None:
        check_scores("like", like, "groups tokens width")
        gate = xp.broadcast_to(gate, (*like.shape[:2], gate.shape[0]))
    check_scores("gate", gate, "groups tokens experts")
    _, tokens, experts = gate.shape
    place, first = xp.indices(tokens, gate), xp.indices(experts, gate) * tokens
    used = xp.stop_gradient(gate) > 0
    token = xp.where(xp.swapaxes(used, 1, 2), place, tokens)
    slot = xp.where(used, place[:, None] + first, experts * tokens)
    return xp.SlotRouting(token, xp.swapaxes(xp.promote(gate), 1, 2), slot, tokens)


def dselect_k_entropy(xp: Namespace[Array], selectors: Array) -> Array:
    """Returns the loss, averaged over the groups: selectors (G, T, K, E), or (K, E) for a static gate -> a scalar."""
    groups = check_selectors(selectors)
    r = xp.promote(selectors)
    return -xp.sum(r * xp.log(r + EPSILON)) / groups


def dselect_k_reachability(xp: Namespace[Array], selectors: Array) -> Array:
    """Returns the loss, averaged over the groups: selectors (G, T, K, E), or (K, E) for a static gate -> a scalar."""
    groups = check_selectors(selectors)
    mass = xp.sum(xp.promote(selectors), -1)
    return xp.sum(1 / xp.where(mass < EPSILON, EPSILON, mass)) / groups
