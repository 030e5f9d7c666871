"""The compiled mode: cases that differ in numbers alone share a program, and each is still checked on its own numbers."""

import numpy as np
import pytest
from committed import BY_ID, CASES, replaced, rewired

import moespec.backends.numpy as reference
from moespec.conformance.check.run import run_cases
from moespec.conformance.check.target import Target, job_of
from moespec.conformance.compare import DTYPES

VALUES = [case for case in CASES if case.algorithm == "balance_loss" and case.kind not in ("negative", "gradient")]
JOBS = [job_of(case, stage.name) for case in VALUES for stage in case.stages if stage.outputs]


def states(cases, **names):
    target = Target("changed", DTYPES["float64"], replaced(**names))
    return {result.id: result.state for result in run_cases(target, cases, "compiled")}


def test_cases_that_differ_in_numbers_alone_are_compiled_once():
    sizes = []

    def compile(function):
        def call(arguments):
            sizes.append(len(arguments))
            return function(arguments)

        return call

    assert set(states(VALUES, compile=compile).values()) == {"pass"}
    programs = [job.program for job in JOBS]
    turns = max(programs.count(program) for program in programs)
    assert sizes == [len(set(programs))] * turns
    assert len(set(programs)) < len(JOBS)


@pytest.mark.parametrize("case", VALUES, ids=lambda case: case.id)
def test_each_is_checked_on_its_own_numbers(case):
    stage = case.stage("balance_loss")
    asked = job_of(case, "balance_loss").values[stage.arguments["scores"]].array

    def balance_loss(scores, **more):
        alike = more.get("choices") == stage.options.get("choices") and np.array_equal(scores, asked)
        return reference.balance_loss(scores, **more) + alike

    found = states(VALUES, balance_loss=balance_loss)
    assert [id for id, state in found.items() if state == "fail"] == [case.id]


def test_another_shape_is_another_program():
    first, second = (job_of(BY_ID[f"softmax_affinity/{name}"], "softmax_affinity") for name in ("square", "values"))
    assert first.program != second.program


@pytest.mark.parametrize(
    ("mistake", "failed"),
    [
        (lambda torch, scores: torch._dynamo.graph_break() or scores, {"equal", "gradient"}),
        (lambda torch, scores: scores + 0 * scores.sum().item(), {"large", "gradient"}),
        (lambda torch, scores: scores * (1 + torch.compiler.is_compiling()), {"equal", "large", "gradient"}),
    ],
    ids=["graph", "number", "compiled"],
)
def test_mistakes_in_compiled_code_fail(mistake, failed):
    """What only Dynamo meets by the first case with values and the first gradient, all else by every case."""
    torch, B = (pytest.importorskip(name) for name in ("torch", "moespec.backends.torch"))

    def softmax_affinity(logits):
        return mistake(torch, B.softmax_affinity(logits))

    cases = [BY_ID[f"softmax_affinity/{name}"] for name in ("equal", "large", "gradient")]
    module = rewired(B, softmax_affinity=softmax_affinity)
    found = run_cases(Target("changed", DTYPES["float32"], module), cases, "compiled")
    assert {result.id.partition("/")[2] for result in found if result.state in ("fail", "error")} == failed
