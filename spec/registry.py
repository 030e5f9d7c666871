"""The registry of the specification: the algorithms, which are the rows of the conformance matrix, and the ambiguity ledger.

The module of an algorithm lists its rows in `ALGORITHMS`. The `Router` of each router module provides one row.
The docstrings of all these modules contain the ledger entries.
"""

import sys
from types import ModuleType

from moespec.spec.algorithm import Algorithm
from moespec.spec.algorithms import (
    attention,
    balance_loss,
    balanced_assignment,
    base_layers,
    batch_priority,
    budget_control,
    budget_masks,
    capacity,
    capacity_predictor,
    capped_affinity,
    choice_probability,
    clustering,
    contrastive,
    convolution,
    cosine_logits,
    dropout,
    dselect_k,
    dselect_k_codes,
    dselect_k_losses,
    embedding,
    expert_choice,
    gated_experts,
    gelu,
    group_limited,
    gshard,
    hash_layers,
    hash_tables,
    hierarchical_gating,
    image_pooling,
    importance_score,
    input_gates,
    latent_experts,
    layer,
    limoe,
    logit_cap,
    loss_free,
    losses,
    metrics,
    moco,
    network,
    noisy_top_k,
    quantile_balancing,
    relu_routing,
    replay,
    router_jitter,
    routing_statistics,
    selected_weights,
    sigmoid_affinity,
    simplex,
    sinkhorn,
    smooth_step,
    soft_moe,
    softmax,
    sparse_mlp,
    sparse_transport,
    strictly_balanced,
    threefry,
    token_choice,
    token_ids,
    transport_duals,
    transport_solvers,
    z_loss,
    zero_computation_experts,
)
from moespec.spec.ledger import LedgerEntry, entries
from moespec.spec.names import Names
from moespec.spec.routers import ROUTERS, plan

__all__ = ["ALGORITHMS", "LEDGER"]

MODULES: tuple[ModuleType, ...] = (
    *(attention, balance_loss, balanced_assignment, base_layers, batch_priority, capacity, capacity_predictor),
    *(budget_control, budget_masks),
    *(capped_affinity, choice_probability, clustering, contrastive, convolution, cosine_logits, dropout),
    *(dselect_k, dselect_k_codes, dselect_k_losses, embedding, expert_choice, gated_experts, gelu),
    *(group_limited, gshard, hash_layers, hash_tables, hierarchical_gating, image_pooling, importance_score),
    *(
        input_gates,
        latent_experts,
        layer,
        limoe,
        logit_cap,
        loss_free,
        losses,
        metrics,
        moco,
        network,
        noisy_top_k,
        quantile_balancing,
    ),
    *(relu_routing, replay, router_jitter, routing_statistics, selected_weights, sigmoid_affinity, simplex),
    *(sinkhorn, smooth_step, soft_moe, softmax, sparse_mlp, sparse_transport, strictly_balanced, threefry),
    *(token_choice, token_ids, transport_duals, transport_solvers, z_loss, zero_computation_experts),
    *(plan, *(sys.modules[router.Options.__module__] for router in ROUTERS.values())),
)
"""The modules of the algorithms and of the routers."""


def _number(entry: LedgerEntry) -> tuple[str, int]:
    prefix, number = entry.id.split("-")
    return prefix, int(number)


_ROWS = [row for module in MODULES for row in getattr(module, "ALGORITHMS", ())]
_ENTRIES = [entry for module in MODULES for entry in entries(module.__doc__ or "", module.__name__)]

ALGORITHMS: dict[str, Algorithm] = Names(
    {row.name: row for row in (*_ROWS, *(router.algorithm for router in ROUTERS.values()))}
)
"""The algorithms by name: the functions, then the routers."""

LEDGER: dict[str, LedgerEntry] = Names({entry.id: entry for entry in sorted(_ENTRIES, key=_number)})
"""The entries of the ambiguity ledger, by id."""
