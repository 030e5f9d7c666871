"""Routers without a plain top-k choice: BASE, hash layers, Soft MoE and DSelect-k."""

from moespec.backends.blocks import Array, Blocks
from moespec.backends.routers.composition import Losses, kernel_logits, output
from moespec.spec.algorithms.balanced_assignment import even_slots
from moespec.spec.algorithms.dselect_k_codes import code_bits
from moespec.spec.checks import check_integers, check_size
from moespec.spec.errors import ConfigError
from moespec.spec.routers.base import Options as Base
from moespec.spec.routers.dselect_k import Options as DSelectK
from moespec.spec.routers.hash import EPSILON
from moespec.spec.routers.hash import Options as Hash
from moespec.spec.routers.soft_moe import Options as SoftMoe
from moespec.spec.routing import Params, RouterOutput

__all__ = ["base", "dselect_k", "hash", "soft_moe"]


def base(
    B: Blocks, params: Params, tokens: Array, options: Base, *, noise: Array | None = None, train: bool = False
) -> RouterOutput:
    """In training, routes by the best of all balanced assignments and reports the gap. At evaluation, routes by the greedy assignment."""
    scores = kernel_logits(B, params, tokens, options)
    if not train:
        return output(B, options, B.base_routing(scores, B.base_greedy(scores), capacity=options.tokens))
    shards = options.shards
    assignment = B.base_assignment(scores) if shards == 1 else B.base_assignment(scores, noise, shards=shards)
    balanced = output(B, options, B.base_routing(scores, assignment.expert, capacity=even_slots(scores)))
    return balanced._replace(metrics={**balanced.metrics, "gap": B.mean(assignment.gap)})


def hash(
    B: Blocks,
    params: Params,
    tokens: Array,
    options: Hash,
    *,
    noise: Array | None = None,
    train: bool = False,
    ids: Array | None = None,
) -> RouterOutput:
    """Sends each token to the experts that the hash tables list for the token's id. By default, the id is the token's position."""
    if options.hashes != 1:
        raise ConfigError(
            f"hashes: expected 1, got {options.hashes}; several hashes mix experts inside the MLP (see multi_hash_mlp)"
        )
    check_size("tokens", tokens, -2, options.tokens, "options.tokens")
    ids = B.position_ids(tokens) if ids is None else ids
    check_integers("ids", ids, "... tokens")
    check_size("ids", ids, -1, options.tokens, "options.tokens")
    capacity = options.capacity(train=train)
    if options.affinity == "none":
        table = B.hash_table_of(params["tables"])
        return output(B, options, B.hash_routing(ids, table, experts=options.experts, capacity=capacity, like=tokens))
    weights = getattr(B, f"{options.affinity}_affinity")(kernel_logits(B, params, tokens, options))
    check_size("tables", params["tables"], 0, options.choices, "options.choices")
    scores = B.hash_scores(ids, params["tables"], experts=options.experts)
    if options.normalize_selected:
        weights = B.normalize_selected(scores, weights, choices=options.choices, epsilon=EPSILON)
    if options.scale != 1:
        weights = B.scaled_gates(weights, scale=options.scale)
    routing = B.token_choice(scores, choices=options.choices, capacity=capacity, combine_scores=weights)
    return output(B, options, routing)


def soft_moe(
    B: Blocks, params: Params, tokens: Array, options: SoftMoe, *, noise: Array | None = None, train: bool = False
) -> RouterOutput:
    """Soft MoE and its ablations."""
    routing = B.soft_routing(
        tokens,
        params["slots"],
        scale=params["scale"],
        normalize=options.normalize,
        norm_form=options.norm_form,
        dispatch=options.dispatch,
        combine=options.combine,
    )
    check_size("tokens", routing.dispatch, -3, options.tokens, "options.tokens")
    check_size("slots", routing.dispatch, -2, options.experts, "options.experts")
    check_size("slots", routing.dispatch, -1, options.capacity(), "the capacity of options")
    return output(B, options, routing)


def dselect_k(
    B: Blocks, params: Params, tokens: Array, options: DSelectK, *, noise: Array | None = None, train: bool = False
) -> RouterOutput:
    """Sends each token to the experts that the token's selectors choose."""
    check_size("tokens", tokens, -2, options.tokens, "options.tokens")
    kernel = params["kernel"] if options.selector_gate == "token" else None
    codes = B.dselect_k_codes(tokens, params["bias"], kernel, choices=options.choices, experts=options.experts)
    selectors = B.dselect_k_selectors(codes.codes, experts=options.experts, gamma=options.selector_gamma)
    routing = B.dselect_k_routing(B.dselect_k_gate(selectors, codes.logits), like=tokens)
    losses: Losses = {"selector_entropy": lambda: B.dselect_k_entropy(selectors)}
    if options.experts != 2 ** code_bits(options.experts):
        losses = {**losses, "reachability": lambda: B.dselect_k_reachability(selectors)}
    return output(B, options, routing, losses)
