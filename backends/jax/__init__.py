"""The JAX backend: pure functions on arrays with a leading groups axis, for `jax.jit` on CPU, GPU and TPU.

Sparse routings are stored by slot (`SlotRouting`). Arrays of size tokens x experts x capacity exist in three cases only: in the result of
`.dense()`, in soft routing, and for small groups on a TPU (`one_hot`). Affinities, losses and routing weights are computed in
float32 or better for every model dtype. Invalid shapes, dtypes and options raise errors during tracing. The functions do not check for NaN
and infinity. A compiled program returns the same bits on every run. Outside `jax.jit`, each function compiles to one program per set
of shapes, dtypes and options (`moespec.backends.jax.programs`).
"""

# ruff: noqa: E402, I001 (the sections are a table of contents)

import sys as _sys

from moespec.backends import common as _common
from moespec.spec.names import public_names as _public_names
from moespec.backends.jax import arrays as _arrays
from moespec.backends.jax import base_layers as _base_layers
from moespec.backends.jax import embeddings as _embeddings
from moespec.backends.jax import grouped as _grouped
from moespec.backends.jax import hashing as _hashing
from moespec.backends.jax import metrics as _metrics
from moespec.backends.jax import namespace as _namespace
from moespec.backends.jax import network as _network
from moespec.backends.jax import slots as _slots
from moespec.backends.jax.public import formula as _formula, public as _public
from moespec.backends.routers import composed as _composed

# Logits and noise.
router_logits = _formula(_common.affinities.router_logits)
cosine_logits = _formula(_common.cosine_logits.cosine_logits)
cap_logits = _formula(_common.affinities.cap_logits)
capacity_logits = _formula(_common.capacity_predictor.capacity_logits)
noisy_top_k_logits = _formula(_common.noisy_top_k.noisy_top_k_logits)
add_gating_noise = _formula(_common.affinities.add_gating_noise)
router_jitter = _formula(_common.affinities.router_jitter)
pool_images = _formula(_common.image_pooling.pool_images)
spread_images = _formula(_common.image_pooling.spread_images)

# Affinities: logits to scores.
softmax_affinity = _formula(_common.affinities.softmax_affinity)
sigmoid_affinity = _formula(_common.affinities.sigmoid_affinity)
sqrt_softplus_affinity = _formula(_common.affinities.sqrt_softplus_affinity)
relu_affinity = _formula(_common.relu_routing.relu_affinity)
noisy_top_k_affinity = _formula(_common.noisy_top_k.noisy_top_k_affinity)
hierarchical_affinity = _formula(_common.hierarchical_gating.hierarchical_affinity)
capped_affinity = _formula(_common.capped_affinity.capped_affinity)
sinkhorn_affinity = _formula(_common.affinities.sinkhorn_affinity)
sparse_transport_affinity = _formula(_common.transport.sparse_transport_affinity)
transport_dual = _formula(_common.transport.transport_dual)
transport_semi_dual = _formula(_common.transport.transport_semi_dual)
project_simplex = _formula(_common.transport.project_simplex)
project_sparse_simplex = _formula(_common.transport.project_sparse_simplex)

# Scores and gates before selection.
biased_scores = _formula(_common.loss_free.biased_scores)
group_limited_scores = _formula(_common.group_limited.group_limited_scores)
replay_choices = _formula(_common.replay.replay_choices)
batchwise_mask = _formula(_common.strictly_balanced.batchwise_mask)
threshold_mask = _formula(_common.strictly_balanced.threshold_mask)
masked_gates = _formula(_common.strictly_balanced.masked_gates)
scores_above = _formula(_common.capacity_predictor.scores_above)
top_p_mask = _formula(_common.variable_budget.top_p_mask)
pooled_mask = _formula(_common.variable_budget.pooled_mask)
cutoff_mask = _formula(_common.variable_budget.cutoff_mask)
kept_scores = _formula(_common.variable_budget.kept_scores)
gshard_keep = _formula(_common.allocations.gshard_keep)
gshard_sample = _formula(_common.affinities.gshard_sample)
normalize_selected = _formula(_common.allocations.normalize_selected)
scaled_gates = _formula(_common.affinities.scaled_gates)

# Capacity and order.
from moespec.spec.algorithms.capacity import CAPACITY_RULES as CAPACITY_RULES
from moespec.spec.algorithms.capacity import expert_capacity as expert_capacity

batch_priority = _formula(_common.allocations.batch_priority)
importance_score_order = _formula(_common.allocations.importance_score_order)

# Allocations: scores to routings.
token_choice = _formula(_common.allocations.token_choice)
expert_choice = _formula(_common.allocations.expert_choice)
importance_score_choice = _formula(_common.allocations.importance_score_choice)
base_assignment = _public(_base_layers.base_assignment)
base_greedy = _formula(_common.base_layers.base_greedy)
base_routing = _formula(_common.base_layers.base_routing)
soft_routing = _formula(_common.soft_moe.soft_routing)
hash_routing = _public(_hashing.hash_routing)

# DSelect-k.
dselect_k_codes = _formula(_common.dselect_k.dselect_k_codes)
dselect_k_selectors = _formula(_common.dselect_k.dselect_k_selectors)
dselect_k_gate = _formula(_common.dselect_k.dselect_k_gate)
dselect_k_routing = _formula(_common.dselect_k.dselect_k_routing)
dselect_k_entropy = _formula(_common.dselect_k.dselect_k_entropy)
dselect_k_reachability = _formula(_common.dselect_k.dselect_k_reachability)
smooth_step = _formula(_common.dselect_k.smooth_step)

# Losses of routers.
balance_loss = _formula(_common.losses.balance_loss)
importance_loss = _formula(_common.losses.importance_loss)
load_loss = _formula(_common.losses.load_loss)
z_loss = _formula(_common.losses.z_loss)
noisy_top_k_load_loss = _formula(_common.noisy_top_k.noisy_top_k_load_loss)
hierarchical_load_loss = _formula(_common.hierarchical_gating.hierarchical_load_loss)
threshold_loss = _formula(_common.strictly_balanced.threshold_loss)
capacity_loss = _formula(_common.capacity_predictor.capacity_loss)
relu_loss = _formula(_common.relu_routing.relu_loss)
local_entropy_loss = _formula(_common.losses.local_entropy_loss)
global_entropy_loss = _formula(_common.losses.global_entropy_loss)

# State of routers.
expert_load = _formula(_common.loss_free.expert_load)
balance_bias = _formula(_common.loss_free.balance_bias)
required_biases = _formula(_common.quantile_balancing.required_biases)
quantile_bias = _formula(_common.quantile_balancing.quantile_bias)
capacity_thresholds = _formula(_common.capacity_predictor.capacity_thresholds)
moved_thresholds = _formula(_common.capacity_predictor.moved_thresholds)
excess_gates = _formula(_common.relu_routing.excess_gates)
renewed_penalty = _formula(_common.relu_routing.renewed_penalty)
budget_excess = _formula(_common.variable_budget.budget_excess)
pooled_cutoff = _formula(_common.variable_budget.pooled_cutoff)
renewed_controller = _formula(_common.variable_budget.renewed_controller)
renewed_cutoffs = _formula(_common.variable_budget.renewed_cutoffs)

# Statistics.
routing_metrics = _public(_metrics.routing_metrics)
collapse_metrics = _formula(_common.routing_statistics.collapse_metrics)
summed_dispatch = _formula(_common.routing_statistics.summed_dispatch)
cumulative_dispatch = _formula(_common.routing_statistics.cumulative_dispatch)
experts_per_token = _formula(_common.routing_statistics.experts_per_token)
slot_similarity = _formula(_common.routing_statistics.slot_similarity)

# Layers.
from moespec.spec.algorithms.dropout import branch_rate as branch_rate

moe_layer = _public(_slots.moe_layer)
moe_mlp = _public(_grouped.moe_mlp)
expert_mlp = _public(_network.expert_mlp)
multi_hash_mlp = _public(_hashing.multi_hash_mlp)
attention = _public(_network.attention)
convolution = _public(_network.convolution)
embedding = _public(_embeddings.embedding)
patch_embed = _public(_network.patch_embed)
layer_norm = _public(_network.layer_norm)
rescale = _public(_network.rescale)
gelu = _public(_network.gelu)
dropout = _public(_network.dropout)

# Losses of models.
softmax_cross_entropy = _formula(_common.network.softmax_cross_entropy)
sigmoid_cross_entropy = _formula(_common.network.sigmoid_cross_entropy)
contrastive_loss = _formula(_common.pairs.contrastive_loss)
sigmoid_loss = _formula(_common.pairs.sigmoid_loss)
moco_loss = _formula(_common.pairs.moco_loss)
momentum_update = _formula(_common.pairs.momentum_update)
batch_norm = _formula(_common.pairs.batch_norm)

# Token ids and hash tables.
from moespec.spec.algorithms.hash_tables import hash_table_balanced as hash_table_balanced
from moespec.spec.algorithms.hash_tables import hash_table_clustered as hash_table_clustered
from moespec.spec.algorithms.hash_tables import hash_table_dispersed as hash_table_dispersed
from moespec.spec.algorithms.hash_tables import hash_table_random as hash_table_random
from moespec.spec.algorithms.clustering import k_means as k_means

patch_codes = _formula(_common.token_ids.patch_codes)
previous_ids = _formula(_common.token_ids.previous_ids)
pair_ids = _formula(_common.token_ids.pair_ids)
position_ids = _formula(_common.token_ids.position_ids)
hash_scores = _formula(_common.token_ids.hash_scores)
hash_table_of = _formula(_common.token_ids.hash_table_of)

# Random numbers.
threefry = _formula(_common.threefry.threefry)
random_words = _formula(_common.threefry.random_words)
unit_interval = _formula(_common.threefry.unit_interval)
box_muller = _formula(_common.threefry.box_muller)

# Records of a routing.
from moespec.backends.jax.slots import SlotRouting as SlotRouting
from moespec.backends.jax.slots import SoftRouting as SoftRouting

# Arrays.
from moespec.backends.jax.arrays import arange as arange
from moespec.backends.jax.arrays import broadcast_to as broadcast_to
from moespec.backends.jax.arrays import cast as cast
from moespec.backends.jax.arrays import round_to_bfloat16 as round_to_bfloat16
from moespec.backends.jax.arrays import with_dtype as with_dtype
from moespec.backends.jax.arrays import concatenate as concatenate
from moespec.backends.jax.arrays import transpose as transpose
from moespec.backends.jax.arrays import einsum as einsum
from moespec.backends.jax.network import linear as linear
from moespec.backends.jax.arrays import sum as sum
from moespec.backends.jax.arrays import softmax as softmax
from moespec.backends.jax.arrays import relu as relu
from moespec.backends.jax.arrays import cos as cos
from moespec.backends.jax.arrays import sin as sin
from moespec.backends.jax.arrays import tanh as tanh
from moespec.backends.jax.arrays import from_numpy as from_numpy
from moespec.backends.jax.arrays import to_numpy as to_numpy

mean = _public(_arrays.mean)
stop_gradient = _public(_arrays.stop_gradient)

# Gradients and training.
from moespec.backends.optimizer import OptimizerConfig as OptimizerConfig
from moespec.backends.jax.training import TrainState as TrainState
from moespec.backends.jax.training import recomputed as recomputed
from moespec.backends.jax.training import compile as compile
from moespec.backends.jax.training import quick_compile as quick_compile
from moespec.backends.jax.training import value_and_grad as value_and_grad
from moespec.backends.jax.training import init_state as init_state
from moespec.backends.jax.training import state_params as state_params
from moespec.backends.jax.training import state_average as state_average
from moespec.backends.jax.training import make_step as make_step
from moespec.backends.jax.training import export_state as export_state
from moespec.backends.jax.training import finite_state as finite_state
from moespec.backends.jax.training import import_state as import_state

# The single-device versions of the mesh functions.
from moespec.backends.single_device import exchanged as exchanged
from moespec.backends.single_device import over_devices as over_devices
from moespec.backends.single_device import process as process
from moespec.backends.single_device import processes as processes
from moespec.backends.single_device import rows as rows
from moespec.backends.single_device import sizes as sizes
from moespec.backends.single_device import whole as whole

# Export.
from moespec.backends.jax.export import PLATFORMS as PLATFORMS
from moespec.backends.jax.export import stablehlo_bytes as stablehlo_bytes

# The backend itself.
name = "jax"
xp = _namespace
put = from_numpy
ROUTERS = _composed(_sys.modules[__name__])
"""The routers by name, computed by this backend."""

__all__ = _public_names(globals())


def __dir__() -> list[str]:
    return __all__
