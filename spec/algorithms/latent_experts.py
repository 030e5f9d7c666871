"""Latent experts: the experts compute at a smaller width, between a projection down and a projection up.

| here | LatentMoE (arXiv 2601.18089) | Kimi K3 |
|---|---|---|
| `down` (D, L), `up` (L, D) of `latent` in `moe_mlp` | the projections down and up | routed_expert_down_proj, routed_expert_up_proj |
| `norm` (L) of `latent` | | routed_expert_norm, the scale of an RMSNorm |

A latent layer moves and multiplies slots of width L. Each projection runs once per token, not once per choice.

Ambiguity ledger

LE-1: Which token do the router and the shared expert see?
    Reading: both see the whole token. Only the routed experts see its projection, and the shared expert is added after `up`.
        By: NVIDIA/Megatron-LM, megatron/core/transformer/moe/moe_layer.py, MoELayer.preprocess and MoELayer.postprocess;
        ml-explore/mlx-lm, mlx_lm/models/nemotron_h.py, NemotronHMoE.
    Alternative b: the router sees the projected token.
LE-2: Is the combined output normalised before the projection up?
    Reading: no, unless `latent` has a `norm`. The norm cancels every factor on all weights of a token, such as a routed scale.
        By: NVIDIA/Megatron-LM, megatron/core/transformer/moe/moe_layer.py, MoELayer.postprocess;
        ml-explore/mlx-lm, mlx_lm/models/nemotron_h.py, NemotronHMoE.
    Alternative b: yes, by an RMSNorm of the weighted sum, as in Kimi K3. This is the parameter `norm` of `latent`.
"""

from collections.abc import Mapping

import numpy as np

from moespec.spec.algorithm import Algorithm
from moespec.spec.algorithms.gated_experts import check_part_names
from moespec.spec.array_like import ArrayLike
from moespec.spec.checks import check_size
from moespec.spec.numerics import Array
from moespec.spec.values import as_array

__all__: list[str] = []

ALGORITHMS = (Algorithm("latent_experts", "Elango et al. 2026 (arXiv 2601.18089); Kimi K3 (llama.cpp#26185)", 1),)

AXES = {"down": "width latent", "norm": "latent", "up": "latent output"}
"""Axes of the parameters of `latent`; `norm` is optional."""


def latent_parameters(latent: Mapping[str, ArrayLike], width: int) -> dict[str, Array]:
    """Checks and returns the parameters of a latent layer for tokens of size `width`."""
    check_part_names("latent", latent, AXES, optional=("norm",))
    arrays = {name: as_array(name, latent[name], axes) for name, axes in AXES.items() if name in latent}
    check_size("down", arrays["down"], 0, width, "the width of tokens")
    if "norm" in arrays:
        check_size("norm", arrays["norm"], 0, arrays["down"].shape[1], "the latent width of down")
    return arrays


def raised(combined: Array, latent: Mapping[str, Array], *, epsilon: float) -> Array:
    """Computes `norm(combined) up` (tokens, output). Here, norm is x / sqrt(mean x^2 + epsilon) times the scale `norm`, if there is one."""
    check_size("up", latent["up"], 0, combined.shape[1], "the output width of w2")
    if "norm" in latent:
        check_size("norm", latent["norm"], 0, combined.shape[1], "the output width of w2")
        mean = np.mean(combined**2, axis=-1, keepdims=True)
        combined = combined / np.sqrt(mean + epsilon) * latent["norm"]
    return combined @ latent["up"]
