"""The specification as a backend: float64 NumPy, one group at a time, with exact gradients from complex-step differentiation.

The compiled backends must return the same results. This backend is fast enough only for tests. The NumPy backend runs
the routers of the specification, not the composed routers that the compiled backends share.
"""

# ruff: noqa: E402, I001 (imports are grouped by section)

import sys as _sys

from moespec import spec as _spec
from moespec.backends.binding import documented as _documented
from moespec.backends.numpy.groups import batched as _batched, routers_of_groups as _routers_of_groups
from moespec.spec.names import public_names as _public_names

# Logits and noise.
router_logits = _batched(_spec.router_logits)
cosine_logits = _batched(_spec.cosine_logits)
cap_logits = _batched(_spec.cap_logits)
capacity_logits = _batched(_spec.capacity_logits)
noisy_top_k_logits = _batched(_spec.noisy_top_k_logits)
add_gating_noise = _batched(_spec.add_gating_noise)
router_jitter = _batched(_spec.router_jitter)
pool_images = _batched(_spec.pool_images)
spread_images = _batched(_spec.spread_images)

# Affinities: logits to scores.
from moespec.backends.numpy.special import project_simplex as project_simplex
from moespec.backends.numpy.special import project_sparse_simplex as project_sparse_simplex

softmax_affinity = _batched(_spec.softmax_affinity)
sigmoid_affinity = _batched(_spec.sigmoid_affinity)
sqrt_softplus_affinity = _batched(_spec.sqrt_softplus_affinity)
relu_affinity = _batched(_spec.relu_affinity)
noisy_top_k_affinity = _batched(_spec.noisy_top_k_affinity)
hierarchical_affinity = _batched(_spec.hierarchical_affinity)
capped_affinity = _batched(_spec.capped_affinity)
sinkhorn_affinity = _batched(_spec.sinkhorn_affinity)
sparse_transport_affinity = _batched(_spec.sparse_transport_affinity)
transport_dual = _batched(_spec.transport_dual)
transport_semi_dual = _batched(_spec.transport_semi_dual)

# Scores and gates before selection.
biased_scores = _batched(_spec.biased_scores)
group_limited_scores = _batched(_spec.group_limited_scores)
replay_choices = _batched(_spec.replay_choices)
batchwise_mask = _batched(_spec.batchwise_mask)
threshold_mask = _batched(_spec.threshold_mask)
masked_gates = _batched(_spec.masked_gates)
scores_above = _batched(_spec.scores_above)
top_p_mask = _batched(_spec.top_p_mask)
pooled_mask = _batched(_spec.pooled_mask)
cutoff_mask = _batched(_spec.cutoff_mask)
kept_scores = _batched(_spec.kept_scores)
gshard_keep = _batched(_spec.gshard_keep)
gshard_sample = _batched(_spec.gshard_sample)
normalize_selected = _batched(_spec.normalize_selected)
scaled_gates = _batched(_spec.scaled_gates)

# Capacity and order.
from moespec.spec.algorithms.capacity import CAPACITY_RULES as CAPACITY_RULES
from moespec.spec.algorithms.capacity import expert_capacity as expert_capacity

batch_priority = _batched(_spec.batch_priority)
importance_score_order = _batched(_spec.importance_score_order)

# Allocations: scores to routings.
token_choice = _batched(_spec.token_choice)
expert_choice = _batched(_spec.expert_choice)
importance_score_choice = _batched(_spec.importance_score_choice)
base_assignment = _batched(_spec.base_assignment)
base_greedy = _batched(_spec.base_greedy)
base_routing = _batched(_spec.base_routing)
soft_routing = _batched(_spec.soft_routing)
hash_routing = _batched(_spec.hash_routing)
hash_scores = _batched(_spec.hash_scores)

# DSelect-k.
from moespec.spec.algorithms.dselect_k_codes import dselect_k_codes as dselect_k_codes
from moespec.spec.algorithms.dselect_k import dselect_k_selectors as dselect_k_selectors
from moespec.spec.algorithms.dselect_k import dselect_k_gate as dselect_k_gate
from moespec.spec.algorithms.smooth_step import smooth_step as smooth_step
from moespec.backends.numpy.special import dselect_k_routing as dselect_k_routing
from moespec.backends.numpy.special import dselect_k_entropy as dselect_k_entropy
from moespec.backends.numpy.special import dselect_k_reachability as dselect_k_reachability

# Losses of routers.
balance_loss = _batched(_spec.balance_loss)
importance_loss = _batched(_spec.importance_loss)
load_loss = _batched(_spec.load_loss)
z_loss = _batched(_spec.z_loss)
noisy_top_k_load_loss = _batched(_spec.noisy_top_k_load_loss)
hierarchical_load_loss = _batched(_spec.hierarchical_load_loss)
threshold_loss = _batched(_spec.threshold_loss)
capacity_loss = _batched(_spec.capacity_loss)
relu_loss = _batched(_spec.relu_loss)
local_entropy_loss = _batched(_spec.local_entropy_loss)
global_entropy_loss = _batched(_spec.global_entropy_loss)

# State of routers.
from moespec.spec.algorithms.loss_free import balance_bias as balance_bias
from moespec.spec.algorithms.quantile_balancing import quantile_bias as quantile_bias
from moespec.spec.algorithms.capacity_predictor import moved_thresholds as moved_thresholds
from moespec.spec.algorithms.relu_routing import renewed_penalty as renewed_penalty
from moespec.spec.algorithms.budget_control import renewed_controller as renewed_controller
from moespec.spec.algorithms.budget_control import renewed_cutoffs as renewed_cutoffs

expert_load = _batched(_spec.expert_load)
required_biases = _batched(_spec.required_biases)
capacity_thresholds = _batched(_spec.capacity_thresholds)
excess_gates = _batched(_spec.excess_gates)
budget_excess = _batched(_spec.budget_excess)
pooled_cutoff = _batched(_spec.pooled_cutoff)

# Statistics.
from moespec.spec.algorithms.routing_statistics import slot_similarity as slot_similarity

routing_metrics = _batched(_spec.routing_metrics)
collapse_metrics = _batched(_spec.collapse_metrics)
summed_dispatch = _batched(_spec.summed_dispatch)
cumulative_dispatch = _batched(_spec.cumulative_dispatch)
experts_per_token = _batched(_spec.experts_per_token)

# Layers.
from moespec.spec.algorithms.network import layer_norm as layer_norm
from moespec.spec.algorithms.gelu import gelu as gelu
from moespec.spec.algorithms.dropout import dropout as dropout
from moespec.spec.algorithms.dropout import branch_rate as branch_rate
from moespec.backends.numpy.special import moe_layer as moe_layer

moe_mlp = _batched(_spec.moe_mlp)
expert_mlp = _batched(_spec.expert_mlp)
multi_hash_mlp = _batched(_spec.multi_hash_mlp)
attention = _batched(_spec.attention)
convolution = _batched(_spec.convolution)
embedding = _batched(_spec.embedding)
patch_embed = _batched(_spec.patch_embed)
rescale = _batched(_spec.rescale)

# Losses of models.
from moespec.spec.algorithms.network import softmax_cross_entropy as softmax_cross_entropy
from moespec.spec.algorithms.network import sigmoid_cross_entropy as sigmoid_cross_entropy
from moespec.spec.algorithms.contrastive import contrastive_loss as contrastive_loss
from moespec.spec.algorithms.contrastive import sigmoid_loss as sigmoid_loss
from moespec.spec.algorithms.moco import moco_loss as moco_loss
from moespec.spec.algorithms.moco import momentum_update as momentum_update
from moespec.spec.algorithms.moco import batch_norm as batch_norm

# Token ids and hash tables.
from moespec.spec.algorithms.hash_layers import hash_table_of as hash_table_of
from moespec.spec.algorithms.hash_tables import hash_table_balanced as hash_table_balanced
from moespec.spec.algorithms.hash_tables import hash_table_clustered as hash_table_clustered
from moespec.spec.algorithms.hash_tables import hash_table_dispersed as hash_table_dispersed
from moespec.spec.algorithms.hash_tables import hash_table_random as hash_table_random
from moespec.spec.algorithms.clustering import k_means as k_means

patch_codes = _batched(_spec.patch_codes)
previous_ids = _batched(_spec.previous_ids)
pair_ids = _batched(_spec.pair_ids)
position_ids = _batched(_spec.position_ids)

# Random numbers.
from moespec.spec.algorithms.threefry import threefry as threefry
from moespec.spec.algorithms.threefry import random_words as random_words
from moespec.spec.algorithms.threefry import unit_interval as unit_interval
from moespec.spec.algorithms.threefry import box_muller as box_muller

# Records of a routing.
from moespec.backends.numpy.groups import SlotRouting as SlotRouting
from moespec.backends.numpy.groups import SoftRouting as SoftRouting

# Arrays.
from moespec.backends.numpy.arrays import arange as arange
from moespec.backends.numpy.arrays import broadcast_to as broadcast_to
from moespec.backends.numpy.arrays import cast as cast
from moespec.backends.numpy.arrays import round_to_bfloat16 as round_to_bfloat16
from moespec.backends.numpy.arrays import concatenate as concatenate
from moespec.backends.numpy.arrays import transpose as transpose
from moespec.backends.numpy.arrays import einsum as einsum
from moespec.backends.numpy.arrays import linear as linear
from moespec.backends.numpy.arrays import sum as sum
from moespec.backends.numpy.arrays import softmax as softmax
from moespec.backends.numpy.arrays import relu as relu
from moespec.backends.numpy.arrays import cos as cos
from moespec.backends.numpy.arrays import sin as sin
from moespec.backends.numpy.arrays import tanh as tanh
from moespec.spec.numerics import stop_gradient as stop_gradient
from moespec.backends.numpy.arrays import from_numpy as from_numpy
from moespec.backends.numpy.arrays import to_numpy as to_numpy
from moespec.backends.numpy.arrays import checks_values as checks_values
from moespec.backends.numpy.arrays import mean as mean

# Gradients and training.
from moespec.backends.optimizer import OptimizerConfig as OptimizerConfig
from moespec.backends.numpy.training import recomputed as recomputed
from moespec.backends.numpy.training import compile as compile
from moespec.backends.numpy.training import value_and_grad as value_and_grad
from moespec.backends.numpy.training import init_state as init_state
from moespec.backends.numpy.training import state_params as state_params
from moespec.backends.numpy.training import state_average as state_average
from moespec.backends.numpy.training import make_step as make_step
from moespec.backends.numpy.training import export_state as export_state
from moespec.backends.numpy.training import finite_state as finite_state
from moespec.backends.numpy.training import import_state as import_state

# The single-device versions of the mesh functions.
from moespec.backends.single_device import exchanged as exchanged
from moespec.backends.single_device import over_devices as over_devices
from moespec.backends.single_device import process as process
from moespec.backends.single_device import processes as processes
from moespec.backends.single_device import rows as rows
from moespec.backends.single_device import sizes as sizes
from moespec.backends.single_device import whole as whole

# The backend itself.
name = "numpy"
xp = _spec.xp
put = from_numpy
ROUTERS = _routers_of_groups(_sys.modules[__name__])
"""The routers by name, computed by this backend."""

__all__ = _public_names(globals())
for _name in __all__:
    _documented(globals()[_name])

not_offered = {"*/large_gradient": "a complex step for each of its parameters takes hours"}


def __dir__() -> list[str]:
    return __all__
