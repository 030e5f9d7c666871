"""The capped affinity: Expert Choice with a limit on the number of experts per token.

    maximise  <S, A> - lambda sum_te A[t, e] log A[t, e]
    over A with column sums k (each expert chooses k tokens), row sums at most b, and 0 <= A <= 1

| here | Zhou et al. 2022 (arXiv 2202.09368), section 3.3 |
|---|---|
| `scores` S (T, E) | S, n x e |
| A (T, E) | A transposed |
| `capacity` | k |
| `cap` | b |
| `regularization` | lambda, 0.001 |
| `iterations` | iterations of Dykstra's algorithm, 100 |

Expert Choice takes the k largest entries in each column of A, not of S. The matrix A only approximates the solution
of a relaxed problem, so more than b experts can still choose a token. With the paper's settings, the iterations end far from
the solution. An example has 512 tokens, 16 experts, k = 64, b = 2 and normal logits of standard deviation 1.5. Without the
cap, 24 % of the tokens get more than 2 experts. With the cap and lambda = 0.001, 29 % of the tokens get more than
2 experts after 100 iterations, and 5 % after 1000. With lambda = 0.01, 5 % get more than 2 experts after 100 iterations.

Ambiguity ledger

CP-1: In which order does Dykstra's algorithm project onto the three sets?
    Reading: first onto column sums of k, then onto row sums of at most b, and last onto entries of at most 1.
    Alternative b: first onto the row sums, then onto the entries, and last onto the column sums.
CP-2: When does Dykstra's algorithm stop?
    Reading: the algorithm stops after `iterations` rounds of the three projections.
    Alternative b: the algorithm stops earlier, once a round hardly changes A. The paper's "a maximum of 100 iterations" gives no criterion.
CP-4: What is the default lambda of the router?
    Reading: 0.01 (`cap_regularization`). With this lambda, 100 iterations come close to the solution.
    Alternative b: the default lambda is 0.001.
        By: the paper, section 3.3, footnote 2.

Often done differently

CP-3: Is the limit of b experts per token enforced after the experts have chosen tokens?
    Reading: no, each expert keeps the k tokens with the largest entries in its column.
        By: the paper, section 3.3 ("TopK(A, k)").
    Alternative b: yes, each token keeps its b best experts, and the slots of the token at all other experts stay empty.
"""

import numpy as np

from moespec.spec.algorithm import Algorithm
from moespec.spec.array_like import ArrayLike
from moespec.spec.checks import check_at_least, check_capacity, check_positive, plural
from moespec.spec.errors import ConfigError
from moespec.spec.numerics import Array, logsumexp, positive_part, stop_gradient
from moespec.spec.values import as_array

__all__ = ["capped_affinity"]

ALGORITHMS = (
    Algorithm("capped_affinity", "Zhou et al. 2022 (arXiv 2202.09368), section 3.3", 2, ("capped_affinity",)),
)


def capped_affinity(
    scores: ArrayLike, *, capacity: int, cap: int, regularization: float = 1e-3, iterations: int = 100
) -> Array:
    """Computes the affinity A by `iterations` rounds of Dykstra's algorithm, starting at `A = exp(S / lambda)`.

    Each round updates `a = log A` and the corrections `p` (T,) and `q` (T, E), which start at 0:

        a[:, e] += log k - logsumexp_t a[t, e]                                 column sums k
        y[t, :]  = a[t, :] + p[t]
        p[t]     = max(logsumexp_e y[t, e] - log b, 0),   a = y - p            row sums at most b
        y        = a + q,   q = max(y, 0),   a = y - q                         entries at most 1

    Each projection goes to the nearest point in Kullback-Leibler divergence. For such projections, Dykstra's algorithm
    converges to the solution. A is used only for selection and carries no gradient.

    Args:
        scores: S, (tokens, experts), the softmax of the logits.
        capacity: k, from 1 to tokens.
        cap: b, at least 1; `b T` must be at least `k E`.
        regularization: lambda, greater than 0.
        iterations: the number of rounds, at least 1.

    Returns:
        (tokens, experts), from 0 to 1. Column sums approach k, and row sums approach values of at most b.

    Raises:
        ConfigError: no A satisfies the constraints.

    Source: Zhou et al. 2022, section 3.3 and its footnotes; the projections: Benamou et al. 2015 (arXiv 1412.5154).

    >>> from moespec.spec import expert_choice, slot_tokens, softmax_affinity
    >>> from moespec.spec.examples import LOGITS
    >>> scores = softmax_affinity(LOGITS)
    >>> slot_tokens(expert_choice(scores, capacity=4)).tolist()  # all three experts choose token 1
    [[4, 1, 0, 3], [5, 2, 0, 1], [3, 2, 4, 1]]
    >>> capped = capped_affinity(scores, capacity=4, cap=2, regularization=0.1)
    >>> for row in capped.round(6).tolist():
    ...     print(row)
    [1.0, 0.726919, 0.273096]
    [1.0, 0.519569, 0.480442]
    [0.109942, 1.0, 0.89004]
    [0.46256, 0.537448, 1.0]
    [1.0, 0.215881, 0.784125]
    [0.427383, 1.0, 0.572176]
    >>> slot_tokens(expert_choice(capped, capacity=4, combine_scores=scores)).tolist()
    [[0, 1, 4, 3], [2, 5, 0, 3], [3, 2, 4, 5]]
    """
    scores = stop_gradient(as_array("scores", scores, "tokens experts"))
    check_cap(capacity, cap, *scores.shape)
    check_at_least("iterations", iterations, 1)
    a = scores / check_positive("regularization", regularization)
    of_rows, of_entries = np.zeros((len(scores), 1)), np.zeros(scores.shape)
    for _ in range(iterations):
        a = a + np.log(capacity) - logsumexp(a, axis=0)
        a = a + of_rows
        of_rows = positive_part(logsumexp(a, axis=1)[:, None] - np.log(cap))
        a = a - of_rows + of_entries
        of_entries = positive_part(a)
        a = a - of_entries
    return np.exp(a)


def check_cap(capacity: int, cap: int, tokens: int, experts: int) -> None:
    """Raises `ConfigError` unless every expert can choose `capacity` tokens while each token has at most `cap` experts."""
    check_capacity(capacity, tokens)
    if check_at_least("cap", cap, 1) * tokens < capacity * experts:
        slots = f"the {capacity * experts} slots of {plural(experts, 'experts')}"
        raise ConfigError(f"cap: {plural(tokens, 'tokens')} with {plural(cap, 'experts')} each cannot fill {slots}")
