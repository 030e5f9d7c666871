"""Cases of hierarchical noisy top-k gating: the gates of two levels, and the load loss."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from moespec.backends.blocks import Array
from moespec.conformance.author.definition import Definition, single, tensor
from moespec.conformance.author.inputs import grid
from moespec.conformance.author.variant import Spec, Variant
from moespec.conformance.format import Tensor
from moespec.conformance.functions.affinities import chosen_by_level, levels
from moespec.spec.algorithms.choice_probability import choice_probability, is_chosen
from moespec.spec.algorithms.noisy_top_k import noisy_top_k_affinity
from moespec.spec.numerics import variance

__all__ = ["cases", "gates_within", "variants"]

GATES, LOAD = "hierarchical_affinity", "hierarchical_load_loss"
TWO: dict[str, Any] = {"branches": 2, "choices": 2}


def _columns(key: str, shape: tuple[int, int, int], reach: float = 2.0, step: float = 0.125) -> Tensor:
    return tensor(grid(key, shape, reach=reach, step=step), "groups tokens columns")


def cases() -> Iterator[Definition]:
    yield from _gates()
    yield from _load_loss()


def _gates() -> Iterator[Definition]:
    case = partial(single, GATES, GATES)
    levels, size = "two_levels", "degenerate_size"
    three: dict[str, Any] = {"branches": 3, "choices": 2}
    purpose = "Two of three branches, and two of three experts in each."
    yield case("values", "value", purpose, levels, noisy_logits=_columns(f"{GATES}/a", (1, 4, 12)), **three)
    purpose = "Three at each level, where a branch has two experts: both."
    more: dict[str, Any] = {"branches": 4, "choices": 3}
    yield case("few", "degenerate", purpose, levels, size, noisy_logits=_columns(f"{GATES}/b", (1, 3, 12)), **more)
    equal = tensor(np.array([[[0.5] * 12, [0.0, -0.0, 0.0] * 4]]), "groups tokens columns")
    purpose = "Among equals the lower branch, and the lower expert."
    yield case("tied", "tie", purpose, "tie_order", noisy_logits=equal, **three)
    apart = tensor(grid(f"{GATES}/c", (1, 3, 8), reach=1.0) + np.arange(8) / 64, "groups tokens columns")
    yield case("gradient", "gradient", "By the logits of both levels.", levels, noisy_logits=apart, **TWO)


def _load_loss() -> Iterator[Definition]:
    def inputs(key: str, shape: tuple[int, int, int]) -> dict[str, Any]:
        clean = _columns(f"{LOAD}/{key}", shape, reach=1.0)
        noise = _columns(f"{LOAD}/{key}/noise", shape, 0.5, 0.0625).array + np.arange(shape[2]) / 64
        scale = _columns(f"{LOAD}/{key}/scale", shape, step=0.25)
        return {
            "logits": clean,
            "noise_logits": scale,
            "noisy_logits": tensor(clean.array + noise, "groups tokens columns"),
        }

    case = partial(single, LOAD, LOAD)
    levels, other = "two_levels", "threshold_excludes_self"
    three: dict[str, Any] = {"branches": 3, "choices": 2}
    yield case("values", "value", "Two of three at each level.", levels, other, **inputs("a", (2, 3, 12)), **three)
    far = inputs("b", (1, 4, 6))
    far["noisy_logits"].array[..., 1] = -4.0
    purpose = "A branch that no token chooses, though it has a chance."
    yield case("empty_branch", "degenerate", purpose, levels, "unused_expert", **far, branches=2, choices=1)
    yield case("gradient", "gradient", "By all logits.", levels, other, **inputs("c", (1, 3, 6)), branches=2, choices=1)


# Variants. The shape of arrays is (groups, tokens, columns).


def gates_within(columns: Any, branches: int, choices: int) -> Any:
    """Returns each expert's gate within its branch, or 0 if the token did not choose the branch."""
    upper, lower = levels(columns, branches)
    choices_by_level = chosen_by_level(columns, branches, choices)
    inner = noisy_top_k_affinity(lower, choices=choices_by_level[1])
    return (is_chosen(upper, choices_by_level[0]).reshape(-1, 1) * inner).reshape(len(columns), -1)


def _one_in_second(columns: Array, branches: int, choices: int) -> Any:
    upper, lower = levels(columns, branches)
    choices_by_level = chosen_by_level(columns, branches, choices)
    first = is_chosen(upper, 1).reshape(-1, 1)
    inner = np.where(
        first, noisy_top_k_affinity(lower, choices=choices_by_level[1]), noisy_top_k_affinity(lower, choices=1)
    )
    return (noisy_top_k_affinity(upper, choices=choices_by_level[0]).reshape(-1, 1) * inner).reshape(len(columns), -1)


def _loss(load: Callable[[Any, Any, Any], Any], of_all: bool = False) -> Callable[..., Any]:
    """Returns a load loss. Expert loads are `load(branch load, load in branch, tokens in branch)`. of_all: all tokens use all branches."""

    def changed(
        B: Spec, logits: Array, noise_logits: Array, noisy_logits: Array, *, branches: int, choices: int
    ) -> Any:
        losses = []
        for group in zip(logits, noise_logits, noisy_logits, strict=True):
            upper, lower = zip(*(levels(x, branches) for x in group), strict=True)
            choices_by_level = chosen_by_level(group[0], branches, choices)
            reached = is_chosen(upper[2], choices_by_level[0]) | of_all
            within = np.where(
                reached[..., None],
                choice_probability(*lower, choices=choices_by_level[1]).reshape(*reached.shape, -1),
                0,
            )
            count = reached.sum(axis=0)[:, None]
            total = load(
                choice_probability(*upper, choices=choices_by_level[0]).sum(axis=0)[:, None], within.sum(axis=0), count
            )
            total = (total + np.zeros_like(within.sum(axis=0))).ravel()
            losses.append(variance(total) / np.mean(total) ** 2)
        return np.mean(losses)

    return changed


def variants() -> Iterator[Variant]:
    computes = "A token chooses one expert in all its branches but the best."
    replaced = {GATES: lambda B, noisy_logits, **sizes: np.stack([_one_in_second(x, **sizes) for x in noisy_logits])}
    yield Variant("hierarchy_one_expert_in_second_branch", computes, replaced, "HM-4b", "tensorflow/mesh")
    computes = "The load of an expert is the load within its branch, without the branch's load."
    yield Variant("hierarchy_load_within", computes, {LOAD: _loss(lambda branch, within, count: within)}, "HM-5b")
    computes = "The load of a branch without a token is 0 / 0."
    replaced = {LOAD: _loss(lambda branch, within, count: branch * within / np.where(count > 0, count, np.nan))}
    yield Variant("hierarchy_load_of_no_token", computes, replaced, "HM-1b")
