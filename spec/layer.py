"""The layer that all routers share: dispatch, experts, combine.

Ambiguity ledger

LA-1: Which form of GELU do the experts use?
    Reading: the tanh approximation (flax's default).
    Alternatives: the exact one with erf (torch's default).
LA-2: What does a token without a slot get?
    Reading: 0, so that only the residual connection carries it.
    Alternatives: the token itself.
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import erf

from moespec.spec.checks import as_array, check_floating, check_option, check_rank, check_same_shape, check_size
from moespec.spec.checks import check_finite as _check_finite
from moespec.spec.numerics import Array
from moespec.spec.routing import Routing

__all__ = ["expert_mlp", "gelu", "moe_layer"]


def gelu(x: ArrayLike, *, form: str = "tanh") -> Array:
    """`x Phi(x)` with the normal distribution function ("erf"), or its approximation by tanh.

        tanh:  x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))

    Source: Hendrycks and Gimpel 2016 (arXiv 1606.08415). Section 1.

    >>> float(gelu(1.0).round(10)), float(gelu(1.0, form="erf").round(10))
    (0.8411919906, 0.8413447461)
    """
    check_option("form", form, ("tanh", "erf"))
    x = np.asarray(x)
    check_floating("x", x)
    x = x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)
    _check_finite("x", x)
    if form == "erf":
        return 0.5 * x * (1.0 + erf(x / np.sqrt(2.0)))
    return 0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x * x * x)))


def expert_mlp(inputs: ArrayLike, params: Mapping[str, ArrayLike], *, gelu: str = "tanh") -> Array:
    """Each expert's two-layer perceptron on its own slots: `gelu(x w1 + b1) w2 + b2`.

    Args:
        inputs: (experts, capacity, width).
        params: `w1` (experts, width, hidden), `b1` (experts, hidden), `w2` (experts, hidden, width), `b2` (experts, width).
        gelu: "tanh" or "erf".

    Returns:
        (experts, capacity, width of the output).

    Source: Routers, section 1.2. Section 1.
    """
    inputs = as_array("inputs", inputs, "experts capacity width")
    w1 = as_array("w1", params["w1"], "experts width hidden")
    b1 = as_array("b1", params["b1"], "experts hidden")
    w2 = as_array("w2", params["w2"], "experts hidden width")
    b2 = as_array("b2", params["b2"], "experts width")
    for name, weights in {"w1": w1, "b1": b1, "w2": w2, "b2": b2}.items():
        check_size(name, weights, 0, len(inputs), "the experts of inputs")
    check_size("w1", w1, 1, inputs.shape[2], "the width of inputs")
    check_size("b1", b1, 1, w1.shape[2], "the hidden width of w1")
    check_size("w2", w2, 1, w1.shape[2], "the hidden width of w1")
    check_size("b2", b2, 1, w2.shape[2], "the output width of w2")
    hidden = _gelu(np.einsum("ecd,edh->ech", inputs, w1) + b1[:, None, :], form=gelu)
    return np.einsum("ech,ehd->ecd", hidden, w2) + b2[:, None, :]


_gelu = gelu


def moe_layer(tokens: ArrayLike, routing: Routing, experts: Callable[[Array], Array]) -> Array:
    """Dispatch, experts, combine:

        inputs[e, c]  = sum_t dispatch[t, e, c] tokens[t]
        outputs[e, c] = experts(inputs)[e, c]
        result[t]     = sum_e,c combine[t, e, c] outputs[e, c]

    An empty slot has inputs 0 and usually an output that is not 0; its combine weights are 0.

    Args:
        tokens: (tokens, width).
        routing: `dispatch` and `combine`, each (tokens, experts, capacity).
        experts: maps (experts, capacity, width) to (experts, capacity, width of the output).

    Returns:
        (tokens, width of the output).

    Source: Routers, section 1.2. Section 1.
    """
    tokens = as_array("tokens", tokens, "tokens width")
    dispatch = as_array("routing.dispatch", routing.dispatch, "tokens experts capacity")
    combine = as_array("routing.combine", routing.combine, "tokens experts capacity")
    check_same_shape("routing.combine", combine, "routing.dispatch", dispatch)
    check_size("routing.dispatch", dispatch, 0, len(tokens), "the number of tokens")
    inputs = np.einsum("tec,td->ecd", dispatch, tokens)
    outputs = experts(inputs)
    check_rank("experts", outputs, "experts capacity width")
    for axis in (0, 1):
        check_size("experts", outputs, axis, inputs.shape[axis], "the slots it was given")
    return np.einsum("tec,ecd->td", combine, outputs)
