"""Switch's jitter: in training, each entry of the router's input is multiplied by a random factor near 1.

| here | Switch (arXiv 2101.03961) |
|---|---|
| `tokens` X (T, D) | x |
| `noise` (T, D), uniform on [-1, 1] | |
| `epsilon` | jitter noise, 1e-2 |

Ambiguity ledger

SW-1: What is jittered, and how?
    Reading: each entry of a token is multiplied by a draw from [1 - epsilon, 1 + epsilon].
        By: the paper, appendix C (multiplicative jitter noise on the incoming representation); tensorflow/mesh,
        mesh_tensorflow/transformer/moe.py, _switch_gating (mesh_tensorflow/layers.py, multiplicative_jitter);
        google/flaxformer, flaxformer/architectures/moe/routing.py, Router._compute_router_probabilities;
        databricks/megablocks, megablocks/layers/router.py, LearnedRouter.jitter.
    Alternative b: a draw from [1 - epsilon, 1 + epsilon] is added to each logit.
        By: the paper, appendix F (Figure 15, the pseudo-code of the router).
    Alternative c: all entries of a token are multiplied by the same draw.
"""

from moespec.spec.algorithm import Algorithm
from moespec.spec.array_like import ArrayLike
from moespec.spec.checks import check_non_negative, check_same_shape
from moespec.spec.numerics import Array
from moespec.spec.values import as_array

__all__ = ["router_jitter"]

ALGORITHMS = (Algorithm("router_jitter", "Fedus et al. 2021 (arXiv 2101.03961)", 1, ("router_jitter",)),)


def router_jitter(tokens: ArrayLike, noise: ArrayLike | None, *, epsilon: float = 0.01) -> Array:
    """Computes the input of the router in training, `X (1 + epsilon noise)`. With `noise=None`, the tokens are returned unchanged.

    Args:
        tokens: X, (tokens, width).
        noise: (tokens, width), uniform on [-1, 1] (the range is not checked), or None.
        epsilon: the largest relative change of an entry, at least 0.

    Returns:
        (tokens, width).

    Source: Switch, appendix C; tensorflow/mesh, mesh_tensorflow/layers.py, multiplicative_jitter.

    >>> router_jitter([[1.0, -2.0]], [[1.0, 0.5]]).tolist()
    [[1.01, -2.01]]
    """
    tokens = as_array("tokens", tokens, "tokens width")
    check_non_negative("epsilon", epsilon)
    if noise is None:
        return tokens
    noise = as_array("noise", noise, "tokens width")
    check_same_shape("noise", noise, "tokens", tokens)
    return tokens * (1.0 + epsilon * noise)
