"""Token Choice by scores from which the average load of their expert is subtracted. The average is a state: no optimiser touches it."""

from dataclasses import dataclass
from functools import partial

from moespec import spec
from moespec.spec.ranges import Count, Factor, Scalar
from moespec.spec.routers import Router
from moespec.spec.routers.common import init_kernel


@dataclass(frozen=True, kw_only=True)
class Options(spec.RouterOptions):
    """Options of `averaged`."""

    choices: Count = 2
    capacity_factor: Factor = 1.25
    strength: Scalar = 0.5
    """what the average load of an expert is multiplied with before it is subtracted"""
    rate: Scalar = 0.1
    """how much of a step's load enters the average"""


def state(options):
    """`load` (experts,): the average of each expert's part of the choices, even at the start."""
    return {"load": spec.StateSpec((options.experts,), 1 / options.experts)}


def offset(load, strength):
    """What is added to the scores. It is a function, so that it is a step of the vectors, as the building blocks are."""
    return -strength * load


def compose(B, params, tokens, options, *, state, noise=None, train=False):
    """Written once: `B` is a backend, or the specification itself, which has no axis of groups."""
    scores = B.softmax_affinity(B.router_logits(tokens, params["kernel"]))
    selection = B.biased_scores(scores, offset(state["load"], options.strength))
    capacity = options.capacity(train=train)
    routing = B.token_choice(selection, combine_scores=scores, choices=options.choices, capacity=capacity)
    load = B.expert_load(selection, choices=options.choices)
    return spec.RouterOutput(routing, {}, B.routing_metrics(routing), {"load": load})


def compose_update(B, options, state, statistics):
    """Once a step, with the load of all groups, parts of the batch and devices."""
    part = statistics["load"] / B.xp.sum(statistics["load"])
    return {"load": (1 - options.rate) * B.xp.promote(state["load"]) + options.rate * part}


ROUTER = Router(
    __name__,
    "an example",
    Options,
    init_kernel,
    partial(compose, spec),
    state=state,
    update=partial(compose_update, spec),
    compose=compose,
    compose_update=compose_update,
)
