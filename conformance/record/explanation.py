"""Finds the router that explains a recording: rules for choices and weights, and the number of tokens that follow each rule.

A choice rule computes scores (tokens, experts) and chooses the K largest per token. A weight rule computes the scores
that weight the chosen experts. Each rule is applied separately to the recorded logits, to show which rule deviates.
Option names are fields of the routers' options in `moespec.spec.ROUTERS`.

Near ties distinguish rounding errors from a different rule. A choice is a near tie if the scores of the chosen and the
expected experts differ by no more than a few rounding errors.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moespec.conformance.record.file import Gate
from moespec.conformance.record.published import published
from moespec.spec import (
    LEDGER,
    group_limited_scores,
    sigmoid_affinity,
    sinkhorn_affinity,
    softmax_affinity,
    sqrt_softplus_affinity,
)
from moespec.spec.checks import plural
from moespec.spec.errors import SpecError
from moespec.spec.numerics import stable_order
from moespec.spec.values import present

__all__ = [
    "Choice",
    "Explanation",
    "Weights",
    "choice_fit",
    "explain",
    "explained",
    "named",
    "weights_fit",
    "weights_of",
]

Array = NDArray[Any]
SAMPLE = 64
"""The number of tokens on which rules with expert groups are tried first, because there are many such rules."""


AFFINITIES: Mapping[str, Callable[[Array], Array]] = {
    "softmax": softmax_affinity,
    "sigmoid": sigmoid_affinity,
    "sqrt_softplus": sqrt_softplus_affinity,
    "logits": lambda logits: logits,
}


@dataclass(frozen=True)
class Rule:
    """A rule that computes scores from the logits of a gate. Rules are equal if their texts, affinities and `biased` are equal.

    options: the equivalent options of moespec's routers. readings: the equivalent readings in the ambiguity ledger.
    scores: computes the scores (tokens, experts) of a gate. by_expert: whether each expert chooses tokens.
    """

    text: str
    scores: Callable[[Gate], Array] = field(compare=False)
    affinity: str = "softmax"
    options: Mapping[str, Any] = field(default_factory=dict, compare=False)
    readings: tuple[str, ...] = field(default=(), compare=False)
    by_expert: bool = field(default=False, compare=False)
    biased: bool = False

    def scale(self, gate: Gate) -> Array:
        """Return the magnitude (tokens, experts) relative to which rounding errors of the scores are measured."""
        return np.abs(self.scores(gate)) + (np.abs(gate.bias) if self.biased and gate.bias is not None else 0)


def _logits(gate: Gate) -> Array:
    return present(f"{gate.name}: logits", gate.logits).astype(np.float64)


def _plain(name: str, gate: Gate) -> Array:
    return AFFINITIES[name](_logits(gate))


def _biased(name: str, gate: Gate) -> Array:
    return _plain(name, gate) + (0 if gate.bias is None else gate.bias.astype(np.float64))


def _sinkhorn(gate: Gate) -> Array:
    """Compute the Sinkhorn plan of each call of the gate."""
    parts = np.split(_logits(gate), np.cumsum(gate.calls)[:-1])
    try:
        return np.concatenate([sinkhorn_affinity(part) for part in parts])
    except SpecError:  # Sinkhorn cannot balance these logits
        return np.zeros_like(_logits(gate))


def choice_rules(gate: Gate) -> Iterator[Rule]:
    """Yield the choice rules without expert groups, simplest first."""
    for name in AFFINITIES:
        if gate.bias is not None:
            text = f"{name} scores + bias" if name != "logits" else "logits + bias"
            yield Rule(text, partial(_biased, name), name, biased=True)
        yield Rule(f"{name} scores" if name != "logits" else "logits", partial(_plain, name), name)
    yield Rule("softmax scores of the tokens", lambda g: softmax_affinity(_logits(g)).T, by_expert=True)
    yield Rule("the Sinkhorn plan", _sinkhorn, "sinkhorn")


GROUP_SCORES = {
    "top_2": ("GL-1", "the sum of their best 2 scores"),
    "top_k_over_m": ("GL-1b", "the sum of their best K / M scores"),
    "max": ("GL-1c", "their best score"),
}


def grouped(gate: Gate, choices: int) -> Iterator[Rule]:
    """Yield rules that choose experts in a token's M best groups, where M is the most groups that a token uses, or that number plus one."""
    bias = gate.bias is not None
    for groups in (n for n in range(2, gate.experts // 2 + 1) if gate.experts % n == 0):
        size = gate.experts // groups
        seen = int(gate.mask.reshape(gate.tokens, groups, size).any(axis=2).sum(axis=1).max())
        limits = range(max(seen, -(-choices // size)), min(seen + 1, groups - 1) + 1)
        forms = product(limits, ("softmax", "sigmoid"), GROUP_SCORES, ("excluded", "zero"), (True, False)[: 1 + bias])
        for limit, name, kind, outside, group_bias in forms:
            best = {"top_2": 2, "max": 1}.get(kind, choices // limit if choices % limit == 0 else 0)
            if not 0 < best <= size or (kind == "top_k_over_m" and best < 3):  # `max` and `top_2` cover best = 1 and 2
                continue
            reading, words = GROUP_SCORES[kind]
            text = f"{name} scores{' + bias' if bias else ''} in the best {limit} of {groups} groups, "
            text += f"groups ranked by {words}{'' if group_bias else ' without the bias'}, other groups {outside}"
            options = {"expert_groups": groups, "chosen_groups": limit, "group_score": kind, "group_bias": group_bias}
            readings = [reading, "GL-2" if outside == "excluded" else "GL-2b"]
            readings += ["GL-3" if group_bias else "GL-3b"] if bias else []
            scores = partial(_limited, name, groups, limit, best, outside, group_bias)
            yield Rule(text, scores, name, {**options, "outside": outside}, tuple(readings), biased=bias)


def _limited(name: str, groups: int, limit: int, best: int, outside: str, group_bias: bool, gate: Gate) -> Array:
    by = None if group_bias else _plain(name, gate)
    return group_limited_scores(_biased(name, gate), by, groups=groups, limit=limit, best=best, outside=outside)


def weight_rules(gate: Gate) -> Iterator[Rule]:
    """Yield the rules that weight the chosen experts, before any normalisation."""
    for name in AFFINITIES:
        yield Rule(name, partial(_plain, name), name)
        if gate.bias is not None:
            text = f"{name} + bias (the weights include the selection bias)"
            yield Rule(text, partial(_biased, name), name, biased=True)
    if gate.bias is not None:
        yield Rule("softmax of logits + bias", lambda g: softmax_affinity(_biased("logits", g)), biased=True)
    yield Rule("1 for each", lambda g: np.ones_like(_logits(g)), "none")
    yield Rule("the Sinkhorn plan", _sinkhorn, "sinkhorn")


@dataclass(frozen=True)
class Choice:
    """How well a choice rule fits a gate. For each token (or expert, if experts choose), `agrees` states whether the rule holds.
    `near` and `exact` mark the deviations that are near ties and exact ties."""

    rule: Rule
    agrees: Array
    near: Array
    exact: Array

    @property
    def holds(self) -> int:
        """The number of tokens (or experts) that follow the rule or are near ties."""
        return int((self.agrees | self.near).sum())


@dataclass(frozen=True)
class Weights:
    """How well a weight rule fits. divided: "after" or "before" if weights are divided by their sum after or before drops, else "".
    agrees, error: per token, whether the rule holds, and the error relative to the token's largest weight."""

    rule: Rule
    divided: str
    scale: float
    agrees: Array
    error: Array

    @property
    def text(self) -> str:
        by = ", divided by the sum over the chosen experts" if self.divided else ""
        by += " before drops" if self.divided == "before" else ""
        return f"{self.rule.text}{by}{'' if self.scale == 1 else f', times {self.scale:.4g}'}"


@dataclass(frozen=True)
class Explanation:
    """The best explanation of one gate, and other rules that explain many choices of the gate."""

    gate: Gate
    choice: Choice | None = None
    weights: Weights | None = None
    others: tuple[Choice, ...] = ()
    coarse: bool = False
    """Whether the explanation holds only up to bfloat16 rounding although the recording has another dtype."""

    @property
    def whole(self) -> bool:
        """Whether rules explain all recorded choices and weights."""
        return (self.chooses or self.gate.choices is None) and (self.weighs or self.gate.weights is None)

    @property
    def chooses(self) -> bool:
        """Whether the choice rule holds for all tokens."""
        return self.choice is not None and self.choice.holds == len(self.choice.agrees)

    @property
    def weighs(self) -> bool:
        """Whether the weight rule holds for all tokens."""
        return self.weights is not None and bool(self.weights.agrees.all())

    @property
    def words(self) -> tuple[str, ...]:
        """Return the texts of the rules, which identify an explanation."""
        choice = f"{self.choice.rule.text}{', rounded to bfloat16' if self.coarse else ''}" if self.choice else ""
        return (choice, self.weights.text if self.weights else "")


def choices_of(gate: Gate) -> int:
    """Return K, the maximum number of experts per token."""
    return int((gate.choices >= 0).sum(axis=1).max()) if gate.choices is not None else 0


def choice_fit(rule: Rule, gate: Gate) -> Choice:
    """Compare a gate's choices with the largest scores of a rule. Among equal scores, the lower index comes first."""
    scores, mask = rule.scores(gate), gate.mask
    mask, scale = (mask.T, np.abs(scores)) if rule.by_expert else (mask, rule.scale(gate))
    most = max(1, int(mask.sum(axis=1).max()))
    want = np.zeros(mask.shape, bool)
    np.put_along_axis(want, stable_order(scores)[:, :most], True, axis=1)
    wrong, missed = mask & ~want, want & ~mask
    agrees: Array = np.asarray(~wrong.any(axis=1))
    if rule.by_expert:
        agrees &= ~missed.any(axis=1)
    with np.errstate(invalid="ignore"):
        gap = np.where(missed, scores, -np.inf).max(axis=1) - np.where(wrong, scores, np.inf).min(axis=1)
    size = np.where(wrong | missed, scale, 0).max(axis=1)
    near: Array = ~agrees & (gap <= size * gate.rounding("logits", "weights"))
    return Choice(rule, agrees, near, ~agrees & (gap == 0))


def weights_of(rule: Rule, gate: Gate, choice: Choice | None) -> Iterator[tuple[str, Array]]:
    """Yield the weights of a gate's choices by each form of a rule: ("", not divided), then divided by the sum (see `Weights.divided`)."""
    made, chosen = gate.chosen >= 0, np.maximum(gate.chosen, 0).astype(np.int64)
    scores = rule.scores(gate)
    taken = np.where(made, np.take_along_axis(scores, chosen, axis=1), 0)
    sums = {"": np.ones(len(taken)), "after": taken.sum(axis=1)}
    if choice is not None and not choice.rule.by_expert and not made.all():
        best = stable_order(choice.rule.scores(gate))[:, : choices_of(gate)]
        sums["before"] = np.take_along_axis(scores, best, axis=1).sum(axis=1)
    for divided, total in sums.items():
        yield divided, taken / np.where(total == 0, 1, total)[:, None]


def weights_fit(rule: Rule, gate: Gate, choice: Choice | None) -> Iterable[Weights]:
    """Compare a gate's weights with each form of a rule: with or without division by the sum, and with or without a constant factor."""
    weights = present(f"{gate.name}: weights", gate.weights)
    largest = np.abs(weights).max(axis=1)
    bound = gate.rounding("weights", "logits")
    for divided, expected in weights_of(rule, gate, choice):
        known = (gate.chosen >= 0) & (expected != 0)
        ratio = float(np.median(weights[known] / expected[known])) if known.any() else 1.0
        for scale in (1.0, ratio) if abs(ratio - 1) > bound else (1.0,):
            error = np.abs(weights - scale * expected).max(axis=1) / np.where(largest == 0, 1, largest)
            yield Weights(rule, divided, scale, error <= bound, error)


def explained(gate: Gate) -> Explanation:
    """Find the choice and weight rules that hold for the most tokens. Of equally good rules, return the simplest one.

    If these rules do not hold for all tokens, but other rules hold for all tokens within bfloat16 rounding, return the other rules.
    """
    if gate.logits is None or gate.choices is None:
        return Explanation(gate)
    found = _explained(gate)
    if not found.whole:
        coarse = _explained(in_bfloat16(gate))
        if coarse.whole:
            return replace(coarse, gate=gate, coarse=True)
    return found


def in_bfloat16(gate: Gate) -> Gate:
    """Return a copy of the gate whose logits are compared with the tolerance of bfloat16."""
    return replace(gate, dtypes={**gate.dtypes, "logits": "bfloat16"})


def _explained(gate: Gate) -> Explanation:
    even = len(set(gate.mask.sum(axis=0).tolist())) == 1  # whether all experts have the same number of tokens
    fits = [choice_fit(rule, gate) for rule in choice_rules(gate) if not rule.by_expert or even]
    best = _best(fits)
    if best.holds < len(best.agrees):
        logits, choices = present("logits", gate.logits)[:SAMPLE], gate.chosen[:SAMPLE]
        few = replace(gate, calls=(len(logits),), logits=logits, choices=choices, weights=None)
        rules = [(choice_fit(rule, few).holds, rule) for rule in grouped(gate, choices_of(gate))]
        most = max((holds for holds, _ in rules), default=0)
        fits += [choice_fit(rule, gate) for rule in [rule for holds, rule in rules if holds == most > 0][:8]]
        best = _best(fits)
    weights = None
    if gate.weights is not None:
        forms = [form for rule in weight_rules(gate) for form in weights_fit(rule, gate, best)]
        weights = max(forms, key=lambda form: (int(form.agrees.sum()), form.scale == 1))
        alike = [fit for fit in fits if fit.holds == best.holds and fit.rule.affinity == weights.rule.affinity]
        if alike and not best.rule.biased and not best.rule.by_expert:
            best = alike[0]  # softmax and sigmoid make equal choices, so only the weights distinguish them
    others = sorted((fit for fit in fits if 20 * fit.holds > len(fit.agrees)), key=lambda fit: -fit.holds)
    return Explanation(gate, best, weights, tuple(fit for fit in others if fit.holds < best.holds)[:2])


def _best(fits: Sequence[Choice]) -> Choice:
    return max(fits, key=lambda fit: (fit.holds / len(fit.agrees), int(fit.agrees.sum()) / len(fit.agrees)))


class Named(NamedTuple):
    """A router by name, with the options and the ledger readings that a recording shows."""

    name: str
    options: dict[str, Any]
    readings: tuple[str, ...]


def named(explanation: Explanation) -> Named | None:
    """Return the matching router, or None if no router matches or the match is uncertain."""
    choice, weights, gate = explanation.choice, explanation.weights, explanation.gate
    if choice is None or weights is None or not explanation.whole or explanation.coarse or weights.rule.biased:
        return None
    affinity = weights.rule.affinity
    options: dict[str, Any] = {"choices": choices_of(gate)}
    if weights.divided:
        options["normalize_selected"] = True
    if choice.rule.by_expert:
        name, options = "softmax_expert_choice", {}
    elif choice.rule.affinity == "sinkhorn":
        name = "sinkhorn_token_choice"
    elif affinity == "softmax" and not choice.rule.options and not choice.rule.biased and weights.scale == 1:
        name = "softmax_token_choice"
    elif affinity in ("softmax", "sigmoid", "sqrt_softplus") and choice.rule.affinity == affinity:
        name = "sigmoid_token_choice"
        options |= {"affinity": affinity, "normalize_selected": bool(weights.divided), **choice.rule.options}
        options |= {} if weights.scale == 1 else {"scale": float(f"{weights.scale:.4g}")}
    else:
        return None
    readings = list(choice.rule.readings)
    if name == "softmax_token_choice":
        readings.append("SA-3b" if weights.divided else "SA-3")
    if choice.exact.any():
        readings.append("TC-1c")
    return Named(name, options, tuple(each for each in readings if each.rstrip("bcd") in LEDGER))


def router(explanation: Explanation) -> str:
    """Return the matching router with options and ledger readings, or "" if no router matches or the match is uncertain."""
    found = named(explanation)
    if found is None:
        return ""
    text = f"{found.name}({', '.join(f'{key}={value!r}' for key, value in found.options.items())})"
    known = found.readings
    return f"{text}, reading{'s' if len(known) > 1 else ''} {', '.join(known)}" if known else text


def explain(gates: Sequence[Gate]) -> tuple[str, bool]:
    """Describe the router that explains each gate, and group gates with the same router. Returns the text and whether all gates match."""
    found = [explained(gate) for gate in gates]
    alike: dict[Any, list[Explanation]] = {}
    for one in found:
        alike.setdefault((one.words, one.gate.experts, choices_of(one.gate), one.whole), []).append(one)
    return "\n\n".join("\n".join(_lines(group)) for group in alike.values()), all(one.whole for one in found)


def _lines(group: Sequence[Explanation]) -> Iterable[str]:
    first, gates = group[0], [one.gate for one in group]
    names = ", ".join(gate.name for gate in gates[:3]) + (f" and {len(gates) - 3} more" if len(gates) > 3 else "")
    dtypes = ", ".join(f"{part} {dtype}" for part, dtype in first.gate.dtypes.items()) or "dtypes unknown"
    tokens, choices = sum(gate.tokens for gate in gates), choices_of(first.gate)
    yield f"{names}: {plural(tokens, 'tokens')}, {plural(first.gate.experts, 'experts')}, {plural(choices, 'choices')} ({dtypes})"
    if first.choice is None:
        missing = "choices" if first.gate.choices is None else "logits"
        yield f"  no {missing} were recorded, so the router cannot be inferred; compare with another recording"
    else:
        fits = [one.choice for one in group if one.choice is not None]
        what = "experts" if first.choice.rule.by_expert else "tokens"
        yield f"  choice   the {choices} largest of {first.words[0]}: {_holds(fits, what)}"
        dropped = choices * tokens - sum(int((gate.chosen >= 0).sum()) for gate in gates)
        if dropped and what == "tokens":
            yield f"           {plural(dropped, 'choices')} of {choices * tokens} dropped because of a capacity or threshold"
    if first.weights is not None:
        forms = [one.weights for one in group if one.weights is not None]
        agree, of = sum(int(form.agrees.sum()) for form in forms), sum(len(form.agrees) for form in forms)
        error = max((float(form.error[form.agrees].max(initial=0)) for form in forms), default=0.0)
        yield f"  weights  {first.weights.text}: {agree} of {plural(of, 'tokens')}, error up to {error:.1g}"
    found = named(first)
    if found is not None:
        yield f"  router   {router(first)}"
        if text := published(found.name, found.options, first.gate.experts, biased=first.gate.bias is not None):
            yield f"  models   {text}"
    elif not first.whole and first.choice is not None:
        yield "  router   not explained: no known rule holds for all tokens"
    for other in first.others:
        yield f"  not      {other.rule.text}: choices agree for {other.holds} of {len(other.agrees)}"
    unused = {g.name: np.flatnonzero(~g.mask.any(axis=0)) for g in gates if g.choices is not None}
    for name, experts in list(unused.items())[:3]:
        if len(experts):
            yield f"  {plural(len(experts), 'experts')} of {first.gate.experts} never chosen in {name}: {', '.join(map(str, experts[:8]))}"


def _holds(fits: Sequence[Choice], what: str) -> str:
    """State the number of tokens that follow a rule, and the number of ties among these tokens."""
    near, exact = (sum(int(getattr(fit, kind).sum()) for fit in fits) for kind in ("near", "exact"))
    text = f"{sum(fit.holds for fit in fits)} of {plural(sum(len(fit.agrees) for fit in fits), what)}"
    if near:
        text += f", {near} of them near ties that rounding decides differently"
        text += f" ({exact} with equal scores where the lower index did not win)" if exact else ""
    return text
