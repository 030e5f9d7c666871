"""Cases of the expert capacity, and of the capacity rules of public implementations."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

from moespec.conformance.author.definition import Definition, call, composed
from moespec.conformance.author.variant import Spec, Variant, variant
from moespec.conformance.format import Stage
from moespec.spec import CAPACITY_RULES

NAME = "capacity"


def _slots(tokens: int, experts: int, factor: float, *, path: str = "expert_capacity", **options: Any) -> Stage:
    """Returns a call that computes one capacity."""
    return call(path, tokens=tokens, experts=experts, factor=factor, **options)


def cases() -> Iterator[Definition]:

    def case(name: str, kind: str, purpose: str, flag: str, calls: list[Stage]) -> Definition:
        stages = tuple(replace(stage, name=f"call_{number}") for number, stage in enumerate(calls, 1))
        return composed(NAME, name, kind, purpose, flag, inputs={}, stages=stages)

    rounding, both = "capacity_rounding", ("ceil", "round")
    studied = [(196, 32, 1.0), (196, 32, 2.0), (49, 32, 1.0), (49, 32, 2.0), (196, 128, 1.0), (257, 32, 1.05)]
    purpose = "Sizes of the study with one and two choices, rounded up."
    yield case("ceil", "value", purpose, rounding, [_slots(*s, choices=k) for s, k in product(studied, (1, 2))])
    purpose = "The same sizes rounded to the nearest, as the slots of Soft MoE are."
    enough = [_slots(*sizes, rounding="round") for sizes in studied if sizes[0] / sizes[1] >= 1.5]
    yield case("round", "value", purpose, rounding, enough)
    purpose = "Halves go to the even neighbour: 2.5, 3.5 and 4.5 slots."
    halves = [_slots(tokens, 4, 1.0, rounding="round") for tokens in (10, 14, 18)]
    yield case("half_even", "tie", purpose, "half_even", halves)
    purpose = "Up to a multiple, after the rounding."
    multiples = [_slots(196, 32, 1.0, multiple_of=m, rounding=r) for m, r in product((1, 2, 4, 8), both)]
    yield case("multiple", "value", purpose, rounding, multiples)
    purpose = "4.6 slots become 5 and then 8, though 4 is the nearest multiple."
    above = [_slots(23, 5, 1.0, multiple_of=4, rounding=r) for r in both]
    yield case("multiple_above", "value", purpose, rounding, above)
    purpose = "Products that are integers only if choices * tokens * factor is formed before the division."
    near = [_slots(*sizes) for sizes in _near_integers()]
    yield case("left_to_right", "near_tie", purpose, "evaluation_order", near)
    purpose = "One token, one expert, more experts than tokens, a tiny factor."
    few = [(1, 1, 1.0), (1, 8, 1.0), (8, 1, 1.0), (3, 32, 1.0), (64, 4, 0.0625), (4, 4, 8.0)]
    yield case("degenerate", "degenerate", purpose, "degenerate_size", [_slots(*sizes) for sizes in few])
    large = [(196, 32, 1.0, 1), (256, 32, 1.25, 2), (1024, 16, 2.0, 2)]
    rules = [
        _slots(t, e, f, choices=k, path=f"CAPACITY_RULES.{rule}")
        for rule, (t, e, f, k) in product(sorted(CAPACITY_RULES), large)
        if k == 1 or rule not in ("vmoe_expert_choice", "st_moe")
    ]
    yield case("rules", "value", "The rule of each public implementation by name.", "named_rule", rules)


def _near_integers() -> list[tuple[int, int, float]]:
    """Returns (n tokens, e experts, factor f) where `n * f / e`, `n * (f / e)` and `n / e * f` do not all round up to one number."""
    near = []
    for e, t, f in product((3, 6, 7, 12), range(5, 60), (1.05, 1.1, 1.25, 1.4)):
        if len({math.ceil(form) for form in (t * f / e, t * (f / e), t / e * f)}) > 1:
            near.append((t, e, f))
    return near[:8]


# Variants of the named rules. `composition.py` has the variants of `expert_capacity`, which also change routers.


def rules_from_left_to_right(B: Spec) -> dict[str, Callable[..., int]]:
    """Every named capacity rule is `ceil(choices * tokens * factor / experts)`, which multiplies before it divides."""

    def rounded(name: str) -> Callable[..., int]:
        def rule(tokens: int, experts: int, factor: float, choices: int = 1) -> int:
            return math.ceil(choices * tokens * factor / experts)

        return rule

    return {name: rounded(name) for name in B.CAPACITY_RULES}


def variants() -> Iterator[Variant]:
    yield variant(rules_from_left_to_right, "CAPACITY_RULES", ledger="CA-3b")
