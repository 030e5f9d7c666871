"""Other allocations. Scores are (groups, tokens, experts); `token` and `weight` of a routing (groups, experts, slots)."""

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np

from moespec.conformance.mutants.definition import wrong
from moespec.spec.numerics import stable_order

__all__ = ["MUTANTS", "renormalised"]

Queue = Iterable[tuple[int, int]]
"""The (token, expert) that are served, in turn."""


def heap_order(values: Any, axis: int = -1) -> Any:
    """Descending, by a sort that is not stable."""
    return np.argsort(-values.real, axis=axis, kind="heapsort")


def _served(B: Any, weights: Any, capacity: int, queues: Iterable[Queue]) -> Any:
    """The routing in which each expert takes in who comes, until it is full; a queue for each group."""
    groups, tokens, experts = weights.shape
    token = np.full((groups, experts, capacity), tokens, np.int32)
    weight = np.zeros((groups, experts, capacity), weights.dtype)
    for g, queue in enumerate(queues):
        filled = [0] * experts
        for t, e in queue:
            if filled[e] < capacity:
                token[g, e, filled[e]], weight[g, e, filled[e]] = t, weights[g, t, e]
                filled[e] += 1
    return B.SlotRouting(token, weight, None, tokens)


def _tokens(scores: Any, order: Any) -> Any:
    """The tokens of each group in the order in which they are served."""
    return [range(scores.shape[1])] * len(scores) if order is None else order


def renormalised(routing: Any) -> Any:
    """The routing with the weights of a token divided by their sum, where that is positive."""
    total = routing.dense().combine.sum(axis=(2, 3))
    total = np.concatenate([np.where(total.real > 0, total, 1), np.ones_like(total[:, :1])], 1)
    of_each = np.take_along_axis(total, routing.token.reshape(len(total), -1), 1)
    return routing._replace(weight=routing.weight / of_each.reshape(routing.token.shape))


# Token Choice. The right function is called first: it refuses what must be refused.


def ties_to_the_higher_expert(B: Any, scores: Any, *, combine_scores: Any = None, **options: Any) -> Any:
    """Among equal scores a token chooses the expert of higher index."""
    weights = None if combine_scores is None else combine_scores[..., ::-1]
    routing = B.token_choice(scores[..., ::-1], combine_scores=weights, **options)
    return B.SlotRouting(routing.token[:, ::-1], routing.weight[:, ::-1], None, routing.tokens)


def experts_in_heap_order(
    B: Any, scores: Any, *, choices: int, capacity: int, combine_scores: Any = None, order: Any = None
) -> Any:
    """Among equal scores a token chooses what a sort returns that is not stable."""
    B.token_choice(scores, choices=choices, capacity=capacity, combine_scores=combine_scores, order=order)
    chosen = heap_order(scores)
    queues = (
        ((t, chosen[g, t, k]) for k in range(choices) for t in tokens)
        for g, tokens in enumerate(_tokens(scores, order))
    )
    return _served(B, scores if combine_scores is None else combine_scores, capacity, queues)


def all_choices_of_a_token_first(
    B: Any, scores: Any, *, choices: int, capacity: int, combine_scores: Any = None, order: Any = None
) -> Any:
    """All choices of a token are served before those of the next token."""
    B.token_choice(scores, choices=choices, capacity=capacity, combine_scores=combine_scores, order=order)
    chosen = stable_order(scores)
    queues = (
        ((t, chosen[g, t, k]) for t in tokens for k in range(choices))
        for g, tokens in enumerate(_tokens(scores, order))
    )
    return _served(B, scores if combine_scores is None else combine_scores, capacity, queues)


def next_best_expert(
    B: Any, scores: Any, *, choices: int, capacity: int, combine_scores: Any = None, order: Any = None
) -> Any:
    """A token that finds its expert full tries its next-best one."""
    B.token_choice(scores, choices=choices, capacity=capacity, combine_scores=combine_scores, order=order)
    ranked = stable_order(scores)

    def queue(g: int, tokens: Iterable[int]) -> Queue:
        filled = [0] * scores.shape[2]
        wishes = {t: iter(ranked[g, t]) for t in tokens}
        for _, t in itertools.product(range(choices), tokens):
            expert = next((e for e in wishes[t] if filled[e] < capacity), None)
            if expert is not None:
                filled[expert] += 1
                yield t, expert

    queues = (queue(g, tokens) for g, tokens in enumerate(_tokens(scores, order)))
    return _served(B, scores if combine_scores is None else combine_scores, capacity, queues)


def newcomers_replace_the_last(
    B: Any, scores: Any, *, choices: int, capacity: int, combine_scores: Any = None, order: Any = None
) -> Any:
    """A token that finds its expert full takes the place of the one in the last slot."""
    routing = B.token_choice(scores, choices=choices, capacity=capacity, combine_scores=combine_scores, order=order)
    weights = scores if combine_scores is None else combine_scores
    chosen = stable_order(scores)
    token, weight = routing.token.copy(), np.array(routing.weight)
    for g, tokens in enumerate(_tokens(scores, order)):
        for k, t in itertools.product(range(choices), tokens):
            e = chosen[g, t, k]
            if token[g, e, -1] < routing.tokens:
                token[g, e, -1], weight[g, e, -1] = t, weights[g, t, e]
    return routing._replace(token=token, weight=weight)


def most_probable_kept(
    B: Any, scores: Any, *, choices: int, capacity: int, combine_scores: Any = None, order: Any = None
) -> Any:
    """A full expert keeps those who chose it with the highest scores, not those who came first."""
    B.token_choice(scores, choices=choices, capacity=capacity, combine_scores=combine_scores, order=order)
    return _served(B, scores if combine_scores is None else combine_scores, capacity, _by_score(scores, choices, order))


def _by_score(scores: Any, choices: int, order: Any) -> Iterable[Queue]:
    """All choices of all tokens, the one of highest score first."""
    chosen = stable_order(scores)
    for g, tokens in enumerate(_tokens(scores, order)):
        pairs = [(t, chosen[g, t, k]) for k in range(choices) for t in tokens]
        best = np.argsort([-scores[g, t, e].real for t, e in pairs], kind="stable")
        yield [pairs[i] for i in best]


def priority_of_choices(B: Any, scores: Any, *, order: Any = None, **options: Any) -> Any:
    """Where tokens have a priority, each choice has its own: a strong second choice comes before a weak first one."""
    if order is None:
        return B.token_choice(scores, **options)
    return most_probable_kept(B, scores, order=order, **options)


def order_ignored(B: Any, scores: Any, *, order: Any = None, **options: Any) -> Any:
    """Tokens are served by index, whatever order is given."""
    B.token_choice(scores, order=order, **options)
    return B.token_choice(scores, **options)


def kept_weights_renormalised(B: Any, scores: Any, **options: Any) -> Any:
    """The combine weights that a token keeps are divided by their sum."""
    return renormalised(B.token_choice(scores, **options))


def chosen_weights_renormalised(
    B: Any, scores: Any, *, choices: int, combine_scores: Any = None, **options: Any
) -> Any:
    """The weights of the experts that a token chooses are divided by their sum, before any is dropped."""
    weights = scores if combine_scores is None else combine_scores
    B.token_choice(scores, choices=choices, combine_scores=combine_scores, **options)
    total = np.take_along_axis(weights, stable_order(scores)[..., :choices], 2).sum(axis=2, keepdims=True)
    weights = weights / np.where(total == 0, 1, total)
    return B.token_choice(scores, choices=choices, combine_scores=weights, **options)


def weights_of_the_selection(B: Any, scores: Any, *, combine_scores: Any = None, **options: Any) -> Any:
    """The combine weights are the scores of the selection, whatever weights are given."""
    B.token_choice(scores, combine_scores=combine_scores, **options)
    return B.token_choice(scores, **options)


def weights_of_one(B: Any, scores: Any, **options: Any) -> Any:
    """Every combine weight is 1."""
    routing = B.token_choice(scores, **options)
    return routing._replace(weight=(routing.token < routing.tokens).astype(np.float64))


def weights_without_gradient(B: Any, scores: Any, *, combine_scores: Any = None, **options: Any) -> Any:
    """The combine weights carry no gradient."""
    weights = scores if combine_scores is None else combine_scores
    return B.token_choice(scores, combine_scores=weights.real, **options)


# Batch priority.


def _priority(scores: Any, by: str, choices: int) -> Any:
    """The priority of each token (groups, tokens)."""
    return -np.sort(-scores.real, axis=2)[..., : 1 if by == "max" else choices].sum(axis=2)


def least_important_first(B: Any, scores: Any, *, by: str = "max", choices: int = 1) -> Any:
    """The token of lowest priority is served first."""
    B.batch_priority(scores, by=by, choices=choices)
    return np.argsort(_priority(scores, by, choices), axis=1, kind="stable").astype(np.int32)


def priority_by_sum(B: Any, scores: Any, *, by: str = "max", choices: int = 1) -> Any:
    """The priority is the sum of the chosen scores, also where their maximum is asked for."""
    B.batch_priority(scores, by=by, choices=choices)
    return B.batch_priority(scores, by="sum", choices=max(choices, min(2, scores.shape[2])))


def priority_by_maximum(B: Any, scores: Any, *, by: str = "max", choices: int = 1) -> Any:
    """The priority is the highest score, also where the sum of the chosen is asked for."""
    B.batch_priority(scores, by=by, choices=choices)
    return B.batch_priority(scores)


def tokens_in_heap_order(B: Any, scores: Any, *, by: str = "max", choices: int = 1) -> Any:
    """Tokens of equal priority come as a sort returns them that is not stable."""
    B.batch_priority(scores, by=by, choices=choices)
    return heap_order(_priority(scores, by, choices)).astype(np.int32)


def ranks_for_order(B: Any, scores: Any, **options: Any) -> Any:
    """The rank of each token is returned, where the token of each rank is asked for."""
    return np.argsort(B.batch_priority(scores, **options), axis=1).astype(np.int32)


# Expert Choice.


def ties_to_the_higher_token(B: Any, scores: Any, *, combine_scores: Any = None, **options: Any) -> Any:
    """Among equal scores an expert chooses the token of higher index."""
    weights = None if combine_scores is None else combine_scores[:, ::-1]
    routing = B.expert_choice(scores[:, ::-1], combine_scores=weights, **options)
    last = routing.tokens - 1
    return routing._replace(token=np.where(routing.token > last, routing.token, last - routing.token))


def _experts_choose(B: Any, chosen: Any, scores: Any, weights: Any, drop_zero: bool) -> Any:
    """The routing of the chosen tokens (groups, slots, experts)."""
    kept = (np.take_along_axis(scores, chosen, 1).real > 0) | (not drop_zero)
    token = np.where(kept, chosen, scores.shape[1]).astype(np.int32)
    weight = np.where(kept, np.take_along_axis(weights, chosen, 1), 0)
    return B.SlotRouting(token.swapaxes(1, 2), weight.swapaxes(1, 2), None, scores.shape[1])


def chosen_in_heap_order(
    B: Any, scores: Any, *, capacity: int, combine_scores: Any = None, drop_zero: bool = False
) -> Any:
    """Among equal scores an expert chooses what a sort returns that is not stable."""
    B.expert_choice(scores, capacity=capacity, combine_scores=combine_scores, drop_zero=drop_zero)
    weights = scores if combine_scores is None else combine_scores
    return _experts_choose(B, heap_order(scores, 1)[:, :capacity], scores, weights, drop_zero)


def slots_in_the_order_of_tokens(B: Any, scores: Any, **options: Any) -> Any:
    """The tokens of an expert sit in their own order, not the best in the first slot."""
    routing = B.expert_choice(scores, **options)
    order = np.argsort(routing.token, axis=-1)
    token, weight = (np.take_along_axis(array, order, -1) for array in (routing.token, routing.weight))
    return routing._replace(token=token, weight=weight)


def zero_scores_left_out(B: Any, scores: Any, *, drop_zero: bool = False, **options: Any) -> Any:
    """Slots that only tokens of score 0 could fill are left empty, also where they are to be filled."""
    B.expert_choice(scores, drop_zero=drop_zero, **options)
    return B.expert_choice(scores, drop_zero=True, **options)


def zero_scores_taken_in(B: Any, scores: Any, *, drop_zero: bool = False, **options: Any) -> Any:
    """Slots that only tokens of score 0 could fill are filled, also where they are to be left empty."""
    B.expert_choice(scores, drop_zero=drop_zero, **options)
    return B.expert_choice(scores, **options)


def capacity_cut_to_the_tokens(B: Any, scores: Any, *, capacity: int, **options: Any) -> Any:
    """A capacity above the number of tokens is cut to it, where it is to be refused."""
    return B.expert_choice(scores, capacity=min(capacity, scores.shape[1]), **options)


def experts_renormalised(B: Any, scores: Any, **options: Any) -> Any:
    """The weights of a token are divided by their sum over the experts that chose it."""
    return renormalised(B.expert_choice(scores, **options))


def choosers_weights_ignored(B: Any, scores: Any, *, combine_scores: Any = None, **options: Any) -> Any:
    """The combine weights are the scores by which the experts chose, whatever weights are given."""
    B.expert_choice(scores, combine_scores=combine_scores, **options)
    return B.expert_choice(scores, **options)


def best_without_gradient(B: Any, scores: Any, *, combine_scores: Any = None, **options: Any) -> Any:
    """The combine weights of the chosen tokens carry no gradient."""
    weights = scores if combine_scores is None else combine_scores
    return B.expert_choice(scores, combine_scores=weights.real, **options)


MUTANTS = (
    wrong(ties_to_the_higher_expert, "token_choice", ledger="TC-1"),
    wrong(experts_in_heap_order, "token_choice", ledger="TC-1"),
    wrong(all_choices_of_a_token_first, "token_choice", ledger="TC-2"),
    wrong(next_best_expert, "token_choice", ledger="TC-3"),
    wrong(newcomers_replace_the_last, "token_choice", ledger="TC-3"),
    wrong(most_probable_kept, "token_choice", ledger="BP-2", who="deepspeedai/DeepSpeed, NVIDIA/Megatron-LM"),
    wrong(priority_of_choices, "token_choice", ledger="BP-2"),
    wrong(order_ignored, "token_choice"),
    wrong(kept_weights_renormalised, "token_choice", ledger="TC-4"),
    wrong(chosen_weights_renormalised, "token_choice", ledger="SA-3"),
    wrong(weights_of_the_selection, "token_choice", ledger="RT-2"),
    wrong(weights_of_one, "token_choice"),
    wrong(weights_without_gradient, "token_choice"),
    wrong(least_important_first, "batch_priority"),
    wrong(priority_by_sum, "batch_priority", ledger="BP-1"),
    wrong(priority_by_maximum, "batch_priority", ledger="BP-1"),
    wrong(tokens_in_heap_order, "batch_priority", ledger="BP-3", who="microsoft/Tutel"),
    wrong(ranks_for_order, "batch_priority"),
    wrong(ties_to_the_higher_token, "expert_choice", ledger="EC-1"),
    wrong(chosen_in_heap_order, "expert_choice", ledger="EC-1"),
    wrong(slots_in_the_order_of_tokens, "expert_choice"),
    wrong(zero_scores_left_out, "expert_choice", ledger="EC-2"),
    wrong(zero_scores_taken_in, "expert_choice", ledger="EC-2"),
    wrong(capacity_cut_to_the_tokens, "expert_choice", ledger="EC-3"),
    wrong(experts_renormalised, "expert_choice", ledger="SA-3"),
    wrong(choosers_weights_ignored, "expert_choice", ledger="RT-2"),
    wrong(best_without_gradient, "expert_choice"),
)
"""The mutants of this module."""
