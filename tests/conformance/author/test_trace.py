"""The calls of a router become stages: each argument is an input or the result of a call."""

import numpy as np
import pytest

from moespec import spec
from moespec.conformance.author.build import build
from moespec.conformance.author.trace import Recorder, TraceError
from moespec.conformance.cases import definitions

TOKENS, KERNEL = np.ones((6, 4)), np.arange(12.0).reshape(4, 3)


@pytest.fixture
def recorder():
    return Recorder(spec, {"tokens": TOKENS, "router/kernel": KERNEL})


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


def test_a_router_that_computes_between_its_calls_has_no_vectors(monkeypatch):
    right = spec.ROUTERS["switch"]
    right_route = right.route

    def route(params, tokens, options, **more):
        return right_route(params, tokens + 0, options, **more)

    monkeypatch.setitem(vars(right), "route", route)
    with pytest.raises(TraceError, match=r"^router_jitter: the argument tokens is neither an input nor the result"):
        build(definitions()["switch/values"])
