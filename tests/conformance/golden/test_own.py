"""Vectors of a router of one's own: made from its NumPy, checked on the backends, refused where they cannot be right."""

import json
import sys
from dataclasses import replace
from importlib import import_module

import pytest

from moespec.conformance import functions, matrix_rows
from moespec.conformance import pytest as conformance
from moespec.conformance.author.build import build
from moespec.conformance.check import process
from moespec.conformance.check.run import run_cases
from moespec.conformance.check.target import Target
from moespec.conformance.compare import DTYPES
from moespec.conformance.format import path_parts
from moespec.conformance.golden import own

ROUTER = """
'''Token Choice by tempered scores: softmax(x w / t).'''
from dataclasses import dataclass
from functools import partial
import numpy as np
from moespec import spec
from moespec.spec.ranges import Count, Factor, Weight
from moespec.spec.routers import Router
from moespec.spec.routers.common import init_kernel

with open(PLACE, "a") as file:
    file.write("imported")


@dataclass(frozen=True, kw_only=True)
class Options(spec.RouterOptions):
    choices: Count = 2
    capacity_factor: Factor = 1.0
    balance_weight: Weight = 0.5


def init(generator, options):
    return {**init_kernel(generator, options), "temperature": np.ones(options.experts, np.float32)}


def temper(B, logits, temperature):
    return logits / B.xp.promote(temperature)


def compose(B, params, tokens, options, *, noise=None, train=False):
    scores = B.softmax_affinity(temper(B, B.router_logits(tokens, params["kernel"]), params["temperature"]))
    routing = B.token_choice(scores, choices=options.choices, capacity=options.capacity(train=train))
    loss = B.balance_loss(scores)
    return spec.RouterOutput(routing, {"balance": options.balance_weight * loss}, {**B.routing_metrics(routing), "balance_loss": loss})


ROUTER = Router("tempered", "an example", Options, init, partial(compose, spec), compose=compose, balances="", cost="", drops="")
"""
CASES = """
from moespec.conformance.author.own import Function, Output, case

FUNCTIONS = (Function("own_gate:temper", {"logits": Output("groups tokens experts")}),)


def cases():
    yield case("own_gate:ROUTER", "values", "value", "The defaults.")
    yield case("own_gate:ROUTER", "overflow", "overflow", "Few slots.", capacity_factor=0.5, train=True)
"""
NAME = "own_gate:ROUTER"


@pytest.fixture(autouse=True)
def unchanged():
    """Rows, functions and names to trust of a test are not those of the next."""
    before = [(table, table.copy()) for table in (matrix_rows.OWN, functions.FUNCTIONS, process.TRUSTED)]
    yield
    for table, kept in before:
        table.clear()
        table.update(kept) if isinstance(table, dict) else table.extend(kept)


@pytest.fixture
def gate(target, tmp_path, monkeypatch):
    """Makes the modules of a router, of some text, and of its cases; what writes its vectors, and checks no backend but torch."""
    monkeypatch.setattr(own, "BACKENDS", ("torch",))
    monkeypatch.setattr(own, "DTYPES", {"float32": DTYPES["float32"]})

    def gate(text=ROUTER, cases=CASES):
        target("own_gate", text.replace("PLACE", repr(str(tmp_path / "imported"))))
        return target("own_cases", cases)

    return gate


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_the_vectors_their_row_and_page(gate, run, tmp_path, monkeypatch):
    out = tmp_path / "out"
    command = ("golden", "--cases", gate(), "--out", out)
    status, printed, error = run(*command)
    assert (status, error) == (0, "")
    assert printed.splitlines() == [
        "8 cases made, 8 written",
        "| router | backend | float32 |",
        "|---|---|---|",
        "| tempered | torch | 8 of 8 |",
    ]
    listed = json.loads((out / "suite.json").read_text())["algorithms"]["tempered"]
    assert (listed["router"], listed["revision"], listed["cases"]) == (NAME, 1, 8)
    values = json.loads((out / "vectors/tempered/values.json").read_text())
    steps = ["router_logits", "temper", "softmax_affinity", "token_choice", "balance_loss", "route", "moe_layer"]
    assert [stage["name"] for stage in values["stages"]] == steps
    assert values["stages"][1]["call"] == "own_gate:temper"
    assert values["stages"][1]["arguments"] == {"logits": "router_logits", "temperature": "router/temperature"}
    page = (out / "tempered.md").read_text()
    for text in ("softmax(x w / t)", "| `balance_weight` | `0.5` | weight of the", "`temperature` (experts)", "8 of 8"):
        assert text in page
    before = files(out)
    assert run(*command)[0] == 0
    assert files(out) == before
    monkeypatch.setattr(own, "BACKENDS", ())
    assert run(*command, "--check")[:2] == (0, "8 cases as committed\n| router | backend | float32 |\n|---|---|---|\n")

    other = ROUTER.replace("options.balance_weight * loss", "2 * options.balance_weight * loss")
    gate(other)
    status, _, error = run(*command)
    assert status == 1
    assert "tempered/values: route/losses/balance: 1 floats differ" in error
    assert "raise its revision, Router(..., revision=2)" in error
    assert files(out) == before
    gate(other.replace("drops=", "revision=2, drops="))
    assert run(*command)[0] == 0
    assert json.loads((out / "suite.json").read_text())["algorithms"]["tempered"]["revision"] == 2


WRONG = {
    "right": ("", ""),
    "a temperature that multiplies": ("logits / B", "logits * B"),
    "no temperature": ("/ B.xp.promote(temperature)", "+ 0 * temperature"),
    "a softmax of all groups": ("B.softmax_affinity(temper(", "mixed(B.softmax_affinity, temper("),
    "one choice": ("choices=options.choices", "choices=1"),
    "another capacity": ("options.capacity(train=train)", "options.capacity(train=train) + 1"),
    "an unweighted loss": ("options.balance_weight * loss", "loss"),
    "the loss of the first group": ("B.balance_loss(scores)", "B.balance_loss(scores[:1])"),
}
MIXED = "\n\ndef mixed(softmax, logits):\n    return softmax(logits) * (1 + 0.1 * logits.mean())\n"


def test_a_wrong_composition_fails(gate, target, monkeypatch):
    """That is computed in another way than the NumPy of the router, for all groups at once."""
    gate()
    definitions, _ = own.read("own_cases")
    cases = [build(each) for each in definitions.values()]
    states = {}
    for place, (old, new) in WRONG.items():
        assert old in ROUTER
        target("own_wrong", (ROUTER.replace(old, new) + MIXED).replace("PLACE", "'/dev/null'"))
        router = replace(sys.modules["own_gate"].ROUTER, compose=import_module("own_wrong").compose)
        monkeypatch.setattr(sys.modules["own_gate"], "ROUTER", router)
        results = run_cases(Target("moespec.backends.torch", DTYPES["float32"]), cases, "eager")
        states[place] = {result.id: result.state for result in results if result.state != "pass"}
    assert states.pop("right") == {}
    assert all(states.values()), states


ERRORS = {
    "NaN": (
        ("return logits /", "return np.nan * logits /"),
        "tempered/values, and 1 more: ValueError: no draw of tokens is accepted; of the last: logits: every value must be finite",
    ),
    "not the same twice": (
        ("return logits /", "return np.random.rand() + logits /"),
        "computed twice, it is not the same",
    ),
    "not one group": (
        ("scores = ", "groups, *_ = tokens.shape\n    tokens.shape[2]\n    scores = "),
        "IndexError: tuple index out",
    ),
    "a routing of its own": (
        ("routing = B", "routing = spec.Routing(np.ones((6, 3, 4)), np.ones((6, 3, 4))) or B"),
        "its routing is not the",
    ),
    "a name of ours": (
        ('Router("tempered"', 'Router("switch"'),
        "moespec has a row 'switch'; give your Router another name",
    ),
    "a broken module": (
        ("import numpy", "import nunpy"),
        "cases='own_cases': ConfigError: router='own_gate:ROUTER': cannot be imported",
    ),
}


@pytest.mark.parametrize("wrong", ERRORS)
def test_what_has_no_vectors_says_why(gate, run, tmp_path, wrong):
    (old, new), said = ERRORS[wrong]
    assert old in ROUTER
    status, _, error = run("golden", "--cases", gate(ROUTER.replace(old, new)), "--out", tmp_path / "out")
    assert status in (1, 2)
    assert said in error
    assert not (tmp_path / "out/suite.json").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("--cases", "own_nothing", "--out", "out"),
            "cases='own_nothing': ModuleNotFoundError: No module named 'own_nothing'",
        ),
        (("--cases", "own_nothing"), "--cases MODULE and --out FOLDER: one needs the other"),
        (
            ("--cases", "moespec.conformance.cases.switch", "--out", "out"),
            "switch/values is no case of a router package.module",
        ),
    ],
)
def test_cases_that_are_none(run, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    status, _, error = run("golden", *arguments)
    assert status == 2
    assert said in error
    assert not [*tmp_path.iterdir()]


THIRD = """
from moespec.backends.numpy import *
from moespec.backends import numpy as B
from types import SimpleNamespace


def temper(logits, temperature):
    return logits / temperature


def route(params, tokens, options, *, noise=None, train=False):
    scores = softmax_affinity(temper(router_logits(tokens, params["kernel"]), params["temperature"]))
    routing = token_choice(scores, choices=2, capacity=options.capacity)
    loss = balance_loss(scores)
    return SimpleNamespace(routing=routing, losses={"balance": loss / 2}, metrics={**routing_metrics(routing), "balance_loss": loss})


def options(capacity_factor=1.0, **sizes):
    return SimpleNamespace(capacity=int(4 * capacity_factor))


ROUTERS = {"own_gate:ROUTER": SimpleNamespace(route=route, options=options)}
"""


def test_vectors_of_a_third_party_import_nothing(gate, run, target, tmp_path):
    """What they name is imported where the command line says so. Another target that has the router is checked without it."""
    out, imported = tmp_path / "out", tmp_path / "imported"
    assert run("golden", "--cases", gate(), "--out", out)[0] == 0
    del sys.modules["own_gate"]
    process.end()
    imported.unlink()
    numpy = ("run", "--vectors", out, "--target", "moespec.backends.numpy", "--dtype", "float64", "--mode", "eager")
    status, _, error = run(*numpy)
    assert status == 2
    assert error == f"--vectors: they are of {NAME}; if you trust it, have it imported: --trust {NAME}\n"
    third = target("own_third", THIRD)
    status, printed, _ = run(
        "run", "--vectors", out, "--target", third, "--dtype", "float64", "--class", "values,overflow"
    )
    assert (status, printed.splitlines()[-1]) == (0, "2 passed, 0 failed, 0 skipped; 2 of 8 cases passed")
    assert not imported.exists()
    assert run("list", "--vectors", out)[0] == 0
    assert not imported.exists()
    status, printed, _ = run(*numpy, "--trust", NAME)
    assert (status, printed.splitlines()[-1]) == (0, "8 passed, 0 failed, 0 skipped; 8 of 8 cases passed")
    assert imported.exists()
    assert "own_gate" not in sys.modules  # but in the process of the target
    status, _, error = run(*numpy, "--trust", "own_gone:ROUTER")
    assert status == 2
    process.TRUSTED.clear()
    mark = conformance.parametrize(
        target="moespec.backends.numpy", vectors=out, trust=[NAME], dtypes=["f64"], algorithms=["tempered"]
    )
    assert len(mark.args[1]) == 8
    next(each.values[0] for each in mark.args[1] if each.id.startswith("tempered/values")).check()


def test_a_path_of_ones_own_is_one_name():
    paths = {
        "token_choice": ["token_choice"],
        "ROUTERS.switch.route": ["ROUTERS", "switch", "route"],
        "ROUTERS.a.b:C.update": ["ROUTERS", "a.b:C", "update"],
        "a.b:c": ["a.b:c"],
    }
    assert {path: path_parts(path) for path in paths} == paths
