"""Other importance-score routing. Scores are (groups, tokens, experts)."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from moespec.conformance.mutants.definition import Mutant, through, wrong
from moespec.spec.importance_score import surviving_tokens

__all__ = ["MUTANTS"]

NAME = "importance_score"


def _with(share: Callable[[int, float], float]) -> Callable[..., Any]:
    """The order with another share removed, `share(tokens, drop)`."""

    def order(B: Any, scores: Any, *, drop: float = 0.1) -> Any:
        B.importance_score_order(scores, drop=drop)
        return B.importance_score_order(scores, drop=share(scores.shape[1], drop))

    return order


def _chosen_with(share: Callable[[int, float], float]) -> Callable[..., Any]:
    """The allocation with another share removed."""

    def choice(B: Any, scores: Any, *, drop: float = 0.1, **options: Any) -> Any:
        B.importance_score_choice(scores, drop=drop, **options)
        return B.importance_score_choice(scores, drop=share(scores.shape[1], drop), **options)

    return choice


def _both(name: str, computes: str, share: Callable[[int, float], float], ledger: str) -> Mutant:
    replaced = {"importance_score_order": _with(share), "importance_score_choice": _chosen_with(share)}
    return Mutant(name, computes, replaced, ledger)


def _share(removed: int, tokens: int) -> float:
    """A share of which the floor is `removed`, but never all tokens."""
    return min(removed, tokens - 1) / tokens


def importance_of_channels(B: Any, scores: Any, **options: Any) -> Any:
    """The maximum of the importance score is taken over the tokens, so that all are equally important."""
    order = B.importance_score_order(scores, **options)
    return np.tile(np.arange(order.shape[1], dtype=np.int32), (len(order), 1))


def important_in_heap_order(B: Any, scores: Any, **options: Any) -> Any:
    """Equally important tokens come as a sort returns them that is not stable."""
    order = B.importance_score_order(scores, **options)
    unstable = np.argsort(-scores.real.max(axis=2), axis=1, kind="heapsort")
    return unstable[:, : order.shape[1]].astype(np.int32)


def most_important_removed(B: Any, scores: Any, **options: Any) -> Any:
    """The most important tokens are removed."""
    order = B.importance_score_order(scores, **options)
    return B.batch_priority(scores)[:, scores.shape[1] - order.shape[1] :]


def whole_order(B: Any, scores: Any, **options: Any) -> Any:
    """The order has all tokens, also those that are removed."""
    B.importance_score_order(scores, **options)
    return B.batch_priority(scores)


def removed_after_they_chose(
    B: Any, scores: Any, *, choices: int, capacity: int, drop: float = 0.1, combine_scores: Any = None
) -> Any:
    """All tokens are allocated in the order of importance; then those to remove leave their slots empty."""
    options = {"choices": choices, "capacity": capacity, "combine_scores": combine_scores}
    B.importance_score_choice(scores, drop=drop, **options)
    order = B.batch_priority(scores)
    routing = B.token_choice(scores, order=order, **options)
    kept = np.zeros((len(scores), routing.tokens + 1), bool)
    np.put_along_axis(kept, order[:, : surviving_tokens(routing.tokens, drop)], True, axis=1)
    stays = np.take_along_axis(kept, routing.token.reshape(len(scores), -1), axis=1).reshape(routing.token.shape)
    return routing._replace(
        token=np.where(stays, routing.token, routing.tokens), weight=np.where(stays, routing.weight, 0), slot=None
    )


def served_by_index(
    B: Any, scores: Any, *, choices: int, capacity: int, drop: float = 0.1, combine_scores: Any = None
) -> Any:
    """The tokens that are left are served by index, not in the order of their importance."""
    options = {"choices": choices, "capacity": capacity}
    routing = B.importance_score_choice(scores, drop=drop, combine_scores=combine_scores, **options)
    weights = scores if combine_scores is None else combine_scores
    left = np.sort(B.importance_score_order(scores, drop=drop), axis=1)
    tokens = np.concatenate([left, np.full((len(left), 1), routing.tokens, left.dtype)], axis=1)
    taken = [np.take_along_axis(array, left[..., None], axis=1) for array in (scores, weights)]
    among = B.token_choice(taken[0], combine_scores=taken[1], **options)
    token = np.take_along_axis(tokens, among.token.reshape(len(left), -1), axis=1).reshape(among.token.shape)
    return routing._replace(token=token, weight=among.weight, slot=None)


def important_without_gradient(B: Any, scores: Any, *, combine_scores: Any = None, **options: Any) -> Any:
    """The combine weights of importance-score routing carry no gradient."""
    weights = scores if combine_scores is None else combine_scores
    return B.importance_score_choice(scores, combine_scores=weights.real, **options)


def important_weights_of_selection(B: Any, scores: Any, *, combine_scores: Any = None, **options: Any) -> Any:
    """The combine weights of importance-score routing are the scores that it sorts and chooses by, whatever is given."""
    B.importance_score_choice(scores, combine_scores=combine_scores, **options)
    return B.importance_score_choice(scores, **options)


def important_weights_of_one(B: Any, scores: Any, **options: Any) -> Any:
    """Every combine weight of importance-score routing is 1."""
    routing = B.importance_score_choice(scores, **options)
    return routing._replace(weight=(routing.token < routing.tokens).astype(np.float64))


def _rerouted(B: Any, params: Any, tokens: Any, config: Any, noise: Any, capacity: int, drop: float) -> Any:
    clean = B.router_logits(tokens, params["kernel"])
    scores = B.softmax_affinity(B.add_gating_noise(clean, noise, multiplier=config.noise_multiplier))
    return B.importance_score_choice(scores, choices=config.choices, capacity=capacity, drop=drop)


def _capacity_of_all(
    B: Any, route: Any, params: Any, tokens: Any, config: Any, *, noise: Any = None, **rest: Any
) -> Any:
    output = route(params, tokens, config, noise=noise, **rest)
    capacity = config.capacity(choices=config.choices)
    return output._replace(routing=_rerouted(B, params, tokens, config, noise, capacity, config.drop))


def _capacity_once(B: Any, route: Any, params: Any, tokens: Any, config: Any, *, noise: Any = None, **rest: Any) -> Any:
    output = route(params, tokens, config, noise=noise, **rest)
    capacity = replace(config, tokens=surviving_tokens(config.tokens, config.drop)).capacity()
    return output._replace(routing=_rerouted(B, params, tokens, config, noise, capacity, config.drop))


def _only_in_training(
    B: Any, route: Any, params: Any, tokens: Any, config: Any, *, noise: Any = None, train: bool = False
) -> Any:
    output = route(params, tokens, config, noise=noise, train=train)
    return output if train else route(params, tokens, replace(config, drop=0.0), noise=noise)


def _sorted_without_noise(
    B: Any, route: Any, params: Any, tokens: Any, config: Any, *, noise: Any = None, train: bool = False
) -> Any:
    output = route(params, tokens, config, noise=noise, train=train)
    return output._replace(routing=route(params, tokens, config).routing)


def _losses_of_those_left(
    B: Any, route: Any, params: Any, tokens: Any, config: Any, *, noise: Any = None, train: bool = False
) -> Any:
    output = route(params, tokens, config, noise=noise, train=train)
    seen = output.routing.dense().dispatch.sum(axis=(2, 3)) > 0
    clean = B.softmax_affinity(B.router_logits(tokens, params["kernel"]))
    value = np.mean([B.importance_loss(clean[g : g + 1, row]) for g, row in enumerate(seen)])
    if "importance" not in output.losses:
        return output
    return output._replace(losses={**output.losses, "importance": config.importance_weight * value})


MUTANTS = (
    _both(
        "removed_rounded_up",
        "The number of tokens to remove is rounded up.",
        lambda tokens, drop: _share(math.ceil(drop * tokens), tokens),
        "IS-2",
    ),
    _both(
        "removed_rounded",
        "The number of tokens to remove is rounded to the nearest.",
        lambda tokens, drop: _share(math.floor(drop * tokens + 0.5), tokens),
        "IS-2",
    ),
    _both("nobody_removed", "No token is removed.", lambda tokens, drop: 0.0, "IS-6"),
    wrong(importance_of_channels, "importance_score_order", ledger="IS-1"),
    wrong(important_in_heap_order, "importance_score_order", ledger="IS-3"),
    wrong(most_important_removed, "importance_score_order"),
    wrong(whole_order, "importance_score_order"),
    wrong(removed_after_they_chose, "importance_score_choice", ledger="IS-5"),
    wrong(served_by_index, "importance_score_choice"),
    wrong(important_without_gradient, "importance_score_choice"),
    wrong(important_weights_of_selection, "importance_score_choice"),
    wrong(important_weights_of_one, "importance_score_choice"),
    Mutant(
        "capacity_of_all_tokens",
        "The capacity of importance-score routing is computed from all tokens, also those that are removed.",
        {NAME: through(NAME, _capacity_of_all)},
        "IS-4",
    ),
    Mutant(
        "capacity_of_one_choice",
        "The capacity of importance-score routing does not count the choices of a token.",
        {NAME: through(NAME, _capacity_once)},
    ),
    Mutant(
        "removed_only_in_training",
        "Tokens are removed in training alone.",
        {NAME: through(NAME, _only_in_training)},
        "IS-6",
    ),
    Mutant(
        "importance_without_noise",
        "Tokens are sorted and choose by the logits without noise.",
        {NAME: through(NAME, _sorted_without_noise)},
        "SA-1",
    ),
    Mutant(
        "importance_loss_of_those_left",
        "The importance loss counts only tokens that have a slot.",
        {NAME: through(NAME, _losses_of_those_left)},
        "AL-6",
    ),
)
"""The mutants of this module."""
