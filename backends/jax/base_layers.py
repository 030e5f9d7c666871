"""BASE layers: the best of all balanced assignments, computed on the device.

Shape comments: G groups, T tokens, E experts. Assignments are integers and carry no gradient.

The solver works on integers, so rounding can neither unbalance the assignment nor make the solver cycle. Sinkhorn steps
at falling temperatures compute initial prices of the experts. Then, in a fixed number of steps, the price of an expert
rises if too many tokens prefer this expert, and falls if too few tokens prefer this expert. Each token chooses the
expert with the highest score minus price. No other assignment with the same numbers of tokens per expert is better. Repair steps
remove the remaining imbalance: each step moves tokens with equal losses along the cheapest path from an expert with too many
tokens to an expert with free slots (successive shortest paths, Ahuja, Magnanti and Orlin 1993, chapter 9). Each step keeps
the assignment optimal, so the result is exact for the rounded scores. The gap is computed from the original scores.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from moespec.backends.jax.arrays import Array, wide
from moespec.spec.algorithms.balanced_assignment import Assignment, even_slots
from moespec.spec.checks import check_scores, check_size

__all__ = ["base_assignment"]

SMOOTH_STEPS, PRICE_STEPS = 16, 32
"""The numbers of Sinkhorn steps and price moves before the repair. They affect the time of the repair, but not its result."""


def base_assignment(scores: Array, noise: Array | None = None, *, shards: int = 1) -> Assignment:
    """scores (G, T, E), noise (G, T) -> expert (G, T) int32, objective (G,), gap (G,).

    The assignment is balanced for all scores. Let r be the largest range of a token's scores in the group, and u about `E 2^-26 r` in
    float32 or `2^-52 r` in float64. The gap is 0 up to rounding if the scores of each token differ by multiples of u. For other
    scores, rounding can widen the gap by at most u per token.
    """
    check_scores("scores", scores, "groups tokens experts")
    slots, scores = even_slots(scores, shards), wide(scores)
    order = None
    if noise is not None:
        check_scores("noise", noise, "groups tokens")
        check_size("noise", noise, 1, scores.shape[1], "the tokens of scores")
        order = jnp.argsort(-wide(noise), axis=1, stable=True)
        scores = jnp.take_along_axis(scores, order[..., None], axis=1)
    optimum = _assigned(scores.reshape(-1, scores.shape[1] // shards, scores.shape[2]), slots)
    expert = optimum.expert.reshape(scores.shape[:2])
    if order is not None:
        rows = jnp.arange(expert.shape[0])[:, None]
        expert = jnp.zeros_like(expert).at[rows, order].set(expert, unique_indices=True)
    return Assignment(expert, *(part.reshape(-1, shards).sum(axis=1) for part in optimum[1:]))


def _assigned(scores: Array, slots: int) -> Assignment:
    """Returns the best of the balanced assignments for each group, for scores (G, T, E)."""
    levels, exponent = _levels(lax.stop_gradient(scores))
    start = jnp.ldexp(_smooth_prices(lax.stop_gradient(scores), slots), -exponent[:, None])
    expert, price = _balanced(levels, start, slots)
    held = expert[..., None] == jnp.arange(scores.shape[2], dtype=expert.dtype)
    own = jnp.sum(jnp.where(held, scores, 0), axis=2)
    worth = lax.stop_gradient(scores) - jnp.ldexp(price.astype(scores.dtype), exponent[:, None])[:, None]
    gap = jnp.max(worth, axis=2) - jnp.sum(jnp.where(held, worth, 0), axis=2)
    return Assignment(expert, jnp.sum(own, axis=1), jnp.sum(gap, axis=1))


def _smooth_prices(scores: Array, slots: int) -> Array:
    """Prices (G, E) at which the softmax of scores minus prices gives all experts nearly equal loads.
    The temperature falls from 2^-2 to 2^-10 of the range of the scores (G, T, E)."""
    below = scores - jnp.max(scores, axis=2, keepdims=True)
    reach = -jnp.min(below, axis=(1, 2), keepdims=True)
    reach = jnp.where(reach > 0, reach, 1)
    below = below / reach

    def move(step: Array, price: Array) -> Array:
        temperature = jnp.exp2(-2 - 8 * step.astype(below.dtype) / (SMOOTH_STEPS - 1))
        wanted = jnp.sum(jax.nn.softmax((below - price) / temperature, axis=2), axis=1, keepdims=True)
        return price + temperature * jnp.log(jnp.maximum(wanted / slots, 2.0**-20))

    zeros = jnp.zeros((len(scores), 1, scores.shape[2]), below.dtype)
    price: Array = lax.fori_loop(0, SMOOTH_STEPS, move, zeros) * reach
    return price[:, 0]


# The solver for one group, on integers.


def _levels(scores: Array) -> tuple[Array, Array]:
    """Returns the scores minus the best score of the token, as integers from `-2^bits` to 0, and the exponents (G,) of the integer unit.

    `bits` is small enough that no sum along a path overflows.
    """
    below = scores - jnp.max(scores, axis=2, keepdims=True)
    _, exponent = jnp.frexp(jnp.max(-below, axis=(1, 2)))
    integer = jnp.int64 if scores.dtype == jnp.float64 else jnp.int32
    bits = min(_word(integer) - 2 - scores.shape[2].bit_length(), 52)
    exponent = exponent - bits
    levels = jnp.round(jnp.ldexp(below, -exponent[:, None, None])).astype(integer)
    return jnp.clip(levels, -(2**bits), 0), exponent


def _word(integer: Any) -> int:
    """Returns the exponent of a power of 2 that exceeds the length of any path and can be doubled without overflow."""
    return 61 if integer == jnp.int64 else 29


class _State(NamedTuple):
    """The solver's state: each token's expert (T,), the tokens per expert (E,), and the least loss of a move between two experts (E, E)."""

    expert: Array
    counts: Array
    cost: Array


@partial(jax.jit, static_argnames="slots")  # outside of `jit`, every call would compile the loops again
def _balanced(levels: Array, start: Array, slots: int) -> tuple[Array, Array]:
    """Applies `_solve` to each group: levels (G, T, E), start (G, E) -> experts (G, T) int32, prices (G, E)."""
    return jax.vmap(partial(_solve, slots=slots))(levels, start)


def _solve(levels: Array, start: Array, slots: int) -> tuple[Array, Array]:
    """Returns the experts (T,) int32 of the best of the balanced assignments for `levels` (T, E), and prices (E,) that prove optimality."""
    experts = levels.shape[1]
    expert = jnp.argmax(levels - _moved(levels, start, slots), axis=1).astype(jnp.int32)
    everyone = jnp.arange(experts, dtype=jnp.int32)
    cost = lax.map(lambda e: jnp.min(_losses(levels, expert, e), axis=0), everyone)
    count = jnp.sum(expert[:, None] == everyone, axis=0, dtype=jnp.int32)
    state = lax.while_loop(
        lambda state: jnp.any(state.counts > slots),
        lambda state: _repair(levels, state, slots),
        _State(expert, count, cost),
    )

    def lower(prices: tuple[Array, Array]) -> tuple[Array, Array]:
        return jnp.min(state.cost + prices[0], axis=1), prices[0]

    zeros = jnp.zeros(experts, levels.dtype)
    price, _ = lax.while_loop(lambda prices: jnp.any(prices[0] != prices[1]), lower, lower((zeros, zeros)))
    return state.expert, price


def _moved(levels: Array, start: Array, slots: int) -> Array:
    """Moves prices (E,) from `start` to prices at which the number of tokens that prefer each expert is close to `slots`.

    If a price overshoots, the next step of this price is halved (resilient propagation, Riedmiller and Braun 1993).
    """
    experts = jnp.arange(levels.shape[1], dtype=jnp.int32)

    def move(_: Array, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        price, step, last = state
        wanted = jnp.argmax(levels - price, axis=1)[:, None] == experts
        sign = jnp.sign(jnp.sum(wanted, axis=0, dtype=levels.dtype) - slots)
        step = jnp.where(sign * last < 0, jnp.maximum(step // 2, 1), step)
        price = jnp.clip(price + sign * step, -reach, reach)
        return price, step, jnp.where(sign != 0, sign, last)

    # Prices stay within the range of the levels, so that no difference overflows.
    reach = -jnp.min(levels)
    step, last = jnp.full(levels.shape[1], jnp.maximum(reach >> 10, 1)), jnp.zeros(levels.shape[1], levels.dtype)
    price = jnp.clip(jnp.round(start).astype(levels.dtype), -reach, reach)
    moved: Array = lax.fori_loop(0, PRICE_STEPS, move, (price, step, last))[0]
    return moved


def _losses(levels: Array, expert: Array, source: Array) -> Array:
    """The loss (T, E) of moving each token from the expert `source` to each expert, or `far` for tokens of other experts."""
    here = jnp.arange(levels.shape[1]) == source
    own = jnp.sum(jnp.where(here, levels, 0), axis=1, keepdims=True, dtype=levels.dtype)
    far = jnp.array(2 ** _word(levels.dtype), levels.dtype)
    return jnp.where((expert == source)[:, None], own - levels, far)


def _repair(levels: Array, state: _State, slots: int) -> _State:
    """Moves tokens along the cheapest path from an expert with too many tokens to an expert with free slots.

    Each edge of the path moves the same number of tokens. All these tokens have the least loss, so the cost of the path stays the same.
    """
    far = jnp.array(2 ** _word(levels.dtype), levels.dtype)
    experts = jnp.arange(levels.shape[1])
    distance, before = _shortest_paths(state.cost, state.counts > slots, far)
    sink = jnp.argmin(jnp.where(state.counts < slots, distance, far)).astype(jnp.int32)

    def on_the_way(walk: tuple[Array, Any]) -> Array:
        return before[walk[0]] != walk[0]

    def movers(target: Array) -> Array:
        """Returns booleans (T,) that mark the tokens with the least loss for a move to `target` from its predecessor on the path."""
        source = before[target]
        loss = jnp.min(jnp.where(experts == target, _losses(levels, state.expert, source), far), axis=1)
        return (loss == state.cost[source, target]) & (state.expert == source)

    def least(walk: tuple[Array, Array]) -> tuple[Array, Array]:
        target, several = walk
        return before[target], jnp.minimum(several, jnp.sum(movers(target), dtype=jnp.int32))

    source, several = lax.while_loop(on_the_way, least, (sink, slots - state.counts[sink]))
    several = jnp.minimum(several, state.counts[source] - slots)

    def move(walk: tuple[Array, Array]) -> tuple[Array, Array]:
        target, expert = walk
        moving = movers(target)
        moving &= jnp.cumsum(moving, dtype=jnp.int32) <= several
        return before[target], jnp.where(moving, target, expert)

    def renew(walk: tuple[Array, Array]) -> tuple[Array, Array]:
        target, cost = walk
        row = jnp.min(_losses(levels, expert, target), axis=0)
        return before[target], jnp.where((experts == target)[:, None], row, cost)

    _, expert = lax.while_loop(on_the_way, move, (sink, state.expert))
    walk = lax.while_loop(on_the_way, renew, (sink, state.cost))
    count = state.counts + several * ((experts == sink) - (experts == source).astype(jnp.int32))
    return _State(expert, count.astype(jnp.int32), renew(walk)[1])


def _shortest_paths(cost: Array, start: Array, far: Array) -> tuple[Array, Array]:
    """Returns the distances (E,) from the nearest start, and the predecessors (E,), by the Bellman-Ford algorithm.

    The predecessor of a start is the start itself. The integer costs have no negative cycle, so the loop ends with the shortest distances.
    """
    experts = jnp.arange(len(cost), dtype=jnp.int32)

    def relax(paths: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        distance, before, _ = paths
        through = jnp.where(distance[:, None] < far, distance[:, None] + cost, far)
        shorter = jnp.min(through, axis=0)
        predecessor = jnp.argmin(through, axis=0).astype(jnp.int32)
        better = shorter < distance
        return jnp.where(better, shorter, distance), jnp.where(better, predecessor, before), jnp.any(better)

    begin = (jnp.where(start, 0, far).astype(cost.dtype), experts, jnp.array(True))
    distance, before, _ = lax.while_loop(lambda paths: paths[2], relax, begin)
    return distance, before
