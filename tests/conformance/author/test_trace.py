"""The calls of a router become stages: each argument is an input or the result of a call, and no name says what to do."""

from dataclasses import replace

import numpy as np
import pytest

from moespec import spec
from moespec.conformance.author.build import build
from moespec.conformance.author.trace import Recorder, TraceError
from moespec.conformance.cases import definitions
from moespec.conformance.matrix_rows import ALGORITHMS

TOKENS, KERNEL = np.ones((6, 4)), np.arange(12.0).reshape(4, 3)


@pytest.fixture
def recorder():
    return Recorder(spec, {"tokens": TOKENS, "router/kernel": KERNEL})


@pytest.fixture
def registered(monkeypatch):
    """Adds a router to the registry that is another one with some fields changed."""

    def registered_(router, **fields):
        changed = replace(spec.ROUTERS[router], **fields)
        monkeypatch.setitem(spec.ROUTERS, changed.name, changed)
        monkeypatch.setitem(ALGORITHMS, changed.name, changed.algorithm)

    return registered_


def test_calls_are_recorded_with_references(recorder):
    """Also through what stops gradients; a call that is made twice is one stage."""
    logits = recorder.router_logits(TOKENS, kernel=KERNEL)
    scores = recorder.softmax_affinity(recorder.stop_gradient(logits))
    assert recorder.softmax_affinity(logits) is scores
    recorder.token_choice(scores, choices=1, capacity=2, combine_scores=recorder.softmax_affinity(scores))
    assert [(stage.name, stage.call, stage.arguments, stage.options) for stage in recorder.stages] == [
        ("router_logits", "router_logits", {"tokens": "tokens", "kernel": "router/kernel"}, {}),
        ("softmax_affinity", "softmax_affinity", {"logits": "router_logits"}, {}),
        ("softmax_affinity_2", "softmax_affinity", {"logits": "softmax_affinity"}, {}),
        (
            "token_choice",
            "token_choice",
            {"scores": "softmax_affinity", "combine_scores": "softmax_affinity_2"},
            {"choices": 1, "capacity": 2},
        ),
    ]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda B: B.router_logits(2 * TOKENS, KERNEL), "router_logits: the argument tokens is neither an input"),
        (lambda B: B.softmax_affinity(B.router_logits(TOKENS, KERNEL).copy()), "softmax_affinity: the argument logits"),
        (lambda B: B.softmax_affinity(TOKENS @ KERNEL), "softmax_affinity: the argument logits"),
        (lambda B: B.expert_mlp(TOKENS, {"w1": KERNEL[0]}), r"expert_mlp: the argument params\['w1'\]"),
    ],
)
def test_an_array_from_nowhere_is_an_error(recorder, call, said):
    with pytest.raises(TraceError, match=said):
        call(recorder)


def test_a_router_that_computes_between_its_calls_has_no_vectors(registered):
    right = spec.ROUTERS["switch"].route
    registered("switch", route=lambda params, tokens, options, **more: right(params, tokens + 0, options, **more))
    with pytest.raises(TraceError, match=r"^router_jitter: the argument tokens is neither an input nor the result"):
        build(definitions()["switch/values"])


@pytest.mark.parametrize(
    ("router", "case"), [("sinkhorn_token_choice", "clean_combine"), ("hash", "values"), ("soft_moe", "rsqrt")]
)
def test_the_name_of_a_router_changes_nothing(registered, router, case):
    """Its stages, scales and decisions follow from what it calls."""
    definition = definitions()[f"{router}/{case}"]
    made = build(definition)
    registered(router, name="zzz")
    routed = replace(definition.routed, router="zzz", drawn=False)
    again = build(replace(definition, algorithm="zzz", inputs=made.inputs, routed=routed))
    assert again.id == f"zzz/{case}"
    assert again.decisions == made.decisions
    assert [stage.name for stage in again.stages] == [stage.name for stage in made.stages]
    for one, other in zip(made.stages, again.stages, strict=True):
        assert one.call.replace(f".{router}.", ".zzz.") == other.call
        assert (one.arguments, one.options, list(one.outputs)) == (other.arguments, other.options, list(other.outputs))
        for name, value in one.outputs.items():
            counterpart = other.outputs[name]
            assert (value.kind, value.axes, value.constant) == (
                counterpart.kind,
                counterpart.axes,
                counterpart.constant,
            )
            np.testing.assert_array_equal(value.array, counterpart.array)
            np.testing.assert_array_equal(value.scale, counterpart.scale)
