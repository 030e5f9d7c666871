"""Targets that are wrong in one place: the vector that is there for it fails them, in process and as a changed tree."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from moespec.conformance import suite
from moespec.conformance.judge import LANES
from moespec.conformance.mutants import MUTANTS, build
from moespec.conformance.results import FAILED
from moespec.conformance.runner import run_lane
from moespec.conformance.target import Target
from moespec.spec import ALGORITHMS

ROOT = Path(__file__).parents[2]
ROOMS = ("spec", "backends", "models", "conformance")
CASES = suite.load()


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "vit"])
def test_the_reference_passes(algorithm):
    """Also with its routers composed as the compiled backends compose them."""
    target = Target("unchanged", LANES["f64"], build({}))
    cases = [case for case in CASES if case.algorithm == algorithm]
    assert {result.state for result in run_lane(target, cases, "eager")} == {"pass"}


# Mutant, and the case that is there to catch it.
WRONG = [
    ("ties_to_the_higher_expert", "token_choice/tied"),
    ("all_choices_of_a_token_first", "token_choice/first_choices_first"),
    ("kept_weights_renormalised", "token_choice/dropped_first"),
    ("weights_of_the_selection", "token_choice/combine_scores"),
    ("weights_without_gradient", "token_choice/gradient"),
    ("order_ignored", "token_choice/order"),
    ("order_ignored", "batch_priority/crowd"),
    ("least_important_first", "batch_priority/crowd"),
    ("ties_to_the_higher_token", "expert_choice/tied"),
    ("slots_in_the_order_of_tokens", "expert_choice/two_slots"),
    ("zero_scores_taken_in", "expert_choice/zeros_dropped"),
    ("capacity_rounded_down", "capacity/ceil"),
    ("halves_rounded_up", "capacity/half_even"),
    ("quotient_first", "capacity/left_to_right"),
    ("softmax_over_tokens", "softmax_affinity/square"),
    ("softmax_over_tokens", "softmax_expert_choice/values"),
    ("noise_not_scaled", "gating_noise/values"),
    ("rows_first", "sinkhorn/one_iteration"),
    ("rows_first", "sinkhorn_token_choice/gradient_plan"),
    ("solved_to_convergence", "sparse_transport/plan"),
    ("exchanged", "soft_routing/square"),
    ("combine_over_the_slots_of_each_expert", "soft_routing/values"),
    ("epsilon_inside_the_root", "soft_routing/small_paper"),
    ("unbiased_importance", "importance_loss/values"),
    ("last_maximum", "balance_loss/tied"),
    ("threshold_of_the_others", "load_loss/one_choice"),
    ("square_of_the_mean", "z_loss/values"),
    ("slots_mix_normalised_tokens", "moe_layer/soft"),
    ("empty_slots_reach_the_last_token", "moe_layer/dropped"),
    ("experts_with_exact_gelu", "moe_layer/experts_tanh"),
    ("exact_gelu", "network/gelu_tanh"),
    ("unbiased_layer_norm", "network/layer_norm"),
    ("patches_column_by_column", "network/patch_embed"),
    ("attention_not_scaled", "network/attention"),
    ("capacity_rounded_to_the_nearest", "softmax_token_choice/multiple"),
    ("priority_left_out", "softmax_token_choice/priority_max"),
    ("noise_for_the_choice_alone", "softmax_token_choice/noise"),
    ("plan_combines", "sinkhorn_token_choice/values"),
    ("plan_combines", "sinkhorn_token_choice/gradient"),
    ("noisy_logits_combine", "sinkhorn_token_choice/clean_combine"),
    ("softmax_combines", "sinkhorn_expert_choice/combine_plan"),
    ("multiples_ignored", "softmax_expert_choice/multiple"),
    ("twenty_steps", "sparsity_constrained_expert_choice/few_steps"),
    ("zero_scores_left_out", "sparsity_constrained_expert_choice/zero_plan"),
    ("ablations_ignored", "soft_moe/soft_uniform"),
]


@pytest.mark.parametrize(("mutant", "case"), WRONG)
def test_a_wrong_target_fails(mutant, case):
    target = Target(mutant, LANES["f64"], build(MUTANTS[mutant].replaced))
    with np.errstate(invalid="ignore"):  # those that do not refuse NaN
        (result,) = run_lane(target, [found for found in CASES if found.id == case], "eager")
    assert result.state in FAILED


# The same with the tree itself.


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the packages under the names that an installation gives them."""
    folder = tmp_path_factory.mktemp("tree")
    for room in ROOMS:
        shutil.copytree(ROOT / room, folder / "moespec" / room, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def python(tree, *arguments):
    """Runs the interpreter of the tests with the copy before whatever is installed."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-P", *arguments], capture_output=True, text=True, check=False, cwd=tree, env=environment
    )


def run_suite(tree):
    """What the conformance session runs for numpy, without whole models, which take as long as the rest together:
    exit status, numbers that passed and failed, and what it prints.
    """
    command = "-m moespec.conformance run --target moespec.backends.numpy --mode eager --lane f64"
    algorithms = [word for name in ALGORITHMS if name != "vit" for word in ("--algorithm", name)]
    found = python(tree, *command.split(), *algorithms)
    passed, failed = re.match(r"(\d+) passed, (\d+) failed, \d+ skipped$", found.stdout.splitlines()[-1]).groups()
    assert "Traceback" not in found.stderr
    return found.returncode, int(passed), int(failed), found.stdout


def test_the_copy_is_what_is_imported(tree):
    names = ["spec", "backends.numpy", "conformance.suite", "models.vit"]
    program = f"import importlib\nfor n in {names}: print(importlib.import_module('moespec.' + n).__file__)"
    located = python(tree, "-c", program).stdout.split()
    assert len(located) == len(names)
    assert all(Path(path).is_relative_to(tree) for path in located)


def test_an_unchanged_tree_passes(tree):
    status, passed, failed, _ = run_suite(tree)
    assert (status, failed) == (0, 0)
    assert passed >= sum(case.algorithm != "vit" for case in CASES) - 1


LINES = {
    "tie order": (
        "spec/numerics.py",
        'np.argsort(-values.real, axis=axis, kind="stable")',
        'np.flip(np.argsort(values.real, axis=axis, kind="stable"), axis=axis)',
        "token_choice/tied",
    ),
    "capacity rounding": (
        "spec/capacity.py",
        "slots = ROUNDINGS[rounding](choices * tokens * factor / experts)",
        "slots = int(choices * tokens * factor / experts)",
        "softmax_token_choice/multiple",
    ),
    "softmax axis": (
        "spec/softmax.py",
        'return softmax(as_array("logits", logits, "tokens experts"))',
        'return softmax(as_array("logits", logits, "tokens experts"), axis=0)',
        "softmax_affinity/square",
    ),
    "rounding of a router": (
        "spec/routing.py",
        'rounding: str = "ceil"',
        'rounding: str = "round"',
        "sinkhorn_expert_choice/multiple",
    ),
}


@pytest.mark.parametrize("change", LINES)
def test_a_tree_with_one_line_changed_fails(tree, change):
    name, right, wrong, case = LINES[change]
    path = tree / "moespec" / name
    text = path.read_text()
    assert text.count(right) == 1
    path.write_text(text.replace(right, wrong))
    try:
        status, _, failed, output = run_suite(tree)
    finally:
        path.write_text(text)
    assert status == 1
    assert failed > 0
    assert re.search(rf"^(FAIL|ERROR) {case} ", output, re.MULTILINE)
