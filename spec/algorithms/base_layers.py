"""BASE layers: in training every expert gets the same number of tokens, assigned to maximise the total score.

| here | BASE (arXiv 2103.16716) |
|---|---|
| `tokens` (T, D) | h_t, the tokens of all workers |
| column e of `kernel` (D, E) | w_e, the expert embedding |
| `scores` (T, E) | h_t . w_e |
| `expert` (T,) | a_t, eq. (2); see `balanced_assignment` |
| sigmoid(scores[t, a_t]) | the soft gate of eq. (1) |

The layer returns `sigmoid(s) f(x)`. The transformer block adds the residual x, as for every other layer. The public code
computes the same sum as `a g(x) + (1 - a) x` with `g(x) = x + f(x)` and `a = sigmoid(s)`.

Ambiguity ledger

BL-1: Which balanced assignment is used?
    Reading: an assignment with the largest total score, found exactly. If several are optimal, any may be used.
        By: the paper, eq. (2).
    Alternative b: an auction algorithm that stops early finds an assignment with a lower total score.
        By: facebookresearch/fairseq, fairseq/clib/libbase/balanced_assignment.cpp, balanced_assignment.
BL-4: Are the scores computed before or after the norm?
    Reading: the scores are computed after the norm, because a pre-norm block has already normalised the layer's input.
    Alternative b: the scores are computed before the norm, from the unnormalised tokens. Each expert applies the norm.
        By: facebookresearch/fairseq, fairseq/modules/base_layer.py, BaseLayer.forward and BaseSublayer.forward.
BL-5: In which order do the tokens of an expert fill its slots?
    Reading: the tokens fill the slots in the order of the token indices.
    Alternative b: the tokens fill the slots in the order in which workers send them. In training, the tokens are shuffled.
        By: facebookresearch/fairseq, fairseq/modules/base_layer.py, BaseLayer.forward.
BL-6: Over which tokens is the assignment balanced in training?
    Reading: the assignment is balanced over all tokens of the group together.
    Alternative b: the assignment is balanced separately over each of several random subsets of the tokens (`shards`).
        By: the paper, section 3.2.1; facebookresearch/fairseq, fairseq/modules/base_layer.py, BaseLayer.forward.
BL-7: What is the architecture of an expert?
    Reading: an expert is a two-layer MLP, as for every router.
    Alternative b: an expert is a stack of two-layer MLPs. Each MLP has a norm before it, a residual connection around it
        and a second kernel with initial value 0.
        By: facebookresearch/fairseq, fairseq/modules/base_layer.py, BaseLayer and BaseSublayer.

Often done differently

BL-2: How are tokens assigned at evaluation?
    Reading: each token goes to the expert with the highest score, without balancing, so the capacity is T.
        By: the paper, section 3.2.2; facebookresearch/fairseq, fairseq/modules/base_layer.py, BaseLayer.greedy_assignment.
    Alternative b: tokens are assigned by a balanced assignment, as in training.
BL-3: How is the output of an expert weighted?
    Reading: the output is weighted by the sigmoid of the token's score for the expert.
        By: the paper, eq. (1); facebookresearch/fairseq, fairseq/modules/base_layer.py, BaseLayer.forward.
    Alternative b: the output is weighted by the softmax of the token's scores over the experts.
    Alternative c: the output is not weighted (weight 1).
"""

import numpy as np
from numpy.typing import NDArray

from moespec.spec.algorithm import Algorithm
from moespec.spec.algorithms.token_choice import token_choice
from moespec.spec.array_like import ArrayLike
from moespec.spec.checks import check_capacity, check_one_per_token
from moespec.spec.errors import ContractError
from moespec.spec.numerics import sigmoid, stable_order
from moespec.spec.routing import Routing
from moespec.spec.values import as_array, even

__all__ = ["base_greedy", "base_routing"]

ALGORITHMS = (
    Algorithm(
        "base_layers",
        "Lewis et al. 2021 (arXiv 2103.16716), eqs. (1), (2)",
        1,
        ("base_assignment", "base_greedy", "base_routing"),
    ),
)


def base_greedy(scores: ArrayLike) -> NDArray[np.intp]:
    """Returns the expert of each token at evaluation: the expert with the highest score, with ties broken by lower index.

    Args:
        scores: (tokens, experts).

    Returns:
        (tokens,) integers.

    Source: BASE, section 3.2.2.

    >>> from moespec.spec.examples import LOGITS
    >>> base_greedy(LOGITS).tolist()
    [0, 0, 1, 2, 0, 1]
    """
    return stable_order(as_array("scores", scores, "tokens experts"))[:, 0]


def base_routing(scores: ArrayLike, expert: ArrayLike, *, capacity: int) -> Routing:
    """Sends each token to its expert, in token order, and weights the output of the expert by the sigmoid of the score:

        combine[t, a_t, c] = sigmoid(scores[t, a_t]) dispatch[t, a_t, c]

    Args:
        scores: (tokens, experts).
        expert: a, (tokens,) integers, from 0 to E - 1.
        capacity: at least 1; T / E in training and T at evaluation. If the expert of a token is full, the token is dropped.

    Returns:
        Routing of (tokens, experts, capacity).

    Source: BASE, eq. (1).

    >>> from moespec.spec import base_assignment, slot_tokens
    >>> from moespec.spec.examples import LOGITS
    >>> routing = base_routing(LOGITS, base_assignment(LOGITS).expert, capacity=2)
    >>> slot_tokens(routing).tolist(), round(float(routing.combine.sum()), 10)
    ([[1, 4], [0, 5], [2, 3]], 4.4452268614)
    """
    scores, expert = as_array("scores", scores, "tokens experts"), even("expert", expert)
    tokens, experts = scores.shape
    check_one_per_token("expert", expert, (tokens,))
    check_capacity(capacity)
    if not ((expert >= 0) & (expert < experts)).all():
        raise ContractError(f"expert: expected integers from 0 to {experts - 1}, got {expert.tolist()}")
    return token_choice(np.eye(experts)[expert], choices=1, capacity=capacity, combine_scores=sigmoid(scores))
