"""Other BASE layers. Scores are (groups, tokens, experts), experts of tokens (groups, tokens)."""

from typing import Any

import numpy as np

from moespec.conformance.mutants.definition import Mutant, every, wrong
from moespec.spec.numerics import softmax, stable_order

__all__ = ["MUTANTS"]


def _found(B: Any, scores: Any, expert: Any) -> Any:
    """The right result with other experts, and the total and the gap of these."""
    right = B.base_assignment(scores)
    total = np.take_along_axis(scores, expert[..., None], axis=2)[..., 0].sum(axis=1)
    gap = right.objective.real + right.gap - total.real
    return right._replace(expert=expert.astype(np.int32), objective=total, gap=gap)


def assignment_is_greedy(B: Any, scores: Any) -> Any:
    """In training, too, every token goes to the expert of its highest score."""
    return _found(B, scores, B.base_greedy(scores))


def assignment_in_turn(B: Any, scores: Any) -> Any:
    """Tokens choose one after the other, each the best expert that has room."""
    expert = np.zeros(scores.shape[:2], int)
    slots = scores.shape[1] // scores.shape[2]
    B.base_assignment(scores)
    for g, ranked in enumerate(stable_order(scores)):
        room = [slots] * scores.shape[2]
        for t, wishes in enumerate(ranked):
            expert[g, t] = next(e for e in wishes if room[e])
            room[expert[g, t]] -= 1
    return _found(B, scores, expert)


def assignment_by_auction(B: Any, scores: Any) -> Any:
    """Tokens bid for experts, at least a fiftieth of the range of the scores more each time, until all have one."""
    B.base_assignment(scores)
    return _found(B, scores, np.stack([_auction(table) for table in scores.real]))


def _auction(scores: Any) -> Any:
    """One token after the other bids its gain over the second best; the cheapest of an expert's tokens has to go."""
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


def assignment_of_the_lowest_total(B: Any, scores: Any) -> Any:
    """The total score is minimised."""
    return _found(B, scores, B.base_assignment(-scores).expert)


def experts_interleaved(B: Any, scores: Any) -> Any:
    """The columns of the experts are interleaved in the assignment problem, and read as if they were not."""
    slots = scores.shape[1] // scores.shape[2]
    right = B.base_assignment(scores).expert
    place = (np.cumsum(np.eye(scores.shape[2], dtype=int)[right], axis=1) - 1)[
        np.arange(len(scores))[:, None], np.arange(scores.shape[1]), right
    ]
    return _found(B, scores, (place * scores.shape[2] + right) // slots)


def objective_averaged(B: Any, scores: Any) -> Any:
    """The total is divided by the number of tokens."""
    found = B.base_assignment(scores)
    return found._replace(objective=found.objective / scores.shape[1])


def objective_without_gradient(B: Any, scores: Any) -> Any:
    """The total carries no gradient."""
    found = B.base_assignment(scores)
    return found._replace(objective=found.objective.real)


def gap_to_the_greedy_total(B: Any, scores: Any) -> Any:
    """The gap is that to the total without balance."""
    found = B.base_assignment(scores)
    return found._replace(gap=np.sum(np.max(scores.real, axis=2), axis=1) - found.objective.real)


def greedy_ties_to_the_higher_expert(B: Any, scores: Any) -> Any:
    """Among equal scores the greedy assignment takes the expert of higher index."""
    return scores.shape[2] - 1 - B.base_greedy(scores[..., ::-1])


def greedy_over_tokens(B: Any, scores: Any) -> Any:
    """The greedy assignment takes the best token of an expert, along the wrong axis."""
    B.base_greedy(scores)
    return (np.argmax(scores.real, axis=1)[:, np.arange(scores.shape[1]) % scores.shape[2]] % scores.shape[2]).astype(
        np.int32
    )


def _weighed(weights: Any) -> Any:
    """A routing with the weights `weights(scores)`."""

    def changed(B: Any, scores: Any, expert: Any, *, capacity: int) -> Any:
        routing = B.base_routing(scores, expert, capacity=capacity)
        of_each = weights(np.asarray(scores))
        none = np.concatenate([of_each, np.zeros_like(of_each[:, :1])], axis=1)
        weight = np.take_along_axis(none, routing.token.swapaxes(1, 2), axis=1).swapaxes(1, 2)
        return routing._replace(weight=weight)

    return changed


def slots_by_score(B: Any, scores: Any, expert: Any, *, capacity: int) -> Any:
    """The tokens of an expert are in its slots by descending score."""
    routing = B.base_routing(scores, expert, capacity=capacity)
    order = np.argsort(-np.where(routing.token < routing.tokens, routing.weight.real, -1), axis=2, kind="stable")
    token, weight = (np.take_along_axis(array, order, axis=2) for array in (routing.token, routing.weight))
    return routing._replace(token=token, weight=weight, slot=None)


def _always(train: bool) -> Any:
    """The router as if it were always in training, or never."""

    def change(B: Any, route: Any, params: Any, tokens: Any, config: Any, **options: Any) -> Any:
        route(params, tokens, config, **options)
        if train and config.tokens % config.experts:
            return route(params, tokens, config, **options)
        return route(params, tokens, config, **{**options, "train": train})

    return change


def _few_slots(B: Any, route: Any, params: Any, tokens: Any, config: Any, **options: Any) -> Any:
    output = route(params, tokens, config, **options)
    if options.get("train"):
        return output
    scores = B.router_logits(tokens, params["kernel"])
    routing = B.base_routing(scores, B.base_greedy(scores), capacity=config.capacity())
    return output._replace(routing=routing, metrics={**output.metrics, **B.routing_metrics(routing)})


ROUTER = ("base",)

MUTANTS = (
    wrong(assignment_is_greedy, "base_assignment", ledger="BL-1"),
    wrong(assignment_in_turn, "base_assignment", ledger="BL-1"),
    wrong(assignment_by_auction, "base_assignment", ledger="BL-1"),
    wrong(assignment_of_the_lowest_total, "base_assignment"),
    wrong(experts_interleaved, "base_assignment"),
    wrong(objective_averaged, "base_assignment"),
    wrong(objective_without_gradient, "base_assignment"),
    wrong(gap_to_the_greedy_total, "base_assignment"),
    wrong(greedy_ties_to_the_higher_expert, "base_greedy"),
    wrong(greedy_over_tokens, "base_greedy"),
    Mutant(
        "gate_is_a_softmax",
        "The output of an expert is weighed by the softmax of the token's scores.",
        {"base_routing": _weighed(softmax)},
        "BL-3",
    ),
    Mutant(
        "gate_is_one",
        "The output of an expert is not weighed.",
        {"base_routing": _weighed(lambda scores: np.ones_like(scores))},
        "BL-3",
    ),
    Mutant(
        "gate_is_a_constant",
        "The gate carries no gradient.",
        {"base_routing": _weighed(lambda scores: 1 / (1 + np.exp(-scores.real)))},
    ),
    wrong(slots_by_score, "base_routing", ledger="BL-5"),
    Mutant("balanced_at_evaluation", "Tokens are balanced at evaluation, too.", every(ROUTER, _always(True)), "BL-2"),
    Mutant("never_balanced", "Tokens are not balanced in training either.", every(ROUTER, _always(False)), "BL-1"),
    Mutant(
        "slots_of_training_at_evaluation",
        "An expert has as many slots at evaluation as in training, and drops the other tokens.",
        every(ROUTER, _few_slots),
        "BL-2",
    ),
)
"""The mutants of this module."""
