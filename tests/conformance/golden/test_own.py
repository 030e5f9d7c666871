"""Vectors of a router of one's own: made from its NumPy, checked on a backend, refused where they cannot be right."""

import json
import sys
from dataclasses import replace
from functools import wraps
from inspect import getsource
from types import SimpleNamespace

import numpy as np
import pytest
from committed import results_of
from my_routers import nearest
from my_routers.cases import FUNCTIONS

from moespec.backends import torch
from moespec.conformance.author.build import build
from moespec.conformance.author.own import case
from moespec.conformance.commandline import commands
from moespec.conformance.golden import own
from moespec.spec.errors import SpecError

NAME, ROUTER, BLOCK = "my_routers.nearest:ROUTER", nearest.ROUTER, nearest.nearness
WRONG = (
    ("nearness(B, tokens,", "nearness(B, 2 * tokens,"),
    ("token_choice(scores,", "token_choice(scores * scores.sum(),"),
    ("choices=options.choices", "choices=1"),
    ("options.capacity(train=train)", "options.capacity(train=train) + 1"),
    ("token_choice(scores,", "token_choice(-scores,"),
)
BLOCKS = {
    "scores: every value must be finite": lambda scores: np.nan * scores,
    "computing the case twice gave different results": lambda scores: np.random.default_rng().random() * scores,
    "IndexError: tuple index out of range": lambda scores: scores.shape[2],
}


@pytest.fixture
def golden(run, tmp_path, monkeypatch):
    """Makes vectors of `nearest` with other fields, and another block; the exit status, what was printed, and the errors."""
    cases = [case(NAME, "values", "value", "Training.", train=True, choices=2)]
    monkeypatch.setitem(sys.modules, "own_cases", SimpleNamespace(FUNCTIONS=FUNCTIONS, cases=lambda: cases))
    monkeypatch.setattr(commands, "find_spec", lambda name: name in ("torch", "tqdm", "pytest") or None)

    def made(*more, block=lambda scores: scores, **fields):
        monkeypatch.setattr(nearest, "nearness", wraps(BLOCK)(lambda *given, **named: block(BLOCK(*given, **named))))
        monkeypatch.setattr(nearest, "ROUTER", replace(ROUTER, **fields))
        return run("golden", "--cases", "own_cases", "--out", tmp_path / "out", *more)

    yield made
    for table, name in ((own.ALGORITHMS, "nearest"), *((own.FUNCTIONS, each.name) for each in FUNCTIONS)):
        table.pop(name, None)


def test_a_router_has_vectors_and_a_page(golden, tmp_path):
    status, printed, _ = golden()
    assert (status, printed.splitlines()[-2]) == (0, "6 passed, 0 failed, 0 skipped; 2 of 2 cases passed")
    before = {path.name: path.read_bytes() for path in tmp_path.rglob("*.*")}
    steps = [stage["call"] for stage in json.loads(before["values.json"])["stages"]]
    assert steps == ["my_routers.nearest:nearness", "token_choice", f"ROUTERS.{NAME}.route", "moe_layer"]
    for text in ("(as in t-SNE)", "* `choices=1`: number K", "`nearest/values`: Training.", "2 of 2 cases"):
        assert text in before["ROUTERS.md"].decode()
    assert golden()[0] == golden("--check")[0] == 0
    status, _, error = golden(block=lambda scores: 1.001 * scores)
    assert (status, "floats differ" in error, "or of your Router" in error) == (1, True, True)
    assert {path.name: path.read_bytes() for path in tmp_path.rglob("*.*")} == before
    golden(block=lambda scores: 1.001 * scores, revision=2)
    entry = json.loads((tmp_path / "out/suite.json").read_text())["algorithms"]["nearest"]
    assert (entry["router"], entry["revision"]) == (NAME, 2)


def test_cases_that_exit_are_an_error(tmp_path, monkeypatch):
    (tmp_path / "exits.py").write_text("raise SystemExit")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SpecError, match=r"cases='exits': SystemExit: , at \S*exits.py:1 in <module>"):
        own.read("exits")


def test_a_wrong_composition_fails(golden, monkeypatch):
    case = build(own.read("own_cases")[0]["nearest/values"])
    right = ("B", "metrics(routing), None)")  # without statistics, since it has no state
    for old, new in (("B", "B"), ("metrics(routing))", right[1]), *WRONG):
        exec(getsource(nearest.compose).replace(old, new), vars(nearest), changed := {})
        monkeypatch.setattr(nearest, "ROUTER", replace(ROUTER, **changed))
        (result,) = results_of(torch, [case], "float32")
        assert (result.state == "pass") == (new in right), new
        assert new in right or "metrics" not in result.first.stage  # but what they are computed from


def test_a_state_is_not_drawn_all_equal():
    drawn = (case("my_routers.averaged:ROUTER", f"number_{i}", "value", "A state.") for i in range(60))
    assert all(np.ptp(each.inputs["state/load"].array) for each in drawn)


def test_what_has_no_vectors_says_why(golden):
    for said, block in BLOCKS.items():
        status, _, error = golden(block=block)
        assert (status, said in error) == (1, True), error


def test_vectors_of_a_third_party_import_nothing(golden, run, tmp_path):
    golden()
    command = ("run", "--vectors", tmp_path / "out", "--target", "moespec.backends.numpy", "--dtype", "f64")
    status, printed, _ = run(*command)
    assert (status, f"add --trust {NAME}" in printed) == (1, True)
    assert run(*command, "--trust", NAME)[0] == 0
    assert "trust='my_gone:ROUTER': cannot be imported" in run(*command, "--trust", "my_gone:ROUTER")[2]
