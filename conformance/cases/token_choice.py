"""Cases of Token Choice and of the normalisation of the chosen weights."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from functools import partial, wraps
from typing import Any

import numpy as np

from moespec.backends.blocks import Array
from moespec.conformance.author.definition import Definition, call, of_array, single, tensor
from moespec.conformance.author.inputs import (
    CROWD,
    TIED,
    both,
    distinct,
    grid,
    groups_tokens,
    integers,
    logits,
    permutation,
    rows,
    scores,
    utilities,
)
from moespec.conformance.author.near_ties import near_ties
from moespec.conformance.author.variant import (
    Spec,
    Variant,
    chosen_mask,
    fixed,
    heap_order,
    renormalised,
    variant,
    weighted_by,
)
from moespec.conformance.format import Tensor
from moespec.spec.numerics import stable_order

G, T, E = 2, 6, 3


def cases() -> Iterator[Definition]:
    yield from _values()
    yield from _ties()
    yield from _sizes()
    yield from _gradients()
    yield from _kept_choices()
    yield from _rerouted()
    yield from _by_token()
    yield from _divided_after_drops()
    yield from _normalize_selected()


case = of_array("token_choice", "scores", choices=2, capacity=2)
DROP, ORDER, SIZE, FIRST = "overflow_drop", "tie_order", "degenerate_size", "first_choices_first"


def _values() -> Iterator[Definition]:
    """Returns cases with distinct scores."""
    yield case("one_choice", "value", "One choice, room for all.", scores("tc/a"), choices=1, capacity=T)
    yield case("two_choices", "value", "Two choices, room for all.", scores("tc/b"), capacity=T)
    yield case("three_choices", "value", "Three choices of six.", scores("tc/c", (G, T, 6)), choices=3, capacity=T)
    second = rows("0.5 0.375 0.125; 0.375 0.5 0.125; 0.125 0.5 0.375; 0.25 0.625 0.125; 0.75 0 0.25; 0.5 0 0.25")
    purpose = "A second choice of an early token comes after the first choice of a late one."
    yield case("first_choices_first", "overflow", purpose, both(second), FIRST, DROP)
    purpose = "A token that its first choice drops keeps its second, with its own weight."
    yield case("dropped_first", "overflow", purpose, both(CROWD), "no_rerouting", "no_renormalising", DROP)
    yield case("crowd_random", "overflow", "Random scores, half of the room needed.", scores("tc/d"), FIRST, DROP)
    negative = groups_tokens(grid("tc/g", (G, T, E), reach=3.0, step=1 / 32, centre=-6.0) * [[[1.0]], [[2.0**40]]])
    yield case("negative_scores", "value", "Scores need not be positive, and may be far below 0.", negative, capacity=T)
    purpose = "Selection by one, weights from another."
    other = scores("tc/h/combine")
    yield case("combine_scores", "value", purpose, scores("tc/h"), "combine_scores", combine_scores=other)
    reverse = tensor(np.stack([np.arange(T)[::-1], permutation("tc/order", T)]), "groups tokens")
    purpose = "Tokens are served in a given order; slots follow it."
    yield case("order", "overflow", purpose, scores("tc/i"), "priority_order", DROP, order=reverse)


def _ties() -> Iterator[Definition]:
    """Returns cases with equal or nearly equal scores."""
    yield case("tied", "tie", "The tie matrix of the specification.", both(TIED), ORDER)
    purpose = "The tie matrix, every expert chosen, one slot."
    yield case("tied_all", "tie", purpose, both(TIED), ORDER, choices=3, capacity=1)
    equal = groups_tokens(np.full((1, 8, 8), 0.125))
    yield case("all_equal", "tie", "Equal scores: experts 0 and 1 are chosen.", equal, ORDER, capacity=8)
    signed = np.array(
        [[-0.0, 0.0, -1.0], [0.0, -0.0, 0.0], [-1.0, -0.0, 0.0], [0.5, 0.0, -0.0], [-0.0, -0.0, 0.0], [-0.5, 0.0, -0.0]]
    )
    yield case("signed_zero", "tie", "Zero and minus zero are equal.", both(signed), ORDER, capacity=T)
    near = np.full((G, T, E), 0.5) + (grid("tc/f", (G, T, E), reach=2.0, step=1.0) / 256)
    yield case("neighbours", "near_tie", "Scores that are neighbours in bfloat16.", groups_tokens(near))
    near_choice = call("token_choice", {"scores": "router_logits"}, choices=2, capacity=2)
    yield from near_ties("token_choice", near_choice)


def _sizes() -> Iterator[Definition]:
    """Returns cases with small and large sizes."""
    yield case("one_token", "degenerate", "One token.", scores("tc/j", (1, 1, E)), SIZE, capacity=1)
    yield case("one_expert", "degenerate", "One expert.", scores("tc/k", (G, T, 1)), SIZE, choices=1)
    yield case("all_experts", "degenerate", "Every expert is chosen.", scores("tc/l"), SIZE, choices=E, capacity=T)
    purpose = "More slots than tokens."
    yield case("spare_room", "degenerate", purpose, scores("tc/m"), "empty_slot", choices=1, capacity=T + 2)
    purpose = "112 tokens, 32 experts, two choices."
    yield case("real_size", "overflow", purpose, scores("tc/n", (1, 112, 32)), "real_size", DROP, capacity=7)
    purpose = "More requests for one expert than int8 and bfloat16 can count: there is no 128, and no 257."
    alike = groups_tokens(np.tile([0.75, 0.25], (300, 1)))
    yield case("many_requests", "value", purpose, alike, "real_size", choices=1, capacity=300)
    purpose = "Two groups and 258 experts, more than 8 bits can number; some choices are not made."
    chosen = np.zeros((8, 258))
    for token, pair in enumerate(integers("tc/q", (8, 2), 0, 3)):
        chosen[token, [(1, 129, 255, 256)[pair[0]], (2, 130, 254, 257)[pair[1]]]] = 0.5, 0.25
    keep = tensor(grid("tc/q/keep", (G, 4, 2)) > -1, "groups tokens choices")
    many: dict[str, Any] = {"capacity": 1, "keep": keep}
    yield case("many_experts", "overflow", purpose, groups_tokens(chosen.reshape(G, 4, 258)), "real_size", DROP, **many)


def _gradients() -> Iterator[Definition]:
    """Returns a gradient case with respect to the scores, and one with respect to separate combine scores only."""
    yield case("gradient", "gradient", "Only the kept weights carry a gradient.", distinct("tc/o", (G, T, E)), DROP)
    apart = distinct("tc/p", (G, T, E))
    purpose = "The selection carries none."
    yield case("gradient_combine", "gradient", purpose, apart, "combine_scores", combine_scores=scores("tc/h/combine"))


def _kept_choices() -> Iterator[Definition]:
    """Returns cases in which tokens skip some or all of their choices."""
    some: dict[str, Any] = {"keep": tensor(grid("keep/some", (G, 5, 2)) > 0, "groups tokens choices")}
    values, flag = utilities("keep/keep", (G, 5, E)), "choice_not_made"
    yield case("keep", "overflow", "A choice that is not made takes no slot.", values, flag, **some)
    purpose = "A choice that is not made holds its place, which stays empty."
    yield case("hold", "overflow", purpose, values, flag, hold=True, **some)
    none = tensor(np.zeros((G, 5, 1), bool), "groups tokens choices")
    purpose = "No choice is made."
    yield case("keep_none", "degenerate", purpose, utilities("keep/keep_none", (G, 5, E)), flag, keep=none, choices=1)


def _rerouted() -> Iterator[Definition]:
    """Returns cases in which a token tries another expert if its expert is full."""
    crowd = rows("0.5 0.375 0.125; 0.5 0.25 0.375; 0.75 0.5 0.25; 0.625 0.5 0.25; 0.25 0.5 0.125")
    purpose = "Two tokens that their first expert drops try their second; one of them its third."
    yield case("tries", "overflow", purpose, both(crowd), "rerouted", choices=1, tries=3)
    order = tensor(np.stack([np.arange(8)[::-1], permutation("tc/tries/order", 8)]), "groups tokens")
    purpose = "A token that has lost one of two choices tries one more expert, in a given order."
    three: dict[str, Any] = {"capacity": 3, "tries": 3, "order": order}
    yield case("tries_order", "overflow", purpose, scores("tc/tries", (G, 8, 4)), "rerouted", **three)


def _by_token() -> Iterator[Definition]:
    """Returns cases in which a token gets all its slots before the next token."""
    by_token = partial(case, slot_order="token")
    eight = scores("tc/by_token", (G, 8, 4))
    reverse = tensor(np.stack([np.arange(8)[::-1], permutation("tc/by_token/order", 8)]), "groups tokens")
    purpose = "All choices of a token come before those of the next, in a given order."
    ordered = {"order": reverse, "capacity": 3}
    yield by_token("by_token_order", "overflow", purpose, eight, FIRST, "priority_order", **ordered)
    purpose = "A choice that is not made holds its place, also where tokens come one after the other."
    keep = tensor(grid("tc/by_token/keep", (G, 8, 2)) > 0, "groups tokens choices")
    yield by_token("by_token_hold", "overflow", purpose, eight, "choice_not_made", keep=keep, hold=True)


def _divided_after_drops() -> Iterator[Definition]:
    """Returns cases in which a token's remaining weights are normalised after drops."""
    flag = "renormalised"
    purpose = "Through the sum of what a token keeps; tokens without a slot have no gradient."
    apart = distinct("tc/kept/gradient", (G, 10, 4))
    yield case("gradient_kept_sum", "gradient", purpose, apart, flag, DROP, choices=3, capacity=4, normalize="sum")
    yield case("gradient_kept_norm", "gradient", purpose, apart, flag, DROP, capacity=4, normalize="euclidean")
    purpose = "Weights whose sum is about 1e-9, after drops."
    tiny = groups_tokens(grid("tc/kept/tiny", (1, 8, 4), reach=0.5, step=0.0625, centre=1.0) * 2.0**-31)
    weights = {"combine_scores": tiny, "normalize": "sum"}
    yield case("kept_tiny_sums", "overflow", purpose, scores("tc/kept/tiny/by", (1, 8, 4)), flag, capacity=3, **weights)


def _normalize_selected() -> Iterator[Definition]:
    name = "normalize_selected"

    def case(
        case: str, kind: str, purpose: str, scores: Tensor, weights: Tensor | None = None, choices: int = 2, **more: Any
    ) -> Definition:
        by = ("combine_scores",) if weights is not None else ("scores",)
        given: dict[str, Any] = {"scores": scores, "choices": choices}
        given |= {} if weights is None else {"combine_scores": weights}
        return single(name, name, case, kind, purpose, "renormalised", by=by, **given, **more)

    yield case("values", "value", "By the sum of the two chosen.", utilities(f"{name}/a"))
    other = utilities(f"{name}/b/weights", (G, 8, 5))
    purpose = "Chosen by one, divided by the other."
    yield case("combine_scores", "value", purpose, logits(f"{name}/b", (G, 8, 5)), other, 3)
    tied = both(np.array([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.25, 0.25, 0.5], [0.375, 0.375, 0.25]]))
    spread = both(np.array([[0.5, 0.125, 0.375], [0.25, 0.5, 0.75], [0.5, 0.25, 1.0], [1.0, 0.5, 0.25]]))
    yield case("tied", "tie", "Among equal scores the lower expert counts.", tied, spread)
    five = (G, 5, E)
    untied = groups_tokens(logits(f"{name}/e").array + np.arange(E) / 64)
    yield case("gradient", "gradient", "By the combine scores.", untied, utilities(f"{name}/e/weights"))
    purpose = "Weights whose sum is about 1e-9."
    tiny = groups_tokens(grid(f"{name}/g/weights", (1, 6, E), reach=0.5, step=0.0625, centre=1.0) * 2.0**-31)
    yield case("tiny_sums", "value", purpose, utilities(f"{name}/g", (1, 6, E)), tiny)
    purpose = "Weights that are all 0, with an epsilon."
    none = groups_tokens([[0.5, 0.25, 0.125], [0.0, 0.0, 0.0]])
    yield case("gradient_none", "gradient", purpose, none, none, epsilon=2.0**-20, exact_ties=True)
    purpose = "By the scores where they are the weights, too."
    yield case("gradient_scores", "gradient", purpose, distinct(f"{name}/f", five))
    purpose = "By the root of the sum of squares."
    eight = (G, 8, 4)
    yield case("euclidean", "value", purpose, utilities(f"{name}/h", eight), norm="euclidean")
    yield case("gradient_euclidean", "gradient", purpose, distinct(f"{name}/i", eight), norm="euclidean")


Queue = Iterable[tuple[int, int]]
"""(token, expert) pairs in the order in which tokens ask experts for slots."""


def _served(B: Spec, weights: Array, capacity: int, queues: Iterable[Queue]) -> Any:
    """Returns the routing in which experts accept tokens in queue order until they are full. queues: one queue per group."""
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


def _tokens(scores: Array, order: Array) -> Any:
    """Returns the tokens of each group in queue order."""
    return [range(scores.shape[1])] * len(scores) if order is None else order


def ties_to_the_higher_expert(B: Spec, scores: Array, *, combine_scores: Array | None = None, **options: Any) -> Any:
    """Among equal scores, a token chooses the expert of higher index."""
    weights = None if combine_scores is None else combine_scores[..., ::-1]
    routing = B.token_choice(scores[..., ::-1], combine_scores=weights, **options)
    return B.SlotRouting(routing.token[:, ::-1], routing.weight[:, ::-1], None, routing.tokens)


def _queued(queue: Callable[[Any, Iterable[int], int, int], Queue]) -> Callable[..., Any]:
    """Returns a Token Choice function in which experts accept tokens in the order `queue(scores, tokens, choices, capacity)`.

    Calls with skipped choices, retries or other options return the correct result.
    """

    @wraps(queue)
    def function(B: Spec, scores: Array, *, choices: int, capacity: int, **given: Any) -> Any:
        if any(given[name] is not None for name in given.keys() - {"combine_scores", "order"}):
            return B.token_choice(scores, choices=choices, capacity=capacity, **given)
        weights = scores if given.get("combine_scores") is None else given["combine_scores"]
        groups = zip(scores, _tokens(scores, given.get("order")), strict=True)
        return _served(B, weights, capacity, (queue(group, tokens, choices, capacity) for group, tokens in groups))

    return function


@_queued
def experts_in_heap_order(scores: Any, tokens: Iterable[int], choices: int, capacity: int) -> Queue:
    """A token breaks ties between equal scores by an unstable sort."""
    chosen = heap_order(scores)
    return ((t, chosen[t, k]) for k in range(choices) for t in tokens)


@_queued
def all_choices_of_a_token_first(scores: Any, tokens: Iterable[int], choices: int, capacity: int) -> Queue:
    """All choices of a token are served before the next token's choices."""
    chosen = stable_order(scores)
    return ((t, chosen[t, k]) for t in tokens for k in range(choices))


@_queued
def next_best_expert(scores: Any, tokens: Iterable[int], choices: int, capacity: int) -> Queue:
    """A token whose expert is full tries its next-best expert."""
    filled = [0] * scores.shape[1]
    wishes = {t: iter(row) for t, row in enumerate(stable_order(scores))}
    for _, t in itertools.product(range(choices), tokens):
        expert = next((e for e in wishes[t] if filled[e] < capacity), None)
        if expert is not None:
            filled[expert] += 1
            yield t, expert


@_queued
def most_probable_kept(scores: Any, tokens: Iterable[int], choices: int, capacity: int) -> Queue:
    """A full expert keeps the tokens with the highest scores, not the tokens that arrive first."""
    chosen = stable_order(scores)
    pairs = [(t, chosen[t, k]) for k in range(choices) for t in tokens]
    return (pairs[i] for i in np.argsort([-scores[pair].real for pair in pairs], kind="stable"))


def newcomers_replace_the_last(B: Spec, scores: Array, *, choices: int, **options: Any) -> Any:
    """A token whose expert is full replaces the token in the last slot."""
    routing = B.token_choice(scores, choices=choices, **options)
    if options.keys() - {"capacity", "combine_scores", "order"}:
        return routing
    weights, chosen = options.get("combine_scores"), stable_order(scores)
    weights = scores if weights is None else weights
    token, weight = routing.token.copy(), np.array(routing.weight)
    for g, tokens in enumerate(_tokens(scores, options.get("order"))):
        for k, t in itertools.product(range(choices), tokens):
            e = chosen[g, t, k]
            if token[g, e, -1] < routing.tokens:
                token[g, e, -1], weight[g, e, -1] = t, weights[g, t, e]
    return routing._replace(token=token, weight=weight)


def priority_of_choices(B: Spec, scores: Array, *, order: Array | None = None, **options: Any) -> Any:
    """With token priorities, each choice has a separate priority, so a strong second choice comes before a weak first choice."""
    if order is None:
        return B.token_choice(scores, **options)
    return most_probable_kept(B, scores, order=order, **options)


def padding_in_the_slots(B: Spec, scores: Array, *, combine_scores: Array | None = None, **options: Any) -> Any:
    """Padding tokens with equal scores extend each group to a multiple of 8 tokens. They come first and take slots that stay empty."""
    left, tokens = -scores.shape[1] % 8, scores.shape[1]
    if options.get("order") is not None or options.get("keep") is not None or "normalize" in options:
        return B.token_choice(scores, combine_scores=combine_scores, **options)
    weights = scores if combine_scores is None else combine_scores
    padded = [np.pad(a, ((0, 0), (left, 0), (0, 0)), constant_values=1 / a.shape[2]) for a in (scores, weights)]
    routing = B.token_choice(padded[0], combine_scores=padded[1], **options)
    is_padding = routing.token < left
    token = np.where(is_padding, tokens, routing.token - left)
    return routing._replace(token=token, weight=np.where(is_padding, 0, routing.weight), tokens=tokens)


def rerouted_always(B: Spec, scores: Array, *, tries: Any = None, **options: Any) -> Any:
    """After all tokens have chosen, a token whose experts are full tries all other experts in turn."""
    if options.get("keep") is not None or options.get("slot_order") == "token":
        return B.token_choice(scores, tries=tries, **options)
    return B.token_choice(scores, tries=scores.shape[2], **options)


def kept_weights_renormalised(B: Spec, scores: Array, *, normalize: Any = None, **options: Any) -> Any:
    """The combine weights that a token keeps are divided by their sum."""
    return renormalised(B.token_choice(scores, **options))


def kept_sum_clamped(B: Spec, scores: Array, *, normalize: Any = None, **options: Any) -> Any:
    """After drops, a token's remaining weights are divided by the larger of their sum and 2^-23."""
    routing = B.token_choice(scores, normalize=normalize, **options)
    if normalize != "sum":
        return routing
    weights = B.token_choice(scores, **options)
    total = np.maximum(weights.dense().combine.sum(axis=(2, 3)), 2.0**-23)
    return weighted_by(weights, (weights.dense().combine.sum(axis=3)) / total[..., None])


def divided_before_drops(B: Spec, scores: Array, *, choices: int, normalize: Any = None, **options: Any) -> Any:
    """Weights that should be normalised after drops are normalised before drops."""
    if normalize is not None:
        weights = B.normalize_selected(scores, options.get("combine_scores"), choices=choices, norm=normalize)
        options = {**options, "combine_scores": weights}
    return B.token_choice(scores, choices=choices, **options)


def chosen_weights_renormalised(
    B: Spec, scores: Array, *, choices: int, combine_scores: Array | None = None, **options: Any
) -> Any:
    """The weights of the experts that a token chooses are divided by their sum before any choice is dropped."""
    weights = scores if combine_scores is None else combine_scores
    total = np.take_along_axis(weights, stable_order(scores)[..., :choices], 2).sum(axis=2, keepdims=True)
    weights = weights / np.where(total == 0, 1, total)
    return B.token_choice(scores, choices=choices, combine_scores=weights, **options)


def selected_not_normalised(B: Spec, scores: Array, combine_scores: Array | None = None, **options: Any) -> Array:
    """Combine weights that should sum to 1 are not normalised."""
    return scores if combine_scores is None else combine_scores


def selected_sum_clamped(
    B: Spec, scores: Array, combine_scores: Array | None = None, *, choices: int, **options: Any
) -> Array:
    """Combine weights are divided by the larger of their sum and 2^-23, the epsilon of float32."""
    if options.get("norm", "sum") != "sum":
        return B.normalize_selected(scores, combine_scores, choices=choices, **options)
    weights = scores if combine_scores is None else combine_scores
    return weights / np.maximum((weights * chosen_mask(scores, choices)).sum(axis=2, keepdims=True), 2.0**-23)


def variants() -> Iterator[Variant]:
    yield variant(ties_to_the_higher_expert, "token_choice", ledger="TC-1b")
    yield variant(experts_in_heap_order, "token_choice", ledger="TC-1c")
    yield variant(all_choices_of_a_token_first, "token_choice", ledger="TC-2b")
    yield variant(next_best_expert, "token_choice", ledger="TC-3b")
    yield variant(newcomers_replace_the_last, "token_choice", ledger="TC-3b")
    yield variant(most_probable_kept, "token_choice", ledger="BP-2b", who="deepspeedai/DeepSpeed, NVIDIA/Megatron-LM")
    yield variant(priority_of_choices, "token_choice", ledger="BP-2b")
    yield variant(padding_in_the_slots, "token_choice", who="NVIDIA/Megatron-LM (pull request 5542)")
    yield variant(rerouted_always, "token_choice", ledger="TC-3c", who="tensorflow/mesh")
    yield variant(kept_weights_renormalised, "token_choice", ledger="TC-4b")
    yield variant(kept_sum_clamped, "token_choice", who="facebookresearch/fairseq, huggingface/transformers (NLLB-MoE)")
    yield variant(divided_before_drops, "token_choice", ledger="TC-4")
    yield variant(chosen_weights_renormalised, "token_choice", ledger="SA-3b")
    computes = "The combine weights are always the scores of the selection."
    yield fixed("weights_of_the_selection", computes, "token_choice", "RT-2b", combine_scores=None)
    yield variant(selected_not_normalised, "normalize_selected", ledger="SA-3b")
    computes = "Combine weights are divided by the root of the sum of their squares, not by their sum."
    who = "databricks/megablocks"
    yield fixed("selected_by_the_norm", computes, "normalize_selected", "TC-5b", who, norm="euclidean")
    yield variant(selected_sum_clamped, "normalize_selected", ledger="TC-5c", who="facebookresearch/fairseq")
