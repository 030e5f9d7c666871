"""The JAX backend: pure functions on arrays with a leading groups axis, for `jax.jit` on CPU, GPU and TPU.

Sparse routings are stored by slot (`SlotRouting`); nothing of size tokens x experts x capacity is made unless
`.dense()` is asked for, except for soft routing, which is dense by nature. Affinities, losses and routing weights are
in float32 or better whatever the dtype of the model. Faults of shape, dtype or configuration raise while tracing;
NaN and infinity are not looked for. Results are the same bits on every run of the same program.
"""

import sys

from moespec.backends.jax.affinities import (
    add_gating_noise,
    router_jitter,
    router_logits,
    sigmoid_affinity,
    sinkhorn_affinity,
    softmax_affinity,
)
from moespec.backends.jax.allocations import (
    batch_priority,
    expert_choice,
    gshard_keep,
    importance_score_choice,
    importance_score_order,
    normalize_selected,
    token_choice,
)
from moespec.backends.jax.arrays import (
    arange,
    broadcast_to,
    cast,
    concatenate,
    cos,
    einsum,
    from_numpy,
    lane,
    mean,
    sin,
    softmax,
    stop_gradient,
    sum,
    tanh,
    to_numpy,
    transpose,
)
from moespec.backends.jax.base_layers import base_assignment, base_greedy, base_routing
from moespec.backends.jax.dselect_k import (
    dselect_k_entropy,
    dselect_k_gate,
    dselect_k_reachability,
    dselect_k_routing,
    dselect_k_selectors,
    smooth_step,
)
from moespec.backends.jax.hashing import (
    hash_routing,
    multi_hash_mlp,
    pair_ids,
    patch_codes,
    position_ids,
    previous_ids,
)
from moespec.backends.jax.losses import balance_loss, importance_loss, load_loss, routing_metrics, z_loss
from moespec.backends.jax.network import (
    attention,
    expert_mlp,
    gelu,
    layer_norm,
    patch_embed,
    rescale,
    sigmoid_cross_entropy,
    softmax_cross_entropy,
)
from moespec.backends.jax.noisy_top_k import noisy_top_k_affinity, noisy_top_k_load_loss, noisy_top_k_logits
from moespec.backends.jax.slots import SlotRouting, SoftRouting, moe_layer
from moespec.backends.jax.soft import soft_routing
from moespec.backends.jax.training import (
    TrainState,
    compile,
    export_state,
    import_state,
    init_state,
    make_step,
    state_params,
    value_and_grad,
)
from moespec.backends.jax.transport import (
    project_simplex,
    project_sparse_simplex,
    sparse_transport_affinity,
    transport_dual,
    transport_semi_dual,
)
from moespec.backends.optimizer import OptimizerConfig
from moespec.backends.routers import build
from moespec.spec import CAPACITY_RULES, expert_capacity
from moespec.spec.hash_tables import (
    hash_table_balanced,
    hash_table_clustered,
    hash_table_dispersed,
    hash_table_random,
    k_means,
)

name = "jax"
ROUTERS = build(sys.modules[__name__])

__all__ = [
    "CAPACITY_RULES",
    "ROUTERS",
    "OptimizerConfig",
    "SlotRouting",
    "SoftRouting",
    "TrainState",
    "add_gating_noise",
    "arange",
    "attention",
    "balance_loss",
    "base_assignment",
    "base_greedy",
    "base_routing",
    "batch_priority",
    "broadcast_to",
    "cast",
    "compile",
    "concatenate",
    "cos",
    "dselect_k_entropy",
    "dselect_k_gate",
    "dselect_k_reachability",
    "dselect_k_routing",
    "dselect_k_selectors",
    "einsum",
    "expert_capacity",
    "expert_choice",
    "expert_mlp",
    "export_state",
    "from_numpy",
    "gelu",
    "gshard_keep",
    "hash_routing",
    "hash_table_balanced",
    "hash_table_clustered",
    "hash_table_dispersed",
    "hash_table_random",
    "import_state",
    "importance_loss",
    "importance_score_choice",
    "importance_score_order",
    "init_state",
    "k_means",
    "lane",
    "layer_norm",
    "load_loss",
    "make_step",
    "mean",
    "moe_layer",
    "multi_hash_mlp",
    "name",
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
    "sin",
    "sinkhorn_affinity",
    "smooth_step",
    "soft_routing",
    "softmax",
    "softmax_affinity",
    "softmax_cross_entropy",
    "sparse_transport_affinity",
    "state_params",
    "stop_gradient",
    "sum",
    "tanh",
    "to_numpy",
    "token_choice",
    "transport_dual",
    "transport_semi_dual",
    "transpose",
    "value_and_grad",
    "z_loss",
]
