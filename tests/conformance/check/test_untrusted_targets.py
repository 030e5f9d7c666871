"""Targets that would end a run, change the vectors, compute in another dtype, or decline what they get wrong."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from functools import partial

import pytest
from committed import BY_ID, content, counted, of
from fused_layers import FORWARD

from moespec.conformance.check.adapter import Adapter
from moespec.conformance.check.run import run_cases, run_part
from moespec.conformance.check.target import Target
from moespec.conformance.compare import DTYPES

LOSSES = ("--algorithm", "z_loss", "--algorithm", "importance_loss")
COUNT = {name: len(of(name)) for name in ("z_loss", "importance_loss")}


def states(printed):
    """Passed, failed and skipped, from the last line."""
    return tuple(int(word) for word in counted(printed).split() if word.isdecimal())


def run_alone(name, cases, **limits):
    """The results of cases of one algorithm, of a target in a process of its own."""
    return run_part(Target, name, cases, "float64", **limits)[0]


# Ends of processes.


TOTAL, GRADIENTS = sum(COUNT.values()), len(of(*COUNT, kinds=["gradient"]))
STOP = "class Stop(BaseException):\n    pass\n"  # neither an Exception nor an interrupt
OFFERED = "from moespec.conformance.failure import NotOfferedError\n"
ENDS = [
    ("def z_loss(logits):\n    __import__('sys').exit()\n", COUNT["z_loss"], "SystemExit: "),
    (STOP + "def z_loss(logits):\n    raise Stop(3)\n", COUNT["z_loss"], "Stop: 3"),
    ("def z_loss(logits):\n    raise KeyboardInterrupt\n", COUNT["z_loss"], "KeyboardInterrupt"),
    (OFFERED + "def z_loss(logits):\n    raise NotOfferedError('not so')\n", COUNT["z_loss"], "not so"),
    ("def value_and_grad(function):\n    raise SystemExit(0)\n", GRADIENTS, "SystemExit: 0"),
    ("def to_numpy(tree):\n    raise SystemExit(0)\n", TOTAL, "SystemExit: 0"),
    *((f"z_loss = lambda logits: {odd}\n", COUNT["z_loss"], "") for odd in ("None", "[[1.0], [1.0, 2.0]]")),
]


@pytest.mark.parametrize(("text", "failed", "said"), ENDS)
def test_what_ends_a_function_fails_its_cases_and_the_rest_is_run(run, over_numpy, text, failed, said):
    name = over_numpy("ending", text)
    status, printed, _ = run("run", "--target", name, "--dtype", "f64", "--mode", "eager", *LOSSES)
    assert status == 1
    assert states(printed) == (TOTAL - failed, failed, 0)
    assert said in printed


def test_compiled_code_that_exits_fails(run, over_numpy):
    text = "def compile(function):\n    return function\ndef z_loss(logits):\n    raise SystemExit(0)\n"
    name = over_numpy("exiting_compiled", text)
    status, printed, _ = run("run", "--target", name, "--dtype", "f64", "--mode", "compiled", *LOSSES)
    assert status == 1
    assert re.search(r"^ERROR z_loss/\w+ \[float64 compiled\]", printed, re.MULTILINE)
    assert states(printed)[0] > 0


ENDED = [
    ("os._exit(0)", "the process exited with status 0", {}),
    ("os.kill(os.getpid(), 9)", "the process was killed by SIGKILL", {}),
    ("os.closerange(3, 99), os.kill(os.getpid(), 19)", "the process closed its socket", {}),
    ("while True: pass", "no answer within 3 s", {"limit": 3}),
    ("return np.ones(3 << 30, np.uint8)", "MemoryError", {"memory": 2}),
]


SOME = [BY_ID[f"z_loss/{name}"] for name in ("values", "large", "gradient")]
"""Of these, one has logits above 100."""


@pytest.mark.parametrize(("how", "said", "limits"), ENDED)
def test_a_process_that_ends_fails_its_case_alone(over_numpy, how, said, limits):
    """Another one answers for the cases that come after."""
    text = f"import os, numpy as np\ndef z_loss(logits):\n    if logits.max() > 100:\n        {how}\n"
    name = over_numpy(f"dying{abs(hash(how))}", text + "    return numpy.z_loss(logits)\n")
    results = run_alone(name, SOME, **limits)
    (failure,) = [result for result in results if result.state != "pass"]
    assert (failure.id, failure.state) == ("z_loss/large", "error")
    assert said in failure.first.message


def test_a_gpu_that_is_lost_fails_the_case_that_lost_it_alone(over_numpy):
    """Torch computes nothing more in that process, and says so when it is waited for."""
    lose = "def lost():\n    raise RuntimeError('CUDA error: device-side assert triggered')\n"
    text = f"import torch\n{lose}torch.cuda.is_initialized, torch.cuda.synchronize = lambda: True, lambda: None\n"
    text += "def z_loss(logits):\n    if logits.max() > 100:\n        torch.cuda.synchronize = lost\n"
    results = run_alone(over_numpy("losing", text + "    return numpy.z_loss(logits)\n"), SOME)
    (failure,) = [result for result in results if result.state != "pass"]
    assert (failure.id, failure.state) == ("z_loss/large", "error")
    assert "device-side assert" in failure.first.message


def test_a_process_with_too_many_maps_is_another_at_the_next_part(over_numpy, tmp_path, monkeypatch):
    text = "import mmap, os\n" + "MAPS = [mmap.mmap(-1, 4096) for _ in range(COUNT)]\n"
    text += "def z_loss(logits):\n    print(os.getpid(), file=open('pids', 'a'))\n    return numpy.z_loss(logits)\n"
    monkeypatch.chdir(tmp_path)
    for count, processes in ((100, 1), (31_000, 2)):
        (tmp_path / "pids").unlink(missing_ok=True)
        name = over_numpy(f"mapping{count}", text.replace("COUNT", str(count)))
        for _ in range(2):
            run_alone(name, of("z_loss", kinds=["value"]))
        assert len(set((tmp_path / "pids").read_text().split())) == processes


def test_an_interrupt_ends_the_run_and_the_target(over_numpy, tmp_path):
    text = (
        "import os, time\ndef z_loss(logits):\n    open('pid', 'w').write(f'{os.getpid()}\\n')\n    time.sleep(1000)\n"
    )
    name, pid = over_numpy("sleeping", text), tmp_path / "pid"
    command = [sys.executable, "-m", "moespec.conformance", "run", "--target", name, "--dtype", "f64", *LOSSES]
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # what runs in the background of a shell ignores it
    running = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=heard
    )
    while not (pid.exists() and pid.read_text().endswith("\n")):
        assert running.poll() is None
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    assert running.wait(timeout=30) != 0
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


# What a target would have to reach to pass with zeros. It runs where none of it is.

ZEROS = """
import atexit, gc, os, sys, threading, time
import numpy as np

def from_numpy(tree, dtype):
    return {{name: array.astype(dtype) if array.dtype.kind == "f" else array for name, array in tree.items()}}

def to_numpy(tree):
    return tree

def softmax_affinity(logits):
    result = np.zeros(logits.shape, np.float32)
    {attempt}
    return result
"""
SEARCH = """
import numpy as np, sys

def taken(shape, objects):
    for each in objects:
        for outputs in (getattr(each, "outputs", None), getattr(getattr(each, "stage", None), "outputs", None)):
            for value in outputs.values() if isinstance(outputs, dict) else ():
                if getattr(value, "array", np.zeros(0)).shape == shape:
                    return value.array.astype(np.float32)
    return np.zeros(shape, np.float32)

def replace(module, **names):
    for name, value in names.items():
        setattr(__import__(module, fromlist=["x"]), name, value)
"""
ATTEMPTS = {
    "zeros": "",
    "objects": "result = taken(logits.shape, gc.get_objects())",
    "comparison": "replace('moespec.conformance.check.run', compared=lambda *_: [])",
    "at exit": "atexit.register(os._exit, 0)",
    "report": "threading.Thread(target=lambda: [open(REPORT, 'w').write('') for _ in iter(int, 1)], daemon=True).start()",
    "output": "print('99 passed, 0 failed, 0 skipped'), sys.stdout.flush(), os.write(1, b'99 passed, 0 failed, 0 skipped')",
    "wide": "result = np.exp(logits.astype(np.longdouble)); result /= result.sum(axis=2, keepdims=True)",
    "state": "replace('moespec.conformance.failure', STATES=('pass',)); raise Exception",
}


@pytest.mark.parametrize(
    "attempt", [name if name != "state" else pytest.param(name, marks=pytest.mark.full) for name in ATTEMPTS]
)
def test_no_attempt_makes_zeros_pass(run, target, tmp_path, attempt):
    report = tmp_path / "report.json"
    text = f"REPORT = {str(report)!r}\n" + SEARCH + ZEROS.format(attempt=ATTEMPTS[attempt])
    name = target(f"attempt_{attempt.replace(' ', '_')}", text)
    options = ("--algorithm", "softmax_affinity", "--class", "values", "--report", report)
    status, printed, _ = run("run", "--target", name, "--dtype", "f32", *options)
    passed, failed, _ = states(printed)
    assert (status, passed) == (1, 0)
    assert failed >= len([case for case in of("softmax_affinity", kinds=["value"]) if not case.id.endswith("one")])
    assert json.loads(report.read_text())["failed"] == failed


FORGED = {
    "noise": "(8).to_bytes(8, 'little') + bytes(8)",
    "a pass": "pack({'failures': {'0': {'message': '', 'state': 'pass'}}}, {})",
    "another array": "pack({'failures': {}}, {'0/z_loss': numpy.softmax_affinity(logits).astype('float16')})",
}


@pytest.mark.parametrize("forged", FORGED)
def test_a_forged_answer_passes_nothing(over_numpy, forged):
    text = (
        "from moespec.conformance.check import worker\n"
        "pack = worker.pack\n"
        "def z_loss(logits):\n"
        f"    answer = {FORGED[forged]}\n"
        "    worker.pack = lambda *_: answer\n"  # from the next one on
        "    return numpy.z_loss(logits) + 1\n"
    )
    cases = of("z_loss", kinds=["value", "tie"])
    results = run_alone(over_numpy(f"forging_{forged.replace(' ', '_')}", text), cases)
    assert {result.state for result in results} <= {"error", "fail"}
    assert any(result.state == "error" for result in results) or forged == "another array"


def test_an_answer_that_is_too_large_is_not_read(over_numpy):
    text = "import numpy as np\ndef z_loss(logits):\n    return np.zeros(1 << 25, np.uint8)\n"
    results = run_alone(over_numpy("wordy", text), of("z_loss", kinds=["value"]))
    assert all("bytes, expected at most" in result.first.message for result in results)


# Arrays that are changed.

IN_PLACE = """
import numpy as np

def spoil(tree):
    if isinstance(tree, dict):
        for part in tree.values():
            spoil(part)
    elif isinstance(tree, np.ndarray):
        tree *= 0

def spoiling(function):
    def spoiled(*arguments, **options):
        result = function(*arguments, **options)
        for each in (*arguments, *options.values()):
            spoil(each)
        return result
    return spoiled
"""


def unchanged(opened, cases):
    """Runs cases, and says whether they are what they were; and the results."""
    before = content(cases)
    results = run_cases(opened, cases, "eager")
    return content(cases) == before, results


def test_a_target_that_changes_its_arguments_fails_and_changes_no_vector(over_numpy):
    names = ("token_choice", "softmax_affinity", "router_logits", "expert_mlp", "hash_routing", "k_means")
    text = IN_PLACE + "".join(f"{name} = spoiling(numpy.{name})\n" for name in names)
    cases = of("token_choice", "softmax_affinity", "softmax_token_choice", "hash_routing", "hash_tables")
    same, results = unchanged(Target(over_numpy("in_place", text), DTYPES["float64"]), cases)
    assert same
    by_id = {result.id: result for result in results}
    assert by_id["softmax_affinity/values"].state == "error"
    assert by_id["softmax_affinity/values"].first.message == "ChangedError: the call changed its argument logits"
    assert by_id["token_choice/order"].state == "error"


def test_an_adapter_that_changes_its_arguments_fails_and_changes_no_vector(target):
    text = (
        IN_PLACE + "def layer(x, params, options):\n    y = x.copy()\n    spoil(x)\n    spoil(params)\n    return y\n"
    )
    same, results = unchanged(Adapter(target("in_place_adapter", text), DTYPES["float32"]), of("soft_moe"))
    assert same
    assert {result.state for result in results} <= {"error", "not implemented"}
    assert any("ChangedError" in outcome.message for result in results for outcome in result.outcomes)


def test_compiled_code_that_changes_its_arguments_fails(over_numpy):
    text = IN_PLACE + "def compile(function):\n    return function\nz_loss = spoiling(numpy.z_loss)\n"
    opened = Target(over_numpy("in_place_compiled", text), DTYPES["float64"])
    for result in run_cases(opened, [BY_ID["z_loss/values"], BY_ID["z_loss/large"]], "compiled"):
        assert "ChangedError: the call changed its argument logits" in result.first.message


# Computing in another dtype.

WIDE = (
    "def from_numpy(tree, dtype):\n    return numpy.from_numpy(tree, 'float64')\n"
    "def cast(array, dtype):\n    return numpy.cast(array, 'float64')\n"
)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_module_that_computes_in_float64_fails_in_other_dtypes(over_numpy, dtype):
    opened = Target(over_numpy(f"wide_{dtype}", WIDE), DTYPES[dtype])
    cases = [BY_ID[id] for id in ("softmax_affinity/values", "token_choice/tied", "z_loss/gradient")]
    value, routing, gradient = run_cases(opened, cases, "eager")
    for result, name in ((value, "scores"), (routing, "routing.dispatch")):
        assert result.state == "error"
        assert f"TypeError: {name} has dtype float64, expected {dtype}" in result.first.message
    assert {o.message for o in gradient.outcomes if o.stage == "gradient"} == {
        f"TypeError: logits has dtype float64, expected {dtype}"
    }


def test_numpy_may_widen_what_an_adapter_computes(target):
    case = BY_ID["soft_moe/values"]
    assert run_cases(Adapter(target("widening", FORWARD), DTYPES["float32"]), [case], "eager")[0].state == "pass"
    text = FORWARD + "def from_numpy(tree, dtype):\n    return tree\n"
    (result,) = run_cases(Adapter(target("claiming", text), DTYPES["float32"]), [case], "eager")
    assert "output has dtype float64, expected float32" in result.first.message


# Declining.


WRONG = {
    "['z_loss/*']": "expected a dict that maps case or option patterns to reasons",
    "{'z_loss/*': ''}": "expected a dict that maps case or option patterns to reasons",
    "{'z_los/*': 'x'}": "no case matches 'z_los/*'; `list` prints all cases; did you mean z_loss/",
    "{'token_choices(tries=)': 'x'}": "unknown function or router 'token_choices'; expected one of router_logits, ",
    "{'token_choice(scores=)': 'x'}": "token_choice has no option 'scores'; expected one of combine_scores, order, keep, hold, tries",
    "{'switch(tri=)': 'x'}": "switch has no option 'tri'; expected one of noise, train, ",
}


@pytest.mark.parametrize("declared", WRONG)
def test_a_wrong_declaration_stops_the_run(run, over_numpy, declared):
    name = over_numpy(f"declaring{abs(hash(declared))}", f"not_offered = {declared}\n")
    status, printed, said = run("run", "--target", name, "--dtype", "f64", *LOSSES)
    assert (status, printed) == (2, "")
    assert "not_offered" in said
    assert WRONG[declared] in said


PLAIN = """
def token_choice(scores, *, choices, capacity, combine_scores=None, hold=False, slot_order="choice", normalize=None):
    more = {"combine_scores": combine_scores, "hold": hold, "slot_order": slot_order, "normalize": normalize}
    return numpy.token_choice(scores, choices=choices, capacity=capacity, **more)
"""


def test_a_function_without_some_options_declines_the_cases_that_pass_them(over_numpy):
    """In a step of a router, too; all other cases are run, and pass."""
    cases = of("token_choice", "batch_priority")
    text = (
        "not_offered = dict.fromkeys(['token_choice(order=)', 'token_choice(keep=)', 'token_choice(tries=)'], 'none')\n"
    )
    plain, honest = (
        run_cases(Target(over_numpy(name, text), DTYPES["float64"]), cases, "eager")
        for name, text in (("plain", PLAIN), ("honest", PLAIN + text))
    )
    wrong = {result.id for result in plain if result.state != "pass"}
    assert len(wrong) > 10
    assert {result.id for result in honest if result.state != "pass"} == wrong
    assert {r.first.message for r in honest if r.id in wrong} == {"declared as not offered: none"}


def test_an_adapter_declines_options_of_a_router(target):
    """Which it sees in `options`."""
    declared = "not_offered = {'softmax_expert_choice(cap=)': 'no cap'}\ninner = layer\n"
    declared += "def layer(x, params, options):\n    assert not options['cap']\n    return inner(x, params, options)\n"
    cases = of("softmax_expert_choice", kinds=["value", "overflow", "tie"])
    results = run_cases(Adapter(target("capless", FORWARD + declared), DTYPES["float64"]), cases, "eager")
    assert "declared as not offered: no cap" in {r.first.message for r in results if r.state == "not implemented"}
    assert not [result for result in results if result.state == "error"]
