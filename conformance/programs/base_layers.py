"""Stages of BASE layers: the assignments, what all best assignments have in common, the routing, and the router.

`assignment` compares the assignment itself, where only one is the best; `balance` what does not depend on which of
several is found: the total, the gap, and that every expert has as many tokens.
"""

from typing import Any

import numpy as np

from moespec import spec
from moespec.conformance.margins import assignment_margin, token_choice_margin
from moespec.conformance.program import Choice, Config, Output, Stage, Values, nested, routing_arrays
from moespec.conformance.programs.layers import absolute_layer, experts_of
from moespec.spec import ROUTERS, RouterConfig

__all__ = ["STAGES", "margin_of"]

EXPERTS = Output(("groups", "tokens"), "int")
WIDTH = ("groups", "tokens", "width")


def _settings(config: Config) -> RouterConfig:
    return ROUTERS["base"].configure(**config["router"])


def _assignment(B: Any, config: Config, v: Values) -> Values:
    return {"expert": B.base_assignment(v["scores"]).expert}


def _balance(B: Any, config: Config, v: Values) -> Values:
    """A token that finds no room in a routing with as few slots as there must be is dropped."""
    found = B.base_assignment(v["scores"])
    tokens, experts = v["scores"].shape[-2:]
    metrics = B.routing_metrics(B.base_routing(v["scores"], found.expert, capacity=tokens // experts))
    return {
        "objective": found.objective,
        "gap": found.gap,
        "metrics/load": metrics["load"],
        "metrics/dropped": metrics["dropped"],
    }


def _greedy(B: Any, config: Config, v: Values) -> Values:
    return {"greedy": B.base_greedy(v["scores"])}


def _given(config: Config, v: Values) -> tuple[Any, int]:
    """The experts of the tokens, and the capacity."""
    if "router" not in config:
        return v["expert"], config["capacity"]
    settings = _settings(config)
    if config["train"]:
        return v["expert"], settings.tokens // settings.experts
    return v["greedy"], settings.tokens


def _routed(B: Any, config: Config, v: Values) -> Any:
    expert, capacity = _given(config, v)
    return B.base_routing(v["scores"], expert, capacity=capacity)


def _routing(B: Any, config: Config, v: Values) -> Values:
    return routing_arrays(_routed(B, config, v))


def _layer(B: Any, config: Config, v: Values) -> Values:
    return {"output": B.moe_layer(v["tokens"], _routed(B, config, v), experts_of(B, config, v))}


def _scores(B: Any, config: Config, v: Values) -> Values:
    return {"scores": B.router_logits(v["tokens"], v["router/kernel"])}


def _output(B: Any, config: Config, v: Values) -> Any:
    return B.ROUTERS["base"].route(nested(v, "router"), v["tokens"], _settings(config), train=config["train"])


def _route(B: Any, config: Config, v: Values) -> Values:
    found = _output(B, config, v)
    return {
        **routing_arrays(found.routing),
        **{f"metrics/{key}": value for key, value in found.metrics.items()},
        "output": B.moe_layer(v["tokens"], found.routing, experts_of(B, config, v)),
    }


def margin_of(config: Config, scores: Values, scales: Values) -> float:
    """The margin of the assignment, balanced or greedy."""
    if config.get("train", True):
        return assignment_margin(scores["scores"], scales["scores"])
    return token_choice_margin(scores["scores"], scales["scores"], 1)


def _largest(config: Config, v: Values) -> Any:
    """What the gap is small against: the sum of the largest score of each token."""
    return np.abs(v["scores"] if "scores" in v else _scores(spec, config, v)["scores"]).max(axis=1).sum()


BALANCE = {
    "objective": Output(("groups",)),
    "gap": Output(("groups",), scale="written", written=_largest),
    "metrics/gap": Output(scale="written", written=_largest),
}
ASSIGNMENT = Stage(
    "assignment",
    ("base_assignment",),
    ("scores",),
    _assignment,
    {"expert": EXPERTS},
    # Scores that are inputs are exact, but that one assignment is the best has to be found out.
    Choice(lambda B, config, v: {"scores": v["scores"]}, margin_of, "magnitude"),
)
GREEDY = Stage(
    "greedy",
    ("base_greedy",),
    ("scores",),
    _greedy,
    {"greedy": EXPERTS},
    Choice("scores", lambda config, scores, scales: token_choice_margin(scores["scores"], scales["scores"], 1)),
)
MADE = Choice("expert", lambda config, scores, scales: 1.0)
"""The choice is made when the experts are given."""

STAGES: dict[str, tuple[Stage, ...]] = {
    "base_layers": (
        ASSIGNMENT,
        Stage("balance", ("base_assignment", "base_routing", "routing_metrics"), ("scores",), _balance, BALANCE),
        GREEDY,
        Stage("routing", ("base_routing",), ("scores", "expert"), _routing, choice=MADE),
    ),
    "base": (
        Stage("scores", ("router_logits",), ("tokens", "router"), _scores),
        ASSIGNMENT,
        GREEDY,
        Stage(
            "routing",
            ("base_routing",),
            ("scores", "expert", "greedy"),
            _routing,
            choice=Choice(lambda B, config, v: {"expert": _given(config, v)[0]}, MADE.margin, "magnitude"),
        ),
        Stage(
            "layer",
            ("moe_layer", "expert_mlp", "base_routing"),
            ("tokens", "scores", "expert", "greedy", "experts"),
            _layer,
            {"output": Output(WIDTH, written=lambda config, v: absolute_layer(_routed(spec, config, v), v))},
        ),
        Stage(
            "route",
            ("ROUTERS", "moe_layer"),
            ("tokens", "router", "experts"),
            _route,
            {
                "output": Output(WIDTH, written=lambda config, v: absolute_layer(_output(spec, config, v).routing, v)),
                **BALANCE,
            },
            Choice(_scores, margin_of, wide=False),
            whole=True,
        ),
    ),
}
