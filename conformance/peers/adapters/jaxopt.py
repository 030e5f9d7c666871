"""jaxopt: projections onto the simplex and onto the transport polytope with the marginals 1 and tokens / experts."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxopt import projection

from moespec.conformance.peers.adapters.on_jax import shared

__getattr__ = shared


def sinkhorn_affinity(logits: jax.Array, *, iterations: int | None = None, tolerance: float | None = None) -> jax.Array:
    """`jaxopt.projection.kl_projection_transport`, solved with L-BFGS."""
    if iterations is not None or tolerance is not None:
        raise NotImplementedError("kl_projection_transport has no iterations of Sinkhorn")
    return jnp.stack([projection.kl_projection_transport(group, _marginals(group)) for group in logits])


def sparse_transport_affinity(
    utility: jax.Array, *, capacity: int, sparsity: str = "expert", **options: object
) -> jax.Array:
    """`jaxopt.projection.projection_transport`, solved with L-BFGS."""
    if sparsity != "none" or options:
        raise NotImplementedError("projection_transport has no constraint of sparsity, and only its own solver")
    return jnp.stack([projection.projection_transport(group, _marginals(group)) for group in utility])


def _marginals(scores: jax.Array) -> tuple[jax.Array, jax.Array]:
    tokens, experts = scores.shape
    return jnp.ones(tokens, scores.dtype), jnp.full(experts, tokens / experts, scores.dtype)


def project_simplex(values: jax.Array, *, mass: float = 1.0) -> jax.Array:
    """`jaxopt.projection.projection_simplex`, applied to each row."""
    return _rows(partial(projection.projection_simplex, value=mass), values)


def project_sparse_simplex(values: jax.Array, *, nonzeros: int, mass: float = 1.0) -> jax.Array:
    """`jaxopt.projection.projection_sparse_simplex`, applied to each row."""
    return _rows(partial(projection.projection_sparse_simplex, max_nz=nonzeros, value=mass), values)


def _rows(function: Callable[[jax.Array], jax.Array], values: jax.Array) -> jax.Array:
    return jnp.stack([function(row) for row in values.reshape(-1, values.shape[-1])]).reshape(values.shape)
