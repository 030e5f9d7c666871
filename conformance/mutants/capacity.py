"""Other capacities: of the function, and of the routers that select."""

import math
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from moespec.conformance.mutants.definition import Mutant, Replacement, every, wrong
from moespec.spec import CAPACITY_RULES, ConfigError, RouterConfig

__all__ = ["MUTANTS", "SELECTING"]

SELECTING = (
    "softmax_token_choice",
    "sinkhorn_token_choice",
    "softmax_expert_choice",
    "sinkhorn_expert_choice",
    "sparsity_constrained_expert_choice",
)
"""The routers that select, whose capacity follows from their configuration."""

Rule = Callable[[int, int, float, int, str, int], int]
"""`(tokens, experts, factor, choices, rounding, multiple_of) -> slots`."""

ROUNDINGS: dict[str, Callable[[float], int]] = {"ceil": math.ceil, "round": round}


def _half_up(quotient: float) -> int:
    return int(quotient + 0.5)


def _up(slots: float, multiple_of: int) -> int:
    return math.ceil(slots / multiple_of) * multiple_of


def _ruled(rule: Rule) -> dict[str, Replacement]:
    """The capacity by a rule, wherever there is one."""

    def expert_capacity(
        B: Any,
        tokens: int,
        experts: int,
        factor: float,
        *,
        choices: int = 1,
        rounding: str = "ceil",
        multiple_of: int = 1,
    ) -> int:
        B.expert_capacity(tokens, experts, factor, choices=choices, rounding=rounding, multiple_of=multiple_of)
        return slots(tokens, experts, factor, choices, rounding, multiple_of)

    def slots(tokens: int, experts: int, factor: float, choices: int, rounding: str, multiple_of: int) -> int:
        found = rule(tokens, experts, factor, choices, rounding, multiple_of)
        if found < 1:
            raise ConfigError(f"factor: {factor} gives no slot")
        return found

    class Ruled(RouterConfig):
        def capacity(self, *, choices: int = 1, train: bool = True) -> int:
            return slots(self.tokens, self.experts, self.capacity_factor, choices, self.rounding, self.multiple_of)

    def routed(B: Any, route: Any, params: Any, tokens: Any, config: RouterConfig, **options: Any) -> Any:
        config.capacity(choices=config.choices)
        return route(params, tokens, Ruled(**{f.name: getattr(config, f.name) for f in fields(config)}), **options)

    return {"expert_capacity": expert_capacity, **every(SELECTING, routed)}


def _peer(name: str, computes: str, who: str, ledger: str = "CA-1") -> Mutant:
    """The capacity as a public implementation computes it, with its own rounding and multiple."""
    rule = CAPACITY_RULES[name]
    return Mutant(f"capacity_of_{name}", computes, _ruled(lambda t, e, f, k, r, m: rule(t, e, f, k)), ledger, who)


def rules_from_left_to_right(B: Any) -> dict[str, Callable[..., int]]:
    """The rule of each public implementation with the product formed before the division."""

    def rounded(name: str) -> Callable[..., int]:
        def rule(tokens: int, experts: int, factor: float, choices: int = 1) -> int:
            B.CAPACITY_RULES[name](tokens, experts, factor, choices)
            return math.ceil(choices * tokens * factor / experts)

        return rule

    return {name: rounded(name) for name in B.CAPACITY_RULES}


MUTANTS = (
    Mutant(
        "multiple_before_rounding",
        "The quotient itself is rounded to a multiple, without being rounded to an integer first.",
        _ruled(lambda t, e, f, k, r, m: ROUNDINGS[r](k * t * f / e / m) * m),
        "CA-1",
    ),
    Mutant(
        "capacity_rounded_down",
        "The capacity is rounded down.",
        _ruled(lambda t, e, f, k, r, m: _up(int(k * t * f / e), m)),
        "CA-1",
    ),
    Mutant(
        "capacity_rounded_to_the_nearest",
        "The capacity is rounded to the nearest integer, whatever rounding is asked for.",
        _ruled(lambda t, e, f, k, r, m: _up(round(k * t * f / e), m)),
        "RT-5",
    ),
    Mutant(
        "capacity_always_rounded_up",
        "The capacity is rounded up, whatever rounding is asked for.",
        _ruled(lambda t, e, f, k, r, m: _up(math.ceil(k * t * f / e), m)),
        "CA-1",
    ),
    Mutant(
        "halves_rounded_up",
        "A capacity that is rounded to the nearest integer goes up from a half, not to the even neighbour.",
        _ruled(lambda t, e, f, k, r, m: _up({**ROUNDINGS, "round": _half_up}[r](k * t * f / e), m)),
        "CA-1",
    ),
    Mutant(
        "multiples_ignored",
        "The capacity is not raised to a multiple.",
        _ruled(lambda t, e, f, k, r, m: ROUNDINGS[r](k * t * f / e)),
        "CA-1",
    ),
    Mutant(
        "at_least_four_slots",
        "Every expert has at least four slots, whatever the factor.",
        _ruled(lambda t, e, f, k, r, m: max(4, _up(ROUNDINGS[r](k * t * f / e), m))),
        "CA-2",
    ),
    Mutant(
        "quotient_first",
        "The tokens are divided by the experts before they are multiplied by the factor.",
        _ruled(lambda t, e, f, k, r, m: _up(ROUNDINGS[r](k * t / e * f), m)),
        "CA-3",
    ),
    Mutant(
        "choices_not_counted",
        "The capacity does not grow with the number of choices.",
        _ruled(lambda t, e, f, k, r, m: _up(ROUNDINGS[r](t * f / e), m)),
        "CA-4",
    ),
    _peer("vmoe", "The capacity is ceil(k T f / E), up to a multiple of 4.", "google-research/vmoe (Token Choice)"),
    _peer(
        "vmoe_expert_choice",
        "The capacity is round(T f / E), without the number of choices.",
        "google-research/vmoe (Expert Choice and Soft MoE)",
    ),
    _peer("megablocks", "The capacity is int(f (k T / E)).", "databricks/megablocks"),
    _peer("tutel", "The capacity is k int(f ceil(T / E)).", "microsoft/Tutel"),
    _peer("deepspeed", "The capacity is ceil(T / E (f k)), at least 8.", "deepspeedai/DeepSpeed", "CA-2"),
    _peer("megatron", "The capacity is ceil(k T / E f).", "NVIDIA/Megatron-LM", "CA-3"),
    _peer(
        "st_moe",
        "The capacity is int(T f / E) without the number of choices, at most T and at least 4.",
        "lucidrains/st-moe-pytorch",
        "CA-4",
    ),
    _peer("maxtext", "The capacity is int(ceil(k T / E) f).", "AI-Hypercomputer/maxtext"),
    wrong(rules_from_left_to_right, "CAPACITY_RULES", ledger="CA-3"),
)
"""The mutants of this module."""
