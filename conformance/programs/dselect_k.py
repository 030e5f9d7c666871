"""Stages of DSelect-k: the step, the selectors, the gate, its routing and losses, and the router.

The codes of a gate by token are `codes` (groups, tokens, choices, bits), those of a static one `static_codes` (choices,
bits); the same with `logits` and with what follows from them.
"""

from typing import Any

import numpy as np

from moespec import spec
from moespec.conformance.program import Choice, Config, Output, Stage, Values, nested, routing_arrays
from moespec.conformance.programs.layers import absolute_layer, experts_of
from moespec.spec import ROUTERS, RouterConfig
from moespec.spec.dselect_k import EPSILON, code_bits

__all__ = ["STAGES", "codes_of"]

RESULTS = {
    "step": Output(("rows", "n")),
    "codes": Output(("groups", "tokens", "choices", "bits")),
    "logits": Output(("groups", "tokens", "choices")),
    "selectors": Output(("groups", "tokens", "choices", "experts")),
    "gate": Output(("groups", "tokens", "experts")),
    "static_codes": Output(("choices", "bits")),
    "static_logits": Output(("choices",)),
    "static_selectors": Output(("choices", "experts")),
    "static_gate": Output(("experts",)),
}
WEIGHTS = {"weights": Output(("groups", "experts", "capacity"), scale="magnitude")}


def _options(config: Config) -> dict[str, Any]:
    """The options of the selectors, given as they are or as those of the router."""
    if "router" not in config:
        return dict(config)
    settings = _settings(config)
    return {"experts": settings.experts, "gamma": settings.selector_gamma}


def _settings(config: Config) -> RouterConfig:
    return ROUTERS["dselect_k"].configure(**config["router"])


def _kind(v: Values, name: str) -> str:
    return name if name in v else f"static_{name}"


def _codes(B: Any, config: Config, v: Values) -> Values:
    """Codes and logits from the parameters of the router."""
    settings, bits = _settings(config), code_bits(config["router"]["experts"])
    count, scores, static = settings.choices * bits, v["router/bias"], settings.selector_gate == "static"
    if not static:
        scores = B.router_logits(v["tokens"], v["router/kernel"]) + scores
    codes = scores[..., :count].reshape((*scores.shape[:-1], settings.choices, bits))
    prefix = "static_" if static else ""
    return {f"{prefix}codes": codes, f"{prefix}logits": scores[..., count:]}


def codes_of(B: Any, config: Config, v: Values) -> Values:
    """What decides which experts a token has: the codes, by their distance from the ends of the step."""
    return {"scores": next(iter(_codes(B, config, v).values()))}


def _outside(config: Config, scores: Values, scales: Values) -> float:
    """The smallest relative distance of a code from an end of the step."""
    half = _options(config)["gamma"] / 2
    distance = np.abs(np.abs(scores["scores"]) - half) / (scales["scores"] + half)
    return float(distance.min(initial=1.0))


def _positive(config: Config, scores: Values, scales: Values) -> float:
    """A gate that is not 0 stays so in every dtype, unless it underflows."""
    gate = scores["scores"]
    return float(((gate == 0) | (gate > 1e-30)).all())


def _selectors(B: Any, config: Config, v: Values) -> Values:
    name = _kind(v, "codes")
    return {name.replace("codes", "selectors"): B.dselect_k_selectors(v[name], **_options(config))}


def _gate(B: Any, config: Config, v: Values) -> Values:
    name = _kind(v, "selectors")
    logits = v[name.replace("selectors", "logits")]
    return {name.replace("selectors", "gate"): B.dselect_k_gate(v[name], logits)}


def _losses(B: Any, config: Config, v: Values) -> Values:
    selectors = v[_kind(v, "selectors")]
    return {
        "losses/selector_entropy": B.dselect_k_entropy(selectors),
        "losses/reachability": B.dselect_k_reachability(selectors),
    }


def _entropy_scale(weighted: bool) -> Any:
    """`sum r (2 + |log(r + epsilon)|)`: the logarithm of what is nearly 1 cancels."""

    def scale(config: Config, v: Values) -> Any:
        if "router/bias" in v:
            v = {**v, **_codes(spec, config, v)}
            v = {**v, **_selectors(spec, config, v)}
        r = v[_kind(v, "selectors")]
        weight = _settings(config).selector_entropy_weight if weighted and "router" in config else 1.0
        return weight * np.sum(r * (2 + np.abs(np.log(r + EPSILON))))

    return scale


ENTROPY = {
    "losses/selector_entropy": Output(written=_entropy_scale(True)),
    "metrics/selector_entropy_loss": Output(written=_entropy_scale(False)),
}


def _routing(B: Any, config: Config, v: Values) -> Values:
    return routing_arrays(B.dselect_k_routing(v["gate"]))


def _layer(B: Any, config: Config, v: Values) -> Values:
    return {"output": B.moe_layer(v["tokens"], B.dselect_k_routing(v["gate"]), experts_of(B, config, v))}


def _routed(B: Any, config: Config, v: Values) -> Any:
    return B.ROUTERS["dselect_k"].route(nested(v, "router"), v["tokens"], _settings(config), train=True)


def _route(B: Any, config: Config, v: Values) -> Values:
    found = _routed(B, config, v)
    return {
        **routing_arrays(found.routing),
        **{f"losses/{key}": value for key, value in found.losses.items()},
        **{f"metrics/{key}": value for key, value in found.metrics.items()},
        "output": B.moe_layer(v["tokens"], found.routing, experts_of(B, config, v)),
    }


WIDTH = ("groups", "tokens", "width")
LAYER = Output(WIDTH, written=lambda config, v: absolute_layer(spec.dselect_k_routing(v["gate"]), v))
ROUTE = Output(WIDTH, written=lambda config, v: absolute_layer(_routed(spec, config, v).routing, v))
CODES, MIXED = ("codes", "static_codes"), ("selectors", "static_selectors")

SELECTORS = Stage("selectors", ("dselect_k_selectors",), CODES, _selectors, RESULTS)
GATE = Stage("gate", ("dselect_k_gate",), (*MIXED, "logits", "static_logits"), _gate, RESULTS)
ROUTING = Stage("routing", ("dselect_k_routing",), ("gate",), _routing, WEIGHTS, Choice("gate", _positive))
LOSSES = Stage("losses", ("dselect_k_entropy", "dselect_k_reachability"), MIXED, _losses, ENTROPY)

STAGES: dict[str, tuple[Stage, ...]] = {
    "dselect_k_gate": (
        Stage(
            "step",
            ("smooth_step",),
            ("z",),
            lambda B, config, v: {"step": B.smooth_step(v["z"], **config)},
            RESULTS,
        ),
        SELECTORS,
        GATE,
        LOSSES,
        ROUTING,
    ),
    "dselect_k": (
        Stage("codes", ("router_logits",), ("tokens", "router"), _codes, RESULTS),
        SELECTORS,
        GATE,
        ROUTING,
        Stage(
            "layer",
            ("moe_layer", "expert_mlp", "dselect_k_routing"),
            ("tokens", "gate", "experts"),
            _layer,
            {"output": LAYER},
            Choice("gate", _positive),
        ),
        Stage(
            "route",
            ("ROUTERS", "moe_layer"),
            ("tokens", "router", "experts"),
            _route,
            {"output": ROUTE, **ENTROPY},
            Choice(codes_of, _outside, wide=False),
            whole=True,
        ),
    ),
}
