"""A run is one of pytest: its tests and what comes of them, its options, several processes, and what does not touch it."""

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from committed import CASES, counted, of

from moespec.conformance.check import run as running
from moespec.conformance.check.results import Report
from moespec.conformance.check.run import Plan

DOUBLE = """
not_offered = {"z_loss/equal": "no ties"}
def z_loss(logits):
    with open("calls", "a") as file:
        print("z_loss", file=file)
    return numpy.z_loss(logits) * FACTOR
"""
WAIVER = '[[waiver]]\ncase = "z_loss/large"\nrevision = 2\nreason = "known"\n'
Z_LOSS = ("--dtype", "f64", "--mode", "eager", "--algorithm", "z_loss")


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    """A folder of somebody's tests, whose settings and plugins are not for the suite."""
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --nonsense\n")
    (tmp_path / "conftest.py").write_text("raise RuntimeError('not for the suite')\n")
    monkeypatch.setenv("PYTEST_ADDOPTS", "--nonsense")
    monkeypatch.setenv("PYTEST_PLUGINS", "no_such_module")
    monkeypatch.chdir(tmp_path)


def outcomes_of(path):
    """What came of each test in a file of JUnit's XML: a tag, and its message."""
    inner = {test.get("name"): next(iter(test), None) for test in ElementTree.parse(path).iter("testcase")}
    return {name: ("passed", "") if i is None else (i.tag, i.get("message", "")) for name, i in inner.items()}


def test_each_state_is_an_outcome_of_pytest(run, over_numpy, tmp_path):
    name = over_numpy("trebling", DOUBLE.replace("FACTOR", "3"))
    (tmp_path / "waivers.toml").write_text(WAIVER + WAIVER.replace("large", "negative_dtype"))
    xml = tmp_path / "junit.xml"
    status, printed, _ = run("run", "--target", name, *Z_LOSS, "--waivers", "waivers.toml", "--junit-xml", xml)
    tests = outcomes_of(xml)
    assert status == 1
    assert [*tests] == [f"{case.id.replace('/', '.')}[float64-eager]" for case in of("z_loss")]
    assert tests["z_loss.negative_shape[float64-eager]"] == ("passed", "")
    tag, message = tests["z_loss.values[float64-eager]"]
    assert (tag, "equals" in message, "first at z_loss/loss" in message) == ("failure", False, True)
    assert f"moespec conformance show z_loss/values --target {name} " in message
    assert tests["z_loss.equal[float64-eager]"][0] == "skipped"
    assert "not implemented: declared as not offered: no ties" in tests["z_loss.equal[float64-eager]"][1]
    tag, message = tests["z_loss.large[float64-eager]"]
    assert (tag, message.startswith("known (first at z_loss/loss: ")) == ("skipped", True)
    tag, message = tests["z_loss.negative_dtype[float64-eager]"]
    assert (tag, "passes, and z_loss/negative_dtype is waived: known" in message) == ("failure", True)
    failed = sum(tag == "failure" for tag, _ in tests.values())
    assert counted(printed) == f"2 passed, {failed} failed, 2 skipped"


def test_only_what_is_chosen_runs_and_what_failed_runs_again(run, over_numpy):
    name = over_numpy("mending", DOUBLE.replace("FACTOR", "2").replace("{", "{'z_loss/gradient': 'none', "))
    assert counted(run("run", "--target", name, *Z_LOSS, "-k", "values or large")[1]) == "0 passed, 2 failed, 0 skipped"
    assert Path("calls").read_text().count("z_loss") == 2
    assert counted(run("run", "--target", name, *Z_LOSS, "--case", "z_loss/val*")[1]) == "0 passed, 1 failed, 0 skipped"
    assert Path("calls").read_text().count("z_loss") == 3
    assert counted(run("run", "--target", name, *Z_LOSS, "-x")[1]).startswith("0 passed, 1 failed, ")
    kinds = ["value", "overflow", "degenerate", "gradient"]
    failed = [case.id for case in of("z_loss", kinds=kinds) if case.id != "z_loss/gradient"]
    run("run", "--target", name, *Z_LOSS)
    over_numpy("mending", DOUBLE.replace("FACTOR", "1"))
    assert counted(run("run", "--target", name, *Z_LOSS, "--lf")[1]) == f"{len(failed)} passed, 0 failed, 0 skipped"
    assert counted(run("run", "--target", name, *Z_LOSS, "--lf")[1]).startswith(f"{len(of('z_loss')) - 1} passed, ")


def test_the_report_is_the_same_of_several_processes(run, over_numpy, tmp_path):
    text = "def z_loss(logits):\n    return numpy.z_loss(logits) * logits.shape[1]\n"
    name, reports = over_numpy("shared", text + "def mixed(x):\n    return x\n"), []
    options = ("run", "--target", name, "--dtype", "f64,f32", "--algorithm", "z_loss", "--algorithm", "capacity")
    for more in ((), ("-n", "2")):
        status, printed, _ = run(*options, "--report", "report.json", *more)
        assert status == 1
        content = json.loads((tmp_path / "report.json").read_text())
        reports.append(
            [
                {**content, "digest": "", "cases": [{**case, "seconds": 0} for case in content["cases"]]},
                counted(printed),
            ]
        )
    assert reports[0] == reports[1]
    assert [match["variant"] for match in reports[0][0]["variants"]] == ["z_summed"]


@pytest.mark.parametrize(("package", "options"), [("pytest", ()), ("tqdm", ()), ("xdist", ("-n", "2"))])
def test_what_is_missing_is_named(run, monkeypatch, package, options):
    monkeypatch.setitem(sys.modules, package, None)
    status, printed, error = run("run", "--target", "moespec.backends.numpy", *Z_LOSS, *options)
    assert (status, printed) == (2, "")
    assert error.endswith(f'{"pytest-xdist" if options else package}: pip install "moespec[conformance]"\n')


def test_a_fault_of_the_suite_is_no_pass(run, monkeypatch):
    monkeypatch.setattr(running, "run_part", lambda *_, **__: 1 / 0)
    status, printed, _ = run("run", "--target", "moespec.backends.numpy", *Z_LOSS, "--case", "z_loss/values")
    assert status == 1
    assert "FAIL z_loss/values[float64-eager]: " in printed
    assert "ZeroDivisionError" in printed


def test_collecting_reads_no_case(monkeypatch):
    monkeypatch.setattr(running.suite, "read", None)
    ids, modes = tuple(case.id for case in CASES), ("eager", "compiled", "strided")
    parts = list(Plan(Report("target", "any", "", []), ids, ("float64", "float32", "bfloat16"), modes).parts())
    assert sum(len(ids) for _, mode, ids in parts if mode != "strided") == 6 * len(CASES)
    assert {dtype for dtype, mode, _ in parts if mode == "strided"} == {"float32"}
