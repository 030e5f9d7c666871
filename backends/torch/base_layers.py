"""BASE layers: the balanced assignment, the greedy assignment, and their routing.

Shapes: G groups, T tokens, E experts. Assignments are integers and carry no gradient.

*The solver* runs on the CPU, inside one operator that is opaque to compilers. The scores are copied to the CPU, and the assigned
experts are copied back. A device waits for the host only in this operator. The solver works on integers, so rounding can neither
unbalance the assignment nor make the solver cycle. Sinkhorn steps at falling temperatures give initial prices. Then, in a limited
number of steps, the price of an expert rises if more tokens prefer the expert than it has slots, and falls if fewer tokens do. Each token
takes the expert with the highest score minus price. No other assignment with the same numbers of tokens per expert is better. A repair
removes the remaining imbalance: in each step, tokens with the same loss move along the cheapest path from an overfull expert to an
expert with free slots (successive shortest paths, Ahuja, Magnanti and Orlin 1993, chapter 9). Each step keeps the assignment optimal
for the new numbers of tokens per expert. The result is therefore exact for the rounded scores. The gap uses the original scores.
"""

from functools import partial
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from moespec.backends.torch.arrays import widen
from moespec.backends.torch.operators import operator
from moespec.spec.algorithms.balanced_assignment import Assignment, even_slots
from moespec.spec.checks import check_scores, check_size

__all__ = ["base_assignment"]

SMALL = 256
"""The largest number of tokens in a group for which SciPy's solver is faster than `_solve`."""
SMOOTH_STEPS, PRICE_STEPS = 16, 32
"""The numbers of Sinkhorn steps and price moves before the repair. They affect the time of the repair, but not its result."""

FAR = 2**61
"""A length that exceeds the length of every path."""

Integers = NDArray[np.int64]


def base_assignment(scores: Tensor, noise: Tensor | None = None, *, shards: int = 1) -> Assignment:
    """scores (G, T, E), noise (G, T) -> expert (G, T) int32, objective (G,), gap (G,).

    The assignment is balanced for any scores.
    """
    check_scores("scores", scores, "groups tokens experts")
    slots, scores = even_slots(scores, shards), widen(scores)
    order = None
    if noise is not None:
        check_scores("noise", noise, "groups tokens")
        check_size("noise", noise, 1, scores.shape[1], "the tokens of scores")
        order = noise.argsort(dim=1, descending=True, stable=True)
        scores = scores.take_along_dim(order[..., None], dim=1)
    optimum = _assigned(scores.reshape(-1, scores.shape[1] // shards, scores.shape[2]), slots)
    expert = optimum.expert.reshape(scores.shape[:2])
    if order is not None:
        expert = torch.empty_like(expert).scatter(1, order, expert)
    return Assignment(expert, *(part.reshape(-1, shards).sum(dim=1) for part in optimum[1:]))


def _assigned(scores: Tensor, slots: int) -> Assignment:
    """Returns the best of the balanced assignments for each group, for scores (G, T, E)."""
    expert, price = _balanced(scores.detach().contiguous(), slots)
    own = scores.gather(2, expert.long()[..., None]).squeeze(2)
    worth = scores.detach() - price[:, None]
    gap = worth.amax(dim=2) - worth.gather(2, expert.long()[..., None]).squeeze(2)
    return Assignment(expert, own.sum(dim=1), gap.sum(dim=1))


@partial(operator, tags=(torch.Tag.cudagraph_unsafe,))
def _balanced(scores: Tensor, slots: int) -> tuple[Tensor, Tensor]:
    """For each group, returns the experts (G, T) int32 of the best of the balanced assignments, and prices (G, E) that prove optimality."""
    table = scores.double().cpu().numpy()
    if scores.shape[1] <= SMALL:
        solved = [_solve_small(*_levels(group), slots) for group in table]
    else:
        prices = _smooth_prices(scores, slots).double().cpu().numpy()
        solved = [_solve(*_levels(group), start, slots) for group, start in zip(table, prices, strict=True)]
    expert, price = (torch.from_numpy(np.stack(part)) for part in zip(*solved, strict=True))
    return expert.to(scores.device, torch.int32), price.to(scores)


@_balanced.register_fake
def _(scores: Tensor, slots: int) -> tuple[Tensor, Tensor]:
    groups, tokens, experts = scores.shape
    return scores.new_empty(groups, tokens, dtype=torch.int32), scores.new_empty(groups, experts)


def _smooth_prices(scores: Tensor, slots: int) -> Tensor:
    """Prices (G, E), for scores (G, T, E), at which the softmax of scores minus prices gives all experts nearly equal loads."""
    below = scores.float() - scores.float().amax(dim=2, keepdim=True)
    reach = -below.amin(dim=(1, 2), keepdim=True)
    reach = torch.where(reach > 0, reach, 1)
    below, price = below / reach, below.new_zeros(len(scores), 1, scores.shape[2])
    for step in range(SMOOTH_STEPS):
        temperature = 2 ** (-2 - 8 * step / (SMOOTH_STEPS - 1))
        wanted = ((below - price) / temperature).softmax(dim=2).sum(dim=1, keepdim=True)
        price = price + temperature * (wanted / slots).clamp(min=2**-20).log()
    return (price * reach).squeeze(1)


# The solver, for the integer scores of one group.


def _levels(scores: NDArray[np.float64]) -> tuple[Integers, int]:
    """Rounds each score minus the token's best score to `level * 2^exponent`, with integer levels from `-2^bits` to 0.

    `bits` is small enough that every path is shorter than `FAR`.
    """
    bits = min(59 - scores.shape[1].bit_length(), 52)
    below = scores - scores.max(axis=1, keepdims=True)
    exponent = int(np.frexp(-below.min())[1]) - bits
    levels = np.nan_to_num(np.rint(np.ldexp(below, -exponent)))
    return np.clip(levels, -(2**bits), 0).astype(np.int64), exponent


def _solve_small(levels: Integers, exponent: int, slots: int) -> tuple[Integers, NDArray[np.float64]]:
    """Solves the same problem as `_solve`. SciPy's solver assigns tokens to slots. The time grows with the cube of
    the number of tokens."""
    from scipy.optimize import linear_sum_assignment  # this import takes half a second, and few routers need it

    _, slot = linear_sum_assignment(np.repeat(levels.astype(np.float64), slots, axis=1), maximize=True)
    experts = np.arange(levels.shape[1])
    held = levels[np.argsort(slot)].reshape(len(experts), slots, -1)
    cost: Integers = (held[experts, :, experts][..., None] - held).min(axis=1)  # least loss of a move between experts
    return slot // slots, _proof(cost, exponent)


def _solve(
    levels: Integers, exponent: int, start: NDArray[np.float64], slots: int
) -> tuple[Integers, NDArray[np.float64]]:
    """Returns the experts (T,) of the best of the balanced assignments for `levels` (T, E), and prices (E,) that prove optimality."""
    experts = levels.shape[1]
    expert = np.argmax(levels - _moved(levels, np.ldexp(start, -exponent), slots), axis=1)
    count = np.bincount(expert, minlength=experts)
    # cost[e, f] is the least loss of moving one token from expert e to expert f.
    cost = np.full((experts, experts), FAR)

    def loss(source: int, target: int) -> Integers:
        return levels[:, source] - levels[:, target]

    def renew(source: int) -> None:
        there = levels[expert == source]
        cost[source] = (there[:, [source]] - there).min(axis=0, initial=FAR)

    for source in range(experts):
        renew(source)
    while (count > slots).any():
        distance, before = _shortest_paths(cost, count > slots)
        last = int(np.argmin(np.where(count < slots, distance, FAR)))
        path = [last]
        while before[path[-1]] != path[-1]:
            path.append(int(before[path[-1]]))
        # Each move on the path takes the same number of tokens, all with the least loss, so the cost of the path stays the same.
        moves = [
            (target, np.flatnonzero((expert == source) & (loss(source, target) == cost[source, target])))
            for target, source in pairwise(path)
        ]
        several = min(count[path[-1]] - slots, slots - count[last], *(len(tokens) for _, tokens in moves))
        for target, tokens in moves:
            expert[tokens[:several]] = target
        count[last] += several
        count[path[-1]] -= several
        for source in path:
            renew(source)
    return expert, _proof(cost, exponent)


def _proof(cost: Integers, exponent: int) -> NDArray[np.float64]:
    """Computes prices (E,) at which no token of the best assignment gains by a move, from the least loss (E, E) of each move."""
    price = np.zeros(len(cost), np.int64)
    while (price != (price := (cost + price).min(axis=1))).any():
        pass
    return np.ldexp(price.astype(np.float64), exponent)


def _moved(levels: Integers, start: NDArray[np.float64], slots: int) -> Integers:
    """Finds prices (E,) near `start` at which the number of tokens that prefer each expert is close to `slots`."""
    experts, reach = levels.shape[1], -levels.min()
    price: Integers = np.clip(np.nan_to_num(np.rint(start)), -reach, reach).astype(np.int64)
    last, step = np.zeros(experts, np.int64), np.full(experts, max(reach >> 10, 1))
    for _ in range(PRICE_STEPS):
        sign = np.sign(np.bincount(np.argmax(levels - price, axis=1), minlength=experts) - slots)
        if not sign.any():
            break
        step = np.where(sign * last < 0, np.maximum(step // 2, 1), step)
        price = np.clip(price + sign * step, -reach, reach)
        last = np.where(sign != 0, sign, last)
    return price


def _shortest_paths(cost: Integers, start: NDArray[np.bool_]) -> tuple[Integers, Integers]:
    """Returns distances (E,) from the nearest start, and predecessors (E,). The predecessor of a start is the start itself."""
    distance, before = np.where(start, 0, FAR), np.arange(len(cost))
    while True:
        through = np.where(distance[:, None] < FAR, distance[:, None] + cost, FAR)
        predecessor = through.argmin(axis=0)
        shorter = through[predecessor, range(len(cost))]
        better = shorter < distance
        if not better.any():
            return distance, before
        distance, before = np.where(better, shorter, distance), np.where(better, predecessor, before)
