"""Stages of the layer that all routers share: the experts, the metrics of a routing, dispatch and combine."""

from typing import Any

import numpy as np

from moespec import spec
from moespec.conformance.program import Config, Output, Stage, Values, nested

__all__ = ["STAGES", "absolute_layer", "experts_of"]


def experts_of(B: Any, config: Config, v: Values) -> Any:
    """The experts of a case as the function that `moe_layer` takes: MLPs, or the identity where it gives none."""
    params = nested(v, "experts")
    if not params:
        return lambda inputs: inputs
    return lambda inputs: B.expert_mlp(inputs, params, gelu=config.get("gelu", "tanh"))


def absolute_experts(inputs: Any, v: Values) -> Any:
    """The experts on absolute values: `(|x| |w1| + |b1|) |w2| + |b2|`, since `|gelu(z)| <= |z|`."""
    w = {name: np.abs(array) for name, array in nested(v, "experts").items()}
    if not w:
        return inputs
    hidden = np.einsum("ecd,edh->ech", inputs, w["w1"]) + w["b1"][:, None]
    return np.einsum("ech,ehd->ecd", hidden, w["w2"]) + w["b2"][:, None]


def absolute_layer(routing: Any, v: Values) -> Any:
    """The layer on absolute values."""
    inputs = np.einsum("tec,td->ecd", routing.dispatch, np.abs(v["tokens"]))
    return np.einsum("tec,ecd->td", np.abs(routing.combine), absolute_experts(inputs, v))


def _experts(B: Any, config: Config, v: Values) -> Values:
    used = {"used": v["used"] > 0} if "used" in v else {}
    return {"outputs": B.expert_mlp(v["inputs"], nested(v, "experts"), **used, **config)}


def _experts_scale(config: Config, v: Values) -> Any:
    scale = absolute_experts(np.abs(v["inputs"]), v)
    return np.where(v["used"][:, None, None] > 0, scale, 0) if "used" in v else scale


def _routing(B: Any, config: Config, v: Values) -> Any:
    """The routing that `config["allocation"]` names, on scores (or slots) that the case gives."""
    options = dict(config["options"])
    if config["allocation"] == "soft_routing":
        return B.soft_routing(v["tokens"], v["slots"], **options)
    return getattr(B, config["allocation"])(v["scores"], **options)


def _layer(B: Any, config: Config, v: Values) -> Values:
    return {"output": B.moe_layer(v["tokens"], _routing(B, config, v), experts_of(B, config, v))}


def _metrics(B: Any, config: Config, v: Values) -> Values:
    return {f"metrics/{name}": value for name, value in B.routing_metrics(_routing(B, config, v)).items()}


LAYER = Output(("groups", "tokens", "width"), written=lambda config, v: absolute_layer(_routing(spec, config, v), v))
READS = ("tokens", "scores", "slots")

STAGES: dict[str, tuple[Stage, ...]] = {
    "moe_layer": (
        Stage(
            "experts",
            ("expert_mlp",),
            ("inputs", "experts", "used"),
            _experts,
            {
                "outputs": Output(
                    ("groups", "experts", "capacity", "width"),
                    scale="written",
                    written=_experts_scale,
                )
            },
        ),
        Stage("metrics", ("routing_metrics",), READS, _metrics),
        Stage("layer", ("moe_layer", "expert_mlp"), (*READS, "experts"), _layer, {"output": LAYER}),
    ),
}
