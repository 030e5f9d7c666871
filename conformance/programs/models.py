"""Stages of the models: their forward pass.

The model is written against a backend, so it is loaded by name, as a target is. In the bf16 lane the parameters stay
float32 and the model computes in bfloat16.
"""

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from moespec.conformance.margins import assignment_margin, expert_choice_margin, order_margin, token_choice_margin
from moespec.conformance.program import Choice, Config, Output, Stage, Values, nested, routing_arrays
from moespec.conformance.programs.hashing import nearness

__all__ = ["STAGES", "allocation_margin", "forward", "prepare", "recorded"]

BLOCKS = 4


CONFIGS = {"vit": "VitConfig", "mixer": "MixerConfig", "sparse_mlp": "SparseMlpConfig"}
"""The models by the name of their module, with that of their configuration."""


def prepare(name: str, config: Config) -> Config:
    """The module of the model and its configuration; `config["dtype"]`, if given, is that of the computation."""
    module = importlib.import_module(f"moespec.models.{name}")
    built = getattr(module, CONFIGS[name])(**config["model"], dtype=config.get("dtype", "float32"))
    return {**config, "module": module, "built": built}


def forward(B: Any, config: Config, v: Values) -> Any:
    """The output of the model that a prepared configuration describes."""
    return config["module"].forward(B, config["built"], nested(v, "params"), v["images"])


def _forward(B: Any, config: Config, v: Values) -> Values:
    output = forward(B, config, v)
    sparse = config["model"].get("router") != "soft_moe"
    arrays = {"logits": output.logits, "features": output.features}
    arrays |= {f"losses/{name}": value for name, value in output.losses.items()}
    for block, routing in enumerate(output.routings):
        arrays |= {f"block{block}/{key}": value for key, value in routing_arrays(routing, sparse=sparse).items()}
    return arrays


def recorded(B: Any) -> tuple[Any, list[tuple[str, Any, dict[str, Any]]]]:
    """A copy of backend `B` that notes the scores and options of every choice it makes, and those notes."""
    notes: list[tuple[str, Any, dict[str, Any]]] = []

    class Recording:
        def __getattr__(self, name: str) -> Any:
            return getattr(B, name)

    copy: Any = Recording()

    def note(name: str) -> Any:
        def allocate(scores: Any, **options: Any) -> Any:
            notes.append((name, scores, options))
            return getattr(B, name)(scores, **options)

        return allocate

    def codes(patches: Any, codebook: Any) -> Any:
        rows = np.asarray(patches).reshape(-1, patches.shape[-1])
        notes.append(("token_choice", nearness(rows, codebook)[None], {"choices": 1, "capacity": 1}))
        return B.patch_codes(patches, codebook)

    def greedy(scores: Any) -> Any:
        notes.append(("token_choice", scores, {"choices": 1, "capacity": 1}))
        return B.base_greedy(scores)

    def assignment(scores: Any) -> Any:
        notes.append(("base_assignment", scores, {"choices": 1, "capacity": 1}))
        return B.base_assignment(scores)

    def selectors(codes: Any, *, experts: int, gamma: float = 1.0) -> Any:
        """Whether a code is inside the step is a choice between its size and half the width of the step."""
        sizes = np.abs(np.asarray(codes).real).reshape(-1)
        pairs = np.stack([sizes, np.full(sizes.shape, gamma / 2)], axis=-1)
        notes.append(("token_choice", pairs[None], {"choices": 1, "capacity": 1}))
        return B.dselect_k_selectors(codes, experts=experts, gamma=gamma)

    for name in _RULES:
        setattr(copy, name, note(name))
    copy.patch_codes, copy.dselect_k_selectors = codes, selectors
    copy.base_greedy, copy.base_assignment = greedy, assignment
    copy.ROUTERS = importlib.import_module("moespec.backends.routers").build(copy)
    return copy, notes


def _scores(B: Any, config: Config, v: Values) -> Values:
    copy, notes = recorded(B)
    forward(copy, config, v)
    return {
        f"{index}/{name}/{options.get('choices', options['capacity'])}": scores.real
        for index, (name, scores, options) in enumerate(notes)
    }


def allocation_margin(config: Config, scores: Values, scales: Values) -> float:
    """The smallest margin of all allocations, whose scores are keyed `.../rule/number chosen`."""
    margins = [float("inf")]
    for key, value in scores.items():
        *_, name, count = key.split("/")
        margins.append(_RULES[name](value, scales[key], int(count)))
    return min(margins)


def _importance_score_margin(scores: Any, scale: Any, choices: int) -> float:
    """Of the choices, and of the order of the tokens; a token has the largest scale of its scores."""
    return min(token_choice_margin(scores, scale, choices), order_margin(scores.max(axis=-1), scale.max(axis=-1)))


def _assignment_margin(scores: Any, scale: Any, choices: int) -> float:
    """Of the balanced assignment of each group."""
    return min(assignment_margin(*group) for group in zip(scores, scale, strict=True))


_RULES: dict[str, Callable[[Any, Any, int], float]] = {
    "token_choice": token_choice_margin,
    "expert_choice": expert_choice_margin,
    "importance_score_choice": _importance_score_margin,
    "base_assignment": _assignment_margin,
}
"""The margin of each allocation that a model may make."""


_SLOTS, _DENSE = ("groups", "experts", "capacity"), ("groups", "tokens", "experts", "capacity")


def _of_model(*axes: str) -> Output:
    return Output(axes, scale="spread", constant="model")


_OUTPUTS = {
    "logits": _of_model("images", "classes"),
    "features": _of_model("images", "width"),
    "losses/*": _of_model(),
}
for _block in range(BLOCKS):
    _OUTPUTS |= {
        f"block{_block}/slots": Output(_SLOTS, "int"),
        f"block{_block}/weights": _of_model(*_SLOTS),
        f"block{_block}/dispatch": _of_model(*_DENSE),
        f"block{_block}/combine": _of_model(*_DENSE),
    }

_CALLS = {
    "vit": ("ROUTERS", "moe_layer", "attention", "layer_norm", "patch_embed"),
    "mixer": ("layer_norm", "patch_embed", "transpose", "gelu"),
    "sparse_mlp": ("ROUTERS", "moe_layer", "rescale", "layer_norm", "patch_embed", "transpose"),
}


def _rescale(B: Any, config: Config, v: Values) -> Values:
    return {"rescaled": B.rescale(v["x"], nested(v, "params"))}


STAGES: dict[str, tuple[Stage, ...]] = {
    name: (
        Stage(
            "forward",
            calls,
            ("params", "images"),
            _forward,
            _OUTPUTS,
            None if name == "mixer" else Choice(_scores, allocation_margin, "spread", "model", wide=False),
            batched=True,
            prepare=partial(prepare, name),
        ),
    )
    for name, calls in _CALLS.items()
}
STAGES["sparse_mlp"] = (
    Stage("rescale", ("rescale",), ("x", "params"), _rescale, {"rescaled": Output(("images", "tokens", "width"))}),
    *STAGES["sparse_mlp"],
)
