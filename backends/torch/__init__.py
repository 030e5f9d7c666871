"""The torch backend: the public functions of the specification on tensors, batched over groups.

Every function runs op by op and under `torch.compile(fullgraph=True)`: shapes never depend on values, nothing is read
back from the device, iteration counts are fixed. Static faults raise the specification's errors; values (NaN,
infinity, an order that is no permutation) are not checked. `moespec.backends.torch.nn` has modules.
"""

import sys

from moespec.backends.optimizer import OptimizerConfig
from moespec.backends.routers import build
from moespec.backends.torch.affinities import (
    add_gating_noise,
    router_jitter,
    router_logits,
    sigmoid_affinity,
    sinkhorn_affinity,
    softmax_affinity,
)
from moespec.backends.torch.allocations import (
    batch_priority,
    expert_choice,
    gshard_keep,
    importance_score_choice,
    importance_score_order,
    normalize_selected,
    token_choice,
)
from moespec.backends.torch.arrays import (
    arange,
    broadcast_to,
    cast,
    concatenate,
    cos,
    default_device,
    einsum,
    from_numpy,
    mean,
    sin,
    softmax,
    stop_gradient,
    sum,
    tanh,
    to_numpy,
    transpose,
)
from moespec.backends.torch.base_layers import base_assignment, base_greedy, base_routing
from moespec.backends.torch.dselect_k import (
    dselect_k_entropy,
    dselect_k_gate,
    dselect_k_reachability,
    dselect_k_routing,
    dselect_k_selectors,
    smooth_step,
)
from moespec.backends.torch.hashing import (
    hash_routing,
    multi_hash_mlp,
    pair_ids,
    patch_codes,
    position_ids,
    previous_ids,
)
from moespec.backends.torch.losses import balance_loss, importance_loss, load_loss, routing_metrics, z_loss
from moespec.backends.torch.network import (
    attention,
    expert_mlp,
    gelu,
    layer_norm,
    patch_embed,
    rescale,
    sigmoid_cross_entropy,
    softmax_cross_entropy,
)
from moespec.backends.torch.noisy_top_k import noisy_top_k_affinity, noisy_top_k_load_loss, noisy_top_k_logits
from moespec.backends.torch.slots import SlotRouting, SoftRouting, moe_layer
from moespec.backends.torch.soft import soft_routing
from moespec.backends.torch.training import (
    TrainState,
    compile,
    export_state,
    import_state,
    init_state,
    make_step,
    quick_compile,
    state_params,
    value_and_grad,
)
from moespec.backends.torch.transport import (
    project_simplex,
    project_sparse_simplex,
    sparse_transport_affinity,
    transport_dual,
    transport_semi_dual,
)
from moespec.spec import CAPACITY_RULES, expert_capacity
from moespec.spec.hash_tables import (
    hash_table_balanced,
    hash_table_clustered,
    hash_table_dispersed,
    hash_table_random,
    k_means,
)

name = "torch"
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
    "default_device",
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
    "quick_compile",
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
