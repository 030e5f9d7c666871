"""Cases of the router `mixture_of_depths`."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from moespec.conformance.author.definition import Definition
from moespec.conformance.author.routers import evaluation, output_gradient, router_case
from moespec.conformance.author.variant import Route, Spec, Variant, rerouted, reweighted, variant
from moespec.spec.routing import RouterOutput

NAME = "mixture_of_depths"
ONE = (8, 1, 4)


def cases() -> Iterator[Definition]:
    case = partial(router_case, NAME)
    half: dict[str, Any] = {"sizes": ONE, "capacity_factor": 0.5}
    purpose = "One expert takes 5 of 8 tokens, raised to 6, among them some of a negative weight."
    more: dict[str, Any] = {"sizes": ONE, "capacity_factor": 0.625, "multiple_of": 2}
    yield case("values", "value", purpose, "generated_code", "capacity_rounding", **more)
    yield case("default", "value", "The default: one token of eight.", "capacity_rounding", sizes=ONE)
    yield case("sigmoid", "value", "The sigmoid combines.", "combine_scores", weights="sigmoid", **half)
    yield case("experts", "value", "Three experts choose, each by its own weights.", "wrong_axis", slots_per_expert=3)
    yield case("zero_kernel", "tie", "A router that starts at 0.", "tie_order", zero=True, **half)
    yield evaluation(NAME)
    yield output_gradient(case, "combine_scores", **half)


def softmax_of_the_chosen(B: Spec, route: Route) -> RouterOutput:
    """The weights are the softmax of the router weights over the tokens that an expert chose."""
    output = route.output()
    routing = output.routing
    clean = np.take_along_axis(B.router_logits(route.tokens, route.params["kernel"]).swapaxes(1, 2), routing.token, 2)
    powers = np.exp(clean - clean.real.max(axis=2, keepdims=True))
    return rerouted(B, output, routing._replace(weight=powers / powers.sum(axis=2, keepdims=True)))


def sigmoid_of_the_weight(B: Spec, route: Route) -> RouterOutput:
    """The weights are the sigmoid of the router weights even if the router weights themselves are requested."""
    scores = B.sigmoid_affinity(B.router_logits(route.tokens, route.params["kernel"]))
    return reweighted(B, route.output(), scores)


def last_slot_left_empty(B: Spec, route: Route) -> RouterOutput:
    """An expert with C > 1 slots takes only its C - 1 best tokens, so its last slot stays empty."""
    output = route.output()
    token, weight = output.routing.token.copy(), output.routing.weight.copy()
    if token.shape[2] > 1:
        token[..., -1], weight[..., -1] = route.options.tokens, 0
    return rerouted(B, output, output.routing._replace(token=token, weight=weight))


def variants() -> Iterator[Variant]:
    yield variant(softmax_of_the_chosen, NAME, ledger="MD-1c")
    yield variant(sigmoid_of_the_weight, NAME, ledger="MD-1b")
    yield variant(last_slot_left_empty, NAME, ledger="MD-3b")
