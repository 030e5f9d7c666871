"""Cases of the vision transformer with each router."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from moespec.conformance.cases.definition import Definition, tensor
from moespec.conformance.draw import grid, integers, to_bfloat16
from moespec.conformance.programs.models import prepare

__all__ = ["cases", "parameters"]

TINY = {"image_size": 4, "patch_size": 2, "channels": 1, "width": 8, "depth": 2, "hidden": 8, "heads": 2, "classes": 3}
SMALL = {**TINY, "width": 4, "hidden": 4, "heads": 1}
LEAST = {**SMALL, "width": 3, "hidden": 2}
STUDY = (
    *("softmax_token_choice", "sinkhorn_token_choice", "softmax_expert_choice", "sinkhorn_expert_choice"),
    *("sparsity_constrained_expert_choice", "soft_moe"),
)
TRAJECTORIES = {
    "softmax_token_choice": 0,
    "sinkhorn_token_choice": 1,
    "softmax_expert_choice": 2,
    "sinkhorn_expert_choice": 0,
    "sparsity_constrained_expert_choice": 5,
    "soft_moe": 0,
    "importance_score": 0,
    "dselect_k": 5,
    "base": 4,
    "hash": 0,
    "switch": 0,
    "s_base": 1,
    "gshard": 1,
    "noisy_top_k": 0,
}
"""Router and the number of the draw of its numbers: the first without a step near a tie."""

VARIANTS: dict[str, dict[str, Any]] = {
    "soft_moe": {"pool": "gap", "qk_norm": True},
    "softmax_token_choice": {"pool": "token", "router_options": {"choices": 2}, "group_images": 2},
    "sinkhorn_token_choice": {"pool": "map", "group_images": 2},
    "softmax_expert_choice": {"positions": "sincos2d", "gelu": "erf", "group_images": 2},
    "sinkhorn_expert_choice": {"positions": "sincos2d_moco", "moe": "last_half", "group_images": 2},
    "sparsity_constrained_expert_choice": {"expert_init": "shared", "group_images": 2},
    "hash": {**SMALL, "pool": "token", "codes": 3, "token_ids": "position_code", "group_images": 2},
    "multi_hash": {**SMALL, "router": "hash", "codes": 3, "router_options": {"hashes": 2}},
}


def parameters(model: dict[str, Any], key: str, module: str = "vit") -> dict[str, Any]:
    """Parameters of a model on a grid: no bias and no scale is left at a value that hides it."""
    prepared = prepare(module, {"model": model})
    found = {}

    def visit(tree: Any, path: str) -> None:
        for name, value in tree.items():
            if isinstance(value, dict):
                visit(value, f"{path}/{name}")
                continue
            if name == "tables":  # an expert for each id
                drawn = integers(f"{key}{path}/{name}", value, 0, model["experts"] - 1).astype(np.float32)
                found[f"params{path}/{name}"] = tensor(drawn, "axis0 axis1")
                continue
            centre, reach = (1.0, 0.25) if name == "scale" else (0.0, 0.25) if name.startswith("b") else (0.0, 0.75)
            drawn = to_bfloat16(grid(f"{key}{path}/{name}", value, reach=reach, step=0.0625, centre=centre))
            found[f"params{path}/{name}"] = tensor(drawn, " ".join(f"axis{i}" for i in range(len(value))))

    visit(prepared["module"].parameter_shapes(prepared["built"]), "")
    return found


def cases() -> Iterator[Definition]:
    """All cases of this module."""
    for router, variant in VARIANTS.items():
        model = {**TINY, "moe": "every_2", "router": router, "experts": 4, **variant}
        inputs = {
            "images": tensor(grid(f"vit/{router}/images", (2, 4, 4, 1)), "images height width channels"),
            **parameters(model, f"vit/{router}"),
        }
        flags = ("model", "generated_code") if router in ("soft_moe", "softmax_token_choice") else ("model",)
        purpose = f"Logits, features and routing of a small MoE-ViT with {router}."
        yield Definition("vit", router, "value", purpose, inputs, {"model": model}, ("forward",), flags)
    for router, draw in TRAJECTORIES.items():
        yield trajectory(router, draw)


def trajectory(router: str, draw: int) -> Definition:
    """Training steps: a batch that comes again is routed otherwise, and no step is near a tie."""
    depth = 2 if router == "softmax_token_choice" else 1  # a dense block before that with experts, once
    size = SMALL if router in STUDY else LEAST
    model = {**size, "depth": depth, "moe": "last_1", "router": router, "experts": 3, "pool": "gap", "group_images": 2}
    if router.startswith("sparsity"):
        model["router_options"] = {"transport_steps": 5}
    if router == "importance_score":
        model["router_options"] = {"drop": 0.25}  # two of eight tokens
    if router == "hash":
        model["codes"] = 5
    if router == "base":
        model["experts"] = 4  # which eight tokens can be divided among
    key = f"vit/training/{router}/{draw}"
    inputs = {
        "images": tensor(grid(f"{key}/images", (4, 4, 4, 1)), "images height width channels"),
        "targets": tensor(np.eye(3)[[0, 1, 2, 1]], "images classes"),
        **parameters(model, key),
    }
    # Every dtype has these numbers: `1 - b2` of b2 = 0.999 in float32 is wrong by 1e-5. A large epsilon, so that what is
    # 0 but for rounding (the gradient of a key's bias) does not become a full step.
    config = {
        "model": model,
        "optimizer": {"b1": 0.75, "b2": 0.9375, "weight_decay": 0.0625, "clip": 1.0, "epsilon": 2.0**-10},
        "rates": [2.0**-6] * 2 + [2.0**-5] * 8 + [2.0**-6] * 10,
        "batch": 2,
    }
    if router in ("base", "s_base"):
        config["train"] = True  # they assign otherwise than at evaluation
    purpose = f"Twenty steps of AdamW with clip and decay, {router}: losses, routing of each step, parameters."
    flags = ("model", "generated_code") if router == "softmax_token_choice" else ("model",)
    return Definition("vit", f"training_{router}", "trajectory", purpose, inputs, config, ("train",), flags)
