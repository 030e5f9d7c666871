"""Capacity: how many slots each expert has.

Cites: Liu et al. 2024 (arXiv 2401.15969) section 1.2; Riquelme et al. 2021 (V-MoE, arXiv 2106.05974). Section 1.

Ambiguity ledger

CA-1: Is the capacity rounded up or to the nearest integer, and to a multiple of what?
    Reading: up, multiples of 1; both are arguments.
    Alternatives: to the nearest, half to even (Soft MoE, the text of V-MoE); down (megablocks, tutel); up to a
        multiple of 4 (code of V-MoE). See `CAPACITY_RULES`.
CA-2: Is a capacity below 1 an error?
    Reading: yes, before it is rounded up to a multiple.
    Alternatives: at least 1, 4 or 8 slots whatever the factor (st-moe, DeepSpeed).
CA-3: In which order is `choices * tokens * factor / experts` evaluated?
    Reading: from left to right in double precision, so that the ceiling is the same everywhere.
    Alternatives: the factor last (Megatron, DeepSpeed), which can differ by one slot where the product is an integer.
"""

import math
from collections.abc import Callable
from typing import Protocol

from moespec.spec.checks import check_at_least, check_option, check_positive
from moespec.spec.errors import ConfigError

__all__ = ["CAPACITY_RULES", "CapacityRule", "expert_capacity"]

ROUNDINGS: dict[str, Callable[[float], int]] = {"ceil": math.ceil, "round": round}


def expert_capacity(
    tokens: int, experts: int, factor: float, *, choices: int = 1, rounding: str = "ceil", multiple_of: int = 1
) -> int:
    """Slots per expert: `rounding(choices * tokens * factor / experts)`, then up to a multiple of `multiple_of`.

    Args:
        tokens: tokens T of one routing group.
        experts: experts E.
        factor: capacity factor; 1 gives exactly as many slots as there are items, apart from rounding.
        choices: K for Token Choice, where `K * T` items are distributed; 1 for Expert Choice and Soft MoE.
        rounding: "ceil", or "round" (to the nearest, half to even).
        multiple_of: the result is raised to a multiple of this.

    Raises:
        ConfigError: an argument is out of range, or the result is below 1.

    Source: V-MoE, section 2; Routers, section 1.2. Section 1.

    >>> expert_capacity(196, 32, 1.0), expert_capacity(196, 32, 1.0, rounding="round"), expert_capacity(49, 32, 2.0)
    (7, 6, 4)
    """
    check_sizes(tokens, experts, factor, choices)
    check_option("rounding", rounding, ROUNDINGS)
    check_at_least("multiple_of", multiple_of, 1)
    slots = at_least_one(ROUNDINGS[rounding](choices * tokens * factor / experts), tokens, experts, factor)
    return math.ceil(slots / multiple_of) * multiple_of


def check_sizes(tokens: int, experts: int, factor: float, choices: int) -> None:
    """`ConfigError` unless all are in range."""
    check_at_least("tokens", tokens, 1)
    check_at_least("experts", experts, 1)
    check_at_least("choices", choices, 1)
    check_positive("factor", factor)


def at_least_one(slots: int, tokens: int, experts: int, factor: float) -> int:
    """`slots`, or `ConfigError` if there is none."""
    if slots < 1:
        raise ConfigError(
            f"factor: {factor} leaves {experts} experts without a slot for {tokens} tokens (capacity {slots})"
        )
    return slots


class CapacityRule(Protocol):
    """How a public implementation computes the capacity."""

    def __call__(self, tokens: int, experts: int, factor: float, choices: int = 1) -> int:
        """Slots per expert."""


def _rule(formula: Callable[[int, int, float, int], int]) -> CapacityRule:
    def rule(tokens: int, experts: int, factor: float, choices: int = 1) -> int:
        check_sizes(tokens, experts, factor, choices)
        return at_least_one(formula(tokens, experts, factor, choices), tokens, experts, factor)

    return rule


CAPACITY_RULES: dict[str, CapacityRule] = {
    "vmoe": _rule(lambda t, e, f, k: 4 * math.ceil(math.ceil(t * k * f / e) / 4)),
    "vmoe_expert_choice": _rule(lambda t, e, f, k: round(t * f / e)),
    "megablocks": _rule(lambda t, e, f, k: int(f * (k * t / e))),
    "tutel": _rule(lambda t, e, f, k: k * int(f * math.ceil(t / e))),
    "deepspeed": _rule(lambda t, e, f, k: max(8, math.ceil(t * k / e * f))),
    "megatron": _rule(lambda t, e, f, k: math.ceil(t * k / e * f)),
    "st_moe": _rule(lambda t, e, f, k: max(4, min(t, int(t * f / e)))),
    "maxtext": _rule(lambda t, e, f, k: int(math.ceil(t * k / e) * f)),
}
"""Capacity by the rule of each public implementation: `CAPACITY_RULES[name](tokens, experts, factor, choices=1)`."""
