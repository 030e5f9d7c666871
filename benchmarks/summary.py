"""The tables in the section "In short" of docs/speed.md, which compare this package with other projects and with dense models."""

from collections.abc import Iterator
from math import inf
from typing import Any

HEAD = ["on one core of a CPU", "ours", "others", "goal", "why missed"]
HEAD_PROCESS = ["in a user's process, one core", "CPU ms", "ratio", "goal", "why missed"]
HEAD_TPU = ["according to the TPU's compiler", "ours", "others", "goal", "why missed"]

FAST = "at most 3 % slower than a peer"
BLOCKS = "XLA on a CPU multiplies blocks of 256 rows more slowly than all rows at once"


def cpu_rows(layers: dict[str, Any], larger: dict[str, Any], steps: dict[str, Any]) -> Iterator[list[str]]:
    """Yield one table row for each comparison. Each argument maps the names of backends to results."""

    def times(result: Any, name: str, part: str = "layers") -> float:
        value: float = result["figures"][part].get(name, {"times_dense": inf})["times_dense"]
        return value

    def row(what: str, ours: float, others: dict[str, float], goal: str, reached: bool, why: str) -> list[str]:
        told = ", ".join(f"{name} {value:.2f}" for name, value in others.items() if value < inf)
        told = told or ("not confirmed" if others else "")
        return [what, f"{ours:.2f}", told, goal, "" if reached else why]

    sizes = (("8 experts", layers), ("32 experts", larger))
    for backend, what, router, others in (
        ("jax", "layer k = 1", "softmax_token_choice", {"vmoe's indices": "vmoe indices, k = 1", "vmoe's einsum": "vmoe einsum, k = 1"}),
        ("torch", "layer k = 1", "softmax_token_choice", {"st-moe-pytorch": "st-moe-pytorch"}),
        ("jax", "Soft MoE layer", "soft_moe", {"vmoe": "vmoe soft"}),
        ("torch", "Soft MoE layer", "soft_moe", {"soft-moe-pytorch": "soft-moe-pytorch"}),
    ):  # fmt: skip
        for size, results in sizes:
            theirs = {name: times(results[backend], key) for name, key in others.items()}
            ours = times(results[backend], router)
            yield row(f"{backend}, {what}, {size}", ours, theirs, FAST, ours <= 1.03 * min(theirs.values()), "unknown")
    for backend in layers:
        for size, results in sizes:
            ours, fixed = times(results[backend], "hash"), times(results[backend], "softmax_token_choice")
            floor = f"moving rows to experts and back costs as much as at k = 1 ({fixed:.2f})"
            why = floor if backend == "torch" or ours <= fixed + 0.05 else f"{floor}, and {BLOCKS}"
            yield row(f"{backend}, layer without a capacity (hash), {size}", ours, {}, "1.15", ours <= 1.15, why)
    for backend, name, other in (
        ("jax", "vmoe dense", "vmoe's ViT"),
        ("torch", "torch.nn.TransformerEncoder", "torch.nn"),
    ):
        value, what = times(steps[backend], name, "steps"), f"{backend}, loss and gradients of a dense ViT-S/16"
        yield row(what, 1.0, {other: value}, "1.05 times the other", value >= 1 / 1.05, "unknown")


def process_rows(figures: dict[str, Any]) -> Iterator[list[str]]:
    """Yield rows for the layers and programs of own_process.py."""
    goals = {"softmax_token_choice": 1.0, "sigmoid_token_choice": 1.24, "soft_moe": 1.0}
    reasons = {
        "softmax_token_choice": "its two losses, which the other project does not have",
        "sigmoid_token_choice": "two choices, and rows sorted by expert instead of a capacity",
    }
    for size in ("tiny", "large"):
        for name, row in figures[size]["layers"]["rows"].items():
            goal, ratio = goals.get(name), row["times_other"]
            # A ratio within the spread of two measurements of the other layer is no miss.
            missed = goal is not None and ratio > goal + 0.03 and ratio > figures[size]["layers"]["agree"]
            told = "" if goal is None else f"{goal:g} (+ 3 %)"
            yield [
                f"{size} layer, `{name}`",
                f"{1e3 * row['cpu_seconds']:.2f}",
                f"{ratio:.2f}",
                told,
                reasons.get(name, "unknown") if missed else "",
            ]
    for name, row in figures["starts"].items():
        of_torch, seconds = "moespec.backends" in name, row["cpu_seconds"]
        goal = 1.1 if of_torch else 0.3 if name.startswith("moespec") else None
        missed = goal is not None and (row["times_torch"] if of_torch else seconds) > goal
        why = "defines the options of all routers and the operators" if missed else ""
        told = "" if goal is None else "1.1" if of_torch else "300 ms"
        yield [f"`{name}`", f"{1e3 * seconds:.0f}", f"{row['times_torch']:.2f}", told, why]


def tpu_rows(layers: dict[str, Any], steps: dict[str, Any]) -> Iterator[list[str]]:
    """Yield rows for steps of ViT-S/16 (bytes relative to the dense step) and for layers (bytes, beside the bytes of vmoe's layers)."""
    of_model = [row for row in steps["rows"] if row["of"]["model"] == "vit_s16"]
    dense = next(row for row in of_model if row["of"]["case"] == "dense")
    for row in of_model[2:]:
        if "recomputed" not in row["of"]["case"]:
            ratio, flops = row["gigabytes_accessed"] / dense["gigabytes_accessed"], row["flops_over_count"]
            told = f"{ratio:.2f} times the dense bytes, {flops:.2f} times the counted FLOPs"
            why = "" if flops <= 1.05 else "products with one-hot rows add FLOPs but save bytes"
            yield [f"step of ViT-S/16, 32 images, `{row['of']['case']}`", told, "", "1.05 times the counted FLOPs", why]
    of = layers["rows"]
    tiles = "slots are reordered from images to experts, and back"
    kernels = "kernels of dropless experts cannot contain the activation or the conversion of their matrices"
    single = ("vmoe indices, k = 1", "vmoe einsum, k = 1")
    for ours, (others, why) in {
        "softmax_token_choice": (single, tiles),
        "softmax_token_choice, k = 2": (("vmoe indices, k = 2", "vmoe einsum, k = 2"), tiles),
        "softmax_expert_choice": (("vmoe expert choice",), tiles),
        "soft_moe": (("vmoe soft",), tiles),
        "hash": (single, kernels),
        "s_base": (single, kernels),
        "image_choice": (single, kernels),
    }.items():
        names = (ours, *others)
        values = {name: (of[name]["gigabytes_of_buffers"], of[name]["gigabytes_accessed"]) for name in names}
        told = {name: f"{moved:.2f} ({counted:.2f}) GB" for name, (moved, counted) in values.items()}
        reached = values[ours][0] <= 1.3 * values[others[0]][0]
        theirs = ", ".join(f"{name} {told[name]}" for name in others)
        yield [
            f"layer, `{ours}`, buffers (compiler's count)",
            told[ours],
            theirs,
            f"1.3 times {others[0]}",
            "" if reached else why,
        ]
