"""Stages of noisy top-k gating and of the routers that choose by other gates than the softmax of the study.

The inputs of a router's case are `tokens`, `router/...` (its parameters), `experts/*` and perhaps `noise`;
`config["router"]` has the fields of `RouterConfig`, `config["train"]` says whether the router trains.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from scipy.special import expit
from scipy.stats import norm

from moespec import spec
from moespec.conformance.margins import token_choice_margin
from moespec.conformance.program import Choice, Config, Output, Stage, Values, routing_arrays
from moespec.conformance.programs.affinities import sinkhorn_scale
from moespec.conformance.programs.allocations import WEIGHTS
from moespec.conformance.programs.layers import absolute_layer, experts_of
from moespec.conformance.programs.losses import variation_scale
from moespec.conformance.programs.routers import margin_of, route, routed, settings_of
from moespec.spec.numerics import softplus

__all__ = ["STAGES"]

TE = ("groups", "tokens", "experts")
OUTPUT = Output(("groups", "tokens", "width"))
Scale = Callable[[Config, Values], Any]
Margin = Callable[[Config, Values, Values], float]
Bound = Callable[[Any, Config, Values], Values]


def _noisy(B: Any, config: Config, v: Values) -> Values:
    return {"noisy_logits": B.noisy_top_k_logits(v["logits"], v["noise_logits"], v.get("noise"))}


def _affinity(B: Any, config: Config, v: Values) -> Values:
    choices = config["choices"] if "choices" in config else settings_of("noisy_top_k", config).choices
    return {"gates": B.noisy_top_k_affinity(v["noisy_logits"], choices=choices)}


def _chosen(config: Config, scores: Values, scales: Values) -> float:
    if "choices" not in config:
        return margin_of("noisy_top_k", config, scores, scales)
    return token_choice_margin(scores["scores"], scales["scores"], config["choices"])


NOISY = Stage(
    "noisy",
    ("noisy_top_k_logits",),
    ("logits", "noise_logits", "noise"),
    _noisy,
    {"noisy_logits": Output(TE)},
)
AFFINITY = Stage(
    "gates",
    ("noisy_top_k_affinity",),
    ("noisy_logits",),
    _affinity,
    {"gates": Output(TE)},
    Choice("noisy_logits", _chosen),
)


def _load_scale(config: Config, v: Values) -> Any:
    """As of the load loss, with a scale that has the error of a softplus besides."""
    std, choices = softplus(v["noise_logits"]), config["choices"]
    logits, noisy = v["logits"], v["noisy_logits"]
    threshold = np.empty(logits.shape)
    for expert in range(logits.shape[1]):
        threshold[:, expert] = -np.sort(-np.delete(noisy, expert, axis=1), axis=1)[:, choices - 1]
    z = (logits - threshold) / std
    relative = 1 + np.abs(v["noise_logits"]) * expit(v["noise_logits"]) / std
    errors = 1 + norm.pdf(z) * ((np.abs(threshold) + np.abs(logits)) / std + np.abs(z) * relative)
    return variation_scale(norm.cdf(z).sum(axis=0), errors.sum(axis=0))


def _load_loss(B: Any, config: Config, v: Values) -> Values:
    return {"loss": B.noisy_top_k_load_loss(v["logits"], v["noise_logits"], v["noisy_logits"], **config)}


def _normalized(B: Any, config: Config, v: Values) -> Values:
    weights = {"combine_scores": v["combine_scores"]} if "combine_scores" in v else {}
    return {"normalized": B.normalize_selected(v["scores"], choices=config.get("choices", 2), **weights)}


def _keep(B: Any, config: Config, v: Values) -> Values:
    return {"keep": B.gshard_keep(v["normalized"], v["noise"]) * 1}  # integers


def _kept_scores(B: Any, config: Config, v: Values) -> Values:
    """Twice the second gate and the draw that it is compared with; equal ones where there is no draw."""
    twice = 2 * np.sort(v["normalized"].real, axis=1)[:, -2]
    return {"second": np.stack([twice, v["noise"] if "noise" in v else -np.ones(len(twice))], axis=1)}


def _kept(config: Config, scores: Values, scales: Values) -> float:
    return token_choice_margin(scores["second"], scales["second"], 1)


def _allocate(B: Any, name: str, config: Config, v: Values) -> Any:
    selection, combine = VALUES[name]
    settings = settings_of(name, config)
    if name == "gshard" and not settings.normalize_selected:
        combine = "scores"
    options: Values = {"choices": settings.choices}
    options["capacity"] = settings.capacity(choices=settings.choices, train=config["train"])
    if settings.batch_priority != "none":
        options["order"] = B.batch_priority(v[selection], by=settings.batch_priority, choices=settings.choices)
    if "keep" in v:
        options["keep"] = v["keep"] != 0
    return B.token_choice(v[selection], combine_scores=v[combine], **options)


def _bind(function: Callable[..., Any], name: str) -> Bound:
    return lambda B, config, v: function(B, name, config, v)


def _allocation(B: Any, name: str, config: Config, v: Values) -> Values:
    return routing_arrays(_allocate(B, name, config, v))


def _layer(B: Any, name: str, config: Config, v: Values) -> Values:
    return {"output": B.moe_layer(v["tokens"], _allocate(B, name, config, v), experts_of(B, config, v))}


def _stages(
    name: str, *gates: Stage, select: Bound, constant: str = "direct", margin: Margin | None = None, **losses: Scale
) -> tuple[Stage, ...]:
    """The stages of a router: its gates, the allocation, the layer, the whole.

    select: gives what the router selects by, and `constant` how that is judged. losses: the scales of its losses, by
    name, where it is not as usual.
    """
    selection, combine = VALUES[name]
    choice = Choice(selection, partial(margin_of, name))
    whole = Choice(select, margin or partial(margin_of, name), constant=constant, wide=False)
    reads = (*{selection: None, combine: None}, "keep")

    def layer_scale(config: Config, v: Values) -> Any:
        return absolute_layer(_allocate(spec, name, config, v), v)

    def route_scale(config: Config, v: Values) -> Any:
        return absolute_layer(routed(spec, name, config, v).routing, v)

    return (
        *gates,
        Stage("allocation", ("token_choice",), reads, _bind(_allocation, name), WEIGHTS, choice),
        Stage(
            "layer",
            ("moe_layer", "expert_mlp", "token_choice"),
            ("tokens", *reads, "experts"),
            _bind(_layer, name),
            {"output": Output(OUTPUT.axes, written=layer_scale)},
            choice,
        ),
        Stage(
            "route",
            ("ROUTERS", "moe_layer"),
            ("tokens", "router", "noise", "experts"),
            _bind(route, name),
            {
                "output": Output(OUTPUT.axes, written=route_scale),
                "weights": Output(("groups", "experts", "capacity")),
                **{f"losses/{loss}": _weighted(name, loss, scale) for loss, scale in losses.items()},
                **{f"metrics/{loss}_loss": Output(written=scale) for loss, scale in losses.items()},
            },
            whole,
            whole=True,
        ),
    )


def _two_kernels(B: Any, config: Config, v: Values) -> Values:
    return {
        "logits": B.router_logits(v["tokens"], v["router/kernel"]),
        "noise_logits": B.router_logits(v["tokens"], v["router/noise_kernel"]),
    }


def _weighted(name: str, loss: str, scale: Scale) -> Output:
    """How a weighted loss is judged, from the scale of the loss."""
    return Output(written=lambda config, v: getattr(settings_of(name, config), f"{loss}_weight") * scale(config, v))


def _balance_scale(config: Config, v: Values) -> Any:
    """Of `E sum_e f[e] P[e]`, whose scores have the error of a softmax, `p (1 + a + sum p a)` with absolute logits a."""
    tokens = v["tokens"]
    if "noise" in v and v["noise"].shape == tokens.shape:  # of Switch
        tokens = spec.router_jitter(tokens, v["noise"], epsilon=settings_of("switch", config).jitter)
    size = np.abs(tokens) @ np.abs(v["router/kernel"])
    scores = spec.softmax_affinity(spec.router_logits(tokens, v["router/kernel"]))
    errors = scores * (1 + size + (scores * size).sum(axis=1, keepdims=True))
    share = np.bincount(scores.argmax(axis=1), minlength=scores.shape[1]) / len(scores)
    return scores.shape[1] * np.sum(share * errors.mean(axis=0))


def _of_gates(scale: Scale) -> Scale:
    """The scale of a loss of the gates, from that of its own stage: a variance cancels."""

    def written(config: Config, v: Values) -> Any:
        v = {**v, **_two_kernels(spec, config, v)}
        v |= _noisy(spec, config, v)
        v |= _affinity(spec, config, v)
        return scale({"choices": settings_of("noisy_top_k", config).choices}, v)

    return written


def _importance_scale(config: Config, v: Values) -> Any:
    totals = v["gates"].sum(axis=0)
    return variation_scale(totals, totals)


def _noisy_selection(B: Any, config: Config, v: Values) -> Values:
    return {"scores": _noisy(B, config, {**v, **_two_kernels(B, config, v)})["noisy_logits"]}


def _jitter(B: Any, config: Config, v: Values) -> Values:
    epsilon = config["epsilon"] if "epsilon" in config else settings_of("switch", config).jitter
    return {"jittered": B.router_jitter(v["tokens"], v.get("noise"), epsilon=epsilon)}


def _switch_logits(B: Any, config: Config, v: Values) -> Values:
    return {"logits": B.router_logits(v["jittered"], v["router/kernel"])}


def _softmax(B: Any, config: Config, v: Values) -> Values:
    return {"scores": B.softmax_affinity(v["logits"])}


def _switch_selection(B: Any, config: Config, v: Values) -> Values:
    v = {**v, **_jitter(B, config, v)}
    return _softmax(B, config, _switch_logits(B, config, v))


def _s_base_gates(B: Any, config: Config, v: Values) -> Values:
    """What S-BASE selects by and combines with: in training the plan and a gate, else the softmax and a gate."""
    settings = settings_of("s_base", config)
    gate = B.softmax_affinity if settings.combine_with == "softmax" else B.sigmoid_affinity
    gates = gate(v["logits"])
    if not config["train"]:
        return {"selection": B.softmax_affinity(v["logits"]), "gates": gates}
    return {"selection": B.sinkhorn_affinity(v["logits"], iterations=settings.sinkhorn_iterations), "gates": gates}


def _s_base_scale(config: Config, v: Values) -> Any:
    """Of the plan; a softmax has the same form, in which its row is the only sum."""
    logits = v["logits"]
    if config["train"]:
        return sinkhorn_scale(config, v)
    scores = spec.softmax_affinity(logits)
    size = np.abs(logits)
    return scores * (1 + size + (scores * size).sum(axis=1, keepdims=True))


def _s_base_logits(B: Any, config: Config, v: Values) -> Values:
    return {"logits": B.router_logits(v["tokens"], v["router/kernel"])}


def _s_base_selection(B: Any, config: Config, v: Values) -> Values:
    return {"scores": _s_base_gates(B, config, _s_base_logits(B, config, v))["selection"]}


def _gshard_logits(B: Any, config: Config, v: Values) -> Values:
    return {"logits": B.router_logits(v["tokens"], v["router/kernel"])}


def _gshard_selection(B: Any, config: Config, v: Values) -> Values:
    """The scores of both choices, and what decides on the second."""
    v = {**v, **_softmax(B, config, _gshard_logits(B, config, v))}
    v |= _normalized(B, config, v)
    return {"scores": v["scores"], **_kept_scores(B, config, v)}


def _gshard_margin(config: Config, scores: Values, scales: Values) -> float:
    return min(margin_of("gshard", config, scores, scales), _kept(config, scores, scales))


JITTER = Stage(
    "jitter",
    ("router_jitter",),
    ("tokens", "noise"),
    _jitter,
    {"jittered": Output(("groups", "tokens", "width"))},
)

VALUES = {
    "noisy_top_k": ("noisy_logits", "gates"),
    "switch": ("scores", "scores"),
    "s_base": ("selection", "gates"),
    "gshard": ("scores", "normalized"),
}
"""Which values a router selects by and combines with."""

STAGES: dict[str, tuple[Stage, ...]] = {
    "noisy_top_k_affinity": (NOISY, AFFINITY),
    "noisy_top_k_load_loss": (
        Stage(
            "loss",
            ("noisy_top_k_load_loss",),
            ("logits", "noise_logits", "noisy_logits"),
            _load_loss,
            {"loss": Output(written=_load_scale)},
        ),
    ),
    "noisy_top_k": _stages(
        "noisy_top_k",
        Stage(
            "logits",
            ("router_logits",),
            ("tokens", "router"),
            _two_kernels,
            {"noise_logits": Output(TE)},
        ),
        NOISY,
        AFFINITY,
        select=_noisy_selection,
        importance=_of_gates(_importance_scale),
        load=_of_gates(_load_scale),
    ),
    "router_jitter": (JITTER,),
    "switch": _stages(
        "switch",
        JITTER,
        Stage("logits", ("router_logits",), ("jittered", "router"), _switch_logits),
        Stage("softmax", ("softmax_affinity",), ("logits",), _softmax),
        select=_switch_selection,
        balance=_balance_scale,
    ),
    "s_base": _stages(
        "s_base",
        Stage("logits", ("router_logits",), ("tokens", "router"), _s_base_logits),
        Stage(
            "gates",
            ("softmax_affinity", "sigmoid_affinity", "sinkhorn_affinity"),
            ("logits",),
            _s_base_gates,
            {"selection": Output(TE, written=_s_base_scale, constant="sinkhorn"), "gates": Output(TE)},
        ),
        select=_s_base_selection,
        constant="sinkhorn",
    ),
    "normalize_selected": (
        Stage(
            "normalize",
            ("normalize_selected",),
            ("scores", "combine_scores"),
            _normalized,
            {"normalized": Output(TE)},
            Choice("scores", _chosen),
        ),
    ),
    "gshard": _stages(
        "gshard",
        Stage("logits", ("router_logits",), ("tokens", "router"), _gshard_logits),
        Stage("softmax", ("softmax_affinity",), ("logits",), _softmax),
        Stage(
            "normalize",
            ("normalize_selected",),
            ("scores",),
            _normalized,
            {"normalized": Output(TE)},
            Choice("scores", partial(margin_of, "gshard")),
        ),
        Stage(
            "second",
            ("gshard_keep",),
            ("normalized", "noise"),
            _keep,
            {"keep": Output(("groups", "tokens", "choices"), "int")},
            Choice(_kept_scores, _kept),
        ),
        select=_gshard_selection,
        margin=_gshard_margin,
        balance=_balance_scale,
    ),
}
