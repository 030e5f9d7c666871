"""Computing in a lower precision than is promised: the variants that functions, routers and models share.

The known variants run in float64, where any result in bfloat16 is far outside its tolerance; the cases with the flag
`low_precision` see these mistakes in float32 and in bfloat16, too.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from moespec.conformance.author.draw import to_bfloat16
from moespec.conformance.author.reorder import chosen_mask
from moespec.conformance.author.variant import Replacement, Variant, variant

__all__ = ["VARIANTS"]

Rounding = Callable[[Any], Any]


def _bfloat16(values: Any) -> Any:
    """Rounded to bfloat16, with the derivative of the identity."""
    return values + (to_bfloat16(values.real).astype(np.float64) - values.real)


def _float32(values: Any) -> Any:
    return values + (values.real.astype(np.float32).astype(np.float64) - values.real)


def _selected(rounded: Rounding) -> dict[str, Replacement]:
    """Everything that chooses by scores, with these rounded; the weights are not."""

    def allocation(name: str) -> Replacement:
        def function(B: Any, scores: Any, *, combine_scores: Any = None, **options: Any) -> Any:
            weights = scores if combine_scores is None else combine_scores
            getattr(B, name)(scores, combine_scores=combine_scores, **options)
            return getattr(B, name)(rounded(scores), combine_scores=weights, **options)

        return function

    def order(name: str) -> Replacement:
        def function(B: Any, scores: Any, **options: Any) -> Any:
            getattr(B, name)(scores, **options)
            return getattr(B, name)(rounded(scores), **options)

        return function

    def gates(B: Any, noisy_logits: Any, *, choices: int) -> Any:
        B.noisy_top_k_affinity(noisy_logits, choices=choices)
        chosen = chosen_mask(rounded(noisy_logits), choices)
        shifted = noisy_logits - np.max(noisy_logits.real, axis=2, keepdims=True)
        weights = np.where(chosen > 0, np.exp(shifted), 0)
        return weights / weights.sum(axis=2, keepdims=True)

    def preferences(B: Any, scores: Any) -> Any:
        B.balance_loss(scores)
        fraction = chosen_mask(rounded(scores), 1).mean(axis=1)
        return scores.shape[2] * np.mean(np.sum(fraction * np.mean(scores, axis=1), axis=1))

    return {
        **{name: allocation(name) for name in ("token_choice", "expert_choice", "importance_score_choice")},
        **{name: order(name) for name in ("batch_priority", "importance_score_order", "base_greedy")},
        "noisy_top_k_affinity": gates,
        "balance_loss": preferences,
    }


def logits_in_bfloat16(B: Any, tokens: Any, kernel: Any) -> Any:
    """The product of tokens and kernel is rounded to bfloat16."""
    return _bfloat16(B.router_logits(tokens, kernel))


def _plan(rounded: Rounding) -> Replacement:
    def plan(B: Any, utility: Any, **options: Any) -> Any:
        B.sparse_transport_affinity(utility, **options)
        return B.sparse_transport_affinity(rounded(utility), **options)

    return plan


def _selectors(rounded: Rounding) -> Replacement:
    def selectors(B: Any, codes: Any, **options: Any) -> Any:
        B.dselect_k_selectors(codes, **options)
        return B.dselect_k_selectors(rounded(codes), **options)

    return selectors


def selected_normalised_in_bfloat16(B: Any, scores: Any, combine_scores: Any = None, *, choices: int) -> Any:
    """The combine weights of the chosen experts are summed and divided in bfloat16."""
    B.normalize_selected(scores, combine_scores, choices=choices)
    weights = _bfloat16(scores if combine_scores is None else combine_scores)
    chosen = chosen_mask(scores, choices)
    return _bfloat16(weights / _bfloat16((weights * chosen).sum(axis=2, keepdims=True)))


def outputs_summed_in_bfloat16(B: Any, tokens: Any, routing: Any, experts: Callable[[Any], Any]) -> Any:
    """The weighted outputs of a token's experts are added in bfloat16, one after the other."""
    B.moe_layer(tokens, routing, experts)
    dispatch, combine = routing.dense()
    outputs = experts(np.einsum("gtec,gtd->gecd", dispatch, tokens))
    total = np.zeros_like(combine[:, :, 0, 0, None] * outputs[:, :1, 0])
    for expert, slot in np.ndindex(outputs.shape[1:3]):
        total = _bfloat16(total + _bfloat16(combine[:, :, expert, slot, None] * outputs[:, None, expert, slot]))
    return total


def combine_weights_in_bfloat16(B: Any, tokens: Any, routing: Any, experts: Callable[[Any], Any]) -> Any:
    """The combine weights are rounded to bfloat16 before they multiply what the experts return."""
    part = "weight" if hasattr(routing, "weight") else "combine"
    return B.moe_layer(tokens, routing._replace(**{part: _bfloat16(getattr(routing, part))}), experts)


def _parameters_rounded(routers: Mapping[str, Any]) -> dict[str, Any]:
    def rounded(compose: Callable[..., Any]) -> Callable[..., Any]:
        def composed(B: Any, params: Any, *arguments: Any, **options: Any) -> Any:
            return compose(B, {name: _bfloat16(array) for name, array in params.items()}, *arguments, **options)

        return composed

    return {name: replace(router, compose=rounded(router.compose)) for name, router in routers.items()}


VARIANTS = (
    Variant("selected_in_bfloat16", "Choices are made by scores rounded to bfloat16.", _selected(_bfloat16)),
    Variant("selected_in_float32", "Choices are made by scores rounded to float32.", _selected(_float32)),
    *(
        Variant(f"{what}_in_{dtype}", f"{text} rounded to {dtype}.", {name: change(rounded)})
        for what, text, name, change in (
            (
                "plan",
                "The plan of the sparsity-constrained transport is that of a utility",
                "sparse_transport_affinity",
                _plan,
            ),
            ("codes", "The selectors of DSelect-k are those of codes", "dselect_k_selectors", _selectors),
        )
        for dtype, rounded in (("bfloat16", _bfloat16), ("float32", _float32))
    ),
    variant(logits_in_bfloat16, "router_logits"),
    variant(selected_normalised_in_bfloat16, "normalize_selected"),
    variant(outputs_summed_in_bfloat16, "moe_layer"),
    variant(combine_weights_in_bfloat16, "moe_layer", who="huggingface/transformers"),
    Variant(
        "router_parameters_in_bfloat16",
        "The parameters of routers are rounded to bfloat16.",
        {"ROUTERS": _parameters_rounded},
    ),
)
