"""Defines one wide case per router, with sizes, numbers and options that the small cases omit.

A wide case has three groups, odd sizes, numbers with more bits than bfloat16, a weight for every loss, and non-default options.
The case differentiates the output and all losses with respect to the tokens, the noise, the router parameters and the expert kernels.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from moespec.conformance.author.definition import Definition, Draws, Noise, tensor
from moespec.conformance.author.inputs import grid, integers
from moespec.conformance.author.large import AXES
from moespec.conformance.author.routers import router_case
from moespec.conformance.format import Tensor
from moespec.spec import ROUTERS

__all__ = ["wide_routers"]

STEP = 2.0**-14
"""Grid step of all numbers. Most of these numbers are not exact in bfloat16."""
TOKENS, EXPERTS, WIDTH, IDS = 3, 3, 3, 7
NINE = ("sigmoid_token_choice", "softmax_token_choice")
"""Routers whose wide case has nine choices. Two routers suffice, as the other routers choose with the same functions."""
GATING = Noise("tokens experts", 1.0, STEP)
NOISE = {
    "base": Noise("tokens", 1.0, STEP),
    "gshard": GATING,
    "hierarchical_top_k": Noise("tokens columns", 1.0, STEP),
    "noisy_top_k": GATING,
    "switch": Noise("tokens width", 1.0, STEP),
}
"""Noise by router. Other routers have gating noise if they have the option `noise_multiplier`."""

EVERYWHERE: dict[str, Any] = {
    "bias": True,
    "logit_cap": 2.5,
    "capacity_factor": 0.75,
    "rounding": "round",
    "multiple_of": 2,
    "eval_capacity_factor": 1.25,
    "batch_priority": "sum",
    "normalize_when": "after",
    "normalize_norm": "euclidean",
    "importance_weight": 0.5,
    "load_weight": 0.25,
    "balance_weight": 0.125,
    "z_weight": 0.0625,
    "balance_scope": "batch",
    "balance_logits": "clean",
    "z_logits": "noisy",
    "noise_multiplier": 0.5,
    "choices": 2,
}
"""Option values by name, for each router that has the option."""
OWN: Mapping[str, dict[str, Any]] = {
    "base": {"tokens": 9, "shards": 3},
    "batch_expert_choice": {"eval_take": "above", "predictor_weight": 0.5, "threshold_decay": 0.75},
    "cosine_token_choice": {
        "multiple_of": 3,
        "normalize_selected": True,
        "dimensions": 5,
        "temperature_form": "divide",
        "initial_temperature": 0.75,
        "affinity": "sigmoid",
    },
    "dselect_k": {"selector_gamma": 0.5, "selector_entropy_weight": 0.25, "reachability_weight": 0.125},
    "gshard": {"normalize_selected": False, "second_expert": "all", "hold_unkept": False},
    "hash": {},
    "hierarchical_top_k": {"branches": 3, "experts": 9, "choices_per_level": 3},
    "image_choice": {
        "multiple_of": 5,
        "tokens": 9,
        "images": 3,
        "pool": "first",
        "normalize_selected": True,
        "batch_priority": "none",
    },
    "importance_score": {"drop": 0.25},
    "mixture_of_depths": {"weights": "sigmoid"},
    "noisy_top_k": {"normalize_selected": True, "experts": 5, "choices": 3},
    "relu": {"multiple_of": 3},
    "s_base": {"normalize_selected": True, "sinkhorn_iterations": 7, "combine_with": "sigmoid"},
    "sigmoid_token_choice": {
        "experts": 15,
        "affinity": "sqrt_softplus",
        "balance_counts": "first",
        "normalize_selected": False,
        "scale": 1.5,
        "expert_groups": 3,
        "chosen_groups": 2,
        "group_score": "max",
        "group_bias": False,
        "outside": "zero",
    },
    "sinkhorn_expert_choice": {"combine_with": "plan", "combine_from_clean_logits": True, "sinkhorn_iterations": 7},
    "sinkhorn_token_choice": {
        "normalize_selected": True,
        "balance_counts": "all",
        "combine_from_clean_logits": True,
        "sinkhorn_iterations": 7,
    },
    "soft_moe": {"rounding": "ceil", "multiple_of": 3},
    "softmax_expert_choice": {"tokens": 5, "cap": 2, "cap_regularization": 0.25},
    "softmax_token_choice": {"normalize_selected": True, "balance_counts": "all", "tries": 10},
    "sparsity_constrained_expert_choice": {"transport_steps": 7},
    "sparsity_constrained_token_choice": {
        "transport_steps": 7,
        "balance_counts": "all",
        "normalize_selected": True,
        "combine_from_clean_logits": True,
    },
    "strictly_balanced": {"threshold_weight": 0.25},
    "switch": {"jitter": 0.25, "tries": 2, "normalize_selected": True},
    "variable_budget": {"gate": "normalized_softmax", "entropy_weight": 0.25, "gain": 0.5, "integral_gain": 0.25},
}
"""Router-specific options, and sizes where the default sizes do not fit."""


WITHOUT = {"hash": {"choices"}}
"""Options that the cases of a router do not set."""
SMALL = (
    *("batch_expert_choice", "cosine_token_choice", "image_choice", "importance_score", "mixture_of_depths"),
    *("noisy_top_k", "relu", "sigmoid_token_choice", "sinkhorn_expert_choice", "sinkhorn_token_choice"),
    *("softmax_expert_choice", "sparsity_constrained_expert_choice", "sparsity_constrained_token_choice"),
    *("strictly_balanced", "variable_budget"),
)
ONE: Mapping[str, dict[str, Any]] = {
    **{key: {} for key in SMALL},
    "gshard": {"experts": 2},
    "hash": {"ids": 1},
    "hierarchical_top_k": {"branches": 1, "choices_per_level": 1},
}
"""Routers for which no other file defines a case with one token and the minimum number of experts, with the options of that case."""


def wide_routers() -> Iterator[Definition]:
    """Yield the wide case of each router, and a case with one token and one expert for each router in `ONE`."""
    yield from (wide(router) for router in ROUTERS)
    yield from (one(router) for router in ONE)


def one(router: str) -> Definition:
    """Return a case with one token, width 1 and, if possible, one expert."""
    known = {field.name for field in fields(ROUTERS[router].Options)} - WITHOUT.get(router, set())
    least = {"choices": 1, "noise_multiplier": 0.0, "images": 1, "dimensions": 1, "capacity_factor": 1.0}
    options: dict[str, Any] = {name: value for name, value in least.items() if name in known} | ONE[router]
    experts = options.pop("experts", 1)
    made = ROUTERS[router].options(tokens=1, experts=experts, width=1, **options)
    params, state = _parameters(router, made, f"routers/{router}/one")
    inputs = {"tokens": tensor([[[0.5]]], "groups tokens width")}
    if "ids" in options:
        inputs["ids"] = tensor([[0]], "groups tokens")
    given: dict[str, Any] = {"params": params, "state": state, "inputs": inputs, "sizes": (1, experts, 1), "hidden": 1}
    purpose, flags = "One token and one expert.", ("degenerate_size", "low_precision")
    given |= {"by": ("tokens",), "losses": False, **options}
    return router_case(router, "one", "gradient", purpose, *flags, **given)


def wide(router: str) -> Definition:
    """Return the wide case of one router."""
    row, own, key = ROUTERS[router], OWN[router], f"routers/{router}/wide"
    known = {field.name for field in fields(row.Options)} - WITHOUT.get(router, set())
    sizes = {"tokens": TOKENS, "experts": EXPERTS, "width": WIDTH}
    if router in NINE:
        sizes |= {"experts": 11, "choices": 9}
    if row.requires == "ids":
        sizes["ids"] = IDS
    options = {name: value for name, value in EVERYWHERE.items() if name in known} | sizes | own
    made = row.options(**options)
    params, state = _parameters(router, made, key)
    inputs = {}
    if router in ("hash", "soft_moe"):  # hash and soft_moe do not choose by token scores
        inputs["tokens"] = tensor(grid(f"{key}/tokens", (3, TOKENS, WIDTH), step=STEP), "groups tokens width")
    if row.requires == "ids":
        inputs["ids"] = tensor(integers(f"{key}/ids", (3, sizes["tokens"]), 0, IDS - 1), "groups tokens")
    sizes = {name: options.pop(name) for name in ("tokens", "experts", "width")}
    drawn_noise = NOISE.get(router, GATING if "noise_multiplier" in known else None)
    by = ("tokens", *(("noise",) if drawn_noise else ()), *(f"router/{name}" for name in params if name != "tables"))
    by += tuple(f"experts/{name}" for name in ("w1", "w2"))
    purpose = "Three groups, odd sizes, all options that can be combined, numbers of more bits than bfloat16 has."
    return router_case(
        router,
        "wide",
        "gradient",
        purpose,
        "low_precision",
        params=params,
        state=state,
        inputs=inputs,
        sizes=(sizes["tokens"], sizes["experts"], sizes["width"]),
        train=True,
        noise=drawn_noise,
        groups=3,
        draws=Draws(step=STEP, tries=40, enough=0.01),
        hidden=1,
        losses=any(name.endswith("weight") for name in known),
        by=by,
        **options,
    )


def _parameters(router: str, made: Any, key: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the parameters and the state of a router."""
    row = ROUTERS[router]
    params = {}
    for name, array in row.init(np.random.default_rng(0), made).items():
        centre = {"thresholds": 0.25, "scale": 1.0, "temperature": 0.75}.get(name, 0.0)
        drawn: Any = grid(f"{key}/{name}", np.shape(array), reach=0.25 if centre else 1.0, step=STEP, centre=centre)
        if name == "tables":
            drawn = integers(f"{key}/{name}", np.shape(array), 0, made.experts - 1).astype(np.float32)
        params[name] = tensor(drawn, AXES[name])
    state = {
        name: tensor(
            grid(f"{key}/{name}", np.shape(array), reach=0.25, step=STEP, centre=0.5),
            {"controller": "pair", "cutoffs": "pair experts"}.get(name, "experts" * np.ndim(array)),
        )
        for name, array in row.initial_state(made).items()
    }
    return params, state
