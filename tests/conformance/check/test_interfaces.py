"""Adapters with one method, and files that a program in any language wrote."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from absent import run_without
from committed import BY_ID, CASES, counted, of, results_of
from damaged import safetensors_of
from fused_layers import FORWARD, NUMPY
from safetensors.numpy import load_file, save_file

from moespec import spec
from moespec.conformance.author.variant import module_of
from moespec.conformance.cases import variants
from moespec.conformance.check import files, reproduce, waivers
from moespec.conformance.check.adapter import Adapter
from moespec.conformance.check.results import Report, counts
from moespec.conformance.check.run import run_cases
from moespec.conformance.check.target import Target
from moespec.conformance.compare import DTYPES

# Adapters.


def adapted(name, dtype="float64", cases=CASES):
    return {result.id: result for result in run_cases(Adapter(name, DTYPES[dtype]), cases, "eager")}


def test_a_whole_layer_passes_every_case_of_a_router_and_nothing_else(target):
    results = adapted(target("fused_whole", FORWARD))
    passed = {id for id, result in results.items() if result.state == "pass"}
    assert passed == {
        case.id
        for case in CASES
        if case.kind not in ("negative", "gradient") and any(stage.router for stage in case.stages)
        if not {"noise", "ids", "choices"} & {name.partition("/")[0] for name in case.inputs}
    }
    assert {result.state for id, result in results.items() if id not in passed} == {"not implemented"}
    assert {o.stage for id in passed for o in results[id].outcomes} == {"moe_layer/output"}


def test_a_wrong_layer_fails_at_its_output(run, target):
    wrong = "\nright = layer\ndef layer(x, params, options):\n    return right(x, params, options) + 1e-9\n"
    name, algorithm = target("fused_wrong", FORWARD + wrong), "softmax_expert_choice"
    status, printed, _ = run("run", "--adapter", name, "--dtype", "f64", "--algorithm", algorithm, "--all")
    lines, cases = printed.splitlines(), of(algorithm)
    assert status == 1
    skipped = sum("noise" in case.inputs or case.expect is not None for case in cases)
    count = f"0 passed, {len(cases) - skipped + 1} failed, {skipped} skipped"  # one: its gradients are not checked
    assert lines[-1] == f"{count}; 0 of {len(cases)} cases passed; backward not checked: {algorithm}"
    start = f"FAIL {algorithm}/values [float64 eager] first at moe_layer/output"
    (line,) = [n for n, line in enumerate(lines) if line.startswith(start)]
    assert lines[line + 2].strip() == "moe_layer/output wrong: it is the expected value plus 1e-09"
    status, shown, _ = run(*lines[line + 3].split()[2:])
    assert status == 1
    assert "float64 eager moe_layer/output: fail" in shown


PARTIAL = """
class Layer:
    def layer(self, x, params, options):
        if options["router"] == "soft_moe":
            raise NotImplementedError("no soft routing")
        raise RuntimeError("out of memory")

layer = Layer().layer
instance = Layer()

class Outer:
    Inner = Layer
"""


@pytest.mark.parametrize("path", ["", ":Layer", ":instance", ":Outer.Inner"])
def test_a_layer_that_raises_is_an_error_and_one_that_declines_is_not_implemented(target, path):
    """The layer of a module, of a class, or of an object."""
    results = adapted(target("partial", PARTIAL) + path, cases=[BY_ID[f"{id}/values"] for id in ("soft_moe", "switch")])
    declined, raised = results["soft_moe/values"], results["switch/values"]
    assert (declined.state, declined.first.message) == ("not implemented", "no soft routing")
    assert (raised.state, raised.first.message) == ("error", "RuntimeError: out of memory")


def test_what_an_adapter_takes(target):
    name = target(
        "fused_recording",
        "import numpy as np\ncalls = []\ndef layer(*args):\n    calls.append(args)\n    return np.zeros_like(args[0])\n",
    )
    adapted(name, "float32", [BY_ID["soft_moe/rsqrt"], BY_ID["softmax_token_choice/priority_sum"]])
    soft, (x, params, options) = sys.modules[name].calls
    assert (x.shape, x.dtype) == ((2, 6, 4), np.float32)
    weights = {"router": ["kernel"], "experts": ["b1", "b2", "w1", "w2"]}
    assert {key: sorted(tree) for key, tree in params.items()} == weights
    assert options == {
        **vars(spec.ROUTERS["softmax_token_choice"].options(experts=3, tokens=6, width=4)),
        "batch_priority": "sum",
        "choices": 2,
        "capacity_factor": 0.5,
        "capacity": 2,
        "router": "softmax_token_choice",
        "gelu": "tanh",
        "train": False,
    }
    assert sorted(soft[1]["router"]) == ["scale", "slots"]
    assert soft[2]["norm_form"] == "rsqrt"


STATEFUL = [case for case in CASES if any(name.startswith("state/") for name in case.inputs)]


def test_the_state_is_among_the_parameters_of_the_router(target):
    """Under no name that a parameter has, too, and without a gradient by it."""
    for router in spec.ROUTERS.values():
        options = router.options(tokens=2, experts=2, width=2, **({"ids": 2} if router.requires == "ids" else {}))
        assert not router.init(np.random.default_rng(0), options).keys() & router.state(options).keys()
    smooth = [c for c in STATEFUL if c.gradients and not c.gradients.losses and "choices" not in c.inputs]
    results = adapted(target("stateful", NUMPY.replace("FACTOR", "1")), cases=smooth)
    compared = {outcome.stage for result in results.values() for outcome in result.outcomes}
    assert {result.state for result in results.values()} <= {"pass", "inconclusive"}
    assert "gradient/router/kernel" in compared
    assert "gradient/state/bias" not in compared


# Files.


def written(folder, cases=CASES):
    """Writes the files of a program that computes everything right, in float64."""
    for case in cases:
        if case.expect is None:
            path = folder / f"{case.id}.safetensors"
            path.parent.mkdir(parents=True, exist_ok=True)
            save_file({name: np.array(value.array, order="C") for name, value in files.expected(case).items()}, path)
    return folder


@pytest.fixture(scope="module")
def small(tmp_path_factory, copied):
    """The vectors of Token Choice alone, which are faster to load than all."""
    return copied(tmp_path_factory.mktemp("small") / "vectors", [case.id for case in of("token_choice")])


@pytest.fixture
def check(run, small):
    """Checks files by the vectors of Token Choice."""
    return lambda folder, *options: run("check", folder, "--vectors", small, "--algorithm", "token_choice", *options)


@pytest.fixture
def folder(tmp_path):
    """A folder of right files for Token Choice."""
    return written(tmp_path / "out", of("token_choice"))


TIED, GRADIENT = "token_choice/tied.safetensors", "token_choice/gradient.safetensors"
SKIPPED = len(of("token_choice", kinds=["negative"]))
ONE_FAILS = f"{len(of('token_choice')) - SKIPPED - 1} passed, 1 failed, {SKIPPED} skipped"


def change(path, stage="token_choice", **tensors):
    """Replaces tensors of a file; None removes."""
    changed = load_file(path) | {f"{stage}/{name}": array for name, array in tensors.items()}
    save_file({name: array for name, array in changed.items() if array is not None}, path)


def test_right_files_of_every_case_pass(tmp_path):
    tensors = files.read_all(written(tmp_path), BY_ID)
    results = files.check(tensors, CASES, files.dtype_of(tensors))
    assert {result.id for result in results if result.state != "pass"} == {c.id for c in CASES if c.expect is not None}
    assert {result.dtype for result in results} == {"float64"}
    assert counts(results)[1] == 0


def test_a_part_of_a_router_is_checked_but_does_not_pass(run, tmp_path):
    written(tmp_path, [BY_ID["softmax_token_choice/values"]])
    path = tmp_path / "softmax_token_choice/values.safetensors"
    everything = load_file(path)
    options, end, logits = ("--algorithm", "softmax_token_choice"), "moe_layer/output", "router_logits/logits"
    save_file({end: everything[end]}, path)
    others = len(of("softmax_token_choice")) - 1
    assert counted(run("check", tmp_path, *options)[1]) == f"1 passed, 0 failed, {others} skipped"
    save_file({name: everything[name] for name in (logits, "token_choice/slots")}, path)
    status, printed, _ = run("check", tmp_path, *options)
    assert status == 1
    assert f"not implemented: {end} is not in the file" in printed
    save_file({logits: everything[logits] + 1, end: everything[end]}, path)
    assert f"first at {logits}" in run("check", tmp_path, *options)[1]


def test_gradients_are_checked(check, folder):
    assert str(len([case for case in of("token_choice") if case.gradients])) in check(folder)[1].splitlines()[2].split()
    change(folder / GRADIENT, "gradient", scores=np.zeros((2, 6, 3)))
    status, printed, _ = check(folder)
    assert status == 1
    assert "FAIL token_choice/gradient [float64 files] first at gradient/scores" in printed
    change(folder / GRADIENT, "gradient", scores=None)
    assert "not implemented: gradient/scores is not in the file" in check(folder)[1]


SLOTS, WEIGHTS = (value.array for value in BY_ID["token_choice/tied"].stages[0].outputs.values())


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"slot": SLOTS}, "first at token_choice/slot\n    unexpected tensor; expected token_choice/slots, "),
        ({"slots": SLOTS[:1]}, "shape (1, 3, 2), expected (2, 3, 2)"),
        ({"slots": SLOTS.astype(bool)}, "dtype bool, expected integers"),
        ({"weights": WEIGHTS.astype(np.float16)}, "has dtype F16, expected one of "),
        ({"weights": WEIGHTS * np.nan}, "12 of 12 entries are not finite"),
        ({"weights": -WEIGHTS}, "12 of 12 entries differ"),
    ],
)
def test_wrong_tensors(check, folder, tensors, said):
    change(folder / TIED, **tensors)
    status, printed, _ = check(folder)
    assert status == 1
    assert "FAIL token_choice/tied [float64 files] first at " in printed
    assert said in printed
    assert counted(printed) == ONE_FAILS


def test_a_stage_of_another_name_fails(check, folder):
    """Also where only the slots are wrong, which are then compared with equal scores in another order."""
    change(folder / TIED, slots=None)
    change(folder / TIED, "choice", slots=SLOTS)
    status, printed, _ = check(folder)
    assert status == 1
    assert "first at choice/slots\n    unexpected tensor; expected" in printed


NOT_READ = {
    "holes": (lambda path: (path.touch(), os.truncate(path, 1 << 40)), "1,099,511,627,776 bytes exceed the limit"),
    "a pipe": (os.mkfifo, ""),
}


@pytest.mark.parametrize("name", NOT_READ)
def test_files_that_cannot_be_read(check, folder, name):
    """What all may be damaged in a file is in `tests/training/loop/test_checkpoint.py`."""
    make, said = NOT_READ[name]
    (folder / TIED).unlink()
    make(folder / TIED)
    status, printed, _ = check(folder)
    assert status == 1
    assert f"first at file\n    {folder / TIED}: {said}" in printed
    assert counted(printed) == ONE_FAILS


@pytest.mark.parametrize("name", ["token_choice/teid", "token_choice/tied/tied"])
def test_a_file_of_no_case(check, folder, name):
    path = folder / f"{name}.safetensors"
    path.parent.mkdir(exist_ok=True)
    path.touch()
    status, printed, said = check(folder)
    assert (status, printed) == (2, "")
    assert said == f"{path}: unknown case {name!r}; `list` prints all cases\n"


def test_a_folder_that_is_not_there_or_empty(check, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "none").mkdir()
    assert check(tmp_path / "none")[2].endswith(": expected files <algorithm>/<case>.safetensors, found none\n")
    for path in (tmp_path / "nowhere", tmp_path / "file"):
        assert check(path) == (2, "", f"{path}: no such folder\n")


def bfloat16(array):
    return (np.ascontiguousarray(array, "<f4").view("<u4") >> 16).astype("<u2").tobytes()


def test_the_files_decide_the_dtype(check, folder):
    assert check(folder)[1].startswith("float64 files")
    for path in folder.rglob("*.safetensors"):
        save_file({n: a.astype(np.float32) if a.dtype.kind == "f" else a for n, a in load_file(path).items()}, path)
    assert check(folder)[1].startswith("float32 files")
    header = {
        "token_choice/slots": {"dtype": "U8", "shape": [2, 3, 2], "data_offsets": [0, 12]},
        "token_choice/weights": {"dtype": "BF16", "shape": [2, 3, 2], "data_offsets": [12, 36]},
    }
    (folder / TIED).write_bytes(safetensors_of(header, SLOTS.astype(np.uint8).tobytes() + bfloat16(WEIGHTS)))
    status, printed, _ = check(folder, "--dtype", "bf16")
    assert status == 0
    assert printed.startswith("bfloat16 files")
    status, printed, _ = check(folder, "--dtype", "f32")
    assert status == 1
    assert "dtype BF16 is coarser than float32" in printed
    assert check(folder, "--dtype", "f16")[0] == 2


def test_one_file_in_another_dtype_does_not_loosen_the_others(check, folder):
    change(folder / TIED, weights=WEIGHTS.astype(np.float32))
    status, printed, said = check(folder)
    assert (status, printed) == (2, "")
    assert "token_choice/tied.safetensors is in float32" in said
    assert ".safetensors is in float64" in said
    assert len(said.splitlines()) == 1
    status, printed, _ = check(folder, "--dtype", "f32")
    assert status == 1
    assert "dtype F64 in a check of float32" in printed
    assert "FAIL token_choice/tied [" not in printed


def test_the_known_variant_of_files_is_named(check, tmp_path):
    """Ties to the higher expert: files of what that variant returns."""
    for result in results_of(module_of(variants()["ties_to_the_higher_expert"].replaced), of("token_choice")):
        returned = {f"{stage}/{name}": a for stage, arrays in result.returned.items() for name, a in arrays.items()}
        path = tmp_path / f"{result.id}.safetensors"
        path.parent.mkdir(exist_ok=True)
        if returned:
            save_file({name: np.array(array, order="C") for name, array in returned.items()}, path)
    status, printed, _ = check(tmp_path)
    assert status == 1
    assert "token_choice [float64 files] equals the known variant ties_to_the_higher_expert: " in printed
    assert "ledger TC-1b" in printed


# The documentation.


def test_the_commands_of_the_documentation_work_as_printed(run, tmp_path, monkeypatch):
    root = Path(__file__).parents[3]
    text = (root / "docs" / "conformance.md").read_text()
    for name in ("tests", "conformance"):
        (tmp_path / name).symlink_to(root / name)
    modules = re.findall(r"This is `(\w+)\.py`:\n\n```python\n(.*?)```", text, re.DOTALL)
    assert [name for name, _ in modules] == ["router", "fused"]
    for name, code in modules:
        (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    commands = re.findall(r"^\$ (.*)$", text, re.MULTILINE)
    assert len(commands) == 11
    for command in commands:
        words = shlex.split(command)
        if words[:2] == ["moespec", "conformance"]:
            assert run(*words[2:])[0] == 0, command
        elif shutil.which("cc"):
            subprocess.run(words, check=True)
        else:
            pytest.skip("there is no C compiler on this machine")
    (entry,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "waivers.toml").write_text(entry)
    assert len(waivers.read(tmp_path / "waivers.toml", BY_ID, ("eager", "compiled", "files"))) == 1
    for name in ("report.html", "junit.xml", "shields.json"):
        assert (tmp_path / name).exists()


# Reproductions.


def shown(code, capsys):
    exec(compile(code, "reproduction", "exec"), {})
    return capsys.readouterr().out


def failing(interface, name, id):
    """The code for the failure of one case."""
    case = BY_ID[id]
    if interface == "files":
        results = files.check(files.read_all(Path(name), BY_ID), [case], DTYPES["float64"])
    else:
        kind = Adapter if interface == "adapter" else Target
        results = run_cases(kind(name, DTYPES["float64"]), [case], "eager")
    (result,) = results
    assert result.state in ("fail", "error")
    return reproduce.code(Report(interface, name, "", results), result, case)


NEGATED = "def expert_choice(scores, **options):\n    return numpy.expert_choice(-scores, **options)\n"
UNCHECKED = (
    "def z_loss(logits):\n    return numpy.z_loss(logits) if logits.ndim == 3 else logits.sum()\n"
    "def value_and_grad(f):\n    def g(*a):\n        v, d = numpy.value_and_grad(f)(*a)\n"
    "        return v, {k: {n: x + 1 for n, x in t.items()} for k, t in d.items()}\n    return g\n"
)
ZEROS = "import numpy as np\ndef layer(x, params, options):\n    return np.zeros_like(x)\n"
TIED_SLOTS = str(BY_ID["expert_choice/tied"].stages[0].outputs["slots"].array)


@pytest.mark.parametrize(
    ("interface", "text", "id", "said"),
    [
        ("target", NEGATED, "expert_choice/tied", ["inputs\n{'scores': array", f"expected\n{TIED_SLOTS}", "got\n[[[1"]),
        ("target", UNCHECKED, "z_loss/gradient", ["expected\n", "got\n"]),
        ("target", UNCHECKED, "z_loss/negative_shape", ["{'error': 'ShapeError naming logits'}"]),
        ("adapter", ZEROS, "soft_moe/values", ["got\n[[[0. 0. 0. 0.]"]),
    ],
)
def test_a_reproduction_runs_as_it_stands(target, over_numpy, capsys, interface, text, id, said):
    make = over_numpy if interface == "target" else target
    code = failing(interface, make(f"reproduced{abs(hash(text))}", text), id)
    printed = shown(code, capsys)
    assert [part for part in said if part not in printed] == [], printed
    assert len(code.splitlines()) == 6


def test_the_reproduction_of_a_file(folder, capsys):
    change(folder / TIED, slots=SLOTS + 1)
    assert f"got\n{SLOTS + 1}" in shown(failing("files", str(folder), "token_choice/tied"), capsys)


def test_a_raising_target_raises_in_its_reproduction(over_numpy):
    name = over_numpy("raising_here", "def z_loss(logits):\n    raise RuntimeError('here')\n")
    with pytest.raises(RuntimeError, match="here"):
        exec(failing("target", name, "z_loss/values"), {})


@pytest.mark.parametrize(
    ("id", "stage"), [("z_loss/nothing", "z_loss"), ("z_loss/values", "gradient"), ("z_loss/values", "")]
)
def test_what_cannot_be_opened(id, stage):
    with pytest.raises(ValueError, match=r"unknown case|has no stage"):
        reproduce.open_case(id, stage, target="moespec.backends.numpy")


# What is installed.


def test_checking_needs_no_framework(folder, tmp_path):
    """What a framework, a plot or a training needs is absent here, and so are the backends."""
    (tmp_path / "fused.py").write_text(FORWARD)
    absent = ["jax", "torch", "optax", "matplotlib", "PIL", "tomli_w", "tensorboard"]
    absent += [f"moespec.backends.{name}" for name in ("numpy", "jax", "torch")]
    program = f"""
        sys.path.insert(0, {str(tmp_path)!r})
        from moespec.conformance.__main__ import main
        out = {str(tmp_path)!r}
        assert main(["check", {str(folder)!r}, "--algorithm", "token_choice", "--report", out + "/files.json"]) == 0
        fused = ["run", "--adapter", "fused", "--dtype", "f64", "--algorithm", "soft_moe", "--forward-only"]
        assert main([*fused, "--report", out + "/fused.json"]) == 0
        reports = [out + "/files.json", out + "/fused.json"]
        assert main(["report", *reports, "--html", out + "/report.html", "--badge", out + "/badge.svg"]) == 0
        assert main(["show", "token_choice/tied", "--files", {str(folder)!r}]) == 0
        assert not {{*ABSENT}} & {{*sys.modules}}
    """
    process = run_without(absent, program)
    assert process.returncode == 0, process.stderr
