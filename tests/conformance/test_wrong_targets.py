"""Targets that are wrong in one place: the vector that is there for it fails them, in process and as a changed tree."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from committed import BY_ID, CASES, of, results_of

from moespec.conformance.author.variant import every, module_of
from moespec.conformance.cases import variants
from moespec.conformance.check.equal_scores import judged
from moespec.conformance.check.plan import Plan
from moespec.conformance.check.results import FAILED
from moespec.conformance.check.run import run_cases
from moespec.conformance.check.target import DEFAULT, Target
from moespec.conformance.compare import DTYPES
from moespec.conformance.report.report import Report
from moespec.spec import ROUTERS

ROOT = Path(__file__).parents[2]
PACKAGES = {"front": "moespec"} | {f: f"moespec/{f}" for f in ("spec", "backends", "models", "conformance")}


@pytest.mark.parametrize("algorithm", sorted({case.algorithm for case in CASES} - {"vit"}))
def test_the_reference_passes(algorithm):
    """Also with its routers composed as the compiled backends compose them."""
    assert {result.state for result in results_of(module_of({}), of(algorithm))} == {"pass"}


# The case that is there for a mistake, and variants that make it.
WRONG = tomllib.loads(Path(__file__).with_name("variants.toml").read_text())["caught_by"]


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_target_fails(case):
    for name in WRONG[case]:
        (result,) = results_of(module_of(variants()[name].replaced), [BY_ID[case]])
        assert result.state in FAILED, name


def test_a_kernel_that_takes_every_array_for_contiguous_fails_in_the_mode_strided():
    """Which a run has without naming it, and which changes nothing for a target whose arrays have no strides."""
    torch = pytest.importorskip("torch")
    right = pytest.importorskip("moespec.backends.torch")

    def softmax_affinity(logits):
        return right.softmax_affinity(torch.as_strided(logits, logits.shape, torch.empty(logits.shape).stride()))

    ids = [case.id for case in of("softmax_affinity")]
    plan = Plan(Target, Report("target", "kernel", "", []), ids, ("float64", "float32"), DEFAULT)
    ((dtype, chosen),) = [(dtype, chosen) for dtype, mode, chosen in plan.parts() if mode == "strided"]
    cases = [BY_ID[id] for id in chosen]
    assert dtype == "float32"
    assert {case.kind for case in cases} == {"value", "gradient"}
    wrong = SimpleNamespace(**{**vars(right), "softmax_affinity": softmax_affinity})
    for mode, made, states in (("eager", wrong, {"pass"}), ("strided", wrong, {"fail"}), ("strided", right, {"pass"})):
        target = Target("kernel", DTYPES["float32"], made)
        assert {result.state for result in run_cases(target, cases, mode)} == states
    assert run_cases(Target("numpy", DTYPES["float64"], module_of({})), cases, "strided") == []


@pytest.mark.parametrize("router", sorted(ROUTERS.keys() - {"base", "hash", "soft_moe"}))  # these have no losses
def test_losses_that_train_nothing_fail(router):
    def detached(B, route, *arguments, **options):
        output = route(*arguments, **options)
        return output._replace(losses={name: B.stop_gradient(loss) for name, loss in output.losses.items()})

    (result,) = results_of(module_of(every((router,), detached)), [BY_ID[f"{router}/gradient_losses"]])
    assert (result.state, result.first.stage.partition("/")[0]) == ("fail", "gradient")


def test_another_order_of_tokens_is_not_one_of_equal_scores():
    cases = [BY_ID["token_choice/all_experts"]]
    results = results_of(module_of(variants()["all_choices_of_a_token_first"].replaced), cases)
    assert [result.state for result in judged(results, cases)] == ["fail"]


# The same with the tree itself.


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the packages under the names that an installation gives them."""
    folder = tmp_path_factory.mktemp("tree")
    for source, name in PACKAGES.items():
        shutil.copytree(ROOT / source, folder / name, ignore=shutil.ignore_patterns("__pycache__", "reports"))
    return folder


def python(tree, *arguments):
    """Runs the interpreter of the tests with the copy before whatever is installed."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-P", *arguments], capture_output=True, text=True, check=False, cwd=tree, env=environment
    )


LINES = {
    "tie order": (
        "spec/numerics.py",
        'np.argsort(-values.real, axis=axis, kind="stable")',
        'np.flip(np.argsort(values.real, axis=axis, kind="stable"), axis=axis)',
        "token_choice/tied",
    ),
    "rounding of a router": (
        "spec/options.py",
        'rounding: Literal["ceil", "round"] = "ceil"',
        'rounding: Literal["ceil", "round"] = "round"',
        "sinkhorn_expert_choice/multiple",
    ),
}
ALGORITHMS = sorted({case.split("/")[0] for *_, case in LINES.values()})


def run_suite(tree):
    """What the conformance session runs for numpy, on some algorithms: exit status, how many failed, what it prints."""
    command = "-m moespec.conformance run --target moespec.backends.numpy --mode eager --dtype float64 --all"
    done = python(tree, *command.split(), *(word for name in ALGORITHMS for word in ("--algorithm", name)))
    assert "Traceback" not in done.stderr
    passed, failed = re.match(r"(\d+) passed, (\d+) failed, \d+ skipped$", done.stdout.splitlines()[-1]).groups()
    assert int(passed) + int(failed) == len(of(*ALGORITHMS))
    return done.returncode, int(failed), done.stdout


def test_an_unchanged_copy_is_what_is_imported_and_passes(tree):
    names = ["spec", "backends.numpy", "conformance.suite", "models.vit"]
    program = f"import importlib\nfor n in {names}: print(importlib.import_module('moespec.' + n).__file__)"
    located = python(tree, "-c", program).stdout.split()
    assert len(located) == len(names)
    assert all(Path(path).is_relative_to(tree) for path in located)
    assert run_suite(tree)[:2] == (0, 0)


@pytest.mark.parametrize("change", LINES)
def test_a_tree_with_one_line_changed_fails(tree, change):
    name, right, wrong, case = LINES[change]
    path = tree / "moespec" / name
    text = path.read_text()
    assert text.count(right) == 1
    path.write_text(text.replace(right, wrong))
    try:
        status, failed, output = run_suite(tree)
    finally:
        path.write_text(text)
    assert status == 1
    assert failed > 0
    assert re.search(rf"^(FAIL|ERROR) {case} ", output, re.MULTILINE)
