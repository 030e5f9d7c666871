"""Stages of the routers: each step of the composition on the golden's own inputs, then the router as a whole.

The inputs of a case are `tokens`, `router/kernel` (or `router/slots` and `router/scale`), `experts/*` and perhaps
`noise`; `config["router"]` has the fields of `RouterConfig`.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from moespec import spec
from moespec.conformance.margins import expert_choice_margin, token_choice_margin
from moespec.conformance.program import Choice, Config, Output, Stage, Values, nested, routing_arrays
from moespec.conformance.programs.affinities import SINKHORN, STABLE_PLAN, sinkhorn_scale
from moespec.conformance.programs.allocations import SOFT, priorities
from moespec.conformance.programs.layers import absolute_layer, experts_of
from moespec.spec import ROUTERS, RouterConfig
from moespec.spec.importance_score import surviving_tokens

__all__ = ["STAGES", "margin_of", "route", "routed", "selection_scores", "settings_of"]

STUDY = (
    *("softmax_token_choice", "sinkhorn_token_choice", "softmax_expert_choice", "sinkhorn_expert_choice"),
    *("sparsity_constrained_expert_choice", "soft_moe"),
)
TE = ("groups", "tokens", "experts")


def settings_of(name: str, config: Config) -> RouterConfig:
    """The configuration of a router."""
    return ROUTERS[name].configure(**config["router"])


def _logits(B: Any, name: str, config: Config, v: Values) -> Values:
    logits = B.router_logits(v["tokens"], v["router/kernel"])
    if "noise" not in v:
        return {"logits": logits}
    return {
        "logits": logits,
        "noisy": B.add_gating_noise(logits, v["noise"], multiplier=settings_of(name, config).noise_multiplier),
    }


def _softmax(B: Any, name: str, config: Config, v: Values) -> Values:
    noisy = B.softmax_affinity(v.get("noisy", v["logits"]))
    if "noisy" in v and settings_of(name, config).combine_from_clean_logits:
        return {"scores": noisy, "clean_scores": B.softmax_affinity(v["logits"])}
    return {"scores": noisy}


def _plan(B: Any, name: str, config: Config, v: Values) -> Values:
    settings = settings_of(name, config)
    if name.startswith("sinkhorn"):
        return {"plan": B.sinkhorn_affinity(v.get("noisy", v["logits"]), iterations=settings.sinkhorn_iterations)}
    transport = B.sparse_transport_affinity
    return {"plan": transport(v["scores"], capacity=settings.capacity(), steps=settings.transport_steps)}


def _order(B: Any, name: str, config: Config, v: Values) -> Values:
    settings = settings_of(name, config)
    selection = v.get("plan", v["scores"])
    return {"order": B.batch_priority(selection, by=settings.batch_priority, choices=settings.choices)}


def _allocate(B: Any, name: str, config: Config, v: Values) -> Any:
    settings = settings_of(name, config)
    if name == "importance_score":
        return _among_the_important(B, settings, config, v)
    combine = v.get("clean_scores", v["scores"])
    if "plan" in v and settings.combine_with == "plan":
        combine = v["plan"]
    selection = v.get("plan", v["scores"])
    if name.endswith("token_choice"):
        capacity = settings.capacity(choices=settings.choices)
        options = {"order": v["order"]} if "order" in v else {}
        return B.token_choice(selection, choices=settings.choices, capacity=capacity, combine_scores=combine, **options)
    capacity, drop = settings.capacity(), settings.drop_zero_plan
    return B.expert_choice(selection, capacity=capacity, combine_scores=combine, drop_zero=drop)


def _cut(B: Any, name: str, config: Config, v: Values) -> Values:
    return {"order": B.importance_score_order(v["scores"], drop=settings_of(name, config).drop)}


def _among_the_important(B: Any, settings: RouterConfig, config: Config, v: Values) -> Any:
    """With `config["capacity"]`, if given, else with that of the tokens that are left."""
    capacity = config.get("capacity")
    if capacity is None:
        left = replace(settings, tokens=surviving_tokens(settings.tokens, settings.drop))
        capacity = left.capacity(choices=settings.choices)
    options = {"choices": settings.choices, "capacity": capacity, "drop": settings.drop}
    return B.importance_score_choice(v["scores"], combine_scores=v.get("combine_scores"), **options)


def _allocation(B: Any, name: str, config: Config, v: Values) -> Values:
    return routing_arrays(_allocate(B, name, config, v))


def _layer(B: Any, name: str, config: Config, v: Values) -> Values:
    return {"output": B.moe_layer(v["tokens"], _allocate(B, name, config, v), experts_of(B, config, v))}


def _soft(B: Any, name: str, config: Config, v: Values) -> Values:
    settings = settings_of(name, config)
    routing = B.soft_routing(
        v["tokens"],
        v["router/slots"],
        scale=v["router/scale"],
        normalize=settings.normalize,
        norm_form=settings.norm_form,
        dispatch=settings.dispatch,
        combine=settings.combine,
    )
    return routing_arrays(routing, sparse=False)


def routed(B: Any, name: str, config: Config, v: Values) -> Any:
    """The output of a router on the inputs of a case."""
    options = {"noise": v["noise"], "train": True} if "noise" in v else {}
    if "train" in config:
        options["train"] = config["train"]
    return B.ROUTERS[name].route(nested(v, "router"), v["tokens"], settings_of(name, config), **options)


def route(B: Any, name: str, config: Config, v: Values) -> Values:
    """Its routing, losses and metrics, and the output of the layer around it."""
    found = routed(B, name, config, v)
    return {
        **routing_arrays(found.routing, sparse=name != "soft_moe"),
        **{f"losses/{key}": value for key, value in found.losses.items()},
        **{f"metrics/{key}": value for key, value in found.metrics.items()},
        "output": B.moe_layer(v["tokens"], found.routing, experts_of(B, config, v)),
    }


def selection_scores(B: Any, name: str, config: Config, v: Values) -> Values:
    """What the router selects by, from its inputs."""
    v = {**v, **_logits(B, name, config, v)}
    v = {**v, **_softmax(B, name, config, v)}
    return {"scores": v["scores"] if _kind(name) == "softmax" else _plan(B, name, config, v)["plan"]}


def margin_of(name: str, config: Config, scores: Values, scales: Values) -> float:
    """The margin of what a router chooses by."""
    settings = settings_of(name, config)
    if name.endswith("expert_choice"):
        return expert_choice_margin(scores["scores"], scales["scores"], settings.capacity())
    margin = token_choice_margin(scores["scores"], scales["scores"], settings.choices)
    if name == "importance_score":
        return min(margin, priorities({}, scores, scales))
    if settings.batch_priority == "none":
        return margin
    options = {"by": settings.batch_priority, "choices": settings.choices}
    return min(margin, priorities(options, scores, scales))


def _kind(name: str) -> str:
    """What the router selects by: softmax, sinkhorn or transport."""
    return {"sparsity": "transport", "importance": "softmax"}.get(name.split("_")[0], name.split("_")[0])


def _allocation_of(name: str) -> str:
    """The public name of the allocation of the router."""
    if name == "importance_score":
        return "importance_score_choice"
    return "token_choice" if name.endswith("token_choice") else "expert_choice"


def _stages(name: str) -> tuple[Stage, ...]:
    """The stages of a router that selects."""

    def bind(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda B, config, v: function(B, name, config, v)

    kind = _kind(name)
    constant = "direct" if kind == "softmax" else kind
    scale = "spread" if kind == "transport" else "condition"
    plan_call = {"sinkhorn": ("sinkhorn_affinity",), "transport": ("sparse_transport_affinity",)}.get(kind, ())
    allocation = _allocation_of(name)
    selected = "scores" if kind == "softmax" else "plan"
    choice = Choice(selected, partial(margin_of, name))
    whole = Choice(bind(selection_scores), partial(margin_of, name), scale, constant, wide=False)
    plan = Stage(
        "plan",
        plan_call,
        ("logits", "noisy", "scores") if kind == "transport" else ("logits", "noisy"),
        bind(_plan),
        {"plan": SINKHORN if kind == "sinkhorn" else Output(TE, scale=scale, constant=constant)},
        STABLE_PLAN if kind == "transport" else None,
    )
    priority = (Stage("priority", ("batch_priority",), ("scores", "plan"), bind(_order), choice=choice),)
    if name == "importance_score":
        cut = {"order": Output(("groups", "survivors"), "int")}
        priority = (Stage("priority", ("importance_score_order",), ("scores",), bind(_cut), cut, choice),)
    reads = ("scores", "clean_scores", "combine_scores" if name == "importance_score" else "plan", "order")
    weights = {"weights": Output(("groups", "experts", "capacity"), scale="magnitude")}
    output = Output(("groups", "tokens", "width"), constant=partial(_combine_constant, name))
    combined = {
        "output": replace(output, written=lambda config, v: absolute_layer(routed(spec, name, config, v).routing, v)),
        "weights": Output(
            ("groups", "experts", "capacity"),
            written=partial(_weights_scale, name),
            constant=partial(_combine_constant, name),
        ),
    }
    layer = {"output": replace(output, written=lambda config, v: absolute_layer(_allocate(spec, name, config, v), v))}
    return (
        Stage(
            "logits",
            ("router_logits", "add_gating_noise"),
            ("tokens", "router", "noise"),
            bind(_logits),
            {"noisy": Output(TE)},
        ),
        Stage(
            "softmax",
            ("softmax_affinity",),
            ("logits", "noisy"),
            bind(_softmax),
            {"clean_scores": Output(TE)},
        ),
        *(() if kind == "softmax" else (plan,)),
        *(() if allocation == "expert_choice" else priority),
        Stage("allocation", (allocation,), reads, bind(_allocation), weights, choice),
        Stage(
            "layer", ("moe_layer", "expert_mlp", allocation), ("tokens", *reads, "experts"), bind(_layer), layer, choice
        ),
        Stage(
            "route",
            ("ROUTERS", "moe_layer"),
            ("tokens", "router", "noise", "experts"),
            bind(route),
            combined,
            whole,
            whole=True,
        ),
    )


def _combine_constant(name: str, config: Config) -> str:
    """Of what a router combines with: a softmax, or for an ablation the Sinkhorn plan."""
    return "sinkhorn" if settings_of(name, config).combine_with == "plan" else "direct"


def _weights_scale(name: str, config: Config, v: Values) -> Any:
    """The scale of combine weights that are entries of the Sinkhorn plan; other weights are their own scale."""
    routing = routed(spec, name, config, v).routing
    if settings_of(name, config).combine_with != "plan":
        return routing.combine.sum(axis=0)
    return np.einsum("tec,te->ec", routing.dispatch, sinkhorn_scale(config, _logits(spec, name, config, v)))


def _soft_stages() -> tuple[Stage, ...]:
    def bind(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda B, config, v: function(B, "soft_moe", config, v)

    written = lambda config, v: absolute_layer(routed(spec, "soft_moe", config, v).routing, v)  # noqa: E731
    output = {"output": Output(("groups", "tokens", "width"), written=written)}
    return (
        Stage("routing", ("soft_routing",), ("tokens", "router"), bind(_soft), SOFT),
        Stage(
            "route", ("ROUTERS", "moe_layer"), ("tokens", "router", "experts"), bind(route), SOFT | output, whole=True
        ),
    )


STAGES: dict[str, tuple[Stage, ...]] = {
    name: _soft_stages() if name == "soft_moe" else _stages(name) for name in (*STUDY, "importance_score")
}
