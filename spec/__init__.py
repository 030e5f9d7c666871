"""The executable specification of mixture-of-experts routing: NumPy, float64, one routing group at a time.

One module is one algorithm, written as its paper writes it. A sparse router walks the same steps in the same order:
scores, selection, slots, dispatch, combine. Axis names are tokens T, experts E, capacity C (slots of an expert), width
D, hidden H, choices K. Arrays of any floating dtype come in, float64 goes out; complex arrays come in for the complex
step, by which every function differentiates itself (see `numerics`). Noise is always an argument: nothing draws random
numbers except the initial parameters of a router, from a generator that is passed in.

| section | what | module |
|---|---|---|
| 1 | capacity; the layer | `capacity`, `layer` |
| 2 | softmax affinity, gating noise | `softmax` |
| 2.4, 10.3 | noisy top-k gating and its load loss | `noisy_top_k` |
| 2.5, 11 | Switch and its jitter | `switch` |
| 3, 4, 5 | Token Choice, batch priority, Expert Choice | `token_choice`, `batch_priority`, `expert_choice` |
| 6 | Sinkhorn affinity | `sinkhorn` |
| 7, 8.7 | routers, their compositions | `routers` |
| 7.3 | S-BASE | `s_base` |
| 8 | sparsity-constrained transport | `simplex`, `transport_duals`, `sparse_transport` |
| 9 | Soft MoE | `soft_moe` |
| 10 | auxiliary losses | `losses` |
| 12 | hash layers: token ids, tables, routing, MultiHash | `token_ids`, `hash_tables`, `hash_layers` |
| 13 | DSelect-k | `dselect_k` |
| 14 | BASE layers | `base_layers` |
| 15 | Sparse-MLP: rescale sub-layer, importance-score routing | `sparse_mlp`, `importance_score` |
| 16 | operations of a vision transformer | `network` |
| 20 | GShard's top-2 | `gshard` |

`ALGORITHMS` lists what is specified and `LEDGER` every place where a paper had to be read one way or another.
Errors are `SpecError`, a `ValueError`, in four kinds: ConfigError, ShapeError, DtypeError, ContractError.
"""

from moespec.spec.base_layers import Assignment, base_assignment, base_greedy, base_routing
from moespec.spec.batch_priority import batch_priority
from moespec.spec.capacity import CAPACITY_RULES, expert_capacity
from moespec.spec.dselect_k import (
    dselect_k_entropy,
    dselect_k_gate,
    dselect_k_reachability,
    dselect_k_routing,
    dselect_k_selectors,
    smooth_step,
)
from moespec.spec.errors import ConfigError, ContractError, DtypeError, ShapeError, SpecError
from moespec.spec.expert_choice import expert_choice
from moespec.spec.gshard import gshard_keep
from moespec.spec.hash_layers import hash_routing, multi_hash_mlp
from moespec.spec.hash_tables import (
    Clustering,
    hash_table_balanced,
    hash_table_clustered,
    hash_table_dispersed,
    hash_table_random,
    k_means,
)
from moespec.spec.importance_score import importance_score_choice, importance_score_order
from moespec.spec.layer import expert_mlp, gelu, moe_layer
from moespec.spec.losses import balance_loss, importance_loss, load_loss, z_loss
from moespec.spec.metrics import routing_metrics
from moespec.spec.network import attention, layer_norm, patch_embed, sigmoid_cross_entropy, softmax_cross_entropy
from moespec.spec.noisy_top_k import noisy_top_k_affinity, noisy_top_k_load_loss, noisy_top_k_logits
from moespec.spec.numerics import stop_gradient
from moespec.spec.registry import ALGORITHMS, LEDGER, Algorithm, LedgerEntry
from moespec.spec.routers import ROUTERS
from moespec.spec.routing import Router, RouterConfig, RouterOutput, Routing, slot_tokens
from moespec.spec.s_base import sigmoid_affinity
from moespec.spec.simplex import project_simplex, project_sparse_simplex
from moespec.spec.sinkhorn import sinkhorn_affinity
from moespec.spec.soft_moe import soft_routing
from moespec.spec.softmax import add_gating_noise, router_logits, softmax_affinity
from moespec.spec.sparse_mlp import rescale
from moespec.spec.sparse_transport import sparse_transport_affinity
from moespec.spec.switch import router_jitter
from moespec.spec.token_choice import normalize_selected, token_choice
from moespec.spec.token_ids import pair_ids, patch_codes, position_ids, previous_ids
from moespec.spec.transport_duals import Dual, SemiDual, transport_dual, transport_semi_dual

__all__ = [
    "ALGORITHMS",
    "CAPACITY_RULES",
    "LEDGER",
    "ROUTERS",
    "Algorithm",
    "Assignment",
    "Clustering",
    "ConfigError",
    "ContractError",
    "DtypeError",
    "Dual",
    "LedgerEntry",
    "Router",
    "RouterConfig",
    "RouterOutput",
    "Routing",
    "SemiDual",
    "ShapeError",
    "SpecError",
    "add_gating_noise",
    "attention",
    "balance_loss",
    "base_assignment",
    "base_greedy",
    "base_routing",
    "batch_priority",
    "dselect_k_entropy",
    "dselect_k_gate",
    "dselect_k_reachability",
    "dselect_k_routing",
    "dselect_k_selectors",
    "expert_capacity",
    "expert_choice",
    "expert_mlp",
    "gelu",
    "gshard_keep",
    "hash_routing",
    "hash_table_balanced",
    "hash_table_clustered",
    "hash_table_dispersed",
    "hash_table_random",
    "importance_loss",
    "importance_score_choice",
    "importance_score_order",
    "k_means",
    "layer_norm",
    "load_loss",
    "moe_layer",
    "multi_hash_mlp",
    "noisy_top_k_affinity",
    "noisy_top_k_load_loss",
    "noisy_top_k_logits",
    "normalize_selected",
    "pair_ids",
    "patch_codes",
    "patch_embed",
    "position_ids",
    "previous_ids",
    "project_simplex",
    "project_sparse_simplex",
    "rescale",
    "router_jitter",
    "router_logits",
    "routing_metrics",
    "sigmoid_affinity",
    "sigmoid_cross_entropy",
    "sinkhorn_affinity",
    "slot_tokens",
    "smooth_step",
    "soft_routing",
    "softmax_affinity",
    "softmax_cross_entropy",
    "sparse_transport_affinity",
    "stop_gradient",
    "token_choice",
    "transport_dual",
    "transport_semi_dual",
    "z_loss",
]
