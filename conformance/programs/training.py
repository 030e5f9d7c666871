"""Stages of the vision transformer: training steps, with the routing of each.

The whole runs outside compiled code, as training does; what is compiled is the loss (by the target's `compile`) and
whatever the target's `make_step` compiles itself.
"""

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from moespec.conformance.program import Choice, Config, Output, Stage, Values, nested
from moespec.conformance.programs.models import allocation_margin, recorded
from moespec.conformance.programs.models import prepare as prepare_model

__all__ = ["KEPT", "STAGES"]

KEPT = (1, 5)
"""The steps after which the parameters are results, beside the last."""


def prepare(config: Config) -> Config:
    """The model and its optimiser."""
    optimizer = importlib.import_module("moespec.backends.optimizer").OptimizerConfig(**config["optimizer"])
    return {**prepare_model("vit", config), "optimizer": optimizer}


def trained(
    B: Any, config: Config, v: Values, before: Callable[[Any, Any], None] = lambda params, images: None
) -> Values:
    """A step for each of `config["rates"]`, over the images in turn, `config["batch"]` at a time.

    before: called before each step with its parameters and images.
    """
    module, built, batch = config["module"], config["built"], config["batch"]
    mode = _mode(config)

    def loss_function(params: Any, batch: Any) -> tuple[Any, Values]:
        output = module.forward(B, built, params, batch["images"], **mode)
        loss = B.mean(B.softmax_cross_entropy(output.logits, batch["targets"]), 0)
        for term in output.losses.values():
            loss = loss + term
        (routing,) = [routing.dense() for routing in output.routings]
        return loss, {"dispatch": routing.dispatch, "combine": routing.combine}

    # The loss is compiled here, for all targets alike; a step that can compile it again need not.
    options = {"compiled": False} if "compiled" in inspect.signature(B.make_step).parameters else {}
    step = B.make_step(config.get("compile", _as_it_is)(loss_function), config["optimizer"], **options)
    state = B.init_state(nested(v, "params"), config["optimizer"])
    metrics: list[Values] = []
    results: Values = {}
    for n, rate in enumerate(config["rates"]):
        start = n * batch % v["images"].shape[0]
        part = {name: v[name][start : start + batch] for name in ("images", "targets")}
        before(B.state_params(state), part["images"])
        state, found = step(state, part, rate)
        metrics.append(B.to_numpy(found))
        if n + 1 in (*KEPT, len(config["rates"])):
            results[f"parameters/{n + 1}"] = _flat(B.export_state(state)["params"])
    each = {name: np.stack([np.asarray(one[name]) for one in metrics]) for name in metrics[0]}
    sparse = "" if config["model"]["router"] == "soft_moe" else "routing."
    return {
        "losses": each["loss"],
        "gradient_norms": each["grad_norm"],
        f"{sparse}dispatch": each["dispatch"],
        f"{sparse}combine": each["combine"],
        **results,
    }


def _mode(config: Config) -> dict[str, bool]:
    """The argument `train` of the model, where `config` says that its router trains otherwise than it evaluates."""
    return {"train": True} if config.get("train") else {}


def _as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def _flat(tree: Any) -> Any:
    """All parameters as one vector, in the order of their names."""
    if isinstance(tree, dict):
        return np.concatenate([_flat(tree[name]) for name in sorted(tree)])
    return np.asarray(tree).ravel()


def _scores(B: Any, config: Config, v: Values) -> Values:
    """What is ordered in each step, by `step/rule/number chosen`."""
    found: Values = {}
    copy, notes = recorded(B)

    def note(params: Any, images: Any) -> None:
        notes.clear()
        config["module"].forward(copy, config["built"], params, images, **_mode(config))
        for rule, scores, options in notes:
            found[f"{len(found)}/{rule}/{options.get('choices', options['capacity'])}"] = scores

    trained(B, config, v, note)
    return found


_RESULT: dict[str, Any] = {"scale": "spread", "constant": "trajectory"}
_SLOTS = ("steps", "groups", "experts", "capacity")
_DENSE = ("steps", "groups", "tokens", "experts", "capacity")

STAGES: dict[str, tuple[Stage, ...]] = {
    "vit": (
        Stage(
            "train",
            (
                "make_step",
                "init_state",
                "state_params",
                "export_state",
                "ROUTERS",
                "moe_layer",
                "softmax_cross_entropy",
            ),
            ("params", "images", "targets"),
            trained,
            {
                "losses": Output(("steps",), **_RESULT),
                "gradient_norms": Output(("steps",), **_RESULT),
                "slots": Output(_SLOTS, "int"),
                "weights": Output(_SLOTS, **_RESULT),
                "dispatch": Output(_DENSE, **_RESULT),
                "combine": Output(_DENSE, **_RESULT),
                "parameters/*": Output(("parameters",), **_RESULT),
            },
            Choice(_scores, allocation_margin, "magnitude", "drift", wide=False),
            traced=False,
            batched=True,
            pooled=True,
            prepare=prepare,
        ),
    ),
}
