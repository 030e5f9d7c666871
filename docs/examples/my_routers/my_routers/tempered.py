"""Token Choice with softmax scores. Each expert has a learned temperature, which divides the expert's logits."""

from dataclasses import dataclass

import numpy as np

from moespec.spec import RouterOptions, RouterOutput, balance_loss, router_logits, softmax_affinity, token_choice
from moespec.spec.ranges import Count, Factor, Weight
from moespec.spec.routers import Router
from moespec.spec.routers.common import init_kernel, output


@dataclass(frozen=True, kw_only=True)
class Options(RouterOptions):
    """Options of `tempered`."""

    choices: Count = 1
    capacity_factor: Factor = 1.0
    balance_weight: Weight = 0.01


def init(generator, options):
    """Returns `kernel` (width, experts) and `temperature` (experts,), initially 1."""
    return {**init_kernel(generator, options), "temperature": np.ones(options.experts, np.float32)}


def temper(logits, temperature):
    """Returns the logits divided by the temperatures of the experts. Golden vectors record this function as a separate step."""
    return logits / temperature


def route(params, tokens, options, *, noise=None, train=False):
    """The router in NumPy, for one group."""
    scores = softmax_affinity(temper(router_logits(tokens, params["kernel"]), params["temperature"]))
    routing = token_choice(scores, choices=options.choices, capacity=options.capacity(train=train))
    return output(options, routing, {"balance": balance_loss(scores)})


def compose(B, params, tokens, options, *, noise=None, train=False):
    """The router in a backend `B` (JAX or torch), for several groups."""
    scores = B.softmax_affinity(temper(B.router_logits(tokens, params["kernel"]), params["temperature"]))
    routing = B.token_choice(scores, choices=options.choices, capacity=options.capacity(train=train))
    loss = B.balance_loss(scores)
    metrics = {**B.routing_metrics(routing), "balance_loss": loss}
    return RouterOutput(routing, {"balance": options.balance_weight * loss}, metrics)


ROUTER = Router(
    __name__,
    "an example",
    Options,
    init,
    route,
    compose=compose,
)
