"""Cases of the vision transformer with each router."""

import importlib
from collections.abc import Iterator
from typing import Any

from moespec.conformance.cases.definition import Definition, tensor
from moespec.conformance.draw import grid, to_bfloat16

__all__ = ["cases"]

AXES = {1: "width", 2: "rows width", 3: "a b c", 4: "a b c d"}
TINY = {"image_size": 4, "patch_size": 2, "channels": 1, "width": 8, "depth": 2, "hidden": 8, "heads": 2, "classes": 3}
VARIANTS: dict[str, dict[str, Any]] = {
    "soft_moe": {"pool": "gap", "qk_norm": True},
    "softmax_token_choice": {"pool": "token", "router_options": {"choices": 2}, "group_images": 2},
    "sinkhorn_token_choice": {"pool": "map", "group_images": 2},
    "softmax_expert_choice": {"positions": "sincos2d", "gelu": "erf", "group_images": 2},
    "sinkhorn_expert_choice": {"positions": "sincos2d_moco", "moe": "last_half", "group_images": 2},
    "sparsity_constrained_expert_choice": {"expert_init": "shared", "group_images": 2},
}


def parameters(model: dict[str, Any], key: str) -> dict[str, Any]:
    """Parameters of a model on a grid: no bias and no scale is left at a value that hides it."""
    vit = importlib.import_module("moespec.models.vit")
    found = {}

    def visit(tree: Any, path: str) -> None:
        for name, value in tree.items():
            if isinstance(value, dict):
                visit(value, f"{path}/{name}")
                continue
            centre, reach = (1.0, 0.25) if name == "scale" else (0.0, 0.25) if name.startswith("b") else (0.0, 0.75)
            drawn = to_bfloat16(grid(f"{key}{path}/{name}", value, reach=reach, step=0.0625, centre=centre))
            found[f"params{path}/{name}"] = tensor(drawn, " ".join(f"axis{i}" for i in range(len(value))))

    visit(vit.parameter_shapes(vit.VitConfig(**model)), "")
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
