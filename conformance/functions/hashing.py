"""Random words, token ids, and tables of hash layers."""

from typing import Any

import numpy as np

from moespec import spec
from moespec.backends.blocks import Array
from moespec.conformance.functions.describe import Choice, Function, Output
from moespec.conformance.functions.margins import token_choice_margin
from moespec.spec.algorithms.token_ids import normalized_patches

__all__ = ["FUNCTIONS"]


def _normal_scale(uniform: Array) -> Array:
    """Return `r (1 + |a|)` for radius r and angle a. A multiple of this scale bounds the rounding error of a normal number."""
    radius, angle = np.sqrt(-2.0 * np.log(1.0 - uniform[..., 0])), np.pi * (2.0 * uniform[..., 1] - 1.0)
    return np.stack([radius * (1.0 + np.abs(angle))] * 2, axis=-1)


IDS = Output("groups tokens", "int")


def _nearness(patches: Array, codebook: Array) -> Any:
    """Return the scores (tokens, codes) that `patch_codes` orders, for patches (tokens, pixels)."""
    return normalized_patches(patches) @ codebook.T - 0.5 * np.sum(codebook * codebook, axis=1)


def _clusters(**arguments: Any) -> Any:
    """Return the cluster assignment of k-means, to test whether its steps are stable."""
    points = arguments.pop("embeddings", None)
    return spec.k_means(**arguments, **({} if points is None else {"points": points})).clusters


TABLE = {"table": Output("ids", "int")}

STABLE = Choice(_clusters, scale="stability")

FUNCTIONS = (
    Function("threefry", {"words": Output("counters words", "int")}),
    Function("random_words", {"words": Output("places columns", "int")}),
    Function("unit_interval", {"uniform": Output("places columns", scale="magnitude")}),
    Function("box_muller", {"normal": Output("places pair", scale="written", written=_normal_scale)}),
    Function(
        "patch_codes",
        {"codes": IDS},
        Choice(
            _nearness, lambda scores, scale, options: token_choice_margin(scores, scale, min(1, scores.shape[-1] - 1))
        ),
    ),
    Function("position_ids", {"position": IDS}),
    Function("previous_ids", {"previous": IDS}),
    Function("pair_ids", {"pairs": IDS}),
    Function("hash_table_random", TABLE, traced=False),
    Function("hash_table_balanced", TABLE, traced=False),
    Function("hash_table_clustered", TABLE, STABLE, traced=False),
    Function("hash_table_dispersed", TABLE, traced=False),
    Function(
        "k_means", {"centroids": Output("clusters width"), "clusters": Output("points", "int")}, STABLE, traced=False
    ),
)
