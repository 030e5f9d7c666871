"""The doors for strangers: an adapter with one method, and files that a program in any language wrote."""

import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from moespec import spec
from moespec.conformance import files, report, reproduce, suite, waivers
from moespec.conformance.adapter import Adapter
from moespec.conformance.judge import LANES
from moespec.conformance.programs import PROGRAMS
from moespec.conformance.runner import run_lane
from moespec.spec import ROUTERS

CASES = suite.load()
BY_ID = {case.id: case for case in CASES}
END_TO_END = [case for case in CASES if case.algorithm in ROUTERS and case.kind not in ("negative", "gradient")]

FUSED = """
import numpy as np
from moespec import spec

def layer(x, params, config):
    router = spec.ROUTERS[config["router"]]
    fields = {name: value for name, value in config.items() if name not in ("router", "gelu", "train")}
    def one(tokens):
        routing = router.route(params["router"], tokens, spec.RouterConfig(**fields), train=config["train"]).routing
        return spec.moe_layer(tokens, routing, lambda inputs: spec.expert_mlp(inputs, params["experts"], gelu=config["gelu"]))
    return np.stack([one(tokens) for tokens in x])
"""


# Adapters.


def adapted(name, lane="f64", cases=CASES):
    return {result.id: result for result in run_lane(Adapter(name, LANES[lane]), cases, "eager")}


def test_a_whole_layer_passes_every_end_to_end_case_and_nothing_else(target):
    results = adapted(target("fused_whole", FUSED))
    passed = {id for id, result in results.items() if result.state == "pass"}
    whole = {c.id for c in END_TO_END if any(PROGRAMS[c.algorithm][record.name].whole for record in c.stages)}
    assert passed == {id for id in whole if not {"noise", "ids"} & set(BY_ID[id].inputs)}
    assert {result.state for id, result in results.items() if id not in passed} == {"not implemented"}
    assert {o.stage for id in passed for o in results[id].outcomes} == {"route/output"}


@pytest.mark.parametrize("path", ["Layer", "made", "Outer.Inner"])
def test_an_adapter_may_be_a_class_or_an_object(run, target, path):
    name = target(
        f"declining_{path.replace('.', '_')}",
        "class Layer:\n"
        "    def layer(self, x, params, config):\n"
        "        raise NotImplementedError('none yet')\n"
        "made = Layer()\n"
        "class Outer:\n"
        "    Inner = Layer\n",
    )
    status, printed, _ = run("run", "--adapter", f"{name}:{path}", "--lane", "f64", "--algorithm", "soft_moe")
    assert status == 1  # nothing passes
    assert "f64 eager: not implemented: none yet" in printed


def test_a_wrong_layer_fails_at_its_output(run, target, count):
    name = target(
        "fused_wrong",
        FUSED + "\nright = layer\ndef layer(x, params, config):\n    return right(x, params, config) + 1e-9\n",
    )
    options = ("--lane", "f64", "--algorithm", "softmax_expert_choice")
    status, printed, _ = run("run", "--adapter", name, *options)
    lines = printed.splitlines()
    assert status == 1
    noisy = sum(case.algorithm == "softmax_expert_choice" and "noise" in case.inputs for case in CASES)
    skipped = noisy + count("softmax_expert_choice", "negative")
    assert lines[-1] == f"0 passed, {count('softmax_expert_choice') - skipped} failed, {skipped} skipped"
    (line,) = [
        n
        for n, line in enumerate(lines)
        if line.startswith("FAIL softmax_expert_choice/values [f64 eager] first at route/output, ")
    ]
    shown = run(*lines[line + 2].split()[3:])
    assert shown[0] == 1
    assert "f64 eager route/output: fail" in shown[1]


def test_a_layer_that_raises_is_an_error_and_one_that_declines_is_not_implemented(target):
    name = target(
        "fused_partial",
        "def layer(x, params, config):\n"
        "    if config['router'] == 'soft_moe':\n"
        "        raise NotImplementedError('no soft routing')\n"
        "    raise RuntimeError('out of memory')\n",
    )
    results = adapted(name, cases=[BY_ID["soft_moe/values"], BY_ID["softmax_token_choice/values"]])
    declined, raised = results["soft_moe/values"], results["softmax_token_choice/values"]
    assert (declined.state, declined.first.message) == ("not implemented", "no soft routing")
    assert (raised.state, raised.first.message) == ("error", "RuntimeError: out of memory")


def test_an_inconclusive_case_stays_inconclusive(target):
    case = BY_ID["softmax_token_choice/values"]
    uncertain = {name: {"margin": 1e-300, "needed": dict.fromkeys(LANES, 1.0)} for name in case.decisions}
    (result,) = adapted(
        target("fused_sure", FUSED), cases=[type(case)(**{**vars(case), "decisions": uncertain})]
    ).values()
    assert result.state == "inconclusive"


def test_what_an_adapter_is_given(target):
    name = target(
        "fused_recording",
        "import numpy as np\ncalls = []\ndef layer(*given):\n    calls.append(given)\n    return np.zeros_like(given[0])\n",
    )
    adapted(name, "f32", [BY_ID["soft_moe/rsqrt"], BY_ID["softmax_token_choice/priority_max"]])
    (soft, priority) = sys.modules[name].calls
    x, params, config = priority
    assert (x.shape, x.dtype) == ((2, 6, 4), np.float32)
    assert {key: sorted(tree) for key, tree in params.items()} == {
        "router": ["kernel"],
        "experts": ["b1", "b2", "w1", "w2"],
    }
    assert config == {
        **vars(ROUTERS["softmax_token_choice"].configure(experts=3, tokens=6, width=4)),
        "batch_priority": "max",
        "capacity_factor": 0.5,
        "router": "softmax_token_choice",
        "gelu": "tanh",
        "train": False,
    }
    assert sorted(soft[1]["router"]) == ["scale", "slots"]
    assert soft[2]["norm_form"] == "rsqrt"


def test_an_adapter_may_have_arrays_of_its_own(target):
    text = FUSED + (
        "\nclass Own:\n"
        "    def from_numpy(self, tree, dtype):\n"
        "        self.dtype = dtype\n"
        "        return tree\n"
        "    def layer(self, x, params, config):\n"
        "        return [layer(x, params, config)]\n"
        "    def to_numpy(self, tree):\n"
        "        return {name: value[0] for name, value in tree.items()}\n"
    )
    name = target("fused_own", text)
    assert adapted(f"{name}:Own", "bf16", [BY_ID["soft_moe/values"]])["soft_moe/values"].state == "pass"


def test_numpy_has_no_bfloat16(run, target, count):
    status, printed, _ = run("run", "--adapter", target("fused_lanes", FUSED), "--algorithm", "soft_moe")
    assert status == 0
    assert f"{count('soft_moe')} skipped, bf16: refused by the target: ValueError: NumPy has no bfloat16" in printed


@pytest.mark.parametrize(
    ("adapter", "said"),
    [
        ("no_such_module", "ModuleNotFoundError"),
        ("", "ValueError"),
        (":layer", "ValueError"),
        ("math", "it has no layer(x, params, config)"),
        ("math:nothing", "the module 'math' has no 'nothing'"),
        ("math:pi", "it has no layer(x, params, config)"),
        ("subprocess:Popen", "TypeError"),
    ],
)
@pytest.mark.parametrize("command", [["run"], ["show", "soft_moe/values"]])
def test_what_is_no_adapter(run, command, adapter, said):
    status, _, error = run(*command, "--adapter", adapter)
    assert status == 2
    assert error.startswith(f"--adapter {adapter!r}: ")
    assert said in error
    assert len(error.splitlines()) == 1


def test_an_adapter_is_not_compiled_and_is_no_target(run):
    assert run("run", "--adapter", "x", "--mode", "compiled")[0] == 2
    assert run("run", "--adapter", "x", "--target", "moespec.backends.numpy")[0] == 2
    assert run("run")[0] == 2


# Files.


def golden(folder, cases=CASES):
    """Writes the files of a program that computes everything right, in float64."""
    for case in cases:
        if case.expect is None:
            path = folder / f"{case.id}.safetensors"
            path.parent.mkdir(parents=True, exist_ok=True)
            save_file({name: np.array(value.array, order="C") for name, value in files.expected(case).items()}, path)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The vectors of Token Choice alone, which are faster to load than all."""
    folder = tmp_path_factory.mktemp("small") / "vectors"
    shutil.copytree(suite.VECTORS / "token_choice", folder / "token_choice")
    (folder.parent / "suite.json").write_text(suite.suite_text(folder))
    return folder


@pytest.fixture
def judge(run, small):
    """Judges files by the vectors of Token Choice."""
    return lambda folder, *options: run("judge", folder, "--vectors", small, "--algorithm", "token_choice", *options)


@pytest.fixture
def folder(tmp_path):
    """A folder of right files for Token Choice."""
    golden(tmp_path / "out", [case for case in CASES if case.algorithm == "token_choice"])
    return tmp_path / "out"


TIED = "token_choice/tied.safetensors"


def raw(header, data=b"", length=None):
    """The bytes of a safetensors file with that header."""
    text = header if isinstance(header, bytes) else header.encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def change(path, **tensors):
    """Replaces tensors of a file; the names have a dot for a slash, and None removes."""
    found = load_file(path) | {name.replace(".", "/"): array for name, array in tensors.items()}
    save_file({name: array for name, array in found.items() if array is not None}, path)


def test_right_files_of_every_case_pass(tmp_path):
    golden(tmp_path)
    found = files.read_all(tmp_path, BY_ID)
    results = files.judge(found, CASES, files.lane_of(found))
    assert {result.id for result in results if result.state != "pass"} == {c.id for c in CASES if c.expect is not None}
    assert {result.lane for result in results} == {"f64"}
    assert report.counts(results)[1] == 0


def test_any_error_in_any_tensor_fails():
    """Each float far past its bound, each integer by one."""
    for case in CASES:
        for name, value in files.expected(case).items() if case.expect is None else ():
            wrong = value.array + (1 if value.kind == "int" else 1e-3 * (1 + np.abs(value.array)))
            given = {name: files.Found("F64", wrong.astype(value.array.dtype))}
            (result,) = files.judge({case.id: given}, [case], LANES["f64"])
            assert (result.state, result.first.stage) == ("fail", name)


def test_a_part_of_a_router_is_judged_but_does_not_pass(run, tmp_path, count):
    golden(tmp_path, [BY_ID["softmax_token_choice/values"]])
    path = tmp_path / "softmax_token_choice/values.safetensors"
    everything = load_file(path)
    options = ("--algorithm", "softmax_token_choice")
    save_file({name: everything[name] for name in ("route/output",)}, path)
    others = count("softmax_token_choice") - 1
    assert run("judge", tmp_path, *options)[1].splitlines()[-1] == f"1 passed, 0 failed, {others} skipped"
    save_file({name: everything[name] for name in ("logits/logits", "allocation/slots")}, path)
    status, printed, _ = run("judge", tmp_path, *options)
    assert status == 1
    assert "not implemented: route/output is not in the file" in printed
    save_file({"logits/logits": everything["logits/logits"] + 1, "route/output": everything["route/output"]}, path)
    assert "first at logits/logits" in run("judge", tmp_path, *options)[1]


def test_gradients_are_judged(judge, folder):
    assert "2" in judge(folder)[1].splitlines()[2].split()
    change(folder / "token_choice/gradient.safetensors", **{"gradient.scores": np.zeros((2, 6, 3))})
    status, printed, _ = judge(folder)
    assert status == 1
    assert "FAIL token_choice/gradient [f64 files] first at gradient/scores" in printed
    change(folder / "token_choice/gradient.safetensors", **{"gradient.scores": None})
    assert "not implemented: gradient/scores is not in the file" in judge(folder)[1]


SLOTS, WEIGHTS = (value.array for value in BY_ID["token_choice/tied"].stages[0].outputs.values())


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        (
            {"allocation.slot": SLOTS},
            "first at allocation/slot\n    a tensor that is not expected; expected are allocation/slots, ",
        ),
        ({"nothing": SLOTS}, "first at nothing\n"),
        ({"allocation.slots": SLOTS[:1]}, "shape (1, 3, 2), expected (2, 3, 2)"),
        ({"allocation.slots": SLOTS.astype(np.float64)}, "dtype float64, expected integers"),
        ({"allocation.slots": SLOTS.astype(bool)}, "has dtype BOOL, expected one of BF16, F32, F64, "),
        ({"allocation.weights": WEIGHTS.astype(np.float16)}, "has dtype F16, expected one of "),
        ({"allocation.weights": WEIGHTS.astype(np.int32)}, "dtype int32, expected floats"),
        ({"allocation.weights": WEIGHTS * np.nan}, "12 of 12 entries are not finite"),
        ({"allocation.weights": WEIGHTS + np.inf}, "12 of 12 entries are not finite"),
        ({"allocation.weights": -WEIGHTS}, "12 of 12 entries differ"),
        ({"allocation.weights": np.zeros(0)}, "shape (0,), expected (2, 3, 2)"),
    ],
)
def test_wrong_tensors(judge, folder, count, tensors, said):
    change(folder / TIED, **tensors)
    status, printed, _ = judge(folder)
    assert status == 1
    assert "FAIL token_choice/tied [f64 files] first at " in printed
    assert said in printed
    negatives = count("token_choice", "negative")
    right = count("token_choice") - negatives - 1
    assert printed.splitlines()[-1] == f"{right} passed, 1 failed, {negatives} skipped"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 8,
        raw(b"", length=1 << 62),
        raw(b"{}", length=100_000_000),
        raw("[" * 100_000),
        raw('{"allocation/slots": 3}'),
        raw('{"allocation/slots": {"dtype": "I32", "shape": [2, 3, 2], "data_offsets": [0, 48]}}', b"\0" * 40),
        raw('{"allocation/slots": {"dtype": "I32", "shape": [2, 3, 2], "data_offsets": [0, 8]}}', b"\0" * 8),
        raw('{"a": {"dtype": "F32", "shape": [4611686018427387904, 4], "data_offsets": [0, 0]}}'),
        raw('{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}', b"\0" * 4),
        b'{"allocation/slots": [[0, 1]]}',
        b"\x80\x04\x95cos\nsystem\n(S'true'\ntR.",
    ],
)
def test_damaged_files(judge, folder, count, content):
    (folder / TIED).write_bytes(content)
    status, printed, _ = judge(folder)
    assert status == 1
    assert f"first at file\n    {folder / TIED}: not a safetensors file: " in printed
    negatives = count("token_choice", "negative")
    right = count("token_choice") - negatives - 1
    assert printed.splitlines()[-1] == f"{right} passed, 1 failed, {negatives} skipped"


def test_a_file_of_holes_is_not_read(judge, folder):
    with (folder / TIED).open("wb") as file:
        file.truncate(1 << 40)
    assert f"{folder / TIED}: 1099511627776 bytes, the most is " in judge(folder)[1]


def test_what_is_no_file(judge, folder):
    for make in (
        Path.mkdir,
        os.mkfifo,
        lambda path: path.symlink_to("nowhere"),
        lambda path: path.symlink_to("/dev/zero"),
    ):
        path = folder / TIED
        path.rmdir() if path.is_dir() else path.unlink()
        make(path)
        assert f"first at file\n    {path}: no file" in judge(folder)[1]


@pytest.mark.parametrize("name", ["token_choice/teid", "tied", "token_choice/tied/tied", "hash/tied"])
def test_a_file_of_no_case(judge, folder, name):
    path = folder / f"{name}.safetensors"
    path.parent.mkdir(exist_ok=True)
    path.touch()
    status, printed, said = judge(folder)
    assert (status, printed) == (2, "")
    assert said == f"{path}: there is no case {name!r}; `list` prints them all\n"


def test_a_folder_that_is_not_there(judge, tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "nowhere", tmp_path / "file"):
        assert judge(path) == (2, "", f"{path}: no folder\n")


def test_an_empty_folder_does_not_pass(judge, tmp_path, count):
    status, printed, _ = judge(tmp_path)
    assert status == 1
    assert printed.splitlines()[-1] == f"0 passed, 0 failed, {count('token_choice')} skipped"


def test_a_negative_has_no_file(judge, folder):
    shutil.copy(folder / TIED, folder / "token_choice/negative_nan.safetensors")
    status, printed, _ = judge(folder)
    assert status == 1
    assert "a tensor that is not expected; expected are none" in printed


def bfloat16(array):
    return (np.ascontiguousarray(array, "<f4").view("<u4") >> 16).astype("<u2").tobytes()


def test_the_dtype_decides_the_lane(judge, folder):
    change(folder / TIED, **{"allocation.weights": WEIGHTS.astype(np.float32)})
    assert judge(folder)[1].startswith("f32 files")
    header = (
        '{"allocation/slots":{"dtype":"U8","shape":[2,3,2],"data_offsets":[0,12]},'
        '"allocation/weights":{"dtype":"BF16","shape":[2,3,2],"data_offsets":[12,36]}}'
    )
    (folder / TIED).write_bytes(raw(header, SLOTS.astype(np.uint8).tobytes() + bfloat16(WEIGHTS)))
    status, printed, _ = judge(folder)
    assert status == 0
    assert printed.startswith("bf16 files")
    status, printed, _ = judge(folder, "--lane", "f32")
    assert status == 1
    assert "dtype BF16 is coarser than float32 of the lane" in printed
    assert judge(folder, "--lane", "f16")[0] == 2


def test_a_router_written_in_c_passes(run, tmp_path):
    """A program that shares nothing with this package: its own JSON, safetensors, Token Choice and Expert Choice."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("there is no C compiler on this machine")
    program, out = tmp_path / "allocations", tmp_path / "out"
    source = Path(__file__).parent / "strangers" / "allocations.c"
    subprocess.run(
        [
            compiler,
            "-std=c99",
            "-D_POSIX_C_SOURCE=200809L",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-O1",
            "-o",
            program,
            source,
        ],
        check=True,
    )
    subprocess.run([program, suite.VECTORS, out], check=True)
    status, printed, _ = run("judge", out, "--algorithm", "token_choice", "--algorithm", "expert_choice")
    wanted = [c for c in CASES if c.algorithm in ("token_choice", "expert_choice")]
    negatives = [c for c in wanted if c.expect is not None]
    assert status == 0
    assert printed.splitlines()[-1] == f"{len(wanted) - len(negatives)} passed, 0 failed, {len(negatives)} skipped"
    assert printed.startswith("f32 files")


def test_the_convention_of_files_is_named(judge, tmp_path):
    """Ties to the higher expert: the golden files of the mirrored scores, mirrored."""
    for case in CASES:
        if case.algorithm == "token_choice" and case.expect is None and case.gradients is None:
            given = {name: tensor.array for name, tensor in case.inputs.items()}
            options = {name: case.config[name] for name in ("choices", "capacity")}
            found = [
                spec.token_choice(
                    scores[:, ::-1],
                    combine_scores=given["combine_scores"][g][:, ::-1] if "combine_scores" in given else None,
                    order=given["order"][g] if "order" in given else None,
                    **options,
                )
                for g, scores in enumerate(given["scores"])
            ]
            path = tmp_path / f"{case.id}.safetensors"
            path.parent.mkdir(exist_ok=True)
            slots = np.stack([spec.slot_tokens(routing) for routing in found])[:, ::-1]
            weights = np.stack([routing.combine.sum(axis=0) for routing in found])[:, ::-1]
            save_file({"allocation/slots": slots.copy(), "allocation/weights": weights.copy()}, path)
    status, printed, _ = judge(tmp_path)
    assert status == 1
    assert "token_choice [f64 files] equals ties_to_the_higher_expert: " in printed
    assert "ledger TC-1" in printed


# The documentation.


def test_the_commands_of_the_documentation_work_as_printed(run, tmp_path, monkeypatch):
    root = Path(__file__).parents[2]
    text = (root / "docs" / "conformance.md").read_text()
    for name in ("tests", "conformance"):
        (tmp_path / name).symlink_to(root / name)
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "fused.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    commands = re.findall(r"^\$ (.*)$", text, re.MULTILINE)
    assert len(commands) == 8
    for command in commands:
        words = shlex.split(command)
        if words[:3] == ["python", "-m", "moespec.conformance"]:
            assert run(*words[3:])[0] == 0, command
        elif shutil.which("cc"):
            subprocess.run(words, check=True)
        else:
            pytest.skip("there is no C compiler on this machine")
    (entry,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "waivers.toml").write_text(entry)
    assert len(waivers.read(tmp_path / "waivers.toml", BY_ID, ("eager", "compiled", "files"))) == 1
    assert (tmp_path / "report.html").exists()


# Reproductions.


def shown(code, capsys):
    exec(compile(code, "reproduction", "exec"), {})
    return capsys.readouterr().out


def failing(door, name, id, lane="f64"):
    """The code for the failure of one case."""
    case = BY_ID[id]
    if door == "files":
        results = files.judge(files.read_all(Path(name), BY_ID), [case], LANES[lane])
    else:
        kind = Adapter if door == "adapter" else reproduce.Target
        results = run_lane(kind(name, LANES[lane]), [case], "eager")
    (result,) = results
    assert result.state in ("fail", "error")
    return reproduce.code(report.Report(door, name, "", results), result)


def test_the_reproduction_of_a_stage_runs_as_it_stands(target, capsys):
    name = target(
        "late_choice",
        "from moespec.backends.numpy import *\nfrom moespec.backends import numpy\n"
        "def token_choice(scores, **options):\n    return numpy.token_choice(scores + 0 * scores, **options)._replace(tokens=7)\n"
        "def expert_choice(scores, **options):\n    return numpy.expert_choice(-scores, **options)\n",
    )
    code = failing("target", name, "expert_choice/tied")
    printed = shown(code, capsys)
    assert len(code.splitlines()) == 6
    assert "inputs\n{'scores': array" in printed
    assert str(BY_ID["expert_choice/tied"].stages[0].outputs["slots"].array) in printed.split("expected")[1]
    assert "got\n[[[1" in printed
    assert code.endswith("# expert_choice")


def test_the_reproduction_of_a_gradient_and_of_a_negative(target, capsys):
    name = target(
        "no_checks",
        "from moespec.backends.numpy import *\nfrom moespec.backends import numpy\n"
        "def z_loss(logits):\n    return numpy.z_loss(logits) if logits.ndim == 3 else logits.sum()\n"
        "def value_and_grad(f):\n    def g(*a):\n        v, d = numpy.value_and_grad(f)(*a)\n"
        "        return v, {k: {n: x + 1 for n, x in t.items()} for k, t in d.items()}\n    return g\n",
    )
    printed = shown(failing("target", name, "z_loss/gradient"), capsys)
    assert "expected\n" in printed
    assert "got\n" in printed
    assert "{'error': 'ShapeError naming logits'}" in shown(failing("target", name, "z_loss/negative_rank"), capsys)


def test_the_reproduction_of_an_adapter_and_of_a_file(target, folder, capsys):
    name = target("zeros", "import numpy as np\ndef layer(x, params, config):\n    return np.zeros_like(x)\n")
    assert "got\n[[[0. 0. 0. 0.]" in shown(failing("adapter", name, "soft_moe/values"), capsys)
    change(folder / TIED, **{"allocation.slots": SLOTS + 1})
    printed = shown(failing("files", str(folder), "token_choice/tied"), capsys)
    assert f"got\n{SLOTS + 1}" in printed


def test_a_raising_target_raises_in_its_reproduction(target):
    name = target(
        "raising_here", "from moespec.backends.numpy import *\ndef z_loss(logits):\n    raise RuntimeError('here')\n"
    )
    with pytest.raises(RuntimeError, match="here"):
        exec(failing("target", name, "z_loss/values"), {})


@pytest.mark.parametrize(
    ("id", "stage"), [("z_loss/nothing", "loss"), ("z_loss/values", "gradient"), ("z_loss/values", "")]
)
def test_what_cannot_be_opened(id, stage):
    with pytest.raises(ValueError, match=r"there is no case|has no stage"):
        reproduce.open_case(id, stage, target="moespec.backends.numpy")


# What is installed.


def test_judging_needs_no_framework(folder, tmp_path):
    """NumPy, SciPy, safetensors and tqdm are enough; the rest of what the package can use is absent here."""
    (tmp_path / "fused.py").write_text(FUSED)
    program = f"""
        import sys
        ABSENT = {{"jax", "torch", "optax", "matplotlib", "PIL", "tyro", "tomli_w", "jsonschema", "jinja2", "tensorboard"}}
        class Absent:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] in ABSENT or name.startswith(("moespec.backends", "moespec.models")):
                    raise ModuleNotFoundError(name, name=name)
        sys.meta_path.insert(0, Absent())
        sys.path.insert(0, {str(tmp_path)!r})
        from moespec.conformance.__main__ import main
        out = {str(tmp_path)!r}
        assert main(["judge", {str(folder)!r}, "--algorithm", "token_choice", "--report", out + "/files.json"]) == 0
        assert main(["run", "--adapter", "fused", "--lane", "f64", "--algorithm", "soft_moe", "--report", out + "/fused.json"]) == 0
        reports = [out + "/files.json", out + "/fused.json"]
        assert main(["report", *reports, "--html", out + "/report.html", "--badge", out + "/badge.svg"]) == 0
        assert main(["show", "token_choice/tied", "--files", {str(folder)!r}]) == 0
        assert not ABSENT & set(sys.modules)
    """
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
