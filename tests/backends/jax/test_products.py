"""Soft MoE of bfloat16 tokens: as accurate as of float32 ones."""

import numpy as np
import pytest

from moespec import spec

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

from moespec.backends.jax import SoftRouting, soft_routing  # noqa: E402
from moespec.backends.jax.products import in_three_parts, scaled_product  # noqa: E402

GROUPS, TOKENS, WIDTH, EXPERTS, CAPACITY = 2, 20, 384, 4, 6
RANDOM = np.random.default_rng(0)


def held(array):
    """The nearest values in bfloat16, and these as float64."""
    short = jnp.asarray(array, jnp.bfloat16)
    return short, np.asarray(short.astype(jnp.float32), np.float64)


def relative_error(tokens, exact, slots, **options):
    """The largest of dispatch and combine, jitted or not, against the specification in float64."""
    want = [spec.soft_routing(group, slots, **options) for group in exact]
    worst = 0.0
    for function in (soft_routing, jax.jit(lambda *arrays: SoftRouting(*soft_routing(*arrays, **options)))):
        more = options if function is soft_routing else {}
        got = function(tokens, jnp.asarray(slots, jnp.float32), **more)
        for name in ("dispatch", "combine"):
            assert getattr(got, name).dtype == jnp.float32
            expected = np.stack([getattr(routing, name) for routing in want])
            error = np.abs(np.asarray(getattr(got, name), np.float64) - expected)
            worst = max(worst, np.max(error / np.maximum(expected, 1e-30)))
    return worst


def test_near_ties():
    """Slots in pairs that differ in the lowest of the three parts alone: their logits, 5, by 1e-5.

    Sixteen values of a token are powers of two and the others zero, so every sum has less than 24 bits: no order of addition
    rounds it, and the error is that of the softmax.
    """
    values = RANDOM.choice([1 / 8, 1 / 4], (GROUPS, TOKENS, WIDTH))
    tokens, exact = held(values * (RANDOM.permuted(np.broadcast_to(np.arange(WIDTH), values.shape), axis=-1) < 16))
    first = np.round(RANDOM.uniform(1, 2, (WIDTH, EXPERTS, CAPACITY // 2)) * 2**14) / 2**14
    slots = np.stack([first, first + 2.0**-18], axis=3).reshape(WIDTH, EXPERTS, CAPACITY)
    assert relative_error(tokens, exact, slots, normalize=False) < 1e-6
    combine = soft_routing(tokens, jnp.asarray(slots, jnp.float32), normalize=False).combine
    assert (combine[..., 1::2] > combine[..., ::2]).all()


@pytest.mark.parametrize(("scale", "bound"), [(1.0, 2e-6), (100.0, 5e-5)])
def test_normalised(scale, bound):
    """Also with logits of up to 100, which the error of the logits is multiplied by. Of the first, exponentials of different
    processors give 0.9e-6 to 1.1e-6; a part of the product that is missing gives more than 1e-5."""
    tokens, exact = held(RANDOM.normal(size=(GROUPS, TOKENS, WIDTH)))
    slots = np.float32(RANDOM.normal(size=(WIDTH, EXPERTS, CAPACITY)))
    like_tokens = exact.reshape(-1, WIDTH)[: EXPERTS * CAPACITY].T.reshape(slots.shape)
    near = np.float32(slots + 4 * like_tokens)
    for phi in (slots, near):
        assert relative_error(tokens, exact, phi, scale=scale) < bound


def test_gradients():
    """Of the product and what scales it, against float64."""
    tokens, exact = held(RANDOM.normal(size=(GROUPS, TOKENS, WIDTH)))
    factor = np.float32(RANDOM.uniform(0.5, 2, (GROUPS, TOKENS, 1)))
    slots = np.float32(RANDOM.normal(size=(WIDTH, EXPERTS, CAPACITY)))
    weight = np.float32(RANDOM.normal(size=(GROUPS, TOKENS, EXPERTS, CAPACITY)))
    _, back = jax.vjp(scaled_product, tokens.astype(jnp.float32), jnp.asarray(factor), jnp.asarray(slots))
    rows = np.einsum("gtec,dec->gtd", np.float64(weight), np.float64(slots))
    want = (
        factor * rows,
        (exact * rows).sum(axis=2, keepdims=True),
        np.einsum("gtd,gtec->dec", exact * factor, np.float64(weight)),
    )
    for got, expected in zip(back(jnp.asarray(weight)), want, strict=True):
        assert got.dtype == jnp.float32
        assert np.linalg.norm(np.asarray(got, np.float64) - expected) < 1e-6 * np.linalg.norm(expected)


@pytest.mark.parametrize("function", [in_three_parts, jax.jit(in_three_parts)])
def test_three_parts_hold_every_bit(function):
    x = np.float32(RANDOM.normal(size=1000) * 10.0 ** RANDOM.integers(-20, 20, 1000))
    parts = np.asarray(function(jnp.asarray(x)).astype(jnp.float32), np.float64)
    assert function(jnp.asarray(x)).dtype == jnp.bfloat16
    assert np.array_equal(parts.sum(axis=0), np.float64(x))
