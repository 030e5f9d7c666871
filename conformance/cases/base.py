"""Cases of the router `base`."""

from collections.abc import Iterator
from typing import Any

from moespec.conformance.author.definition import Definition, Draws, Noise
from moespec.conformance.author.near_ties import near_router
from moespec.conformance.author.routers import router_case
from moespec.conformance.author.variant import Route, Spec, Variant, every, rerouted, variant
from moespec.spec.routing import RouterOutput

NAME = "base"
T, E, D = 6, 3, 4
UNIFORM = Noise("tokens", reach=0.5, step=2.0**-7, centre=0.5)
DRAWS = Draws(enough=0.02)
"""The search for inputs stops at a tie margin of 0.02. A choice from bfloat16 scores is certain only if the margin exceeds 0.016."""


def cases() -> Iterator[Definition]:

    def case(name: str, kind: str, purpose: str, *flags: str, experts: int = E, **fields: Any) -> Definition:
        sizes = fields.pop("sizes", (T, experts, D))
        tied = True if experts == 1 else None
        return router_case(NAME, name, kind, purpose, *flags, sizes=sizes, draws=DRAWS, exact_ties=tied, **fields)

    code, size, constant = "generated_code", "degenerate_size", "stop_gradient"
    yield case("training", "value", "The best balanced assignment.", code, "exact_balance", train=True)
    yield case("evaluation", "value", "Each token in its best expert.", code, "empty_slot", train=False)
    purpose = "Equal scores at evaluation: the first expert."
    yield case("zero_kernel", "tie", purpose, "tie_order", train=False, zero=True)
    yield case("one_expert", "degenerate", "One expert.", size, train=True, experts=1)
    yield case("one_token", "degenerate", "One token at evaluation.", size, train=False, sizes=(1, E, D))
    purpose = "Two shards, each balanced by itself: tokens are dealt to them by descending noise."
    sizes = (8, 2, D)
    yield case("shards", "value", purpose, code, "exact_balance", train=True, noise=UNIFORM, shards=2, sizes=sizes)
    yield near_router(NAME, train=False)
    yield case("gradient", "gradient", "Through the gate and the experts.", constant, train=True)
    yield case("gradient_evaluation", "gradient", "Of the greedy assignment.", constant, train=False)


def _always(train: bool) -> Any:
    """Returns a change that runs a router always in training mode, or always in evaluation mode."""

    def change(B: Spec, route: Route) -> RouterOutput:
        output = route.output()
        uneven = route.train and route.options.tokens % (route.options.experts * route.options.shards)
        return output if uneven else route.output(train=train)

    return change


def slots_of_training_at_evaluation(B: Spec, route: Route) -> RouterOutput:
    """At evaluation, an expert has as many slots as in training and drops the remaining tokens."""
    output = route.output()
    if route.train:
        return output
    scores = B.router_logits(route.tokens, route.params["kernel"])
    slots = -(-route.options.tokens // route.options.experts)
    return rerouted(B, output, B.base_routing(scores, B.base_greedy(scores), capacity=slots))


def variants() -> Iterator[Variant]:
    computes = "Tokens are balanced even at evaluation."
    yield Variant("balanced_at_evaluation", computes, every((NAME,), _always(True)), "BL-2b")
    computes = "Tokens are not balanced in training either."
    yield Variant("never_balanced", computes, every((NAME,), _always(False)), "BL-1b")
    yield variant(slots_of_training_at_evaluation, NAME, ledger="BL-2b")
