"""Cases of BASE layers: the balanced assignment, the greedy assignment, and the routing that an assignment gives.

If several balanced assignments are optimal, a case compares only the total score, the gap and the routing metrics,
which are equal for all optimal assignments.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from moespec.backends.blocks import Array
from moespec.conformance.author.definition import Definition, call, composed, single, tensor
from moespec.conformance.author.inputs import both, grid, groups_tokens, permutation
from moespec.conformance.author.variant import Spec, Variant, variant, weighted_by
from moespec.conformance.format import Tensor
from moespec.conformance.functions.margins import assignment_margin
from moespec.spec.examples import LOGITS
from moespec.spec.numerics import softmax, stable_order

EXPERTS = "groups tokens"

NAME = "base_layers"
G, T, E = 2, 6, 3


def cases() -> Iterator[Definition]:
    yield from _unique()
    yield from _several()
    yield from _routings()


def _drawn(key: str, shape: tuple[int, int, int], reach: float = 3.0, step: float = 0.125) -> Tensor:
    """Draws scores several times and returns the draw in which the optimal balanced assignment has the largest margin."""

    def group(g: int) -> Any:
        draws = [grid(f"{key}/{g}/{attempt}", shape[1:], reach=reach, step=step) for attempt in range(20)]
        return max(draws, key=lambda values: assignment_margin(values, np.abs(values)))

    return groups_tokens(np.stack([group(g) for g in range(shape[0])]))


def _assigned(
    name: str, kind: str, purpose: str, values: Tensor, *flags: str, greedy: bool = True, several: bool = False,
    of: str = "", noise: Tensor | None = None, **shards: Any,
) -> Definition:  # fmt: skip
    """Returns a case that assigns tokens by the scores `values` and computes the routing and its metrics for the balanced assignment."""
    _, tokens, experts = values.array.shape
    read, dealt = {"scores": "scores"}, {} if noise is None else {"noise": "noise"}
    stages = [
        call("base_assignment", {**read, **dealt}, **shards),
        call("base_routing", {**read, "expert": "base_assignment/expert"}, capacity=tokens // experts),
        call("routing_metrics", {"routing": "base_routing"}),
    ]
    left = ("base_assignment/expert", "base_routing/slots", "base_routing/weights") if several else ()
    stages += [call("base_greedy", read)] if greedy else []
    inputs = {"scores": values} | ({} if noise is None else {"noise": noise})
    return composed(NAME, name, kind, purpose, *flags, inputs=inputs, stages=tuple(stages), several=left, of=of)


def _unique() -> Iterator[Definition]:
    def case(name: str, kind: str, purpose: str, values: Any, *flags: str) -> Definition:
        return _assigned(name, kind, purpose, values, "exact_balance", *flags)

    yield case("worked", "value", "The worked example of the specification.", both(LOGITS))
    purpose = "Small scores, and large ones: no fixed unit has both."
    units = _drawn("base/units", (G, T, E)).array * np.array([[[2.0**-24]], [[2.0**20]]], np.float32)
    yield case("units", "value", purpose, groups_tokens(units))
    yield case("square", "value", "As many tokens as experts.", _drawn("base/c", (G, 5, 5)), "wrong_axis")
    chain = np.full((4, 4), -8.0) + np.eye(4) * 8 + np.eye(4, k=1) * 9
    chain[0, 0], chain[3, 0] = 8.0, 6.0
    yield case("chain", "overflow", "One change moves every other token.", both(chain))
    far = _drawn("base/f", (G, T, E)).array + np.array([[0.0], [16.0], [-16.0], [8.0], [-4.0], [28.0]])
    yield case("shifted_rows", "value", "A constant for each token changes nothing but the total.", groups_tokens(far))
    small = _drawn("base/r", (G, 12, 3), reach=0.5, step=0.015625).array
    small[:, 0] = [4.0, -4.0, 0.0]
    purpose = "Gains so small against the range that an auction with its bids misses one."
    yield case("small_gains", "value", purpose, groups_tokens(small))
    size = "degenerate_size"
    yield case("one_slot", "degenerate", "One token for each expert.", _drawn("base/g", (G, 3, 3)), size)
    yield _assigned("one_expert", "degenerate", "One expert takes all.", _drawn("base/h", (G, T, 1)), size)
    values = _drawn("base/s69", (1, 8, 2))
    purpose = "Two shards of four tokens: 6, 1, 3 and 2 have the larger noise, 2 as much as 4, whose index is higher."
    noise = tensor(np.array([[0.125, 0.75, 0.5, 0.625, 0.5, 0.0, 0.875, 0.25]], np.float32), EXPERTS)
    yield _assigned("shards", "value", purpose, values, "exact_balance", greedy=False, noise=noise, shards=2)
    purpose = "The assignment carries no gradient, the total does."
    values, of = _drawn("base/p", (G, T, E)), "base_assignment/objective"
    yield _assigned("gradient_sum", "gradient", purpose, values, "exact_balance", greedy=False, of=of)


def _several() -> Iterator[Definition]:
    def case(name: str, kind: str, purpose: str, values: Any, *, greedy: bool = False) -> Definition:
        flags, scores = ("exact_balance", "any_optimum"), groups_tokens(values)
        return _assigned(name, kind, purpose, scores, *flags, greedy=greedy, several=True)

    yield case("all_equal", "tie", "Equal scores: every balanced assignment is the best.", np.full((1, 8, 4), 0.5))
    signed = np.where(grid("base/l", (G, T, E)) > 0, 0.0, -0.0)
    yield case("signed_zero", "tie", "Zero and minus zero are equal.", signed, greedy=True)
    near = 0.5 + grid("base/m", (G, T, E), reach=2.0, step=1.0) / 256
    yield case("neighbours", "near_tie", "Scores that are neighbours in bfloat16.", near, greedy=True)


def _routing(name: str, kind: str, purpose: str, *flags: str, expert: Any, **values: Any) -> Definition:
    inputs = {"scores": values.pop("scores"), "expert": tensor(expert, EXPERTS)}
    return single(NAME, "base_routing", name, kind, purpose, *flags, **inputs, **values)


def _routings() -> Iterator[Definition]:
    gate = "sigmoid_gate"
    even = np.stack([permutation(f"base/expert/{g}", T) % E for g in range(G)])
    two: dict[str, Any] = {"expert": even, "capacity": 2}
    case = partial(_routing, scores=groups_tokens(grid("base/n", (G, T, E), reach=3.0)))
    one = partial(case, expert=np.zeros((G, T), np.int32))
    yield case("routing", "value", "The sigmoid of the score; tokens by index.", gate, **two)
    yield one("routing_full", "overflow", "A token that finds no room is dropped.", "overflow_drop", capacity=4)
    large = groups_tokens(grid("base/o", (G, T, E), reach=80.0, step=1.0))
    purpose = "Scores whose exponential is large."
    yield case("routing_large", "value", purpose, "large_logits", **{**two, "scores": large})
    yield case("gradient_routing", "gradient", "The weights carry the gradient.", gate, **two)


def _found(B: Spec, scores: Array, expert: Any, *noise: Any, **shards: Any) -> Any:
    """Returns the result that `base_assignment` would have if `expert` were the assignment, with the total score and gap of `expert`."""
    right = B.base_assignment(scores, *noise, **shards)
    total = np.take_along_axis(scores, expert[..., None], axis=2)[..., 0].sum(axis=1)
    gap = right.objective.real + right.gap - total.real
    return right._replace(expert=expert.astype(np.int32), objective=total, gap=gap)


def assignment_is_greedy(B: Spec, scores: Array, *noise: Any, **shards: Any) -> Any:
    """Every token goes to the expert of its highest score, even in training."""
    return _found(B, scores, B.base_greedy(scores), *noise, **shards)


def assignment_in_two_shards(B: Spec, scores: Array, noise: Array | None = None, *, shards: int = 1) -> Any:
    """If the number of experts divides half the number of tokens, each half of the tokens is assigned separately."""
    right = B.base_assignment(scores, noise, shards=shards)
    halves = shards == 1 and scores.shape[1] % (2 * scores.shape[2]) == 0
    return B.base_assignment(scores, noise, shards=2) if halves else right


def assignment_in_turn(B: Spec, scores: Array, *noise: Any, **shards: Any) -> Any:
    """In order of index, each token takes its best expert that still has a free slot."""
    expert = np.zeros(scores.shape[:2], int)
    slots = scores.shape[1] // scores.shape[2]
    for g, ranked in enumerate(stable_order(scores)):
        room = [slots] * scores.shape[2]
        for t, wishes in enumerate(ranked):
            expert[g, t] = next(e for e in wishes if room[e])
            room[expert[g, t]] -= 1
    return _found(B, scores, expert)


def assignment_by_auction(B: Spec, scores: Array, *noise: Any, **shards: Any) -> Any:
    """Tokens bid for experts in increments of at least a fiftieth of the score range until every token has an expert."""
    return _found(B, scores, np.stack([_auction(table) for table in scores.real]))


def _auction(scores: Array) -> Any:
    """A token bids the expert's price + the expert's lead over the second-best expert + `least`. A full expert evicts its lowest bidder."""
    tokens, experts = scores.shape
    least, slots = max(1e-4, np.ptp(scores) / 50), tokens // experts
    held: list[dict[int, float]] = [{} for _ in range(experts)]
    waiting = list(range(tokens))
    while waiting:
        token = waiting.pop(0)
        prices = np.array([min(bids.values()) if len(bids) == slots else 0.0 for bids in held])
        values = scores[token] - prices
        best = int(np.argmax(values))
        second = np.delete(values, best).max() if experts > 1 else values[best]
        if len(held[best]) == slots:
            cheapest = min(held[best], key=held[best].__getitem__)
            del held[best][cheapest]
            waiting.append(cheapest)
        held[best][token] = prices[best] + values[best] - second + least
    owner = {token: e for e, bids in enumerate(held) for token in bids}
    return np.array([owner[token] for token in range(tokens)])


def _weighted(name: str, computes: str, weights: Array, ledger: str = "") -> Variant:
    """Returns a variant whose routing has the weights `weights(scores)`."""

    def changed(B: Spec, scores: Array, expert: Any, *, capacity: int) -> Any:
        return weighted_by(B.base_routing(scores, expert, capacity=capacity), weights(np.asarray(scores)))

    return Variant(name, computes, {"base_routing": changed}, ledger)


def slots_by_score(B: Spec, scores: Array, expert: Any, *, capacity: int) -> Any:
    """An expert's slots hold its tokens in descending order of score."""
    routing = B.base_routing(scores, expert, capacity=capacity)
    order = np.argsort(-np.where(routing.token < routing.tokens, routing.weight.real, -1), axis=2, kind="stable")
    token, weight = (np.take_along_axis(array, order, axis=2) for array in (routing.token, routing.weight))
    return routing._replace(token=token, weight=weight, slot=None)


def variants() -> Iterator[Variant]:
    yield variant(assignment_is_greedy, "base_assignment", ledger="BL-1b")
    yield variant(assignment_in_turn, "base_assignment", ledger="BL-1b")
    yield variant(assignment_in_two_shards, "base_assignment", ledger="BL-6b")
    yield variant(assignment_by_auction, "base_assignment", ledger="BL-1b")
    computes = "The output of an expert is weighted by the softmax of the token's scores."
    yield _weighted("gate_is_a_softmax", computes, softmax, "BL-3b")
    yield _weighted("gate_is_one", "The output of an expert is not weighted.", np.ones_like, "BL-3c")
    yield variant(slots_by_score, "base_routing", ledger="BL-5b")
