"""The executable specification of mixture-of-experts routing, in NumPy and float64, for one routing group at a time.

Each module implements one algorithm in the notation of its paper. Each file in `routers` composes one router from algorithms. All
sparse routers follow the same steps in the same order: scores, selection, slots, dispatch, combine. Axis names are tokens
T, experts E, capacity C (slots of an expert), width D, hidden H, choices K. Functions take arrays of any floating dtype and
return float64. Functions also take complex arrays, for differentiation by the complex step (see `numerics`). The caller
passes noise as arrays, and passes a random generator to initialise the parameters of a router.

`ALGORITHMS` lists all algorithms. `LEDGER` lists the questions that implementations answer differently. A ledger entry contains
the answer of this specification, the alternatives, and the known sources of each answer. `moespec ledger` prints the entries.
The errors are ConfigError, ShapeError, DtypeError and ContractError, subclasses of `SpecError`, which is a `ValueError`.

`import moespec.spec.algorithms.token_choice as module` imports the module of one algorithm. The docstring of a module
contains a table of symbols and the ledger entries of the algorithm.
"""

# ruff: noqa: I001 (the imports are sorted by topic, like a table of contents)

import typing as _typing

from moespec.spec import namespace as _namespace
from moespec.spec.names import public_names as _public_names
from moespec.spec.names import renamed as _renamed

# Errors.
from moespec.spec.errors import SpecError as SpecError
from moespec.spec.errors import ConfigError as ConfigError
from moespec.spec.errors import ContractError as ContractError
from moespec.spec.errors import DtypeError as DtypeError
from moespec.spec.errors import ShapeError as ShapeError

# Algorithms and the ambiguity ledger.
from moespec.spec.registry import ALGORITHMS as ALGORITHMS
from moespec.spec.registry import LEDGER as LEDGER
from moespec.spec.algorithm import Algorithm as Algorithm
from moespec.spec.ledger import LedgerEntry as LedgerEntry
from moespec.spec.ledger import Reading as Reading
from moespec.spec.ledger import Implementation as Implementation

# Routers and routings.
from moespec.spec.routers import ROUTERS as ROUTERS
from moespec.spec.options import RouterOptions as RouterOptions
from moespec.spec.routing import RouterOutput as RouterOutput
from moespec.spec.routing import StateSpec as StateSpec
from moespec.spec.routing import Noise as Noise
from moespec.spec.routing import Routing as Routing
from moespec.spec.routing import slot_tokens as slot_tokens

# Logits and noise.
from moespec.spec.algorithms.softmax import router_logits as router_logits
from moespec.spec.algorithms.cosine_logits import cosine_logits as cosine_logits
from moespec.spec.algorithms.logit_cap import cap_logits as cap_logits
from moespec.spec.algorithms.capacity_predictor import capacity_logits as capacity_logits
from moespec.spec.algorithms.noisy_top_k import noisy_top_k_logits as noisy_top_k_logits
from moespec.spec.algorithms.softmax import add_gating_noise as add_gating_noise
from moespec.spec.algorithms.router_jitter import router_jitter as router_jitter
from moespec.spec.algorithms.image_pooling import pool_images as pool_images
from moespec.spec.algorithms.image_pooling import spread_images as spread_images

# Affinities, which convert logits to scores.
from moespec.spec.algorithms.softmax import softmax_affinity as softmax_affinity
from moespec.spec.algorithms.sigmoid_affinity import sigmoid_affinity as sigmoid_affinity
from moespec.spec.algorithms.sigmoid_affinity import sqrt_softplus_affinity as sqrt_softplus_affinity
from moespec.spec.algorithms.relu_routing import relu_affinity as relu_affinity
from moespec.spec.algorithms.noisy_top_k import noisy_top_k_affinity as noisy_top_k_affinity
from moespec.spec.algorithms.hierarchical_gating import hierarchical_affinity as hierarchical_affinity
from moespec.spec.algorithms.capped_affinity import capped_affinity as capped_affinity
from moespec.spec.algorithms.sinkhorn import sinkhorn_affinity as sinkhorn_affinity
from moespec.spec.algorithms.sparse_transport import sparse_transport_affinity as sparse_transport_affinity
from moespec.spec.algorithms.transport_duals import Dual as Dual
from moespec.spec.algorithms.transport_duals import SemiDual as SemiDual
from moespec.spec.algorithms.transport_duals import transport_dual as transport_dual
from moespec.spec.algorithms.transport_duals import transport_semi_dual as transport_semi_dual
from moespec.spec.algorithms.simplex import project_simplex as project_simplex
from moespec.spec.algorithms.simplex import project_sparse_simplex as project_sparse_simplex

# Scores and gates before selection.
from moespec.spec.algorithms.loss_free import biased_scores as biased_scores
from moespec.spec.algorithms.group_limited import group_limited_scores as group_limited_scores
from moespec.spec.algorithms.replay import Replay as Replay
from moespec.spec.algorithms.replay import replay_choices as replay_choices
from moespec.spec.algorithms.strictly_balanced import batchwise_mask as batchwise_mask
from moespec.spec.algorithms.strictly_balanced import threshold_mask as threshold_mask
from moespec.spec.algorithms.strictly_balanced import masked_gates as masked_gates
from moespec.spec.algorithms.capacity_predictor import scores_above as scores_above
from moespec.spec.algorithms.budget_masks import top_p_mask as top_p_mask
from moespec.spec.algorithms.budget_masks import pooled_mask as pooled_mask
from moespec.spec.algorithms.budget_masks import cutoff_mask as cutoff_mask
from moespec.spec.algorithms.budget_masks import kept_scores as kept_scores
from moespec.spec.algorithms.gshard import gshard_keep as gshard_keep
from moespec.spec.algorithms.gshard import gshard_sample as gshard_sample
from moespec.spec.algorithms.selected_weights import normalize_selected as normalize_selected
from moespec.spec.algorithms.selected_weights import scaled_gates as scaled_gates

# Capacity and order.
from moespec.spec.algorithms.capacity import CAPACITY_RULES as CAPACITY_RULES
from moespec.spec.algorithms.capacity import expert_capacity as expert_capacity
from moespec.spec.algorithms.batch_priority import batch_priority as batch_priority
from moespec.spec.algorithms.importance_score import importance_score_order as importance_score_order

# Allocations, which convert scores to routings.
from moespec.spec.algorithms.token_choice import token_choice as token_choice
from moespec.spec.algorithms.expert_choice import expert_choice as expert_choice
from moespec.spec.algorithms.importance_score import importance_score_choice as importance_score_choice
from moespec.spec.algorithms.balanced_assignment import Assignment as Assignment
from moespec.spec.algorithms.balanced_assignment import base_assignment as base_assignment
from moespec.spec.algorithms.base_layers import base_greedy as base_greedy
from moespec.spec.algorithms.base_layers import base_routing as base_routing
from moespec.spec.algorithms.soft_moe import soft_routing as soft_routing
from moespec.spec.algorithms.hash_layers import hash_routing as hash_routing
from moespec.spec.algorithms.hash_tables import hash_scores as hash_scores

# DSelect-k.
from moespec.spec.algorithms.dselect_k_codes import Codes as Codes
from moespec.spec.algorithms.dselect_k_codes import dselect_k_codes as dselect_k_codes
from moespec.spec.algorithms.dselect_k import dselect_k_selectors as dselect_k_selectors
from moespec.spec.algorithms.dselect_k import dselect_k_gate as dselect_k_gate
from moespec.spec.algorithms.dselect_k import dselect_k_routing as dselect_k_routing
from moespec.spec.algorithms.dselect_k_losses import dselect_k_entropy as dselect_k_entropy
from moespec.spec.algorithms.dselect_k_losses import dselect_k_reachability as dselect_k_reachability
from moespec.spec.algorithms.smooth_step import smooth_step as smooth_step

# Losses of routers.
from moespec.spec.algorithms.balance_loss import balance_loss as balance_loss
from moespec.spec.algorithms.losses import importance_loss as importance_loss
from moespec.spec.algorithms.losses import load_loss as load_loss
from moespec.spec.algorithms.z_loss import z_loss as z_loss
from moespec.spec.algorithms.noisy_top_k import noisy_top_k_load_loss as noisy_top_k_load_loss
from moespec.spec.algorithms.hierarchical_gating import hierarchical_load_loss as hierarchical_load_loss
from moespec.spec.algorithms.strictly_balanced import threshold_loss as threshold_loss
from moespec.spec.algorithms.capacity_predictor import capacity_loss as capacity_loss
from moespec.spec.algorithms.relu_routing import relu_loss as relu_loss
from moespec.spec.algorithms.limoe import local_entropy_loss as local_entropy_loss
from moespec.spec.algorithms.limoe import global_entropy_loss as global_entropy_loss

# State of routers.
from moespec.spec.algorithms.loss_free import expert_load as expert_load
from moespec.spec.algorithms.loss_free import balance_bias as balance_bias
from moespec.spec.algorithms.quantile_balancing import required_biases as required_biases
from moespec.spec.algorithms.quantile_balancing import quantile_bias as quantile_bias
from moespec.spec.algorithms.capacity_predictor import capacity_thresholds as capacity_thresholds
from moespec.spec.algorithms.capacity_predictor import moved_thresholds as moved_thresholds
from moespec.spec.algorithms.relu_routing import excess_gates as excess_gates
from moespec.spec.algorithms.relu_routing import renewed_penalty as renewed_penalty
from moespec.spec.algorithms.budget_control import budget_excess as budget_excess
from moespec.spec.algorithms.budget_control import pooled_cutoff as pooled_cutoff
from moespec.spec.algorithms.budget_control import renewed_controller as renewed_controller
from moespec.spec.algorithms.budget_control import renewed_cutoffs as renewed_cutoffs

# Statistics.
from moespec.spec.algorithms.metrics import routing_metrics as routing_metrics
from moespec.spec.algorithms.routing_statistics import collapse_metrics as collapse_metrics
from moespec.spec.algorithms.routing_statistics import summed_dispatch as summed_dispatch
from moespec.spec.algorithms.routing_statistics import cumulative_dispatch as cumulative_dispatch
from moespec.spec.algorithms.routing_statistics import experts_per_token as experts_per_token
from moespec.spec.algorithms.routing_statistics import slot_similarity as slot_similarity

# Layers.
from moespec.spec.algorithms.layer import moe_layer as moe_layer
from moespec.spec.algorithms.mlp_layer import moe_mlp as moe_mlp
from moespec.spec.algorithms.layer import expert_mlp as expert_mlp
from moespec.spec.algorithms.hash_layers import multi_hash_mlp as multi_hash_mlp
from moespec.spec.algorithms.attention import attention as attention
from moespec.spec.algorithms.convolution import convolution as convolution
from moespec.spec.algorithms.embedding import embedding as embedding
from moespec.spec.algorithms.network import patch_embed as patch_embed
from moespec.spec.algorithms.network import layer_norm as layer_norm
from moespec.spec.algorithms.sparse_mlp import rescale as rescale
from moespec.spec.algorithms.gelu import gelu as gelu
from moespec.spec.algorithms.dropout import dropout as dropout
from moespec.spec.algorithms.dropout import branch_rate as branch_rate

# Losses of models.
from moespec.spec.algorithms.network import softmax_cross_entropy as softmax_cross_entropy
from moespec.spec.algorithms.network import sigmoid_cross_entropy as sigmoid_cross_entropy
from moespec.spec.algorithms.contrastive import contrastive_loss as contrastive_loss
from moespec.spec.algorithms.contrastive import sigmoid_loss as sigmoid_loss
from moespec.spec.algorithms.moco import moco_loss as moco_loss
from moespec.spec.algorithms.moco import momentum_update as momentum_update
from moespec.spec.algorithms.moco import batch_norm as batch_norm

# Token ids and hash tables.
from moespec.spec.algorithms.token_ids import patch_codes as patch_codes
from moespec.spec.algorithms.token_ids import previous_ids as previous_ids
from moespec.spec.algorithms.token_ids import pair_ids as pair_ids
from moespec.spec.algorithms.token_ids import position_ids as position_ids
from moespec.spec.algorithms.hash_layers import hash_table_of as hash_table_of
from moespec.spec.algorithms.hash_tables import hash_table_balanced as hash_table_balanced
from moespec.spec.algorithms.hash_tables import hash_table_clustered as hash_table_clustered
from moespec.spec.algorithms.hash_tables import hash_table_dispersed as hash_table_dispersed
from moespec.spec.algorithms.hash_tables import hash_table_random as hash_table_random
from moespec.spec.algorithms.clustering import Clustering as Clustering
from moespec.spec.algorithms.clustering import k_means as k_means

# Random numbers.
from moespec.spec.algorithms.threefry import threefry as threefry
from moespec.spec.algorithms.threefry import random_words as random_words
from moespec.spec.algorithms.threefry import unit_interval as unit_interval
from moespec.spec.algorithms.threefry import box_muller as box_muller

# Numerics.
from moespec.spec.numerics import mean as mean
from moespec.spec.numerics import stop_gradient as stop_gradient

if not _typing.TYPE_CHECKING:
    __getattr__ = _renamed(__name__, {"Kept": "StateSpec", "Taker": "Implementation"})

xp = _namespace
"""The array namespace: `xp.exp`, `xp.where` and so on. The `xp` of each backend has the same names."""

__all__ = _public_names(globals())  # test_names compares this list with the `__all__` of each module
