"""Cases of replay: recorded choices as arguments of Token Choice. The files of the routers have the cases of their replay."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from moespec.backends.blocks import Array
from moespec.conformance.author.definition import Definition, single, tensor
from moespec.conformance.author.inputs import scores
from moespec.conformance.author.variant import Route, Spec, Variant, chosen_mask, reweighted, variant, with_loss
from moespec.spec.algorithms.replay import Replay
from moespec.spec.routing import RouterOutput

NAME, FUNCTION, FLAG = "replay", "replay_choices", "replayed_choices"


def cases() -> Iterator[Definition]:
    case = partial(single, NAME, FUNCTION)
    recorded = tensor(np.array([[[2, 0], [-1, -1], [1, -1]], [[-1, 3], [3, 1], [0, 3]]]), "groups tokens choices")
    given: dict[str, Any] = {"scores": scores("replay/a", (2, 3, 4)), "choices": recorded}
    purpose = "A choice not made, before and after another one, and a token without a record."
    yield case("choices", "value", purpose, FLAG, **given)
    more: dict[str, Any] = {"combine_scores": scores("replay/b", (2, 3, 4))}
    yield case("combine_scores", "value", "Weights that are not the scores.", FLAG, "combine_scores", **given, **more)
    purpose = "By both scores: only the weights of recorded experts have a gradient."
    yield case("gradient", "gradient", purpose, FLAG, "stop_gradient", of="combine_scores", **given, **more)


def no_expert_without_a_record(B: Spec, scores: Array, choices: Array, combine_scores: Array | None = None) -> Replay:
    """A token without recorded choices goes to no expert."""
    replay = B.replay_choices(scores, choices, combine_scores)
    return replay._replace(keep=replay.keep & (choices >= 0).any(axis=2, keepdims=True))


def slots_by_current_scores(B: Spec, scores: Array, choices: Array, combine_scores: Array | None = None) -> Replay:
    """The recorded experts of a token get slots in the order of the current scores."""
    replay = B.replay_choices(scores, choices, combine_scores)
    return replay._replace(scores=np.where(replay.scores > 0, 1 + scores, replay.scores))


def minus_one_is_the_last_expert(B: Spec, scores: Array, choices: Array, combine_scores: Array | None = None) -> Replay:
    """A choice of -1 selects the last expert, as an index from the end does."""
    last = scores.shape[2] - 1
    return B.replay_choices(
        scores, np.where((choices < 0) & ~(choices == last).any(axis=2, keepdims=True), last, choices)
    )


def scores_set_to_zero(B: Spec, scores: Array, choices: Array, combine_scores: Array | None = None) -> Replay:
    """The weights of recorded experts outside the current choice are 0, because weights are read after a top-k."""
    weights = scores if combine_scores is None else combine_scores
    return B.replay_choices(scores, choices, weights * chosen_mask(scores, choices.shape[2]))


def weights_without_gradient(B: Spec, scores: Array, choices: Array, combine_scores: Array | None = None) -> Replay:
    """The recorded weights are used, so no gradient reaches the logits."""
    return B.replay_choices(scores, choices, B.stop_gradient(scores if combine_scores is None else combine_scores))


def divided_by_the_current_choice(B: Spec, route: Route) -> RouterOutput:
    """The weights are divided by the sum over the experts that the router would choose now."""
    options, output = route.options, route.output()
    if route.more.get("choices") is None or not options.normalize_selected or options.normalize_when != "before":
        return output
    return reweighted(B, output, B.normalize_selected(B.softmax_affinity(route.logits(B)[1]), choices=options.choices))


def load_of_the_current_choice(B: Spec, route: Route) -> RouterOutput:
    """The load counts the experts that the router would choose now."""
    return route.output()._replace(statistics=route.output(choices=None).statistics)


def balance_of_the_recorded_choices(B: Spec, route: Route) -> RouterOutput:
    """The balance loss counts the recorded choices."""
    output, recorded = route.output(), route.more.get("choices")
    if recorded is None or not route.options.balance_weight:
        return output
    gates, K = B.softmax_affinity(route.logits(B)[1]), route.options.choices
    counted = B.replay_choices(gates, recorded)
    losses = []
    for rows, ranks, keep in zip(gates, counted.scores, counted.keep, strict=True):
        load = B.expert_load(ranks[None], keep[None], choices=K)
        losses.append(B.balance_loss(rows[None], load, choices=K))
    return with_loss(output, route.options, "balance", np.mean(losses))


def variants() -> Iterator[Variant]:
    yield variant(no_expert_without_a_record, FUNCTION, ledger="RP-1b")
    yield variant(slots_by_current_scores, FUNCTION, ledger="RP-2b")
    yield variant(minus_one_is_the_last_expert, FUNCTION)
    yield variant(load_of_the_current_choice, "sigmoid_token_choice", ledger="RP-3b")
    yield variant(balance_of_the_recorded_choices, "softmax_token_choice", ledger="RP-4b")
    yield variant(scores_set_to_zero, FUNCTION, ledger="RP-5b")
    yield variant(weights_without_gradient, FUNCTION, ledger="RP-5c")
    yield variant(divided_by_the_current_choice, "softmax_token_choice", ledger="RP-6b")
