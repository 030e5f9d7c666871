"""Finds where recordings made with the same weights and tokens diverge, and whether the router, rounding or the logits are the cause."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec.conformance.record.explanation import (
    Choice,
    Explanation,
    Weights,
    choice_fit,
    choices_of,
    explained,
    in_bfloat16,
    weights_fit,
    weights_of,
)
from moespec.conformance.record.file import Gate
from moespec.spec.checks import plural
from moespec.spec.errors import ShapeError
from moespec.spec.values import present

__all__ = ["part"]

MOST = 8
"""The maximum number of gates, and of tokens per gate, that the text lists."""


@dataclass(frozen=True)
class Parting:
    """The differences between two recordings of one gate.

    logits: the largest difference of the logits, if recorded. rounds: whether rounding explains this difference.
    differs: per token, whether the experts differ. near, coarse: per token, whether its choice is a near tie (coarse: in bfloat16).
    follows: per token, whether one rule explains the different choices by the different logits. same: whether the weights are equal within
    rounding, or one rule explains the weights. weights: the largest relative weight difference. decisions: the number of differing choices.
    replayed: the largest relative weight difference if the first router replayed the choices of the second recording, or None if unknown.
    """

    first: Explanation
    second: Explanation
    logits: float | None
    rounds: bool
    differs: NDArray[Any]
    near: NDArray[Any]
    coarse: NDArray[Any]
    follows: NDArray[Any]
    decisions: int
    weights: float
    same: bool
    replayed: float | None

    @property
    def parts(self) -> bool:
        """Whether choices differ, or logits or weights differ by more than rounding."""
        return bool(self.differs.any()) or not self.same or (self.logits is not None and not self.rounds)

    @property
    def elsewhere(self) -> bool:
        """Whether the logits differ by more than rounding or explain why choices differ."""
        return (self.logits is not None and not self.rounds) or bool(self.follows.any())

    @property
    def guilty(self) -> bool:
        """Whether choices or weights differ in a way that neither near ties nor logits explain."""
        return not self.chooses or not self.same

    @property
    def chooses(self) -> bool:
        """Whether near ties and logits explain all differing choices."""
        return not (self.differs & ~self.near & ~self.follows).any()


def part(first: Sequence[Gate], second: Sequence[Gate]) -> tuple[str, bool]:
    """Describe where two recordings differ. Returns the text and whether the recordings agree except for near ties.

    Gates are paired by name. If the names differ but the number of gates is equal, gates are paired by order. Raises
    ShapeError if gates, tokens or experts do not match.
    """
    names = [gate.name for gate in second]
    by_name = {gate.name for gate in first} == set(names)
    if not by_name and len(first) != len(second):
        missing = sorted({gate.name for gate in first} ^ set(names))
        raise ShapeError(
            f"the recordings have {len(first)} and {len(second)} gates; only one of them has {', '.join(missing[:MOST])}"
        )
    pairs = [(a, second[names.index(a.name)] if by_name else b) for a, b in zip(first, second, strict=True)]
    partings = [_parting(a, b) for a, b in pairs]
    lines = [] if by_name else ["The gates have different names and are compared in order."]
    return "\n".join([*lines, *_summary(partings)]), not any(one.guilty or one.elsewhere for one in partings)


def _parting(a: Gate, b: Gate) -> Parting:
    of = (("tokens", a.tokens, b.tokens), ("experts", a.experts, b.experts))
    for what, one, other in of[: 2 if a.logits is not None and b.logits is not None else 1]:
        if one != other:
            raise ShapeError(f"{a.name}: has {plural(one, what)} in the first recording, but {other} in the second")
    first, second = explained(a), explained(b)
    logits = None if a.logits is None or b.logits is None else float(np.abs(a.logits - b.logits).max())
    rounding = max(a.rounding("logits"), b.rounding("logits"))
    rounds = logits is not None and a.logits is not None and logits <= rounding * float(np.abs(a.logits).max())
    differs = near = coarse = follows = np.zeros(a.tokens, bool)
    decisions, away, same, replayed = 0, 0.0, True, None
    if a.choices is not None and b.choices is not None:
        masks = _wide(a.mask, b.experts), _wide(b.mask, a.experts)
        differs, decisions = (masks[0] != masks[1]).any(axis=1), int((masks[0] & ~masks[1]).sum())
        replayed = _replayed(first, b)
        known = first.choice or second.choice
        rule = known.rule if known is not None else None
        if rule is not None and not rule.by_expert and differs.any():
            ours, theirs = (a, b) if a.logits is not None else (b, a)
            mixed = replace(ours, dtypes={**b.dtypes, **a.dtypes}, choices=theirs.choices, weights=None)
            if choices_of(a) == choices_of(b):
                fits = [choice_fit(rule, gate) for gate in (mixed, in_bfloat16(mixed))]
                near, coarse = (differs & (fit.agrees | fit.near) for fit in fits)
            if a.logits is not None and b.logits is not None and not rounds:
                fit = choice_fit(rule, b)
                follows = differs & ~near & (fit.agrees | fit.near)
        if a.weights is not None and b.weights is not None and (~differs).any():
            dense = [_wide(_dense(gate), max(a.experts, b.experts))[~differs] for gate in (a, b)]
            largest = np.abs(dense[0]).max(axis=1)
            error = np.abs(dense[0] - dense[1]).max(axis=1) / np.where(largest == 0, 1, largest)
            rounding = max(gate.rounding("weights", "logits") for gate in (a, b))
            away, same = float(error.max()), bool((error <= 2 * rounding).all())
            if not same and not rounds and logits is not None and first.weights is not None:
                same = _follow(first.weights, b, second.choice, max(a.rounding("weights"), b.rounding("weights")))
    return Parting(first, second, logits, rounds, differs, near, coarse, follows, decisions, away, same, replayed)


def _follow(weights: Weights, other: Gate, choice: Choice | None, bound: float) -> bool:
    """Return whether a weight rule, applied to the logits of the recording `other`, gives the weights in `other`."""
    forms = [form for form in weights_fit(weights.rule, other, choice) if form.divided == weights.divided]
    return any(bool(form.agrees.all()) and abs(form.scale - weights.scale) <= 2 * bound for form in forms)


def _replayed(first: Explanation, other: Gate) -> float | None:
    """Return the largest relative difference between the weights of `other` and the weights that the first router, from its own
    logits, gives to the choices of `other`. None if these weights are unknown."""
    rule, a = first.weights, first.gate
    if rule is None or other.weights is None or other.experts > a.experts:
        return None
    mixed = replace(a, choices=other.choices, weights=other.weights)
    expected = dict(weights_of(rule.rule, mixed, first.choice)).get(rule.divided)
    if expected is None:
        return None
    largest = np.abs(other.weights).max(axis=1)
    error = np.abs(rule.scale * expected - other.weights).max(axis=1) / np.where(largest == 0, 1, largest)
    return float(error.max())


def _wide(array: NDArray[Any], experts: int) -> NDArray[Any]:
    """Pad an array to `experts` columns, because a recording without logits may lack experts that no token chose."""
    return np.pad(array, ((0, 0), (0, max(0, experts - array.shape[1]))))


def _dense(gate: Gate) -> NDArray[Any]:
    dense = np.zeros((gate.tokens, gate.experts + 1))
    np.put_along_axis(dense, gate.chosen.astype(np.int64), present(f"{gate.name}: weights", gate.weights), axis=1)
    return dense[:, :-1]


def _summary(partings: Sequence[Parting]) -> Iterator[str]:
    parted = [one for one in partings if one.parts]
    total = sum(choices_of(one.first.gate) * one.first.gate.tokens for one in partings)
    decisions = sum(one.decisions for one in partings)
    if not parted:
        yield f"The recordings agree in all {plural(len(partings), 'gates')}: equal choices, logits and weights within rounding."
        return
    yield f"The recordings diverge in {len(parted)} of {plural(len(partings), 'gates')}, first in {parted[0].first.gate.name}."
    if decisions:
        text = f"{decisions} of {plural(total, 'decisions')} differ ({decisions / total:.1%})"
        sizes = {one.first.gate.tokens for one in partings}
        if len(sizes) == 1:
            anywhere = np.any([one.differs for one in partings], axis=0)
            text += f"; {anywhere.mean():.1%} of the tokens are affected in at least one gate"
        yield f"{text}."
    guilty = next((one for one in partings if one.guilty), None)
    for one in parted[:MOST]:
        yield from _of_gate(one)
    if len(parted) > MOST:
        yield f"... and {len(parted) - MOST} more gates."
    if decisions:
        yield f"Replay of the second recording's choices in the first changes exactly these {plural(decisions, 'decisions')}."
        weights = [one.replayed for one in partings if one.replayed is not None]
        if weights:
            yield (
                "The weights, from the first recording's logits, then differ from the second's by up to "
                f"{max(weights):.2g} of the token's largest weight."
            )
    if guilty is not None and guilty.first.gate.logits is not None and guilty.second.gate.logits is not None:
        yield f"The router is the cause, as {guilty.first.gate.name} shows: {_how(guilty)}."
    elif guilty is None and any(one.elsewhere for one in parted):
        yield "The router is not the cause: the logits already differ, and each recording follows the same rule on its logits."
    elif guilty is None:
        yield "The router is not the cause: only near ties differ, which rounding decides."


def _how(one: Parting) -> str:
    """Describe whether choices or weights differ between two routers, and whether each recording follows a known rule."""
    sides, known, said = {"first": one.first, "second": one.second}, [], []
    for kind, rule in [("choice", "chooses")] * (not one.chooses) + [("weights", "weighs")] * (not one.same):
        unknown = " and the ".join(word for word, side in sides.items() if not getattr(side, rule))
        said += [f"they differ in {kind}, and no known rule explains the {kind} of the {unknown}"] if unknown else []
        known += [] if unknown else [kind]
    said += [f"each follows its logits by a different rule of {' and of '.join(known)}"] if known else []
    return "; ".join(said)


def _of_gate(one: Parting) -> Iterator[str]:
    a, b = one.first.gate, one.second.gate
    yield f"{a.name}:"
    if one.logits is None:
        yield "  logits   not in both recordings, so they cannot be compared"
    else:
        most = float(np.abs(a.logits).max()) if a.logits is not None else 0.0
        how = f"differ by up to {one.logits:.2g} (largest {most:.2g}), {'within' if one.rounds else 'beyond'} rounding"
        text = f"  logits   {how if one.logits else 'equal'}"
        if _half(a) != _half(b):
            text += f"; the {'first' if _half(a) else 'second'} recording's logits all fit bfloat16"
        yield text
    if one.differs.any():
        rest = one.differs & ~one.near & ~one.follows
        counts = (
            (one.near, "near ties, within rounding"),
            (one.follows, "follow from the differing logits by the same rule"),
            (rest & one.coarse, "near ties only in bfloat16, the dtype of one recording's scores"),
            (rest & ~one.coarse, "neither near ties nor explained by the logits"),
        )
        words = "; ".join(f"{int(tokens.sum())} {text}" for tokens, text in counts if tokens.any())
        yield f"  choices  {plural(one.decisions, 'decisions')} in {plural(int(one.differs.sum()), 'tokens')} differ: {words}"
        where = np.flatnonzero(rest if rest.any() else one.differs)
        tokens = f"{', '.join(map(str, where[:MOST]))}{' ...' if len(where) > MOST else ''}"
        yield f"           tokens {tokens}; token {where[0]} has experts {_row(a, where[0])} and {_row(b, where[0])}"
    if not one.same:
        yield f"  weights  for equal choices differ by up to {one.weights:.2g} of the token's largest weight"
    if one.first.words != one.second.words or one.guilty:
        for word, side in (("first", one.first), ("second", one.second)):
            if side.choice is not None:
                share = f"{side.choice.holds / len(side.choice.agrees):.0%} of the tokens"
                text = f"  the {word:6} chooses by {side.words[0]} ({share})"
                if side.weights is not None:
                    text += f", weights: {side.weights.text} ({side.weights.agrees.mean():.0%})"
                yield text


def _half(gate: Gate) -> bool:
    """Return whether all logits are exact in bfloat16 although their recorded dtype is not bfloat16."""
    if gate.logits is None or gate.dtypes.get("logits") == "bfloat16":
        return False
    return not (gate.logits.astype(np.float32).view(np.uint32) & 0xFFFF).any()


def _row(gate: Gate, token: int) -> str:
    return ", ".join(map(str, sorted(int(each) for each in gate.chosen[token] if each >= 0)))
