"""Experts without an MLP: copy experts return the token, zero experts return 0, and constant experts mix the token with a vector.

The router chooses among all kinds of experts. A token that chooses these experts costs less computation.

| here | MoE++ (arXiv 2410.07348) | LongCat-Flash (arXiv 2509.01322) |
|---|---|---|
| the MLP experts `params` of `moe_mlp`, the first experts of a routing | FFN experts | FFN experts, N |
| then the experts of `constants`: `value` (n, D), `mix` (n, D, 2) | constant experts: v, W_c | |
| then `copies` experts | copy experts | zero-computation experts, Z |
| then `zeros` experts, the last experts of a routing | zero experts | |

Ambiguity ledger

ZC-1: Does the factor on the weights of the routed experts also apply to copy experts?
    Reading: yes, the weights of all kinds of experts are the combine weights.
        By: huggingface/transformers, src/transformers/models/longcat_flash/modeling_longcat_flash.py, LongcatFlashTopkRouter.forward;
        ml-explore/mlx-lm, mlx_lm/models/longcat_flash.py, LongcatFlashTopkRouter.
    Alternative b: no, only to the MLP experts (sgl-project/sglang#10019).
ZC-2: Does the weight of a zero expert take part when a token's weights are divided by their sum?
    Reading: yes, the router treats all kinds of experts alike.
    Alternative b: no, the weight of the zero expert is set to 0 before the division.
        By: SkyworkAI/MoE-plus-plus, MoE++/moe_plus_plus_layer.py, gating.
ZC-3: How does a constant expert weight the token and its vector?
    Reading: by a softmax of two linear functions of the token, in this order.
        By: the paper, section 3.1; SkyworkAI/MoE-plus-plus, MoE++/moe_plus_plus_layer.py, ConstantExpert.forward.
    Alternative b: the output is the vector, without the token.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from moespec.spec.algorithm import Algorithm
from moespec.spec.algorithms.gated_experts import check_part_names
from moespec.spec.array_like import ArrayLike
from moespec.spec.checks import check_size
from moespec.spec.errors import ShapeError
from moespec.spec.numerics import Array, softmax
from moespec.spec.routing import Routing
from moespec.spec.values import as_array

__all__: list[str] = []

ALGORITHMS = (
    Algorithm("zero_computation_experts", "Jin et al. 2024 (arXiv 2410.07348); LongCat-Flash (arXiv 2509.01322)", 1),
)

AXES = {"value": "experts width", "mix": "experts width pair"}
"""Axes of the parameters of `constants`."""


def split_kinds(routing: Routing, constants: int, copies: int, zeros: int) -> tuple[Routing, Routing, Routing]:
    """Splits the experts of a routing by kind: the routings to the MLP experts, to the constant experts and to the copy experts."""
    start = (
        experts_before(routing.dispatch.shape[1], constants, copies, zeros) if constants or copies or zeros else None
    )
    if start is None:
        return routing, routing, routing
    ends = (0, start, start + constants, start + constants + copies)
    first, second, third = (Routing(*(array[:, a:b] for array in routing)) for a, b in pairwise(ends))
    return first, second, third


def experts_before(experts: int, constants: int, copies: int, zeros: int) -> int:
    """Returns the number of MLP experts among `experts` experts. Raises `ShapeError` if there is none."""
    mlps = experts - constants - copies - zeros
    if mlps < 1:
        kinds = f"{constants} constant, {copies} copy and {zeros} zero experts"
        raise ShapeError(f"routing: has {experts} experts, expected at least one MLP expert besides {kinds}")
    return mlps


def constant_parameters(constants: Mapping[str, ArrayLike], width: int) -> dict[str, Array]:
    """Checks and returns the parameters of constant experts for tokens of size `width`."""
    check_part_names("constants", constants, AXES)
    arrays = {name: as_array(name, constants[name], axes) for name, axes in AXES.items()}
    check_constant_sizes(arrays, width)
    return arrays


def check_constant_sizes(constants: Mapping[str, Any], width: int) -> None:
    """Raises `ShapeError` unless the parameters of constant experts agree with each other and with tokens of size `width`."""
    check_size("value", constants["value"], 1, width, "the width of tokens")
    check_size("mix", constants["mix"], 0, constants["value"].shape[0], "the experts of value")
    check_size("mix", constants["mix"], 1, width, "the width of tokens")
    check_size("mix", constants["mix"], 2, 2, "the token and the value")


def constant_outputs(inputs: Array, constants: Mapping[str, Array]) -> Array:
    """Computes `a x + b value[e]` with `(a, b) = softmax(x mix[e])` for the slots of each expert (experts, capacity, width)."""
    weights = softmax(np.einsum("ecd,edp->ecp", inputs, constants["mix"]))
    return weights[..., :1] * inputs + weights[..., 1:] * constants["value"][:, None]
