"""`python -m moespec.conformance`: what it prints, and its exit status."""

import json
import subprocess
import sys

import pytest

from moespec.conformance import suite

NUMPY = ("--target", "moespec.backends.numpy")


def test_list_has_every_case(run):
    status, printed, _ = run("list")
    lines = printed.splitlines()
    assert status == 0
    assert [line.split()[0] for line in lines] == [case.id for case in suite.load()]
    assert any(line.split()[:2] == ["token_choice/tied", "tie"] and line.endswith(".") for line in lines)


def test_show_prints_the_vector(run):
    status, printed, _ = run("show", "token_choice/tied")
    assert status == 0
    assert json.loads(printed) == json.loads((suite.VECTORS / "token_choice/tied.json").read_text())


def test_show_prints_what_a_target_computes(run):
    status, printed, _ = run("show", "token_choice/tied", *NUMPY)
    assert status == 0
    assert "f64 eager allocation/slots: pass" in printed
    assert "f32: refused by the target: " in printed


def test_show_says_what_fails(run, target):
    name = target(
        "flipped",
        "from moespec.backends.numpy import *\n"
        "from moespec.backends import numpy\n"
        "def token_choice(scores, **options):\n"
        "    return numpy.token_choice(scores[::-1], **options)\n",
    )
    status, printed, _ = run("show", "token_choice/tied", "--target", name, "--lane", "f64")
    assert status == 1
    assert "f64 eager allocation/slots: fail, inf of the bound. " in printed


def test_an_unknown_case(run):
    status, printed, said = run("show", "token_choice/nothing")
    assert (status, printed) == (1, "")
    assert "no such case: 'token_choice/nothing'" in said


@pytest.mark.parametrize(
    ("option", "value"),
    [("--lane", "f16"), ("--lane", "f64,f31"), ("--mode", "fast"), ("--algorithm", "hashing"), ("--jobs", "0")],
)
def test_an_unknown_word(run, option, value):
    status, printed, said = run("run", *NUMPY, option, value)
    assert (status, printed) == (2, "")
    assert repr(value.split(",")[-1]) in said
    assert said.splitlines()[-1].startswith("python -m moespec.conformance run: error: argument")


def test_no_command(run):
    status, _, said = run()
    assert status == 2
    assert "usage" in said


@pytest.mark.parametrize("command", [["run"], ["show", "token_choice/tied"]])
@pytest.mark.parametrize("name", ["no_such_module", "moespec.backends.no_such_backend", "moespec.conformance.suite"])
def test_a_module_that_is_no_target(run, command, name):
    status, _, said = run(*command, "--target", name)
    assert status == 2
    assert said.startswith(f"--target {name!r}: ")
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("text", ["import sys; sys.exit(0)", "1 / 0", "x = ="])
def test_a_target_that_cannot_be_imported(run, target, text):
    name = target(f"broken{abs(hash(text))}", text)
    status, printed, said = run("run", "--target", name)
    assert (status, printed) == (2, "")
    assert said.startswith(f"--target {name!r}: cannot be imported: ")


@pytest.mark.parametrize("name", ["", ".x", "a..b"])
def test_what_is_no_name_of_a_module(run, name):
    status, printed, said = run("run", "--target", name)
    assert (status, printed) == (2, "")
    assert said.startswith(f"--target {name!r}: cannot be imported: ")


def test_a_target_that_takes_no_arrays(run, target):
    text = "def from_numpy(tree, dtype):\n    raise KeyError(dtype)\ndef to_numpy(tree):\n    return tree\n"
    status, printed, _ = run("run", "--target", target("refusing", text), "--algorithm", "z_loss")
    assert status == 1
    assert "nothing was collected" in printed
    assert "f64: refused by the target: KeyError: 'float64'" in printed


def test_a_target_that_promises_to_check_values_must(run, target):
    text = (
        "from moespec.backends.numpy import *\n"
        "from moespec.backends import numpy\n"
        "def z_loss(logits):\n"
        "    return numpy.z_loss(numpy.from_numpy(__import__('numpy').nan_to_num(logits)))\n"
    )
    options = ("--lane", "f64", "--algorithm", "z_loss")
    assert run("run", "--target", target("promising", text), *options)[0] == 1
    status, printed, _ = run("run", "--target", target("silent", text + "checks_values = False\n"), *options)
    assert status == 0
    assert "2 skipped, f64 eager: unchecked" in printed


def test_a_target_without_a_function_does_not_implement_it(run, target, count):
    name = target("partial", "from moespec.backends.numpy import from_numpy, to_numpy, token_choice\n")
    status, printed, _ = run("run", "--target", name, "--lane", "f64", "--algorithm", "token_choice")
    lines = printed.splitlines()
    assert status == 0  # its gradients need value_and_grad
    gradients = count("token_choice", "gradient")
    assert lines[-1] == f"{count('token_choice') - gradients} passed, 0 failed, {gradients} skipped"
    assert f"   {gradients} skipped, f64 eager: not implemented: value_and_grad is missing" in lines
    (row,) = [line for line in lines if line.startswith("token_choice")]
    assert f"-{gradients}/{gradients}" in row


def test_a_target_without_any_function_fails(run, target, count):
    name = target("empty", "from moespec.backends.numpy import from_numpy, to_numpy\n")
    status, printed, _ = run("run", "--target", name, "--lane", "f64", "--algorithm", "softmax_token_choice")
    assert status == 1
    assert printed.splitlines()[-1] == f"0 passed, 0 failed, {count('softmax_token_choice')} skipped"
    assert "skipped, f64 eager: not implemented: ROUTERS is missing" in printed


def test_a_target_without_a_router_does_not_implement_it(run, target, count):
    name = target(
        "one_router",
        "from moespec.backends.numpy import *\n"
        "from moespec.backends import numpy\n"
        "ROUTERS = {'soft_moe': numpy.ROUTERS['soft_moe']}\n",
    )
    options = ("--lane", "f64", "--algorithm", "soft_moe", "--algorithm", "softmax_expert_choice")
    status, printed, _ = run("run", "--target", name, *options)
    assert status == 0
    passed, skipped = count("soft_moe"), count("softmax_expert_choice")
    assert printed.splitlines()[-1] == f"{passed} passed, 0 failed, {skipped} skipped"
    assert "not implemented: ROUTERS['softmax_expert_choice'] is missing" in printed


def test_a_lane_that_the_target_refuses_is_skipped(run):
    status, printed, _ = run("run", *NUMPY, "--algorithm", "z_loss")
    assert status == 0
    assert printed.splitlines()[-1] == "9 passed, 0 failed, 18 skipped"
    assert "   9 skipped, bf16: refused by the target: " in printed


def test_nothing_collected_fails(run):
    status, printed, _ = run("run", *NUMPY, "--lane", "f32", "--algorithm", "z_loss")
    assert status == 1
    assert printed.splitlines()[-2:] == ["nothing was collected", "0 passed, 0 failed, 9 skipped"]


def test_a_folder_without_vectors_fails(run, tmp_path):
    (tmp_path / "vectors").mkdir()
    (tmp_path / "suite.json").write_text(suite.suite_text(tmp_path / "vectors"))
    status, printed, _ = run("run", *NUMPY, "--lane", "f64", "--vectors", tmp_path / "vectors")
    assert status == 1
    assert printed.splitlines() == ["nothing was collected", "0 passed, 0 failed, 0 skipped"]
    status, _, said = run("run", *NUMPY, "--vectors", tmp_path / "elsewhere/vectors")
    assert status == 1
    assert "suite.json" in said


def test_a_failure_names_case_stage_and_the_command_that_shows_it(run, target, tmp_path):
    name = target(
        "late",
        "from moespec.backends.numpy import *\n"
        "from moespec.backends import numpy\n"
        "def z_loss(logits):\n"
        "    return numpy.z_loss(logits) * (1 + 1e-12)\n",
    )
    report = tmp_path / "report.json"
    options = ("--target", name, "--lane", "f64")
    status, printed, _ = run("run", *options, "--algorithm", "z_loss", "--report", report)
    lines = printed.splitlines()
    assert status == 1
    assert lines[-1] == "4 passed, 5 failed, 0 skipped"
    place = next(
        i for i, line in enumerate(lines) if line.startswith("FAIL z_loss/values [f64 eager] first at loss/loss")
    )
    assert "expected" in lines[place + 1]
    command = lines[place + 2].split()
    assert command[:3] == ["python", "-m", "moespec.conformance"]
    shown_status, shown, _ = run(*command[3:])
    assert shown_status == 1
    assert "f64 eager loss/loss: fail" in shown
    content = json.loads(report.read_text())
    assert (content["passed"], content["failed"], content["skipped"]) == (4, 5, 0)
    states = {case["id"]: case["state"] for case in content["cases"]}
    assert len(states) == 9
    assert states["z_loss/values"] == "fail"


def test_a_target_that_raises_is_an_error(run, target):
    name = target(
        "raising",
        "from moespec.backends.numpy import *\ndef z_loss(logits):\n    raise RuntimeError('no kernel for this')\n",
    )
    status, printed, _ = run("run", "--target", name, "--lane", "f64", "--algorithm", "z_loss")
    assert status == 1
    assert "ERROR z_loss/values [f64 eager] first at loss" in printed
    assert "RuntimeError: no kernel for this" in printed


@pytest.mark.parametrize("result", ["None", "'text'", "[[1.0], [1.0, 2.0]]"])
def test_a_target_that_returns_no_array_fails(run, target, result):
    name = target(
        f"odd{abs(hash(result))}", f"from moespec.backends.numpy import *\nz_loss = lambda logits: {result}\n"
    )
    status, printed, _ = run("run", "--target", name, "--lane", "f64", "--algorithm", "z_loss")
    assert status == 1
    passed, failed, skipped = (int(word) for word in printed.splitlines()[-1].split() if word.isdecimal())
    assert (passed, failed + skipped) == (0, 9)
    assert skipped <= 2  # that it accepts NaN and infinity may be unchecked


def test_as_a_program():
    command = [sys.executable, "-m", "moespec.conformance", "run", *NUMPY, "--lane", "f64", "--algorithm", "capacity"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")
    cases = len(suite.load(only=lambda id: id.startswith("capacity/")))
    assert found.stdout.splitlines()[-1] == f"{cases} passed, 0 failed, 0 skipped"
