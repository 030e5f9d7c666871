"""What the vectors cover, by rule: for each public function and router that a case calls, the purposes that some case must have.

A rule asks for cases that can tell right implementations from those that are wrong for a kind of input alone: three groups,
odd sizes, an index above 256, far logits, a gradient by each input. What a rule asks for and no case has is missing, unless
`EXEMPT` has a reason. A function that is new comes under every rule by being called.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from moespec import spec
from moespec.conformance import call
from moespec.conformance.compare import DTYPES, exact
from moespec.conformance.format import Case, Reference, Stage, Tensor
from moespec.conformance.functions import function
from moespec.conformance.functions.describe import GROUPS
from moespec.conformance.golden.wide import UPDATES, counts

__all__ = ["EXEMPT", "RULES", "Row", "exemption", "table"]

OVERFLOW = 88.8
"""The logarithm of the largest float32."""

RULES: Mapping[str, str] = {
    "groups": "three groups or more",
    "odd": "an odd number, more than one, on each axis",
    "tokens": "more than 40 tokens",
    "index": "more than 256 where tokens or experts are counted or have an index",
    "one": "one token, one expert",
    "capacity": "a capacity below and above the number of tokens",
    "choices": "more than eight choices",
    "tie": "equal scores, where it chooses",
    "bits": "numbers that bfloat16 does not have, of each float argument",
    "far": "logits of more than 88.8, whose exponential float32 does not have, in values and in a gradient",
    "gradient": "a gradient by each float argument",
    "level": "experts of equal importance and load, and a gradient there, of each loss",
    "weight": "a weight that is not 0 for each loss of a router, in a gradient",
    "options": "each option of a router other than its default together with each other option",
}
"""What each rule asks for."""

NOT_TRAINED = "no gradient passes it: a table, random numbers or the update of a state"
WHOLE = "whole numbers, masks or orders"
MODEL = "a model is made of functions that have it"
SIZES = "a rule of sizes takes no arrays"
PLAN = "the sizes of a plan must fit one another"

EXEMPT: Mapping[str, str] = {
    # rule:call:what, as patterns; the first that fits gives the reason.
}
"""Why something is not asked for."""


@dataclass
class Row:
    """What the cases of a call have: `rule:what` to the id of the first case that has it; and what is asked for."""

    call: str
    found: dict[str, str] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)

    def missing(self) -> list[str]:
        """What no case has, and what nothing exempts."""
        return [what for what in sorted(self.asked - self.found.keys()) if not exemption(self.call, what)]


def exemption(call: str, what: str) -> str:
    """The reason why something is not asked for of a call, or an empty string."""
    rule, _, part = what.partition(":")
    return next((reason for key, reason in EXEMPT.items() if fnmatchcase(f"{rule}:{call}:{part}", key)), "")


def table(cases: Iterable[Case]) -> list[Row]:
    """A row for each call of the cases, in alphabetical order."""
    rows: dict[str, Row] = {}
    for case in cases:
        for stage in case.stages if case.expect is None else ():
            row = rows.setdefault(stage.call, Row(stage.call))
            for rule in (_sizes, _options, _arrays, _router_options):
                for what, has in rule(case, stage):
                    row.asked.add(what)
                    if has:
                        row.found.setdefault(what, case.id)
    return [rows[name] for name in sorted(rows)]


def _sizes(case: Case, stage: Stage) -> Iterator[tuple[str, bool]]:
    known = call.golden(case)
    read = [known[name] for name in _read(stage, case, known).values()] + list(stage.outputs.values())
    sizes: dict[str, set[int]] = {}
    for each in read:
        for axis, size in zip(each.axes, each.array.shape, strict=True):
            sizes.setdefault(axis, set()).add(size)
    for axis, found in sizes.items():
        if axis in GROUPS:
            yield "groups:", max(found) >= 3
        yield f"odd:{axis}", any(size % 2 and size > 1 for size in found)
        if axis in ("tokens", "experts"):
            yield f"one:{axis}", 1 in found
            if counts(stage.call) or function(stage.call).choice:
                yield f"index:{axis}", max(found) > 256
    if "tokens" in sizes:
        yield "tokens:", max(sizes["tokens"]) > 40
    if function(stage.call).choice:
        yield "tie:", "tie_order" in case.flags or case.kind in ("tie", "near_tie")
    if stage.call.endswith("_loss") and "experts" in sizes:
        yield "level:", case.kind == "gradient" and case.id.endswith("level")


def _options(case: Case, stage: Stage) -> Iterator[tuple[str, bool]]:
    tokens = [t.array.shape[t.axes.index("tokens")] for t in case.inputs.values() if "tokens" in t.axes]
    capacity, choices = stage.options.get("capacity"), stage.options.get("choices")
    if isinstance(capacity, int) and tokens:
        yield "capacity:below", capacity < tokens[0]
        yield "capacity:above", capacity > tokens[0]
    if isinstance(choices, int):
        yield "choices:", choices > 8


def _arrays(case: Case, stage: Stage) -> Iterator[tuple[str, bool]]:
    known = call.golden(case)
    wrt = case.gradients.wrt.keys() if case.gradients and stage.name in (case.gradients.stage, "route") else ()
    for name, path in _read(stage, case, known).items():
        array = known[path].array
        if array.dtype.kind == "f":
            yield f"bits:{name}", not exact(array.astype(np.float32), DTYPES["bfloat16"])
            yield f"gradient:{name}", path in wrt
        if "logits" in name and array.dtype.kind == "f":
            far = np.abs(array).max(initial=0.0) > OVERFLOW
            yield f"far:{name}", bool(far)
            yield f"far:{name} gradient", bool(far) and path in wrt


def _router_options(case: Case, stage: Stage) -> Iterator[tuple[str, bool]]:
    """Pairs of options that are both other than by default, and weights that a gradient has."""
    if not stage.router:
        return
    record = spec.ROUTERS[stage.router].Options
    names = [each.name for each in fields(record) if each.name not in ("width", "experts", "tokens", "ids")]
    made = record(**stage.options["options"])
    default = {each.name: each.default for each in fields(record)}
    changed = {name for name in names if getattr(made, name) != default[name]}
    for first in names:
        for second in names:
            if first < second:
                yield f"options:{first} {second}", {first, second} <= changed
        if first.endswith("_weight"):
            yield f"weight:{first}", bool(getattr(made, first)) and case.gradients is not None and case.gradients.losses


def _read(stage: Stage, case: Case, known: Mapping[str, Tensor]) -> dict[str, str]:
    """The arrays that a call takes, by argument and part, as references."""
    found: dict[str, str] = {}

    def take(name: str, reference: Reference) -> None:
        if isinstance(reference, str) and reference in known:
            found[name] = reference
        elif isinstance(reference, Mapping) and "call" not in reference:
            for part, each in reference.items():
                take(f"{name}/{part}", each)

    for name, reference in stage.arguments.items():
        take(name, reference)
    return found
