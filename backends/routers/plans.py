"""Routers in which tokens or experts choose by a transport plan."""

from typing import Any

from moespec.backends.blocks import Array, Blocks
from moespec.backends.routers.composition import (
    noisy_logits,
    noisy_losses,
    output,
    replay,
    several_choices,
    token_choice,
)
from moespec.spec.routers.s_base import Options as SBase
from moespec.spec.routers.sinkhorn_expert_choice import Options as SinkhornEC
from moespec.spec.routers.sinkhorn_token_choice import Options as SinkhornTC
from moespec.spec.routers.sparsity_constrained_expert_choice import Options as SparseEC
from moespec.spec.routers.sparsity_constrained_token_choice import Options as SparseTC
from moespec.spec.routing import Params, RouterOutput

__all__ = [
    *("combine_scores", "s_base", "sinkhorn_expert_choice", "sinkhorn_token_choice", "sparse_plan"),
    *("sparsity_constrained_expert_choice", "sparsity_constrained_token_choice"),
]


def s_base(
    B: Blocks,
    params: Params,
    tokens: Array,
    options: SBase,
    *,
    noise: Array | None = None,
    train: bool = False,
    choices: Array | None = None,
) -> RouterOutput:
    """Token Choice with one expert per token, on the Sinkhorn plan in training and on the softmax at evaluation."""
    clean, noisy = noisy_logits(B, params, tokens, options, noise)
    scores = B.softmax_affinity(noisy)
    gates = scores if options.combine_with == "softmax" else B.sigmoid_affinity(noisy)
    selection = scores
    if train:
        selection = B.sinkhorn_affinity(B.stop_gradient(noisy), iterations=options.sinkhorn_iterations)
    selection = B.stop_gradient(selection)
    made, combine, keep = replay(B, options, choices, selection, gates)
    routing = token_choice(B, options, made, combine, train=train, priority=selection, keep=keep)
    return output(B, options, routing, noisy_losses(B, options, clean, noisy, noise))


def sinkhorn_token_choice(
    B: Blocks,
    params: Params,
    tokens: Array,
    options: SinkhornTC,
    *,
    noise: Array | None = None,
    train: bool = False,
    choices: Array | None = None,
) -> RouterOutput:
    """Token Choice on the Sinkhorn plan of the noisy logits."""
    clean, noisy = noisy_logits(B, params, tokens, options, noise)
    plan = _sinkhorn_plan(B, options, noisy)
    combine = combine_scores(B, options, clean, noisy, plan)
    return _by_tokens(B, options, B.stop_gradient(plan), combine, clean, noisy, noise, choices, train=train)


def sinkhorn_expert_choice(
    B: Blocks, params: Params, tokens: Array, options: SinkhornEC, *, noise: Array | None = None, train: bool = False
) -> RouterOutput:
    """Expert Choice on the Sinkhorn plan of the noisy logits."""
    clean, noisy = noisy_logits(B, params, tokens, options, noise)
    plan = _sinkhorn_plan(B, options, noisy)
    combine = combine_scores(B, options, clean, noisy, plan)
    routing = B.expert_choice(B.stop_gradient(plan), capacity=options.capacity(train=train), combine_scores=combine)
    return output(B, options, routing, noisy_losses(B, options, clean, noisy, noise))


def sparsity_constrained_token_choice(
    B: Blocks,
    params: Params,
    tokens: Array,
    options: SparseTC,
    *,
    noise: Array | None = None,
    train: bool = False,
    choices: Array | None = None,
) -> RouterOutput:
    """Token Choice on the transport plan of the softmax. The plan assigns at most K experts to each token."""
    clean, noisy = noisy_logits(B, params, tokens, options, noise)
    plan = sparse_plan(B, options, B.softmax_affinity(noisy), capacity=options.choices, sparsity="token")
    combine = combine_scores(B, options, clean, noisy, plan)
    return _by_tokens(B, options, plan, combine, clean, noisy, noise, choices, train=train)


def sparsity_constrained_expert_choice(
    B: Blocks, params: Params, tokens: Array, options: SparseEC, *, noise: Array | None = None, train: bool = False
) -> RouterOutput:
    """Expert Choice on the sparsity-constrained transport plan of the softmax."""
    clean, noisy = noisy_logits(B, params, tokens, options, noise)
    capacity = options.capacity(train=train)
    plan = sparse_plan(B, options, B.softmax_affinity(noisy), capacity=capacity)
    combine = combine_scores(B, options, clean, noisy, plan)
    routing = B.expert_choice(plan, capacity=capacity, combine_scores=combine, drop_zero=options.drop_zero_plan)
    return output(B, options, routing, noisy_losses(B, options, clean, noisy, noise))


def _by_tokens(
    B: Blocks,
    options: SinkhornTC | SparseTC,
    plan: Array,
    combine: Array,
    clean: Array,
    noisy: Array,
    noise: Array | None,
    recorded: Array | None,
    *,
    train: bool,
) -> RouterOutput:
    """Routes by Token Choice on the transport plan, and adds the losses."""
    made, weights, keep = replay(B, options, recorded, plan, combine)
    routing = token_choice(B, options, made, weights, train=train, priority=plan, keep=keep, **several_choices(options))
    choices = options.choices
    counted = choices if options.balance_counts == "all" else None
    return output(B, options, routing, noisy_losses(B, options, clean, noisy, noise, choices=choices, counted=counted))


def _sinkhorn_plan(B: Blocks, options: Any, noisy: Array) -> Array:
    """The Sinkhorn plan of the noisy logits. If the plan is used only for selection, no gradient flows through the iterations."""
    planned = noisy if options.combine_with == "plan" else B.stop_gradient(noisy)
    return B.sinkhorn_affinity(planned, iterations=options.sinkhorn_iterations)


def sparse_plan(B: Blocks, options: Any, scores: Array, **constraint: Any) -> Array:
    """The transport plan of the scores, without gradient. `constraint` sets the sparse axis and the number of non-zeros along this axis."""
    objective, steps = options.transport_objective, options.transport_steps
    return B.sparse_transport_affinity(B.stop_gradient(scores), objective=objective, steps=steps, **constraint)


def combine_scores(B: Blocks, options: Any, clean: Array, noisy: Array, plan: Array) -> Array:
    """Returns the combine weights that the options select."""
    if options.combine_with == "plan":
        return plan
    return B.softmax_affinity(clean if options.combine_from_clean_logits else noisy)
