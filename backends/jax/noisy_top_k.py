"""Noisy top-k gating: logits whose noise has a learned scale, gates that sum to 1 over the choices, and the load loss.

Shape comments: G groups, T tokens, E experts, K choices. Everything is computed in float32 or better.
"""

import math

import jax
import jax.numpy as jnp
from jax import lax

from moespec.backends.jax.allocations import is_chosen
from moespec.backends.jax.arrays import Array, top_indices, wide
from moespec.backends.jax.losses import pick, squared_variation
from moespec.spec.checks import check_choices, check_same_shape, check_scores
from moespec.spec.numerics import FAR, SMALLEST_SCALE

__all__ = ["noisy_top_k_affinity", "noisy_top_k_load_loss", "noisy_top_k_logits"]

AXES = "groups tokens experts"


def noisy_top_k_logits(logits: Array, noise_logits: Array, noise: Array | None) -> Array:
    """logits, noise_logits and noise (G, T, E) -> (G, T, E)."""
    _check(logits=logits, noise_logits=noise_logits)
    if noise is None:
        return wide(logits)
    _check(logits=logits, noise=noise)
    return wide(logits) + wide(noise) * jax.nn.softplus(wide(noise_logits))


def noisy_top_k_affinity(noisy_logits: Array, *, choices: int) -> Array:
    """noisy_logits (G, T, E) -> (G, T, E)."""
    _check(noisy_logits=noisy_logits)
    choices = check_choices(choices, noisy_logits.shape[2])
    logits = wide(noisy_logits)
    return jax.nn.softmax(jnp.where(is_chosen(top_indices(logits, choices), logits.shape[2]), logits, -jnp.inf), axis=2)


def noisy_top_k_load_loss(logits: Array, noise_logits: Array, noisy_logits: Array, *, choices: int) -> Array:
    """The mean over the groups: logits, noise_logits and noisy_logits (G, T, E) -> a scalar."""
    _check(logits=logits, noise_logits=noise_logits)
    _check(logits=logits, noisy_logits=noisy_logits)
    choices = check_choices(choices, logits.shape[2])
    if choices == logits.shape[2]:
        return jnp.zeros((), wide(logits).dtype)  # every expert is chosen by every token
    return squared_variation(jnp.sum(choice_probability(logits, noise_logits, noisy_logits, choices=choices), axis=1))


def choice_probability(logits: Array, noise_logits: Array, noisy_logits: Array, *, choices: int) -> Array:
    """P of the load loss: logits, noise_logits and noisy_logits (G, T, E) -> (G, T, E)."""
    noisy = wide(noisy_logits)
    if choices == noisy.shape[2]:
        return jnp.ones_like(noisy)
    top = top_indices(noisy, choices + 1)
    last, next_best = (pick(noisy, top[..., k : k + 1]) for k in (choices - 1, choices))
    threshold = jnp.where(is_chosen(top[..., :choices], noisy.shape[2]), next_best, last)
    excess = _z_score(threshold - wide(logits), jax.nn.softplus(wide(noise_logits)))
    return 0.5 * lax.erfc(excess / math.sqrt(2))


def _z_score(deviation: Array, scale: Array) -> Array:
    """`z_score` of the specification."""
    value, fixed = lax.stop_gradient((deviation, scale))
    is_far = jnp.abs(value) >= FAR * fixed
    constant = jnp.where(is_far, FAR * jnp.sign(value), value / jnp.where(is_far, 1, fixed))
    is_constant = is_far | (fixed < SMALLEST_SCALE)
    return jnp.where(is_constant, constant, deviation / jnp.where(is_constant, 1, scale))


def _check(**arrays: Array) -> None:
    """Each is (groups, tokens, experts), and the second of the shape of the first."""
    for name, array in arrays.items():
        check_scores(name, array, AXES)
    (first_name, first), (name, array) = (*arrays.items(), *arrays.items())[:2]
    check_same_shape(name, array, first_name, first)
