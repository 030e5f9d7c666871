"""Two levels of noisy top-k gating: the gates, and the load loss of the hierarchy.

Shape comments: G groups, T tokens, a branches of b experts each, E = a b experts. Columns are those of the branches, then
those of the experts, branch by branch.
"""

import torch
from torch import Tensor

from moespec.backends.torch.allocations import is_chosen
from moespec.backends.torch.arrays import wide, widen
from moespec.backends.torch.losses import squared_variation
from moespec.backends.torch.noisy_top_k import choice_probability, noisy_top_k_affinity
from moespec.spec.checks import check_at_least, check_same_shape, check_scores
from moespec.spec.hierarchical_gating import check_branches

__all__ = ["hierarchical_affinity", "hierarchical_load_loss"]

AXES = "groups tokens columns"


def hierarchical_affinity(noisy_logits: Tensor, *, branches: int, choices: int) -> Tensor:
    """noisy_logits (G, T, a + E) -> (G, T, E)."""
    check_scores("noisy_logits", noisy_logits, AXES)
    primary, secondary = _levels(widen(noisy_logits), branches)
    kept = check_at_least("choices", choices, 1)
    upper = noisy_top_k_affinity(primary, choices=min(kept, primary.shape[2]))
    lower = noisy_top_k_affinity(secondary, choices=min(kept, secondary.shape[2]))
    return (upper[..., None] * lower.reshape(*upper.shape, -1)).flatten(2)


def hierarchical_load_loss(
    logits: Tensor, noise_logits: Tensor, noisy_logits: Tensor, *, branches: int, choices: int
) -> Tensor:
    """The mean over the groups: logits, noise_logits and noisy_logits (G, T, a + E) -> a scalar."""
    arrays = {"logits": logits, "noise_logits": noise_logits, "noisy_logits": noisy_logits}
    for name, array in arrays.items():
        check_scores(name, array, AXES)
        check_same_shape(name, array, "logits", logits)
    dtype = wide(*(array.dtype for array in arrays.values()))
    primary, secondary = zip(*(_levels(array.to(dtype), branches) for array in arrays.values()), strict=True)
    kept = check_at_least("choices", choices, 1)
    upper, lower = (min(kept, level[0].shape[2]) for level in (primary, secondary))

    branch_load = choice_probability(*primary, choices=upper).sum(dim=1)
    reached = is_chosen(primary[2], upper)
    within = choice_probability(*secondary, choices=lower).reshape(*reached.shape, -1)
    load = torch.where(reached[..., None], within, 0.0).sum(dim=1)
    count = reached.sum(dim=1).clamp_min(1).to(dtype)
    return squared_variation(((branch_load / count)[..., None] * load).flatten(1))


def _levels(array: Tensor, branches: int) -> tuple[Tensor, Tensor]:
    """The columns of the branches, (G, T, a), and those of the experts, (G, T a, b)."""
    branches, size = check_branches(branches, array.shape[2])
    return array[..., :branches], array[..., branches:].reshape(array.shape[0], -1, size)
