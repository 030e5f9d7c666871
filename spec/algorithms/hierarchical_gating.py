"""Noisy top-k gating at two levels: a token chooses branches of experts, and then experts within these branches.

| here | Shazeer et al. 2017 (arXiv 1701.06538), appendix B, eqs. (12)-(14) |
|---|---|
| `branches` a, experts of a branch b = E / a | a groups of b experts each |
| the first a columns of `noisy_logits` (T, a + E) | H(x) of the primary gating network |
| column a + i b + j of `noisy_logits` | H(x)_j of the i-th secondary gating network |
| expert i b + j | E_{i,j} |
| `hierarchical_affinity` (T, E) | G_primary(x)_i G_i(x)_j |
| load (E,) | Load_H(X)_{i,j} |
| the tokens of a branch | X^(i) |

Each level uses the gates of `noisy_top_k` and chooses K entries, or all entries if there are fewer than K.

Ambiguity ledger

HM-1: What is the load of experts in a branch that no token chooses, where eq. (14) is 0 / 0?
    Reading: the load is 0.
    Alternative b: the load is NaN.
HM-2: Do the losses balance all experts together, or each level of the hierarchy separately?
    Reading: the losses balance all experts together, by the importance and load of the whole hierarchy.
        By: the paper, eqs. (13) and (14).
    Alternative b: separate losses balance the branches and the experts within each branch. The losses are added.
        By: tensorflow/mesh, mesh_tensorflow/transformer/moe.py, transformer_moe_layer_v2; lucidrains/mixture-of-experts,
        mixture_of_experts/mixture_of_experts.py, HeirarchicalMoE.
HM-3: Does a branch have a capacity that limits how many tokens reach its experts?
    Reading: no, only experts can have a capacity.
    Alternative b: yes, each branch has a capacity.
        By: tensorflow/mesh, mesh_tensorflow/transformer/moe.py, transformer_moe_layer_v2; lucidrains/mixture-of-experts,
        mixture_of_experts/mixture_of_experts.py, HeirarchicalMoE.

Often done differently

HM-4: How many experts does a token choose in its second-best branch?
    Reading: K, as in the best branch. With K = 2, the token chooses four experts in total.
        By: the paper, appendix C.1.
    Alternative b: one expert, whose gate is the branch's gate. With K = 2, the token chooses three experts in total.
        By: tensorflow/mesh, mesh_tensorflow/transformer/moe.py, transformer_moe_layer_v2; lucidrains/mixture-of-experts,
        mixture_of_experts/mixture_of_experts.py, HeirarchicalMoE.
HM-5: Does the load of an expert depend on the gate of its branch, and not only on the tokens that reach the branch?
    Reading: yes, the load within the branch is multiplied by the branch's load and divided by the branch's token count.
        By: the paper, eq. (14).
    Alternative b: no, the load is computed within the branch only, without a gradient for the gate of the branch.
"""

from typing import Any

import numpy as np

from moespec.spec.algorithm import Algorithm
from moespec.spec.algorithms.choice_probability import choice_probability, is_chosen
from moespec.spec.algorithms.losses import squared_variation
from moespec.spec.algorithms.noisy_top_k import noisy_top_k_affinity
from moespec.spec.array_like import ArrayLike
from moespec.spec.checks import check_at_least, check_same_shape
from moespec.spec.errors import ConfigError
from moespec.spec.numerics import Array
from moespec.spec.values import as_array

__all__ = ["hierarchical_affinity", "hierarchical_load_loss"]

PAPER = "Shazeer et al. 2017 (arXiv 1701.06538)"
ALGORITHMS = (
    Algorithm("hierarchical_affinity", f"{PAPER}, eq. (12)", 2, ("hierarchical_affinity",)),
    Algorithm("hierarchical_load_loss", f"{PAPER}, eq. (14)", 1, ("hierarchical_load_loss",)),
)


def hierarchical_affinity(noisy_logits: ArrayLike, *, branches: int, choices: int) -> Array:
    """Computes the gates: the gate of a branch times the gate of an expert within this branch.

        G[t, i b + j] = P[t, i] S[t, i, j]

    P is the softmax over the K branches with the largest noisy logits. S[t, i] is the softmax over the K best experts of branch i.

    Args:
        noisy_logits: (tokens, branches + experts): first the columns of branches, then the columns of experts, branch by branch.
        branches: a, a divisor of the number of experts.
        choices: K, at least 1. A level with fewer than K entries chooses all entries.

    Returns:
        (tokens, experts). Rows sum to 1. The gates of experts that are not chosen are 0.

    Source: Shazeer et al. 2017, eq. (12).

    >>> from math import log
    >>> logits = [[log(3), 0.0, log(3), 0.0, log(7), 0.0]]  # 2 branches, then 2 experts for each
    >>> hierarchical_affinity(logits, branches=2, choices=2).round(6).tolist()
    [[0.5625, 0.1875, 0.21875, 0.03125]]
    >>> hierarchical_affinity(logits, branches=2, choices=1).round(6).tolist()
    [[1.0, 0.0, 0.0, 0.0]]
    """
    primary, secondary = _levels(as_array("noisy_logits", noisy_logits, "tokens columns"), branches)
    count = check_at_least("choices", choices, 1)
    upper = noisy_top_k_affinity(primary, choices=min(count, primary.shape[1]))
    lower = noisy_top_k_affinity(secondary, choices=min(count, secondary.shape[1]))
    return (upper.reshape(-1, 1) * lower).reshape(len(primary), -1)


def hierarchical_load_loss(
    logits: ArrayLike, noise_logits: ArrayLike, noisy_logits: ArrayLike, *, branches: int, choices: int
) -> Array:
    """Computes the squared coefficient of variation of the load of all experts:

        load[i b + j] = branch load[i] * load[i, j] / n[i]

    The branch load is defined as in `noisy_top_k_load_loss`. n[i] is the number of tokens that choose branch i.
    load[i, j] is the load of expert j of branch i, summed over the tokens that choose branch i.

    Args:
        logits: (tokens, branches + experts), without noise; columns as in `hierarchical_affinity`.
        noise_logits: the same shape, N of `noisy_top_k_logits`.
        noisy_logits: the same shape, the logits used for the selection.
        branches: a, a divisor of the number of experts.
        choices: K, at least 1. A level with fewer than K entries chooses all entries.

    Returns:
        A scalar, from 0 (balanced) to E - 1.

    Raises:
        ContractError: all experts have load 0.

    Source: Shazeer et al. 2017, eq. (11), with the load of eq. (14).

    >>> even = np.zeros((4, 6))
    >>> float(hierarchical_load_loss(even, even, even, branches=2, choices=2))
    0.0
    >>> float(hierarchical_load_loss(even, even, even, branches=2, choices=1))  # all tokens choose branch 0
    1.0
    """
    values = {"logits": logits, "noise_logits": noise_logits, "noisy_logits": noisy_logits}
    arrays = [as_array(name, value, "tokens columns") for name, value in values.items()]
    for name, array in zip(values, arrays, strict=True):
        check_same_shape(name, array, "logits", arrays[0])
    (primary, secondary) = zip(*(_levels(array, branches) for array in arrays), strict=True)
    kept = check_at_least("choices", choices, 1)
    upper, lower = (min(kept, level[0].shape[1]) for level in (primary, secondary))

    branch_load = choice_probability(*primary, choices=upper).sum(axis=0)
    reached = is_chosen(primary[2], upper)
    within = choice_probability(*secondary, choices=lower).reshape(*reached.shape, -1)
    load = np.where(reached[:, :, None], within, 0.0).sum(axis=0)
    count = reached.sum(axis=0)
    return squared_variation("logits", ((branch_load / np.where(count > 0, count, 1))[:, None] * load).reshape(-1))


def _levels(array: Array, branches: int) -> tuple[Array, Array]:
    """Splits the columns into branch columns, (tokens, a), and expert columns, reshaped to (tokens * a, b)."""
    branches, size = check_branches(branches, array.shape[1])
    return array[:, :branches], array[:, branches:].reshape(-1, size)


def check_branches(branches: Any, columns: int) -> tuple[int, int]:
    """Returns the numbers of branches and of experts per branch. Raises `ConfigError` unless all branches have the same size."""
    number = check_at_least("branches", branches, 1)
    experts = columns - number
    if experts < number or experts % number:
        raise ConfigError(f"branches: {experts} columns remain for experts, expected a multiple of branches={number}")
    return number, experts // number
