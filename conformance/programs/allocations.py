"""Stages of the allocations: Token Choice, Batch Priority Routing, Expert Choice, and of soft routing."""

from collections.abc import Callable
from typing import Any

import numpy as np

from moespec.conformance.margins import expert_choice_margin, order_margin, token_choice_margin
from moespec.conformance.program import Choice, Config, Output, Stage, Values, routing_arrays
from moespec.spec import soft_routing
from moespec.spec.numerics import normalize_l2

__all__ = ["SOFT", "STAGES", "expert_choices", "priorities", "token_choices"]

WEIGHTS = {"weights": Output(("groups", "experts", "capacity"), scale="magnitude")}
"""Weights are copies of scores."""


def token_choices(config: Config, scores: Values, scales: Values) -> float:
    """The margin of Token Choice with `config["choices"]`."""
    return token_choice_margin(scores["scores"], scales["scores"], config["choices"])


def expert_choices(config: Config, scores: Values, scales: Values) -> float:
    """The margin of Expert Choice with `config["capacity"]`."""
    return expert_choice_margin(scores["scores"], scales["scores"], config["capacity"])


def priorities(config: Config, scores: Values, scales: Values) -> float:
    """The margin of the order of Batch Priority Routing; a token has the largest scale of its scores."""
    counted = config.get("choices", 1) if config.get("by") == "sum" else 1
    priority = np.sort(scores["scores"], axis=-1)[..., -counted:].sum(axis=-1)
    return order_margin(priority, counted * scales["scores"].max(axis=-1))


def _token_choice(B: Any, config: Config, v: Values) -> Values:
    optional: Values = {name: v[name] for name in ("combine_scores", "order") if name in v}
    if "keep" in v:
        optional["keep"] = v["keep"] != 0
    return routing_arrays(
        B.token_choice(v["scores"], choices=config["choices"], capacity=config["capacity"], **optional)
    )


def _expert_choice(B: Any, config: Config, v: Values) -> Values:
    return routing_arrays(B.expert_choice(v["scores"], combine_scores=v.get("combine_scores"), **config))


def _batch_priority(B: Any, config: Config, v: Values) -> Values:
    options = {name: config[name] for name in ("by", "choices") if name in config}
    return {"order": B.batch_priority(v["scores"], **options)}


def _soft_routing(B: Any, config: Config, v: Values) -> Values:
    scale = {"scale": v["scale"]} if "scale" in v else {}
    return routing_arrays(B.soft_routing(v["tokens"], v["slots"], **scale, **config), sparse=False)


def _soft_scale(name: str) -> Callable[[Config, Values], Any]:
    """The softmaxes of Soft MoE on absolute values.

    With absolute logits `a = |x| |phi|` of the normalised x and phi, rounding moves `p = softmax(L)` by at most
    `u p (1 + a + sum p a)` to first order, the sum being that of the softmax.
    """

    def scale(config: Config, v: Values) -> Any:
        options = {key: value for key, value in config.get("router", config).items() if key in FORMS}
        given = {key.removeprefix("router/"): array for key, array in v.items()}
        tokens, slots, factor = given["tokens"], given["slots"], given.get("scale", np.float64(1.0))
        p = getattr(soft_routing(tokens, slots, scale=factor, **options), name)
        if options.get("normalize", True):
            form = options.get("norm_form", "paper")
            tokens, slots = normalize_l2(tokens, 1, form=form), factor * normalize_l2(slots, 0, form=form)
        size = np.einsum("td,dec->tec", np.abs(tokens), np.abs(slots))
        return p * (1 + size + (p * size).sum(axis=0 if name == "dispatch" else (1, 2), keepdims=True))

    return scale


FORMS = ("normalize", "norm_form", "dispatch", "combine")
SOFT = {
    name: Output(("groups", "tokens", "experts", "capacity"), scale="written", written=_soft_scale(name))
    for name in ("dispatch", "combine")
}
"""How dispatch and combine of Soft MoE are judged."""

TOKEN_CHOICE = Stage(
    "allocation",
    ("token_choice",),
    ("scores", "combine_scores", "order", "keep"),
    _token_choice,
    WEIGHTS,
    Choice("scores", token_choices),
)

STAGES: dict[str, tuple[Stage, ...]] = {
    "token_choice": (TOKEN_CHOICE,),
    "batch_priority": (
        Stage("priority", ("batch_priority",), ("scores",), _batch_priority, choice=Choice("scores", priorities)),
        TOKEN_CHOICE,
    ),
    "expert_choice": (
        Stage(
            "allocation",
            ("expert_choice",),
            ("scores", "combine_scores"),
            _expert_choice,
            WEIGHTS,
            Choice("scores", expert_choices),
        ),
    ),
    "soft_routing": (Stage("routing", ("soft_routing",), ("tokens", "slots", "scale"), _soft_routing, SOFT),),
}
