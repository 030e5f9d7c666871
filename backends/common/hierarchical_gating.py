"""Two levels of noisy top-k gating: the gates, and the load loss of the hierarchy.

Shape comments: `a` branches, `b` experts per branch, E = `a b` experts. The columns of the branches come before the columns of the experts.
The columns of the experts are ordered by branch.
"""

from moespec.backends.common.losses import squared_variation
from moespec.backends.common.namespace import Array, Namespace
from moespec.backends.common.noisy_top_k import choice_probability, noisy_top_k_affinity
from moespec.spec.algorithms.hierarchical_gating import check_branches
from moespec.spec.checks import check_at_least, check_same_shape, check_scores

__all__ = ["hierarchical_affinity", "hierarchical_load_loss"]

AXES = "groups tokens columns"


def hierarchical_affinity(xp: Namespace[Array], noisy_logits: Array, *, branches: int, choices: int) -> Array:
    """noisy_logits (G, T, a + E) -> (G, T, E)."""
    check_scores("noisy_logits", noisy_logits, AXES)
    primary, secondary = _levels(xp.promote(noisy_logits), branches)
    choices = check_at_least("choices", choices, 1)
    upper = noisy_top_k_affinity(xp, primary, choices=min(choices, primary.shape[2]))
    lower = noisy_top_k_affinity(xp, secondary, choices=min(choices, secondary.shape[2]))
    gates = upper[..., None] * lower.reshape(*upper.shape, -1)
    return gates.reshape(*upper.shape[:2], -1)


def hierarchical_load_loss(
    xp: Namespace[Array], logits: Array, noise_logits: Array, noisy_logits: Array, *, branches: int, choices: int
) -> Array:
    """Returns the loss, averaged over the groups: logits, noise_logits and noisy_logits (G, T, a + E) -> a scalar."""
    arrays = {"logits": logits, "noise_logits": noise_logits, "noisy_logits": noisy_logits}
    for name, array in arrays.items():
        check_scores(name, array, AXES)
        check_same_shape(name, array, "logits", logits)
    levels = [_levels(array, branches) for array in xp.promote_all(*arrays.values())]
    primary, secondary = zip(*levels, strict=True)
    choices = check_at_least("choices", choices, 1)
    upper, lower = (min(choices, level[0].shape[2]) for level in (primary, secondary))

    branch_load = xp.sum(choice_probability(xp, *primary, choices=upper), 1)
    reached = xp.is_chosen(xp.top_indices(primary[2], upper), primary[2])
    within = choice_probability(xp, *secondary, choices=lower).reshape(*reached.shape, -1)
    load = xp.sum(xp.where(reached[..., None], within, 0.0), 1)
    count = xp.maximum(xp.sum(xp.cast(reached, load.dtype), 1), 1.0)
    return squared_variation(xp, ((branch_load / count)[..., None] * load).reshape(load.shape[0], -1))


def _levels(array: Array, branches: int) -> tuple[Array, Array]:
    """Splits an array (G, T, a + E) into the columns of branches, (G, T, a), and the columns of experts, (G, T a, b)."""
    branches, size = check_branches(branches, array.shape[2])
    return array[..., :branches], array[..., branches:].reshape(array.shape[0], -1, size)
