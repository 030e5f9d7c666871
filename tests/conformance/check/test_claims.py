"""The version of the specification that a target claims to follow: told where it is not the installed one."""

import json
from importlib.metadata import version

import pytest

INSTALLED = version("moespec")
TARGET = "from moespec.backends.numpy import from_numpy, to_numpy, z_loss\n"
LAYER = "def layer(x, params, options):\n    raise NotImplementedError\n"


@pytest.mark.parametrize(
    ("claims", "told"),
    [(INSTALLED, False), (INSTALLED.rpartition(".")[0], False), ("7.1", True), (f"{INSTALLED}.1", True), (None, False)],
)
def test_another_version_is_told_in_the_terminal_and_in_the_report(run, target, tmp_path, claims, told):
    text = "" if claims is None else f"__moespec_version__ = {claims!r}\n"
    name, path = target("claiming", TARGET + text), tmp_path / "report.json"
    arguments = ("--algorithm", "z_loss", "--dtype", "f64", "--report", path)
    status, printed, _ = run("run", "--target", name, *arguments)
    said = f"{name} claims to follow moespec {claims}, and was checked with {INSTALLED}"
    assert status == 0
    assert (said in printed) == told
    assert json.loads(path.read_text())["claims"] == (claims or "")
    status, printed, _ = run("report", path, "--html", tmp_path / "page.html")
    assert (said in printed) == told
    assert (said in (tmp_path / "page.html").read_text()) == told


def test_an_adapter_claims_too(run, target):
    name = target("claiming_layer", LAYER + "__moespec_version__ = '7.1'\n")
    _, printed, _ = run("run", "--adapter", name, "--algorithm", "softmax_expert_choice", "--dtype", "f64")
    assert "claims to follow moespec 7.1" in printed
