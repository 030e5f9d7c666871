"""What is claimed: the version that a target follows, how many of the cases passed, and whose results they are."""

import json
from collections import Counter
from importlib.metadata import version

import pytest
from committed import of
from fused_layers import FORWARD

from moespec.conformance import suite

INSTALLED = version("moespec")
TARGET = "from moespec.backends.numpy import from_numpy, to_numpy, z_loss\n"


@pytest.mark.parametrize(
    ("claims", "told"), [(INSTALLED.rpartition(".")[0], False), (f"{INSTALLED}.1", True), (None, False)]
)
def test_another_version_is_told_in_the_terminal_and_in_the_report(run, target, tmp_path, claims, told):
    text = "" if claims is None else f"__moespec_version__ = {claims!r}\n"
    name, path = target("claiming", TARGET + text), tmp_path / "report.json"
    arguments = ("--algorithm", "z_loss", "--dtype", "f64", "--report", path)
    status, printed, _ = run("run", "--target", name, *arguments)
    said = f"{name} claims to follow moespec {claims} but was checked with {INSTALLED}"
    assert status == 0
    assert (said in printed) == told
    assert json.loads(path.read_text())["claims"] == (claims or "")
    status, printed, _ = run("report", path, "--html", tmp_path / "page.html")
    assert (said in printed) == told
    assert (said in (tmp_path / "page.html").read_text()) == told


# How many of the cases.


IDS = {case.id: case.kind for case in of("z_loss", "switch")}
Z_LOSS = [id for id in IDS if id.startswith("z_loss/")]
LARGE = "layers of real size (--fresh SEED --size large)"
PARTS = [
    ("not_offered = {'z_loss/[!v]*': 'none'}\n", ["z_loss"], (), ["z_loss/values"], ""),
    ("", ["z_loss"], ("-k", "values or large"), ["z_loss/values", "z_loss/large"], ""),
    ("", ["z_loss"], (), Z_LOSS, ""),
    ("", ["z_loss", "switch"], (), [*IDS], LARGE),
    ("", ["z_loss", "switch"], ("--forward-only",), [id for id in IDS if IDS[id] != "gradient"], LARGE),
]
"""What is added to a target, rows, options, the cases that are compared, and what else is missing."""


@pytest.mark.parametrize(("text", "rows", "options", "compared", "more"), PARTS)
def test_it_says_how_many_of_the_cases_passed(run, over_numpy, tmp_path, text, rows, options, compared, more):
    """In the last lines, the table, the report, the page and the badge, also of a report that was read."""
    path, html, svg = (tmp_path / f"report.{kind}" for kind in ("json", "html", "svg"))
    chosen = [word for row in rows for word in ("--algorithm", row)]
    command = ("run", "--target", over_numpy("partly", text), *chosen, "--dtype", "f64", *options, "--report", path)
    status, printed, _ = run(*command)
    again = run("report", path, "--html", html, "--badge", svg)[1]
    ids = IDS if "switch" in rows else Z_LOSS
    left = Counter(suite.class_of(id) for id in ids if id not in compared)
    words = ", ".join(f"{word} {left[word]}" for word in suite.CLASSES if left[word])
    parts = [f"{left.total()} of {len(ids)} cases ({words})"] * bool(left) + [more] * bool(more)
    said, missed = f"{len(compared)} of {len(ids)} cases passed", f"not compared: {'; '.join(parts)}" * bool(parts)
    assert status == 0
    for shown in (printed, again):
        *_, before, last = shown.splitlines()
        assert last.endswith(f" skipped; {said}")
        assert before == missed or not (missed or before.startswith("not compared"))
    content = json.loads(path.read_text())
    assert (content["cases_passed"], content["cases_in_all"]) == (len(compared), len(ids))
    assert said in html.read_text()
    assert missed in html.read_text()
    assert f": {said}<" in svg.read_text()
    assert ("#1a7f37" in svg.read_text()) == (len(compared) == len(ids))  # green
    row = next(line for line in printed.splitlines() if line.startswith("z_loss "))
    assert f" {len({*compared} & {*Z_LOSS})} of {len(Z_LOSS)} " in row


def test_reports_of_one_target_count_each_case_once(run, tmp_path):
    paths = [tmp_path / f"{name}.json" for name in ("values", "rest")]
    options = ("run", "--target", "moespec.backends.numpy", "--algorithm", "z_loss", "--dtype", "f64", "--class")
    for path, classes in zip(paths, ("values", "ties,overflow,gradients,errors"), strict=True):
        run(*options, classes, "--report", path)
    assert run("report", *paths)[1].splitlines()[-1].endswith(f"; {len(Z_LOSS)} of {len(Z_LOSS)} cases passed")


def test_a_large_run_does_not_ask_for_one(run):
    options = ("--fresh", "7", "--size", "large", "--case", "switch/large_64", "--dtype", "f64")
    *_, before, last = run("run", "--target", "moespec.backends.numpy", *options)[1].splitlines()
    assert before == "not compared: 4 of 5 cases (values 2, overflow 1, gradients 1)"
    assert last == "1 passed, 0 failed, 0 skipped; 1 of 5 cases passed"


# Whose results they are.

OURS = "from moespec.backends.torch import cast, compile, from_numpy, softmax_affinity, sum, to_numpy, value_and_grad\n"
OWN = "import torch\ndef softmax_affinity(logits):\n    return torch.softmax(logits.double(), 2)\n"
SPEC = "from moespec.backends.numpy import from_numpy, to_numpy\nfrom moespec import spec\nimport numpy\n"
SPEC += "def softmax_affinity(logits):\n    return numpy.stack([spec.softmax_affinity(each) for each in logits])\n"
JITTED = "from moespec.backends.jax import from_numpy, softmax_affinity as ours, to_numpy, with_dtype\nimport jax\n"
JITTED += "softmax_affinity = jax.jit(lambda logits: ours(logits))\n"


@pytest.mark.parametrize(
    ("text", "backend", "package"),
    [
        (OURS, "torch", "moespec.backends"),
        (SPEC, "numpy", "moespec.spec"),
        (JITTED, "jax", "moespec.backends"),
        (OURS + OWN, "torch", ""),
    ],
)
def test_a_target_that_calls_moespec_for_its_results_is_named(run, target, tmp_path, text, backend, package):
    """Conversions and gradients of ours are nothing to name."""
    pytest.importorskip(backend)
    name, path, html = target("borrowing", text), tmp_path / "report.json", tmp_path / "page.html"
    options = ("--algorithm", "softmax_affinity", "--class", "values", "--dtype", "f64", "--report", path)
    status, printed, _ = run("run", "--target", name, *options)
    called = [f"{package}: softmax_affinity"] if package else []
    assert (status, json.loads(path.read_text())["called"]) == (0, called)
    run("report", path, "--html", html)
    for shown in (printed, html.read_text()):
        assert all(f"{name} calls {each}; those results come from moespec" in shown for each in called)
        assert ("come from moespec" in shown) == bool(called)


def test_an_adapter_is_watched_too_and_a_backend_of_ours_is_not(run, target):
    options = ("--case", "softmax_expert_choice/values", "--dtype", "f64")
    name = target("borrowing_layer", FORWARD + "__moespec_version__ = '7.1'\n")
    printed = run("run", "--adapter", name, *options, "--forward-only")[1]
    assert "borrowing_layer claims to follow moespec 7.1" in printed
    assert "borrowing_layer calls moespec.spec: " in printed
    assert "is ours" not in run("run", "--target", "moespec.backends.numpy", *options)[1]
