"""Diagnose the failures in a report: match known variants, detect reordered ties, and add explanations and small tables.

If no known variant reproduces a wrong result, the wrong numbers still give clues. For example, only second choices are missing,
all features of a token have the same wrong factor, or an input has no gradient. An explanation lists the correct results, and
relates the wrong result to the expected result (`relations.py`) or names a changed call that gives the wrong result (`changed_calls.py`).

Third-party routers fail most often by ordering equal scores differently. The specification puts the lower index first among
equal scores. An unstable sort returns an arbitrary order, which no known variant reproduces. A failure counts as reordered if each
slot has the weight of its token and condition (a) or (b) holds. (a) The scores in each slot are bitwise equal to the expected scores.
(b) Each token has the expected scores, and each expert has its tokens without tied scores in the expected order.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec.conformance import call
from moespec.conformance.check.changed_calls import changed_calls
from moespec.conformance.check.match_variant import Known, match_variants
from moespec.conformance.check.relations import Wrong, error_size, in_other_places, relations, rounded, shared
from moespec.conformance.check.results import FAILED, CaseResult, Report, Table
from moespec.conformance.compare import ALL_DTYPES, Dtype, Outcome, compare, place, precision
from moespec.conformance.format import Case, Stage, Value
from moespec.conformance.functions import function
from moespec.spec.numerics import stable_order

__all__ = ["LARGEST", "MATRICES", "diagnosed", "explain_failures", "mark_reordered"]

Array = NDArray[Any]
EXPLAINED = ("fail", "reordered")
MOST = 6
"""Maximum number of correct results listed."""
REORDERED = "differs only in tie-breaking"
LARGEST, MATRICES = 8, 4
"""Maximum rows and columns of a table, and tables per result."""


def diagnosed(report: Report, known: Known) -> Report:
    """Returns the report with the matching known variants, and with an explanation and a small table for each failure."""
    cases, matches = list(known.cases.values()), match_variants(report.results, known)
    results = explain_failures(mark_reordered(report.results, cases), known)
    tables = [replace(r, table=_table(r, known.cases[r.id])) if r.state in FAILED else r for r in results]
    return replace(report, results=tables, matches=matches)


def _table(result: CaseResult, case: Case) -> Table | None:
    wrong = _wrong(result, case)
    if wrong is None:
        return None
    got = wrong.got
    shape = (1, 1, *got.shape)
    matrices = int(np.prod(shape[:-2]))
    if max(shape[-2:]) > LARGEST or matrices > MATRICES or not got.size:
        return None
    a, b, c = (array.reshape(matrices, *shape[-2:]) for array in (wrong.want, got, wrong.differs))
    return Table(result.first.stage, _texts(a, b, c), _texts(b, a, c), c.tolist())


def _texts(array: NDArray[Any], other: NDArray[Any], marked: NDArray[Any]) -> list[list[list[str]]]:
    """Formats numbers with enough digits to distinguish wrong values from expected ones."""

    def text(number: Any, beside: Any, differs: Any) -> str:
        if array.dtype.kind != "f":
            return str(number)
        short = f"{number:.4g}"
        return f"{number:.17g}" if differs and short == f"{beside:.4g}" else short

    return [
        [[text(*cell) for cell in zip(*row, strict=True)] for row in zip(*matrix, strict=True)]
        for matrix in zip(array, other, marked, strict=True)
    ]


def explain_failures(results: Sequence[CaseResult], known: Known) -> list[CaseResult]:
    """Returns the results with an explanation of each failure. For wrong slots, names the expected token of the first wrong slot."""
    groups: dict[str, list[CaseResult]] = {}
    for result in results:
        if result.state in EXPLAINED:
            groups.setdefault(result.first.stage, []).append(result)
    explained = {(r.id, r.dtype, r.mode): r for group in groups.values() for r in _explained(group, known)}
    return [explained.get((r.id, r.dtype, r.mode), r) for r in results]


def _wrong(result: CaseResult, case: Case) -> Wrong | None:
    """Returns the first wrong result if the values can be compared with the expected values, else None."""
    stage, _, name = result.first.stage.partition("/")
    expected = case.gradients.wrt if stage == "gradient" and case.gradients else _outputs(case, stage)
    got = np.asarray(result.returned.get(stage, {}).get(name))
    if name not in expected or got.shape != expected[name].array.shape or got.dtype.kind not in "iufb":
        return None
    value, dtype = expected[name], ALL_DTYPES[result.dtype]
    dtype = dtype if stage == "gradient" else precision(case.stage(stage).call, name, dtype)
    wrong = Wrong(case, name, replace(value, array=value.array.astype(np.float64)), got.astype(np.float64), dtype)
    return wrong if wrong.differs.any() else None  # with --repeat, the first call may be correct


def _explained(group: Sequence[CaseResult], known: Known) -> list[CaseResult]:
    """Returns the failures of one stage of an algorithm with explanations. Prefers explanations that several failures share."""
    stage = group[0].first.stage.partition("/")[0]
    wrongs = [_wrong(result, known.cases[result.id]) for result in group]
    numbers = [each for each in wrongs if each and not _is_slots(each)]
    alike = dict(zip(map(id, numbers), shared(numbers), strict=True))
    short = rounded([each for each in numbers if np.isfinite(each.got).all()])
    places = [((r.id, stage), r.returned[stage], r.dtype) for r in group if stage in r.returned]
    changed = changed_calls(known, [each for each in places if known.compares(each[0])])
    explained = []
    for result, wrong in zip(group, wrongs, strict=True):
        said, first, outcomes = changed.get((result.id, stage), ""), result.first, result.outcomes
        case = known.cases[result.id]
        if wrong is None:
            said = said or (first.message if "/" in first.stage else "")  # a wrong shape or a missing result
        elif _is_slots(wrong):
            content, related = _slots(case, case.stage(stage), wrong.want.astype(int), wrong.got.astype(int))
            said = "; ".join(filter(None, [next(in_other_places(wrong), related), said]))
            message = f"{first.message.partition('; at ')[0]}; {content}"
            outcomes = [replace(o, message=message) if o is first else o for o in outcomes]
        else:
            arrays, finite = _arrays(case, stage, wrong), bool(np.isfinite(wrong.got).all())
            related = short * finite or alike[id(wrong)] or next(_of_numbers(case, stage, wrong, arrays), "")
            again = "times the expected" in related and (" times " in said or " divided by " in said)
            said = "; ".join(filter(None, [related, "" if again else said])) or error_size(wrong, arrays)
        right = [o.stage for o in outcomes if o.state == "pass"]
        listed = f"{', '.join(right[:MOST])}{' and others' if len(right) > MOST else ''} right; " if right else ""
        text = f"{listed}{first.stage} wrong" + (f": {said}" if said else "")
        explained.append(replace(result, outcomes=outcomes, explanation=text if listed or said else ""))
    return explained


def _is_slots(wrong: Wrong) -> bool:
    return (
        wrong.name == "slots"
        and wrong.value.axes == ("groups", "experts", "capacity")
        and "tokens" in _sizes(wrong.case)
    )


def _arrays(case: Case, stage: str, wrong: Wrong) -> dict[str, Array]:
    """Returns the other arrays of a case that have the shape of the wrong result. For weights, includes the scores of the slots' tokens."""
    own = (stage, f"{stage}/{wrong.name}")
    arrays = {n: x.array for n, x in call.golden(case).items() if n not in own and x.array.dtype.kind == "f"}
    shape, tokens, slots = wrong.want.shape, _sizes(case).get("tokens", 0), _outputs(case, stage).get("slots")
    if wrong.name == "weights" and slots is not None:
        scores = {name: x for name, x in arrays.items() if x.shape == (shape[0], tokens, shape[1])}
        arrays |= {name: np.where(slots.array < tokens, _taken(x, slots.array), 0.0) for name, x in scores.items()}
    return {name: x for name, x in arrays.items() if x.shape == shape}


def _of_numbers(case: Case, stage: str, wrong: Wrong, arrays: dict[str, Array]) -> Iterator[str]:
    """Yields sentences that relate a wrong result to the expected one and to other arrays."""
    slots = _outputs(case, stage).get("slots")
    if stage == "gradient" and (said := _gradient(case, wrong)):
        yield said
    if wrong.name == "weights" and slots is not None and wrong.got[wrong.differs].any():
        parts = slots.array + np.arange(len(slots.array))[:, None, None] * (int(slots.array.max()) + 1)
        top, bottom = (np.bincount(parts.ravel(), (x * wrong.want).ravel()) for x in (wrong.got, wrong.want))
        factors = np.divide(top, bottom, out=np.zeros_like(top), where=bottom > 0)
        if (np.bincount(parts[wrong.want != 0]) > 1).any() and wrong.fits(wrong.want * factors[parts]):
            yield "the weights of a token are off by one factor"
    yield from relations(wrong, arrays)


def _outputs(case: Case, stage: str) -> dict[str, Value]:
    return next((each.outputs for each in case.stages if each.name == stage), {})


def _sizes(case: Case) -> dict[str, int]:
    return {axis: n for t in case.inputs.values() for axis, n in zip(t.axes, t.array.shape, strict=False)}


def _slots(case: Case, stage: Stage, want: Array, got: Array) -> tuple[str, str]:
    """Describes the first wrong slot and the problem that all wrong slots share."""
    reference = ordered(stage, case)
    scores = call.golden(case)[reference].array if reference else None
    tokens = _sizes(case)["tokens"] if scores is None else scores.shape[1]
    ranks = _ranks(scores) if scores is not None and "choices" in stage.options else None

    def token(number: int, group: int, expert: int) -> str:
        if number == tokens:
            return "empty"
        if ranks is None or not 0 <= number < tokens:
            return f"token {number}"
        return f"token {number} (its {_ordinal(ranks[group, number, expert])} choice)"

    index = np.unravel_index(int((got != want).argmax()), want.shape)
    group, expert = int(index[0]), int(index[1])
    text = f"{place(('groups', 'experts', 'capacity'), index)}: {token(int(got[index]), group, expert)}, expected "
    text += token(int(want[index]), group, expert)
    held = [{(g, int(t), e) for (g, e, _), t in np.ndenumerate(array) if t != tokens} for array in (want, got)]
    missing, extra = held[0] - held[1], held[1] - held[0]
    if not missing and not extra:
        return text, "the correct tokens are in other slots" + (", by index" if (np.diff(got) >= 0).all() else "")
    filled = [int((array != tokens).sum(axis=2).max()) for array in (got, want)]
    most = f": at most {filled[0]} per expert, expected {filled[1]}" if filled[0] != filled[1] else ""
    if not missing:
        return text, f"experts have unexpected tokens{most}"
    lacking = {int(ranks[each]) for each in missing} if ranks is not None else set()
    of = f", only {_ordinal(lacking.pop())} choices" if len(lacking) == 1 else ""
    later = all(t < other for g, t, e in missing for a, other, b in extra if (g, e) == (a, b))
    others = f"have {'later' if later else 'other'} tokens" if extra else "leave slots empty"
    return text, f"experts lack tokens{of}, and {others} instead{most}"


def _ranks(scores: Array) -> Array:
    """Returns the rank of each expert for each token (groups, tokens, experts); 0 is the expert with the highest score."""
    return np.argsort(np.stack([stable_order(group) for group in scores]), axis=2)


def _ordinal(rank: int) -> str:
    return {0: "1st", 1: "2nd", 2: "3rd"}.get(int(rank), f"{int(rank) + 1}th")


def _gradient(case: Case, wrong: Wrong) -> str:
    """Describes where a derivative is wrongly zero or wrongly nonzero."""
    got, differs, name = wrong.got, wrong.differs, wrong.name
    if not np.isfinite(got).all():
        return ""
    if not got.any():
        return f"no gradient reaches {name}"
    if (wrong.want[differs] == 0).all():
        return "a gradient flows where none should"
    if got[differs].any():
        return ""
    of = ""
    for stage in case.stages:
        reference = ordered(stage, case) if "choices" in stage.options else ""
        scores = call.golden(case)[reference].array if reference else got[:0]
        if scores.shape == got.shape and len(ranks := set(_ranks(scores)[differs].tolist())) == 1:
            of = f", only at {_ordinal(ranks.pop())} choices"
    return f"it is 0 where it differs{of}: part of the gradient path is cut"


def mark_reordered(results: Sequence[CaseResult], cases: Sequence[Case]) -> list[CaseResult]:
    """Returns the results. Failures that differ only in tie-breaking have the state `reordered`."""
    known = {case.id: case for case in cases}

    def reordered(outcome: Outcome) -> Outcome:
        if outcome.state != "fail":
            return outcome
        return replace(outcome, state="reordered", message=f"{REORDERED}. {outcome.message}")

    return [
        replace(r, outcomes=[*map(reordered, r.outcomes)]) if r.state == "fail" and _is_reordered(r, known[r.id]) else r
        for r in results
    ]


def _is_reordered(result: CaseResult, case: Case) -> bool:
    """Whether all wrong slots and weights are only reordered, and all other wrong results depend on the slots."""
    allocation = next((stage for stage in case.stages if "slots" in stage.outputs and ordered(stage, case)), None)
    failing = [outcome.stage for outcome in result.outcomes if outcome.state == "fail"]
    if allocation is None or not any(name.endswith("/slots") for name in failing):
        return False
    for failed in failing:
        stage, _, name = failed.partition("/")
        follows = stage == "moe_layer" or stage == "routing_metrics" or name.startswith("metrics/")
        if name not in ("slots", "weights") and not follows:
            return False
    stages = {failed.partition("/")[0] for failed in failing if failed.endswith(("/slots", "/weights"))}
    if not stages <= {stage.name for stage in case.stages if "slots" in stage.outputs}:
        return False  # files may contain stages that the case lacks
    dtype = ALL_DTYPES[result.dtype]
    return all(_alike(case, allocation, stage, result.returned.get(stage, {}), dtype) for stage in stages)


def ordered(stage: Stage, case: Case) -> str:
    """Returns the reference to the scores by which a stage orders tokens, or "" if the case has no such scores."""
    choice = function(stage.call).choice
    if choice is None or not isinstance(choice.ordered, str):
        return ""
    reference = stage.arguments.get(choice.ordered)
    return reference if isinstance(reference, str) and reference in call.golden(case) else ""


def _alike(case: Case, allocation: Stage, stage: str, returned: dict[str, Any], dtype: Dtype) -> bool:
    """Whether slots differ from the expected slots only in tie-breaking, and each slot has the weight of its token."""
    golden = call.golden(case)
    scores = golden[ordered(allocation, case)].array
    want = case.stage(stage).outputs["slots"].array
    got = np.asarray(returned.get("slots"))
    if got.shape != want.shape or got.dtype.kind not in "iu" or (got < 0).any() or (got > scores.shape[1]).any():
        return False
    if _repeats(got, scores.shape[1]):
        return False
    by_slot = np.array_equal(_taken(scores, got), _taken(scores, want))
    of_tokens = [np.sort(np.where(_chosen(slots, scores), scores, -1), axis=2) for slots in (got, want)]
    by_token = np.array_equal(of_tokens[0], of_tokens[1]) and np.array_equal(
        _untied(scores, got), _untied(scores, want)
    )
    reference = allocation.arguments.get("combine_scores")
    combine = golden[reference].array if isinstance(reference, str) and reference in golden else scores
    weights = Value(np.where(got < scores.shape[1], _taken(combine, got), 0.0), (), "float")
    return (by_slot or by_token) and compare(
        weights, returned.get("weights"), precision(case.stage(stage).call, "weights", dtype)
    ).passed


def _taken(scores: Array, slots: Array) -> Array:
    """Returns the scores (groups, experts, capacity) of the slots' tokens, or -1 for empty slots. scores: (groups, tokens, experts)."""
    padded = np.concatenate([scores, np.full_like(scores[:, :1], -1)], axis=1).astype(np.float64)
    taken: Array = np.take_along_axis(padded.swapaxes(1, 2), slots, axis=2)
    return taken


def _untied(scores: Array, slots: Array) -> Array:
    """Returns each expert's tokens in order, without tokens whose score for the expert equals another score of the same token."""
    tied = (scores[..., None] == scores[..., None, :]).sum(axis=-1) > 1
    left_out = _taken(tied, slots) != 0  # an empty slot counts as tied
    order = np.argsort(left_out, axis=2, kind="stable")
    untied: Array = np.take_along_axis(np.where(left_out, scores.shape[1], slots), order, axis=2)
    return untied


def _chosen(slots: Array, scores: Array) -> Array:
    """Returns a mask (groups, tokens, experts) of the tokens in each expert's slots."""
    chosen = np.zeros((scores.shape[0], scores.shape[1] + 1, scores.shape[2]), bool)
    np.put_along_axis(chosen.swapaxes(1, 2), slots, True, axis=2)
    return chosen[:, :-1]


def _repeats(slots: Array, tokens: int) -> bool:
    """Whether an expert has the same token in two slots."""
    order = np.sort(slots, axis=2)
    return bool(((order[..., 1:] == order[..., :-1]) & (order[..., 1:] < tokens)).any())
