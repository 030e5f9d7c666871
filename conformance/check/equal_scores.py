"""Results that differ only in the order of equal scores: the commonest failure of a third party's allocation.

The specification puts the lower index first. A sort that is not stable makes other choices among equal scores, and no known
variant computes those of somebody's sort; but in each slot, or for each token, the scores must be the same, bit by bit,
and a token whose score for an expert equals none of its others keeps its place in that expert's order.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec.conformance import call
from moespec.conformance.check.results import CaseResult
from moespec.conformance.compare import ALL_DTYPES, Dtype, compare, precision
from moespec.conformance.format import Case, Stage, Value
from moespec.conformance.functions import function

__all__ = ["mark_reordered", "ordered"]

TEXT = "differs only in the order of equal scores"


def mark_reordered(results: Sequence[CaseResult], cases: Sequence[Case]) -> list[CaseResult]:
    """The results, with the state `reordered` for failures that differ only in the order of equal scores."""
    known = {case.id: case for case in cases}
    return [_reordered(r) if r.state == "fail" and _is_reordered(r, known[r.id]) else r for r in results]


def _reordered(result: CaseResult) -> CaseResult:
    failed = [
        replace(o, state="reordered", message=f"{TEXT}. {o.message}") for o in result.outcomes if o.state == "fail"
    ]
    rest = iter(failed)
    return replace(result, outcomes=[next(rest) if o.state == "fail" else o for o in result.outcomes])


def _is_reordered(result: CaseResult, case: Case) -> bool:
    """Whether every stage that fails has slots that differ so, and their weights, or is what follows from them."""
    allocation = next((stage for stage in case.stages if "slots" in stage.outputs and ordered(stage, case)), None)
    failing = [outcome.stage for outcome in result.outcomes if outcome.state == "fail"]
    if allocation is None or not any(name.endswith("/slots") for name in failing):
        return False
    for place in failing:
        stage, _, name = place.partition("/")
        follows = stage == "moe_layer" or stage == "routing_metrics" or name.startswith("metrics/")
        if name not in ("slots", "weights") and not follows:
            return False
    stages = {place.partition("/")[0] for place in failing if place.endswith(("/slots", "/weights"))}
    if not stages <= {stage.name for stage in case.stages if "slots" in stage.outputs}:
        return False  # files may have stages that the case has not
    dtype = ALL_DTYPES[result.dtype]
    return all(_alike(case, allocation, stage, result.returned.get(stage, {}), dtype) for stage in stages)


def ordered(stage: Stage, case: Case) -> str:
    """The reference of the scores that a stage orders, if the case has them, or an empty string."""
    choice = function(stage.call).choice
    if choice is None or not isinstance(choice.ordered, str):
        return ""
    reference = stage.arguments.get(choice.ordered)
    return reference if isinstance(reference, str) and reference in call.golden(case) else ""


def _alike(case: Case, allocation: Stage, stage: str, returned: dict[str, Any], dtype: Dtype) -> bool:
    """Whether slots hold the scores that are expected, and the weights that belong to what they hold."""
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


def _taken(scores: NDArray[Any], slots: NDArray[Any]) -> NDArray[Any]:
    """The scores (groups, tokens, experts) of what is in the slots (groups, experts, capacity), -1 for nothing."""
    padded = np.concatenate([scores, np.full_like(scores[:, :1], -1)], axis=1).astype(np.float64)
    taken: NDArray[Any] = np.take_along_axis(padded.swapaxes(1, 2), slots, axis=2)
    return taken


def _untied(scores: NDArray[Any], slots: NDArray[Any]) -> NDArray[Any]:
    """The tokens of each expert in order, without those whose score for it equals another score of the same token."""
    tied = (scores[..., None] == scores[..., None, :]).sum(axis=-1) > 1
    left_out = _taken(tied, slots) != 0  # nothing counts as tied
    order = np.argsort(left_out, axis=2, kind="stable")
    untied: NDArray[Any] = np.take_along_axis(np.where(left_out, scores.shape[1], slots), order, axis=2)
    return untied


def _chosen(slots: NDArray[Any], scores: NDArray[Any]) -> NDArray[np.bool_]:
    """Which experts have which tokens: (groups, tokens, experts)."""
    chosen = np.zeros((scores.shape[0], scores.shape[1] + 1, scores.shape[2]), bool)
    np.put_along_axis(chosen.swapaxes(1, 2), slots, True, axis=2)
    return chosen[:, :-1]


def _repeats(slots: NDArray[Any], tokens: int) -> bool:
    """Whether an expert has a token twice."""
    order = np.sort(slots, axis=2)
    return bool(((order[..., 1:] == order[..., :-1]) & (order[..., 1:] < tokens)).any())
