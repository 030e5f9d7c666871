"""What the choice of a gate and the weights of the chosen can be made of: the candidates of an explanation.

A rule of choice gives scores (tokens, experts), the K largest of which are chosen; a rule of weights gives those that the
chosen are weighted by. Each is applied alone, to the logits of a recording, so that it shows which of the two is not as
expected. Fields of the options are those of the routers in `moespec.spec.ROUTERS`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec.conformance.record.file import Gate
from moespec.spec import (
    group_limited_scores,
    sigmoid_affinity,
    sinkhorn_affinity,
    softmax_affinity,
    sqrt_softplus_affinity,
)
from moespec.spec.errors import SpecError
from moespec.spec.values import present

__all__ = ["AFFINITIES", "Rule", "choice_rules", "grouped", "weight_rules"]

Array = NDArray[Any]

AFFINITIES: Mapping[str, Callable[[Array], Array]] = {
    "softmax": softmax_affinity,
    "sigmoid": sigmoid_affinity,
    "sqrt_softplus": sqrt_softplus_affinity,
    "logits": lambda logits: logits,
}


@dataclass(frozen=True)
class Rule:
    """One way to make scores of a gate's logits; two are equal if their words are.

    scores: (tokens, experts). options: of our routers, and readings: of the ledger, that say the same. by_expert: whether
    each expert chooses tokens. scale: of the numbers that scores are sums of, which their rounding is a fraction of.
    """

    text: str
    scores: Callable[[Gate], Array] = field(compare=False)
    affinity: str = "softmax"
    options: Mapping[str, Any] = field(default_factory=dict, compare=False)
    readings: tuple[str, ...] = field(default=(), compare=False)
    by_expert: bool = field(default=False, compare=False)
    biased: bool = False

    def scale(self, gate: Gate) -> Array:
        """(tokens, experts)."""
        return np.abs(self.scores(gate)) + (np.abs(gate.bias) if self.biased and gate.bias is not None else 0)


def _logits(gate: Gate) -> Array:
    return present(f"{gate.name}: logits", gate.logits).astype(np.float64)


def _plain(name: str, gate: Gate) -> Array:
    return AFFINITIES[name](_logits(gate))


def _biased(name: str, gate: Gate) -> Array:
    return _plain(name, gate) + (0 if gate.bias is None else gate.bias.astype(np.float64))


def _sinkhorn(gate: Gate) -> Array:
    """The plan of each call."""
    parts = np.split(_logits(gate), np.cumsum(gate.calls)[:-1])
    try:
        return np.concatenate([sinkhorn_affinity(part) for part in parts])
    except SpecError:  # logits that it cannot balance
        return np.zeros_like(_logits(gate))


def choice_rules(gate: Gate) -> Iterator[Rule]:
    """Those without groups, the plainest first."""
    for name in AFFINITIES:
        if gate.bias is not None:
            text = f"{name} scores + bias" if name != "logits" else "logits + bias"
            yield Rule(text, partial(_biased, name), name, biased=True)
        yield Rule(f"{name} scores" if name != "logits" else "logits", partial(_plain, name), name)
    yield Rule("softmax scores of the tokens", lambda g: softmax_affinity(_logits(g)).T, by_expert=True)
    yield Rule("the Sinkhorn plan", _sinkhorn, "sinkhorn")


GROUP_SCORES = {
    "top_2": ("GL-1", "the sum of its best 2"),
    "top_k_over_m": ("GL-1b", "the sum of its best K / M"),
    "max": ("GL-1c", "its best"),
}


def grouped(gate: Gate, choices: int) -> Iterator[Rule]:
    """Choices among the experts of a token's best groups. It chooses from M of them, and no more than are seen at most."""
    bias = gate.bias is not None
    for groups in (n for n in range(2, gate.experts // 2 + 1) if gate.experts % n == 0):
        size = gate.experts // groups
        seen = int(gate.mask.reshape(gate.tokens, groups, size).any(axis=2).sum(axis=1).max())
        limits = range(max(seen, -(-choices // size)), min(seen + 1, groups - 1) + 1)
        forms = product(limits, ("softmax", "sigmoid"), GROUP_SCORES, ("excluded", "zero"), (True, False)[: 1 + bias])
        for limit, name, kind, outside, group_bias in forms:
            best = {"top_2": 2, "max": 1}.get(kind, choices // limit if choices % limit == 0 else 0)
            if not 0 < best <= size or (kind == "top_k_over_m" and best < 3):  # 1 and 2 are the others
                continue
            reading, words = GROUP_SCORES[kind]
            text = f"{name} scores{' + bias' if bias else ''} in the best {limit} of {groups} groups, "
            text += f"a group by {words}{'' if group_bias else ' without the bias'}, others {outside}"
            options = {"expert_groups": groups, "chosen_groups": limit, "group_score": kind, "group_bias": group_bias}
            readings = [reading, "GL-2" if outside == "excluded" else "GL-2b"]
            readings += ["GL-3" if group_bias else "GL-3b"] if bias else []
            scores = partial(_limited, name, groups, limit, best, outside, group_bias)
            yield Rule(text, scores, name, {**options, "outside": outside}, tuple(readings), biased=bias)


def _limited(name: str, groups: int, limit: int, best: int, outside: str, group_bias: bool, gate: Gate) -> Array:
    by = None if group_bias else _plain(name, gate)
    return group_limited_scores(_biased(name, gate), by, groups=groups, limit=limit, best=best, outside=outside)


def weight_rules(gate: Gate) -> Iterator[Rule]:
    """By what the chosen are weighted, before any sum that it is divided by."""
    for name in AFFINITIES:
        yield Rule(name, partial(_plain, name), name)
        if gate.bias is not None:
            text = f"{name} + bias (the bias, which is for the choice, is in the weights)"
            yield Rule(text, partial(_biased, name), name, biased=True)
    if gate.bias is not None:
        yield Rule("softmax of logits + bias", lambda g: softmax_affinity(_biased("logits", g)), biased=True)
    yield Rule("1 for each", lambda g: np.ones_like(_logits(g)), "none")
    yield Rule("the Sinkhorn plan", _sinkhorn, "sinkhorn")
