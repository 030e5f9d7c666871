"""The balanced assignment of BASE layers: the same number of tokens per expert, with the largest total score.

See `base_layers` for the symbols and the ambiguity ledger.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moespec.spec.array_like import ArrayLike
from moespec.spec.checks import check_at_least, check_size, plural
from moespec.spec.errors import ShapeError
from moespec.spec.numerics import Array, stable_order
from moespec.spec.values import as_array

__all__ = ["Assignment", "base_assignment"]


class Assignment(NamedTuple):
    """A balanced assignment with an upper bound on the gap between its total score and the best total score.

    expert: (tokens,) integers. objective: the total score `sum_t scores[t, expert[t]]`.
    gap: the upper bound, which is 0 up to rounding if the assignment is optimal.
    """

    expert: Any
    objective: Any
    gap: Any


def even_slots(scores: Any, shards: int = 1) -> int:
    """Returns `T / (S E)`, the tokens per expert and shard, from the shape of `scores`. Raises `ShapeError` if S E does not divide T."""
    tokens, experts = scores.shape[-2:]
    if tokens % (experts * check_at_least("shards", shards, 1)):
        among = plural(experts, "experts") + (f" in each of {shards} shards" if shards > 1 else "")
        raise ShapeError(f"scores: {plural(tokens, 'tokens')} cannot be divided evenly among {among}")
    return int(tokens // (experts * shards))


def base_assignment(scores: ArrayLike, noise: ArrayLike | None = None, *, shards: int = 1) -> Assignment:
    """Computes the expert of each token in training:

        maximise sum_t scores[t, a_t]    with #{t : a_t = e} = T / E for every expert e

    This is a linear assignment problem in which the column of each expert is repeated T / E times.
    The gap follows from the dual problem. For any prices p of the experts, the total score of a balanced assignment is
    at most `sum_t max_e (scores[t, e] - p[e]) + T / E sum_e p[e]`.

    With several shards, the tokens are sorted by descending noise and split into S shards of equal size. Each shard is
    assigned separately, so an expert gets T / (S E) tokens of each shard. Objective and gap are summed over the shards.

    Args:
        scores: (tokens, experts), with the number of tokens a multiple of `shards * experts`.
        noise: (tokens,), random sort keys of the tokens; ties are broken by lower index. If None, the tokens keep their order.
        shards: S, the number of shards, at least 1.

    Returns:
        Assignment. The objective is differentiable in the scores. The gap carries no gradient.

    Raises:
        ShapeError: `shards * experts` does not divide the number of tokens.

    Source: BASE, eq. (2); several shards: section 3.2.1, where each worker solves the problem for a random subset of the tokens.

    >>> from moespec.spec.examples import LOGITS
    >>> found = base_assignment(LOGITS)
    >>> found.expert.tolist(), float(found.objective), float(found.gap)
    ([1, 0, 2, 2, 0, 1], 8.0, 0.0)
    >>> noise = [0.9, 0.7, 0.4, 0.3, 0.8, 0.1]  # tokens 0, 4 and 1 form one shard, each with a different expert
    >>> base_assignment(LOGITS, noise, shards=2).expert.tolist()
    [1, 2, 0, 2, 0, 1]
    """
    from scipy.optimize import linear_sum_assignment  # imported here because the import is slow

    scores = as_array("scores", scores, "tokens experts")
    slots = even_slots(scores, shards)
    order = np.arange(len(scores))
    if noise is not None:
        noise = as_array("noise", noise, "tokens")
        check_size("noise", noise, 0, len(scores), "the tokens of scores")
        order = stable_order(noise)
    expert, gap = np.zeros(len(scores), np.intp), np.zeros(())
    for part in np.split(order, shards):
        columns = np.repeat(scores[part].real, slots, axis=1)
        expert[part] = linear_sum_assignment(columns, maximize=True)[1] // slots
        gap = gap + _gap(scores[part].real, expert[part])
    return Assignment(expert, np.sum(scores[np.arange(len(scores)), expert]), gap)


def _gap(scores: Array, expert: NDArray[np.intp]) -> Array:
    """Computes the gap at expert prices p. If possible, the assigned expert of each token t maximises `scores[t, e] - p[e]` over e.

    `cost[e, f]` is the smallest decrease of the total score if one token moves from expert e to expert f. If no cycle of
    moves has negative cost, shortest-path lengths p have this property, because `p[e] <= cost[e, f] + p[f]`.
    """
    own = scores[np.arange(len(scores)), expert]
    loss = own[:, None] - scores
    experts = scores.shape[1]
    cost = np.stack([np.min(loss[expert == e].real, axis=0) for e in range(experts)])
    price = np.zeros(experts)
    for _ in range(experts):
        price = np.min((cost + price).real, axis=1)
    return np.sum(np.max((scores - price).real, axis=1) - (own - price[expert]))
