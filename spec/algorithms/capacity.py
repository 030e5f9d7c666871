"""The capacity: the number of slots per expert.

| here | Routers (arXiv 2401.15969), section 1.2 |
|---|---|
| `tokens` T, `experts` E | n_tokens, n_experts |
| `choices` K | k |
| `factor` | capacity factor (kappa for Expert Choice and Soft MoE) |
| capacity C | c |

Ambiguity ledger

CA-1: How is the capacity rounded, and to a multiple of which number?
    Reading: the capacity is rounded up to a multiple of 1. Both the rounding and the multiple are arguments.
        By: deepspeedai/DeepSpeed, deepspeed/moe/sharded_moe.py, _capacity; NVIDIA/Megatron-LM,
        megatron/core/transformer/moe/moe_utils.py, get_capacity.
    Alternative b: the capacity is rounded to the nearest integer, with ties to the even integer.
        By: google-research/vmoe, vmoe/moe.py, compute_capacity (ceil_or_round="round"); google/flaxformer,
        flaxformer/architectures/moe/moe_layers.py, MoeLayer.
    Alternative c: the capacity is rounded down to an integer.
        By: tensorflow/mesh, mesh_tensorflow/transformer/moe.py, transformer_moe_layer_v1; databricks/megablocks,
        megablocks/layers/moe.py, ParallelMLP.expert_capacity; microsoft/Tutel, tutel/impls/fast_dispatch.py,
        extract_critical; AI-Hypercomputer/maxtext, src/maxtext/layers/moe.py, RoutedMoE.generate_masks;
        lucidrains/st-moe-pytorch, st_moe_pytorch/st_moe_pytorch.py, TopNGating.
    Alternative d: the capacity is rounded up to a multiple of 4.
        By: google-research/vmoe, vmoe/moe.py, compute_capacity.
CA-2: What happens if the capacity is below 1?
    Reading: an error is raised. The check comes before the capacity is rounded up to a multiple.
        By: google-research/vmoe, vmoe/moe.py, compute_capacity.
    Alternative b: the capacity has a minimum of 4 or more slots, regardless of the capacity factor.
        By: tensorflow/mesh, mesh_tensorflow/transformer/moe.py, transformer_moe_layer_v1 (moe_min_expert_capacity=4);
        tensorflow/lingvo, lingvo/core/gshard_layers.py, Top2GatingOnLogits; google/flaxformer,
        flaxformer/architectures/moe/moe_layers.py, MoeLayer (min_expert_capacity=4); deepspeedai/DeepSpeed,
        deepspeed/moe/sharded_moe.py, TopKGate (min_capacity=8); lucidrains/st-moe-pytorch,
        st_moe_pytorch/st_moe_pytorch.py, TopNGating.
CA-3: In which order is `choices * tokens * factor / experts` evaluated?
    Reading: from left to right, in double precision. If the product rounds up, an expert can get one more slot
        than in exact arithmetic: 100 tokens, one expert and a factor of 1.1 give 111 slots, because 100 * 1.1 is 110.00000000000001.
        By: google-research/vmoe, vmoe/moe.py, compute_capacity; tensorflow/mesh, mesh_tensorflow/transformer/moe.py,
        transformer_moe_layer_v1.
    Alternative b: the division comes before the multiplication by `factor`. Rounding can then change the capacity by 1.
        By: databricks/megablocks, megablocks/layers/moe.py, ParallelMLP.expert_capacity; microsoft/Tutel,
        tutel/impls/fast_dispatch.py, extract_critical; AI-Hypercomputer/maxtext, src/maxtext/layers/moe.py,
        RoutedMoE.generate_masks; deepspeedai/DeepSpeed, deepspeed/moe/sharded_moe.py, _capacity; NVIDIA/Megatron-LM,
        megatron/core/transformer/moe/moe_utils.py, get_capacity.
CA-4: Does the capacity grow with the number of choices?
    Reading: yes, because each of the K choices of a token requests a slot: `choices * tokens` requests in total.
        By: google-research/vmoe, vmoe/moe.py, get_top_experts_per_item_dispatcher; databricks/megablocks,
        megablocks/layers/moe.py, ParallelMLP.expert_capacity; microsoft/Tutel, tutel/impls/fast_dispatch.py,
        extract_critical; deepspeedai/DeepSpeed, deepspeed/moe/sharded_moe.py, top2gating and topkgating;
        NVIDIA/Megatron-LM, megatron/core/transformer/moe/moe_utils.py, apply_router_token_dropping.
    Alternative b: no, the capacity grows only with the number of tokens.
        By: tensorflow/mesh, mesh_tensorflow/transformer/moe.py, transformer_moe_layer_v1; tensorflow/lingvo,
        lingvo/core/gshard_layers.py, Top2GatingOnLogits; google/flaxformer, flaxformer/architectures/moe/moe_layers.py,
        MoeLayer; lucidrains/st-moe-pytorch, st_moe_pytorch/st_moe_pytorch.py, TopNGating.
"""

import math
from collections.abc import Callable
from typing import Protocol

from moespec.spec.algorithm import Algorithm
from moespec.spec.checks import check_at_least, check_option, check_positive, plural
from moespec.spec.errors import ConfigError

__all__ = ["CAPACITY_RULES", "expert_capacity"]

ALGORITHMS = (
    Algorithm("capacity", "Liu et al. 2024 (arXiv 2401.15969), section 1.2", 2, ("expert_capacity", "CAPACITY_RULES")),
)

ROUNDINGS: dict[str, Callable[[float], int]] = {"ceil": math.ceil, "round": round}


def expert_capacity(
    tokens: int, experts: int, factor: float, *, choices: int = 1, rounding: str = "ceil", multiple_of: int = 1
) -> int:
    """Returns the slots per expert: `rounding(choices * tokens * factor / experts)`, rounded up to a multiple of `multiple_of`.

    Args:
        tokens: tokens T of one routing group.
        experts: experts E.
        factor: the capacity factor, which is the ratio of the slots of all experts, before rounding, to the items that request slots.
        choices: K for Token Choice, in which `K * T` items request slots; 1 for Expert Choice and Soft MoE.
        rounding: "ceil", or "round" (to the nearest integer, half to even).
        multiple_of: an integer, at least 1. The capacity is rounded up to a multiple of this integer.

    Returns:
        The capacity C.

    Raises:
        ConfigError: the quotient is not finite or rounds to 0.

    Source: Routers, section 1.2; V-MoE (arXiv 2106.05974).

    >>> expert_capacity(1568, 32, 1.05, choices=2)
    103
    >>> expert_capacity(196, 32, 1.0, rounding="round"), expert_capacity(196, 32, 2.0, rounding="round")
    (6, 12)
    >>> expert_capacity(49, 32, 1.0, rounding="round"), expert_capacity(49, 32, 2.0, rounding="round")
    (2, 3)
    >>> expert_capacity(196, 32, 1.0, multiple_of=4)
    8
    >>> expert_capacity(100, 1, 1.1)  # 100 * 1.1 is 110.00000000000001
    111
    """
    return capacity_of("factor", tokens, experts, factor, choices=choices, rounding=rounding, multiple_of=multiple_of)


def capacity_of(
    name: str,
    tokens: int,
    experts: int,
    factor: float,
    *,
    choices: int,
    rounding: str,
    multiple_of: int,
    instead: str = "",
) -> int:
    """Computes `expert_capacity`. Error messages refer to the factor as `name` and suggest setting the option `instead`."""
    check_sizes(name, tokens, experts, factor, choices)
    check_option("rounding", rounding, ROUNDINGS)
    check_at_least("multiple_of", multiple_of, 1)
    quotient = check_quotient(name, factor, choices * tokens * factor / experts)
    slots = ROUNDINGS[rounding](quotient)
    check_room(name, slots, tokens, experts, factor, instead)
    return math.ceil(slots / multiple_of) * multiple_of


def check_sizes(name: str, tokens: int, experts: int, factor: float, choices: int) -> None:
    """Raises `ConfigError` unless all numbers are in range. Error messages refer to the factor as `name`."""
    check_at_least("tokens", tokens, 1)
    check_at_least("experts", experts, 1)
    check_at_least("choices", choices, 1)
    check_positive(name, factor)


def check_quotient(name: str, factor: float, quotient: float) -> float:
    """Returns `quotient`. Raises `ConfigError` if `quotient` is not finite. The error message refers to the factor as `name`."""
    if not math.isfinite(quotient):
        raise ConfigError(f"{name}: {factor} gives a capacity that is not finite")
    return quotient


def check_room(name: str, slots: int, tokens: int, experts: int, factor: float, instead: str = "") -> None:
    """Raises `ConfigError` if an expert has no slot. The error message suggests setting the option `instead`."""
    if slots < 1:
        raise ConfigError(
            f"{name}: {factor} gives {plural(experts, 'experts')} a capacity of {slots} for {plural(tokens, 'tokens')}, "
            f"expected at least 1{f'; or set {instead}' if instead else ''}"
        )


class CapacityRule(Protocol):
    """The capacity rule of a public implementation."""

    def __call__(self, tokens: int, experts: int, factor: float, choices: int = 1) -> int:
        """Returns the slots per expert."""


def _checked(rule: Callable[[int, int, float, int], int]) -> CapacityRule:
    """Returns a function that calls `rule` and checks the arguments and the result of the call."""

    def checked(tokens: int, experts: int, factor: float, choices: int = 1) -> int:
        check_sizes("factor", tokens, experts, factor, choices)
        check_quotient("factor", factor, choices * tokens * factor)
        slots = rule(tokens, experts, factor, choices)
        check_room("factor", slots, tokens, experts, factor)
        return slots

    return checked


CAPACITY_RULES: dict[str, CapacityRule] = {
    "vmoe": _checked(lambda t, e, f, k: math.ceil(math.ceil(t * k * f / e) / 4) * 4),
    "vmoe_expert_choice": _checked(lambda t, e, f, k: round(t * f / e)),
    "megablocks": _checked(lambda t, e, f, k: int(f * (k * t / e))),
    "tutel": _checked(lambda t, e, f, k: k * int(f * math.ceil(t / e))),
    "deepspeed": _checked(lambda t, e, f, k: max(8, math.ceil(t / e * (f * k)))),
    "megatron": _checked(lambda t, e, f, k: math.ceil(t * k / e * f)),
    "mesh_tensorflow": _checked(lambda t, e, f, k: max(4, min(t, int(t * f / e)))),
    "st_moe": _checked(lambda t, e, f, k: max(4, min(t, int(t * f / e)))),
    "maxtext": _checked(lambda t, e, f, k: int(math.ceil(t * k / e) * f)),
}
"""The capacity rules of public implementations, called like `CAPACITY_RULES["tutel"](tokens, experts, factor, choices=1)`.

Each rule uses the defaults of its implementation and double precision: vmoe (multiple of 4), vmoe_expert_choice (also for
Soft MoE), megablocks, tutel, deepspeed (at least 8), megatron, mesh_tensorflow (by authors of Switch and GShard; ignores
`choices`; at least 4, at most T), st_moe (as mesh_tensorflow), maxtext. The rules raise ConfigError in the same cases as `expert_capacity`.
"""
