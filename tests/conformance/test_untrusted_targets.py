"""Targets that would end a run, change the vectors, compute in another dtype, or decline what they get wrong."""

import re
import subprocess
import sys

import pytest
from committed import BY_ID, of

from moespec.conformance.__main__ import main
from moespec.conformance.check.adapter import Adapter
from moespec.conformance.check.run import run_cases
from moespec.conformance.check.target import Target
from moespec.conformance.compare import DTYPES
from moespec.conformance.format import Tensor, Value

LOSSES = ("--algorithm", "z_loss", "--algorithm", "importance_loss")
COUNT = {name: len(of(name)) for name in ("z_loss", "importance_loss")}


def states(printed):
    """Passed, failed and skipped, from the last line."""
    return tuple(int(word) for word in printed.splitlines()[-1].split() if word.isdecimal())


# Ends of processes.


class Stop(BaseException):
    """Neither an Exception nor an interrupt."""


@pytest.mark.parametrize("how", ["sys.exit(0)", "sys.exit()", "raise SystemExit(1)", "raise Stop(3)"])
def test_a_function_that_exits_fails_and_the_rest_is_run(run, over_numpy, how):
    text = "import sys\nclass Stop(BaseException):\n    pass\ndef z_loss(logits):\n    " + how + "\n"
    name = over_numpy(f"exiting{abs(hash(how))}", text)
    status, printed, _ = run("run", "--target", name, "--dtype", "f64", *LOSSES)
    assert status == 1
    assert states(printed)[:2] == (COUNT["importance_loss"], COUNT["z_loss"])
    assert re.search(
        r"^ERROR z_loss/\w+ \[float64 eager\] first at z_loss, and \d+ more like it$", printed, re.MULTILINE
    )
    assert "ExitedError: " in printed


@pytest.mark.parametrize(
    "text",
    [
        "def to_numpy(tree):\n    raise SystemExit(0)\n",
        "def from_numpy(tree, dtype):\n    raise SystemExit(0)\n",
        "def with_dtype(dtype):\n    raise SystemExit(0)\n",
    ],
)
def test_an_exit_anywhere_in_a_target_fails(run, over_numpy, text):
    name = over_numpy(f"exiting{abs(hash(text))}", text)
    status, printed, _ = run("run", "--target", name, "--dtype", "f64", "--mode", "eager", *LOSSES)
    assert status == 1
    assert states(printed)[1] > 0
    assert sum(states(printed)) == sum(COUNT.values())


def test_an_exit_in_a_gradient_fails_the_gradients_alone(run, over_numpy):
    name = over_numpy("exiting_gradient", "def value_and_grad(function):\n    raise SystemExit(0)\n")
    status, printed, _ = run("run", "--target", name, "--dtype", "f64", *LOSSES)
    gradients = len(of("z_loss", "importance_loss", kinds=["gradient"]))
    assert status == 1
    assert states(printed) == (sum(COUNT.values()) - gradients, gradients, 0)


def test_compiled_code_that_exits_fails(run, over_numpy):
    text = "def compile(function):\n    return function\ndef z_loss(logits):\n    raise SystemExit(0)\n"
    name = over_numpy("exiting_compiled", text)
    status, printed, _ = run("run", "--target", name, "--dtype", "f64", "--mode", "compiled", *LOSSES)
    assert status == 1
    assert re.search(r"^ERROR z_loss/\w+ \[float64 compiled\]", printed, re.MULTILINE)
    assert states(printed)[0] > 0


def test_an_adapter_that_exits_fails(run, target):
    name = target("exiting_adapter", "def layer(x, params, options):\n    raise SystemExit(0)\n")
    status, printed, _ = run("run", "--adapter", name, "--dtype", "f64", "--algorithm", "soft_moe")
    assert status == 1
    assert states(printed)[1] > 0


def test_a_process_that_dies_fails_its_case_alone(run, over_numpy):
    name = over_numpy("dying", "import os\ndef z_loss(logits):\n    os._exit(0)\n")
    chosen = ("--case", "z_loss/values", "--case", "importance_loss/*")
    status, printed, _ = run("run", "--target", name, "--dtype", "f64", "--mode", "eager", "-n", "2", *chosen)
    assert status == 1
    assert states(printed)[0] == COUNT["importance_loss"]
    assert "crashed while running 'z_loss/values[float64-eager]'" in printed


def test_as_a_program(over_numpy, tmp_path):
    name = over_numpy("exiting_program", "def z_loss(logits):\n    raise SystemExit(0)\n")
    command = [sys.executable, "-m", "moespec.conformance", "run", "--target", name, "--dtype", "f64", *LOSSES]
    found = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert found.returncode == 1
    assert states(found.stdout)[:2] == (COUNT["importance_loss"], COUNT["z_loss"])


def test_an_interrupt_stops_the_run(over_numpy):
    name = over_numpy("interrupted", "def z_loss(logits):\n    raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        main(["run", "--target", name, "--dtype", "f64", *LOSSES])


# Arrays that are changed.

IN_PLACE = """
import numpy as np

def spoil(tree):
    if isinstance(tree, dict):
        for part in tree.values():
            spoil(part)
    elif isinstance(tree, np.ndarray) or hasattr(tree, "numpy"):
        tree *= 0

def spoiling(function):
    def spoiled(*arguments, **options):
        result = function(*arguments, **options)
        for each in (*arguments, *options.values()):
            spoil(each)
        return result
    return spoiled
"""


def arrays_of(part):
    """Every array of a case, or of a part of one."""
    if isinstance(part, Tensor | Value):
        yield part.array
    elif isinstance(part, dict):
        for each in part.values():
            yield from arrays_of(each)
    else:
        for each in (part.inputs, *(stage.outputs for stage in part.stages)):
            yield from arrays_of(each)
        if part.gradients:
            yield part.gradients.probe.array
            yield from arrays_of(part.gradients.wrt)


def unchanged(opened, cases):
    """Runs cases, and says whether their arrays are what they were; and the results."""
    before = [array.tobytes() for case in cases for array in arrays_of(case)]
    results = run_cases(opened, cases, "eager")
    return before == [array.tobytes() for case in cases for array in arrays_of(case)], results


def test_a_target_that_changes_its_arguments_fails_and_changes_no_vector(over_numpy):
    names = ("token_choice", "softmax_affinity", "router_logits", "expert_mlp", "hash_routing", "k_means")
    text = IN_PLACE + "".join(f"{name} = spoiling(numpy.{name})\n" for name in names)
    cases = of("token_choice", "softmax_affinity", "softmax_token_choice", "hash_routing", "hash_tables")
    kept, results = unchanged(Target(over_numpy("in_place", text), DTYPES["float64"]), cases)
    assert kept
    found = {result.id: result for result in results}
    assert found["softmax_affinity/values"].state == "error"
    assert found["softmax_affinity/values"].first.message == "ChangedError: logits is not as it was before the call"
    assert found["token_choice/order"].state == "error"


def test_an_adapter_that_changes_its_arguments_fails_and_changes_no_vector(target):
    text = (
        IN_PLACE + "def layer(x, params, options):\n    y = x.copy()\n    spoil(x)\n    spoil(params)\n    return y\n"
    )
    kept, results = unchanged(Adapter(target("in_place_adapter", text), DTYPES["float32"]), of("soft_moe"))
    assert kept
    assert {result.state for result in results} <= {"error", "not implemented"}
    assert any("ChangedError" in outcome.message for result in results for outcome in result.outcomes)


def test_torch_tensors_that_share_memory_change_no_vector(target):
    pytest.importorskip("torch")
    text = IN_PLACE + (
        "import torch\n"
        "from moespec.backends import torch as right\n"
        "from moespec.backends.torch import *\n"
        "def from_numpy(tree, dtype):\n"
        "    return {name: torch.from_numpy(array) for name, array in tree.items()}\n"
        "def softmax_affinity(logits):\n"
        "    result = right.softmax_affinity(logits)\n"
        "    spoil(logits)\n"
        "    return result\n"
    )
    cases = of("softmax_affinity", kinds=["value"])
    kept, results = unchanged(Target(target("sharing", text), DTYPES["float32"]), cases)
    assert kept
    assert "ChangedError" in results[0].first.message


def test_compiled_code_that_changes_its_arguments_fails(over_numpy):
    text = IN_PLACE + "def compile(function):\n    return function\nz_loss = spoiling(numpy.z_loss)\n"
    opened = Target(over_numpy("in_place_compiled", text), DTYPES["float64"])
    for result in run_cases(opened, [BY_ID["z_loss/values"], BY_ID["z_loss/large"]], "compiled"):
        assert "ChangedError: logits" in result.first.message


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
        assert f"TypeError: {name} has dtype float64 in a run in {dtype}" in result.first.message
    assert {o.message for o in gradient.outcomes if o.stage == "gradient"} == {
        f"TypeError: logits has dtype float64 in a run in {dtype}"
    }


def test_functions_of_numpy_arrays_may_return_float64_in_any_dtype(over_numpy):
    opened = Target(over_numpy("tables", WIDE), DTYPES["float32"])
    (result,) = run_cases(opened, [BY_ID["hash_tables/k_means"]], "eager")
    assert result.state == "pass"


def test_numpy_may_widen_what_an_adapter_computes(target):
    text = (
        "import numpy as np\n"
        "from moespec import spec\n"
        "def layer(x, params, options):\n"
        "    names = ('router', 'gelu', 'train')\n"
        "    router = spec.ROUTERS[options['router']]\n"
        "    fields = router.options(**{n: v for n, v in options.items() if n not in names})\n"
        "    experts = lambda x: spec.expert_mlp(x, params['experts'], gelu=options['gelu'])\n"
        "    routings = [router.route(params['router'], one, fields).routing for one in x]\n"
        "    return np.stack([spec.moe_layer(*pair, experts) for pair in zip(x, routings)])\n"
    )
    case = BY_ID["soft_moe/values"]
    assert run_cases(Adapter(target("widening", text), DTYPES["float32"]), [case], "eager")[0].state == "pass"
    text += "def from_numpy(tree, dtype):\n    return tree\n"
    (result,) = run_cases(Adapter(target("claiming", text), DTYPES["float32"]), [case], "eager")
    assert "output has dtype float64 in a run in float32" in result.first.message


# Declining.

DECLINING = """
from moespec.conformance.compare import NotOfferedError

def z_loss(logits):
    raise {error}("not for these numbers")
"""


@pytest.mark.parametrize("error", ["NotOfferedError", "NotImplementedError"])
def test_a_module_does_not_decline_a_case_by_an_exception(run, over_numpy, error):
    name = over_numpy(f"declining_{error}", DECLINING.format(error=error))
    status, printed, _ = run("run", "--target", name, "--dtype", "f64", *LOSSES)
    assert status == 1
    assert states(printed) == (COUNT["importance_loss"], COUNT["z_loss"], 0)
    assert "not for these numbers" in printed


def test_what_is_declared_is_not_offered_and_shown(run, over_numpy):
    text = "not_offered = {'z_loss/*': 'only for logits', 'importance_loss/gradient*': 'it has none'}\n"
    name = over_numpy("declaring", DECLINING.format(error="NotOfferedError") + text)
    status, printed, _ = run("run", "--target", name, "--dtype", "f64", *LOSSES)
    assert status == 0
    gradients = len(of("importance_loss", kinds=["gradient"]))
    assert states(printed) == (COUNT["importance_loss"] - gradients, 0, COUNT["z_loss"] + gradients)
    assert (
        f"{COUNT['z_loss']} skipped, float64 eager: not implemented: declared as not offered: only for logits"
        in printed
    )
    assert f"{gradients} skipped, float64 eager: not implemented: declared as not offered: it has none" in printed


@pytest.mark.parametrize("declared", ["['z_loss/*']", "{'z_loss/*': ''}", "{'z_loss/*': None}"])
def test_a_declaration_without_reasons_is_wrong(run, over_numpy, declared):
    name = over_numpy(f"declaring{abs(hash(declared))}", f"not_offered = {declared}\n")
    status, printed, said = run("run", "--target", name, "--dtype", "f64", *LOSSES)
    assert (status, printed) == (2, "")
    assert "not_offered=" in said
