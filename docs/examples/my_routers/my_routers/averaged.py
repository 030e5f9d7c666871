"""Token Choice on scores minus a multiple of each expert's average load. The optimiser does not update this average."""

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
    """multiple of an expert's average load that is subtracted from the expert's scores"""
    rate: Scalar = 0.1
    """weight of the newest step's load in the average"""


def state(options):
    """`load` (experts,): the average fraction of choices per expert, initially uniform."""
    return {"load": spec.StateSpec((options.experts,), 1 / options.experts)}


def offset(load, strength):
    """Returns the term that is added to the scores. Golden vectors record this function as a separate step."""
    return -strength * load


def compose(B, params, tokens, options, *, state, noise=None, train=False):
    """The router for any backend `B`, and for the specification, where arrays have no groups axis."""
    scores = B.softmax_affinity(B.router_logits(tokens, params["kernel"]))
    selection = B.biased_scores(scores, offset(state["load"], options.strength))
    capacity = options.capacity(train=train)
    routing = B.token_choice(selection, combine_scores=scores, choices=options.choices, capacity=capacity)
    load = B.expert_load(selection, choices=options.choices)
    return spec.RouterOutput(routing, {}, B.routing_metrics(routing), {"load": load})


def compose_update(B, options, state, statistics):
    """Returns the state after a step. `statistics` contains the load, summed over all groups, micro-batches and devices."""
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
