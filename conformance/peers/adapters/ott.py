"""ott-jax: the Sinkhorn solver with the marginals 1 and tokens / experts. The cost is the negative of the logits."""

from typing import Any

import jax
import jax.numpy as jnp
from ott.geometry.geometry import Geometry
from ott.problems.linear.linear_problem import LinearProblem
from ott.solvers.linear.sinkhorn import Sinkhorn

from moespec.conformance.peers.adapters.on_jax import shared

__getattr__ = shared


def sinkhorn_affinity(logits: jax.Array, *, iterations: int | None = None, tolerance: float | None = None) -> jax.Array:
    """`ott.solvers.linear.sinkhorn.Sinkhorn` with an epsilon of 1."""
    options: dict[str, Any] = {}
    if iterations is not None:
        options |= {"min_iterations": iterations, "max_iterations": iterations, "inner_iterations": 1}
    if tolerance is not None:
        options |= {"threshold": tolerance, "min_iterations": 0}
    _, tokens, experts = logits.shape
    a, b = jnp.ones(tokens, logits.dtype), jnp.full(experts, tokens / experts, logits.dtype)

    def plan(group: jax.Array) -> jax.Array:
        problem = LinearProblem(Geometry(cost_matrix=-group, epsilon=1.0), a, b)
        matrix: jax.Array = Sinkhorn(**options)(problem).matrix
        return matrix

    return jnp.stack([plan(group) for group in logits])
