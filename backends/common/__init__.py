"""Formulas shared by all frameworks.

The first argument of each function is a framework's array namespace (`xp`, see `moespec.backends.common.namespace`). The
`__init__.py` of each backend lists the public functions, and `moespec.backends.binding` supplies `xp`. A function
whose code depends on the device, the compiler or the precision is in the JAX and torch backends instead. This package imports no framework.

Shape comments: G groups, T tokens, E experts, C capacity, K choices, D width. All functions compute in float32 or better.
"""

from moespec.backends.common import affinities as affinities
from moespec.backends.common import allocations as allocations
from moespec.backends.common import base_layers as base_layers
from moespec.backends.common import capacity_predictor as capacity_predictor
from moespec.backends.common import capped_affinity as capped_affinity
from moespec.backends.common import cosine_logits as cosine_logits
from moespec.backends.common import dselect_k as dselect_k
from moespec.backends.common import group_limited as group_limited
from moespec.backends.common import hierarchical_gating as hierarchical_gating
from moespec.backends.common import image_pooling as image_pooling
from moespec.backends.common import loss_free as loss_free
from moespec.backends.common import losses as losses
from moespec.backends.common import namespace as namespace
from moespec.backends.common import network as network
from moespec.backends.common import noisy_top_k as noisy_top_k
from moespec.backends.common import pairs as pairs
from moespec.backends.common import quantile_balancing as quantile_balancing
from moespec.backends.common import relu_routing as relu_routing
from moespec.backends.common import replay as replay
from moespec.backends.common import routing_statistics as routing_statistics
from moespec.backends.common import soft_moe as soft_moe
from moespec.backends.common import strictly_balanced as strictly_balanced
from moespec.backends.common import threefry as threefry
from moespec.backends.common import token_ids as token_ids
from moespec.backends.common import transport as transport
from moespec.backends.common import variable_budget as variable_budget
