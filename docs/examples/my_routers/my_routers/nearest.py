"""Token Choice by distance to each expert's centre. The scores are `1 / (1 + distance**2)` (as in t-SNE), divided by their sum."""

from dataclasses import dataclass
from functools import partial

from moespec import spec
from moespec.spec.initial import lecun_normal
from moespec.spec.ranges import Count, Factor
from moespec.spec.routers import Router


@dataclass(frozen=True, kw_only=True)
class Options(spec.RouterOptions):
    """Options of `nearest`."""

    choices: Count = 1
    capacity_factor: Factor = 1.25


def init(generator, options):
    """`centres` (width, experts)."""
    return {"centres": lecun_normal(generator, (options.width, options.experts), options.width)}


def nearness(B, tokens, centres):
    """A building block: tokens (..., T, D), centres (D, E) -> scores (..., T, E). `B.xp` is the array namespace of `B`."""
    xp = B.xp
    tokens, centres = xp.promote(tokens), xp.promote(centres)
    squares = xp.sum(xp.square(tokens), -1, keepdims=True) + xp.sum(xp.square(centres), 0)
    distance = xp.maximum(squares - 2 * B.router_logits(tokens, centres), 0.0)
    return xp.softmax(-xp.log(1 + distance), -1)


def compose(B, params, tokens, options, *, noise=None, train=False):
    """The router for any backend `B`, and for the specification, where arrays have no groups axis."""
    scores = nearness(B, tokens, params["centres"])
    routing = B.token_choice(scores, choices=options.choices, capacity=options.capacity(train=train))
    return spec.RouterOutput(routing, {}, B.routing_metrics(routing))


ROUTER = Router(
    __name__,
    "an example",
    Options,
    init,
    partial(compose, spec),
    decays=(),  # weight decay would pull the centres towards 0
    compose=compose,
)
