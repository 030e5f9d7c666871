"""Soft MoE: every slot holds a convex combination of all tokens, and every token gets a convex combination of all slot outputs.

| here | Soft MoE (arXiv 2308.00951) | Routers (arXiv 2401.15969), eqs. (10)-(11) |
|---|---|---|
| `tokens` (T, D) | X, m x d | X |
| `slots` (D, E, C) | Phi, d x n x p | W |
| `capacity` C, slots of an expert | p | c |
| logits (T, E, C) | X Phi | XW |
| `dispatch` (T, E, C) | D | D |
| `combine` (T, E, C) | C | C |

Ambiguity ledger

SM-2: Which slots belong to which expert?
    Reading: slot i of the flattened list belongs to expert `i // C`.
        By: the paper, section 2.1; google-research/vmoe, vmoe/projects/soft_moe/router.py, SoftRouter;
        bwconrad/soft-moe, soft_moe/soft_moe.py, SoftMoELayerWrapper.
    Alternative b: slot i belongs to expert `i % E`. The identity ablation (SM-7) then puts token i into slot i.
        By: the paper, caption of Figure 2 ("round-robin").

Often done differently

SM-1: How does the l2 normalisation use epsilon?
    Reading: epsilon is added to the norm: `x / (norm + 1e-6)`.
        By: the paper, Algorithm 2.
    Alternative b: epsilon is added inside the square root: `x / sqrt(norm**2 + 1e-6)` (`norm_form="rsqrt"`).
        By: google-research/vmoe, vmoe/projects/soft_moe/router.py, normalize.
    Alternative c: epsilon is the smallest denominator: `x / max(norm, 1e-12)`, as in torch's `normalize`.
        By: bwconrad/soft-moe, soft_moe/soft_moe.py, SoftMoELayerWrapper.forward.
SM-3: Do the slots mix the tokens themselves or the normalised tokens?
    Reading: the slots mix the tokens themselves. The normalised tokens are used only for the logits.
        By: the paper, section 2.3 (only line 3 of Algorithm 1 is replaced);
        google-research/vmoe, vmoe/projects/soft_moe/router.py, SoftRouter.
    Alternative b: the slots mix the normalised tokens.
        By: bwconrad/soft-moe, soft_moe/soft_moe.py, SoftMoELayerWrapper.forward;
        lucidrains/soft-moe-pytorch, soft_moe_pytorch/soft_moe.py, SoftMoE.forward.
SM-4: What does `scale` multiply?
    Reading: `scale` multiplies the normalised slots. Without normalisation, there is no scale.
        By: the paper, section 2.3; bwconrad/soft-moe, soft_moe/soft_moe.py, SoftMoELayerWrapper.forward.
    Alternative b: `scale` multiplies the normalised tokens or the logits, with the same result up to rounding.
        By: google-research/vmoe, vmoe/projects/soft_moe/router.py, SoftRouter (the smaller of tokens and slots).
SM-5: Over which slots or experts is the combine softmax taken?
    Reading: the softmax is taken over all slots of all experts together.
        By: the paper, eq. (2); google-research/vmoe, vmoe/projects/soft_moe/router.py, SoftRouter.
    Alternative b: the softmax is taken separately for each expert, over the slots of the expert.
    Alternative c: the softmax is taken separately for each slot index, over the experts.
SM-7: Which expert processes token t in the identity ablation, if experts have several slots?
    Reading: expert `t % E` processes token t in slot `t // E`, so the experts get the tokens in turn.
        By: the paper, section 3.6 and appendix A ("in a round robin fashion").
    Alternative b: expert `t // C` processes token t, so the tokens fill one expert after another.
"""

import numpy as np

from moespec.spec.algorithm import Algorithm
from moespec.spec.array_like import ArrayLike
from moespec.spec.checks import check_option, check_size
from moespec.spec.errors import ConfigError, ShapeError
from moespec.spec.numerics import Array, Shared, normalize_l2, softmax
from moespec.spec.routing import DenseRouting, Routing
from moespec.spec.values import as_array, as_scalar

__all__ = ["soft_routing"]

ALGORITHMS = (
    Algorithm(
        "soft_routing", "Puigcerver et al. 2023 (arXiv 2308.00951), Algorithms 1 and 2, Table 2", 3, ("soft_routing",)
    ),
)


def soft_routing(
    tokens: ArrayLike,
    slots: Shared,
    *,
    scale: Shared = 1.0,
    normalize: bool = True,
    norm_form: str = "paper",
    dispatch: str = "soft",
    combine: str = "soft",
) -> DenseRouting:
    """Computes soft routing from the logits `L[t, e, c] = <l2n(x[t]), scale * l2n(phi[:, e, c])>`:

        dispatch[t, e, c] = exp(L[t, e, c]) / sum_t' exp(L[t', e, c])              over tokens
        combine[t, e, c]  = exp(L[t, e, c]) / sum_e',c' exp(L[t, e', c'])          over experts and slots

    The routing is differentiable in `tokens`, `slots` and `scale`. At a zero vector, the derivative of the norm is defined as 0.

    Args:
        tokens: X, (tokens, width), the tokens of one image.
        slots: Phi, (width, experts, capacity).
        scale: a trainable scalar.
        normalize: whether to normalise and scale; if False, the logits are `X Phi`.
        norm_form: the form of `normalize_l2`, "paper" or "rsqrt".
        dispatch: "soft" for the softmax, "uniform" for 1 / T everywhere, or "identity" for token t in slot `t // E` of expert `t % E`.
        combine: "soft" for the softmax, "uniform" for 1 / (E C) everywhere, or "identity" for the same tensor as dispatch.

    "identity" must be set for both tensors or for neither. "identity" requires equal numbers of slots and tokens.

    Returns:
        A Routing with tensors (tokens, experts, capacity). `dispatch` sums to 1 over tokens. `combine` sums to 1 over experts and slots.

    Raises:
        ConfigError: "identity" is set for only one of the two tensors.
        ShapeError: "identity" is set, but the numbers of slots and tokens differ.

    Source: Soft MoE, eqs. (1)-(2), Algorithms 1 and 2; section 3.6 and appendix A for the ablations.

    >>> slots = np.array([[1.0, 0.0], [1.0, 2.0]])[:, :, None]  # two experts with one slot
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

    # Scores.
    if normalize:
        tokens = normalize_l2(tokens, 1, form=norm_form)
        slots = scale * normalize_l2(slots, 0, form=norm_form)
    logits = np.einsum("td,dec->tec", tokens, slots)

    # Dispatch, combine. There is no selection step, because every slot mixes all tokens.
    D = softmax(logits, axis=0)
    C = softmax(logits, axis=(1, 2))
    if dispatch == combine == "soft":
        return Routing(D, C)
    return Routing(ablated(D, dispatch, len(tokens)), ablated(C, combine, slots[0].size))


def ablated(weights: Array, kind: str, size: int) -> Array:
    """Returns the softmax weights, or the weights of an ablation in the paper's Table 2. size: the number of entries in a softmax."""
    if kind == "identity":
        return identity(*weights.shape)
    return weights if kind == "soft" else np.full(weights.shape, 1 / size)


def check_forms(norm_form: str, dispatch: str, combine: str) -> None:
    """Raises `ConfigError` for an unknown option, or if "identity" is set for only one of the tensors."""
    check_option("norm_form", norm_form, ("paper", "rsqrt"))
    check_option("dispatch", dispatch, ("soft", "uniform", "identity"))
    check_option("combine", combine, ("soft", "uniform", "identity"))
    if (dispatch == "identity") != (combine == "identity"):
        raise ConfigError(f"dispatch: {dispatch!r} with combine={combine!r}: expected 'identity' for both or neither")


def check_one_slot_each(tokens: int, experts: int, capacity: int) -> None:
    """Raises `ShapeError` unless the numbers of slots and tokens are equal."""
    slots = experts * capacity
    if tokens != slots:
        product = f"{experts} x {capacity} = {slots}"
        raise ShapeError(f"slots: 'identity' needs one slot per token, got {product} slots and {tokens} tokens")


def identity(tokens: int, experts: int, capacity: int) -> Array:
    """Assigns the tokens to the experts in turn: returns the tensor that is 1 where `t = c * experts + e` and 0 elsewhere."""
    check_one_slot_each(tokens, experts, capacity)
    return np.eye(tokens).reshape(tokens, capacity, experts).swapaxes(1, 2)
