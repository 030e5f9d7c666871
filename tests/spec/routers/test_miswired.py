"""A router that is wired wrongly in the specification: the vectors made of it fail on the compositions of the backends.

Both were one text once, and agreed on whatever it said. The vectors are made anew of each wrong text. Of a router that ignores an
option, tests/conformance/cases/test_router_options.py shows the vectors that differ.
"""

import ast
import sys
from pathlib import Path

import pytest
from committed import of, results_of, rewired

import moespec.backends.numpy as numpy
from moespec import spec
from moespec.conformance.author.build import build
from moespec.conformance.check.results import FAILED
from moespec.conformance.golden.derived import all_definitions

COMPOSED = rewired(numpy)

NOISY = "losses(options, logits, noisy, noise"
WRONG = [
    ("softmax_token_choice", "scores = softmax_affinity(noisy)", "scores = softmax_affinity(logits)"),
    ("softmax_token_choice", NOISY, "losses(options, noisy, noisy, noise"),
    ("softmax_token_choice", "choices=options.choices, counted", "choices=1, counted"),
    ("softmax_token_choice", "counted=counted", "counted=None"),
    ("softmax_token_choice", "batch_priority(scores, by=options.batch_priority", 'batch_priority(scores, by="max"'),
    ("sinkhorn_token_choice", "combine_scores(plan, logits, noisy", "combine_scores(plan, noisy, logits"),
    ("sinkhorn_token_choice", "choices, selection, combine)", "choices, selection, plan)"),
    ("sinkhorn_expert_choice", "from_clean=from_clean", "from_clean=False"),
    ("sinkhorn_expert_choice", NOISY, "losses(options, logits, logits, noise"),
    ("sparsity_constrained_token_choice", 'sparsity="token"', 'sparsity="expert"'),
    ("noisy_top_k", "importance_loss(gates)", "importance_loss(softmax_affinity(logits))"),
    ("noisy_top_k", 'losses["z"] = z_loss(logits)', 'losses["z"] = z_loss(noisy)'),
    ("noisy_top_k", "batch_priority(selection", "batch_priority(gates"),
    ("hierarchical_top_k", "choices=options.requests[1]", "choices=1"),
    ("s_base", "else sigmoid_affinity(noisy)", "else sigmoid_affinity(logits)"),
    ("gshard", "batch_priority(scores", "batch_priority(selection"),
    ("switch", "(options, logits)", "(options, router_logits(tokens, params['kernel']))"),
    ("sigmoid_token_choice", "importance_loss(shares)", "importance_loss(scores)"),
    ("sigmoid_token_choice", "expert_load(selection", "expert_load(scores"),
    ("batch_expert_choice", "capacity_thresholds(by", "capacity_thresholds(scores"),
    ("strictly_balanced", "threshold_loss(gates", "threshold_loss(weights"),
    ("relu", 'state["penalty"], choices=options.choices', 'state["penalty"], choices=1'),
    ("dselect_k", "dselect_k_entropy(selectors)", "dselect_k_reachability(selectors)"),
    ("base", "shards=shards", "shards=1"),
]


def test_vectors_of_the_right_text_pass():
    """Checks one router. `nox -s conformance` checks all."""
    cases = of("switch", kinds=("value", "overflow", "degenerate", "gradient"))
    assert {result.state for result in results_of(COMPOSED, cases)} == {"pass"}


@pytest.mark.parametrize(("router", "right", "wrong"), WRONG, ids=[f"{each[0]}: {each[2]}" for each in WRONG])
def test_vectors_of_a_wrong_text_fail(router, right, wrong, monkeypatch):
    module = sys.modules[spec.ROUTERS[router].Options.__module__]
    text = Path(module.__file__).read_text()
    assert text.count(right) == 1, text.count(right)
    tree = ast.parse(text.replace(right, wrong))
    (function,) = (each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == "route")
    names = vars(module)
    right_route = names["route"]
    exec(compile(ast.Module([function], []), module.__file__, "exec"), names)
    monkeypatch.setitem(vars(spec.ROUTERS[router]), "route", names["route"])
    names["route"] = right_route
    ids = [case.id for kind in ("value", "overflow", "degenerate", "gradient") for case in of(router, kinds=(kind,))]
    states = (result.state for id in ids for result in results_of(COMPOSED, [build(all_definitions()[id])]))
    assert any(state in FAILED for state in states)
