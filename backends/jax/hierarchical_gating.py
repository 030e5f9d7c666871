"""Two levels of noisy top-k gating: the gates, and the load loss of the hierarchy.

Shape comments: G groups, T tokens, a branches of b experts each, E = a b experts. Columns are those of the branches, then
those of the experts, branch by branch.
"""

import jax.numpy as jnp

from moespec.backends.jax.allocations import is_chosen
from moespec.backends.jax.arrays import Array, top_indices, wide
from moespec.backends.jax.losses import squared_variation
from moespec.backends.jax.noisy_top_k import choice_probability, noisy_top_k_affinity
from moespec.spec.checks import check_at_least, check_same_shape, check_scores
from moespec.spec.hierarchical_gating import check_branches

__all__ = ["hierarchical_affinity", "hierarchical_load_loss"]


def hierarchical_affinity(noisy_logits: Array, *, branches: int, choices: int) -> Array:
    """noisy_logits (G, T, a + E) -> (G, T, E)."""
    check_scores("noisy_logits", noisy_logits, "groups tokens columns")
    primary, secondary = _levels(wide(noisy_logits), branches)
    kept = check_at_least("choices", choices, 1)
    upper = noisy_top_k_affinity(primary, choices=min(kept, primary.shape[2]))
    lower = noisy_top_k_affinity(secondary, choices=min(kept, secondary.shape[2]))
    gates = upper[..., None] * lower.reshape(*upper.shape, -1)
    return gates.reshape(*upper.shape[:2], -1)


def hierarchical_load_loss(
    logits: Array, noise_logits: Array, noisy_logits: Array, *, branches: int, choices: int
) -> Array:
    """The mean over the groups: logits, noise_logits and noisy_logits (G, T, a + E) -> a scalar."""
    arrays = {"logits": logits, "noise_logits": noise_logits, "noisy_logits": noisy_logits}
    for name, array in arrays.items():
        check_scores(name, array, "groups tokens columns")
        check_same_shape(name, array, "logits", logits)
    primary, secondary = zip(*(_levels(wide(array), branches) for array in arrays.values()), strict=True)
    kept = check_at_least("choices", choices, 1)
    upper, lower = (min(kept, level[0].shape[2]) for level in (primary, secondary))

    branch_load = jnp.sum(choice_probability(*primary, choices=upper), axis=1)
    reached = is_chosen(top_indices(primary[2], upper), primary[2].shape[2])
    within = choice_probability(*secondary, choices=lower).reshape(*reached.shape, -1)
    load = jnp.sum(jnp.where(reached[..., None], within, 0), axis=1)
    count = jnp.maximum(jnp.sum(reached, axis=1), 1).astype(load.dtype)
    return squared_variation(((branch_load / count)[..., None] * load).reshape(len(load), -1))


def _levels(array: Array, branches: int) -> tuple[Array, Array]:
    """The columns of the branches, (G, T, a), and those of the experts, (G, T a, b)."""
    branches, size = check_branches(branches, array.shape[2])
    return array[..., :branches], array[..., branches:].reshape(len(array), -1, size)
