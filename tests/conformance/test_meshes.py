"""The modes of meshes: each device gives the golden results, a mesh that exchanges or sums wrongly fails, and errors are said."""

import json
import math

import numpy as np
import pytest
from committed import BY_ID, CASES

from moespec.backends.mesh import MeshSizes
from moespec.conformance.engine import copies, suite
from moespec.conformance.engine.compare import DTYPES, Outcome
from moespec.conformance.engine.modes import is_mode, mesh_mode, mesh_of, meshes
from moespec.conformance.engine.target import Target, job_of
from moespec.conformance.report import matrix, reading, report
from moespec.conformance.report.results import CaseResult

CHOSEN = (
    *("hierarchical_top_k/gradient_losses", "moe_layer/long_sum", "moe_layer/mlp_gradient", "multi_hash/gradient"),
    *("vit/dropped", "vit/training_hierarchical_top_k", "z_loss/values"),
)
"""Of each kind one, with experts that two devices can share, but for that of MultiHash; and one that does not run on a mesh."""
EXPERT, FSDP = "mesh expert 2", "mesh fsdp 2"


@pytest.fixture(scope="module")
def chosen(copied, tmp_path_factory):
    return copied(tmp_path_factory.mktemp("suite") / "vectors", CHOSEN)


@pytest.fixture(params=["jax", "torch"])
def backend(request, monkeypatch):
    pytest.importorskip(request.param)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return request.param


@pytest.fixture
def over(tmp_path, monkeypatch):
    """Makes a package over a backend with a mesh of some text, and returns its name."""
    monkeypatch.syspath_prepend(tmp_path)

    def over_(backend, name, text):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"from moespec.backends.{backend} import *\n")
        (tmp_path / name / "mesh.py").write_text(text)
        return name

    return over_


TORCH = "from moespec.backends import torch as single\nfrom moespec.backends.torch.mesh import *\n"


def states(printed):
    """Passed, failed and skipped, from the last line."""
    return tuple(int(word) for word in printed.splitlines()[-1].split() if word.isdecimal())


def options(*modes, dtype="f64"):
    return ("--dtype", dtype, "--mode", ",".join(modes))


# Runs.


def test_each_device_gives_the_golden_results(run, chosen, backend, tmp_path):
    path = tmp_path / "report.json"
    name = f"moespec.backends.{backend}"
    status, printed, _ = run(*("run", "--target", name, "--vectors", chosen, *options(EXPERT), "--report", path))
    assert status == 0, printed
    assert states(printed) == (len(CHOSEN) - 2, 0, 1)
    results = json.loads(path.read_text())["cases"]
    assert {one["id"] for one in results} == set(CHOSEN[:-1])
    (lacking,) = [one for one in results if one["state"] != "pass"]
    assert (lacking["id"], lacking["mode"]) == ("multi_hash/gradient", EXPERT)
    assert lacking["outcomes"][0]["message"].startswith("mesh.expert=2: MultiHash mixes the experts inside")
    exact = ("multi_hash/gradient", "moe_layer/long_sum")
    assert all(0 < one["fraction"] < 1 for one in results if one["id"] not in exact)


def test_other_dtypes(run, chosen, backend):
    words = ("run", "--target", f"moespec.backends.{backend}", "--algorithm", "moe_layer")
    status, printed, _ = run(*words, "--vectors", chosen, *options(EXPERT, dtype="f32,bf16"))
    assert (status, states(printed)) == (0, (4, 0, 0)), printed


WRONG = {
    "wrong_way_back": (
        "class OnMesh(OnMesh):\n    def _back(self, slots):\n        half = len(slots) // 2\n"
        "        return super()._back(single.concatenate([slots[half:], slots[:half]], 0))\n",
        {"moe_layer/long_sum", "moe_layer/mlp_gradient"},
    ),
    "wrong_mean": (
        "class OnMesh(OnMesh):\n    def make_step(self, loss, optimizer, *, compiled=True, **options):\n"
        "        def half(params, batch):\n            value, metrics = loss(params, batch)\n"
        "            return value / 2, metrics\n"
        "        return super().make_step(half, optimizer, compiled=compiled, **options)\n",
        {"moe_layer/mlp_gradient"},
    ),
}
"""Meshes that are wrong, and the cases that say so."""


@pytest.mark.parametrize("wrong", ["wrong_way_back", pytest.param("wrong_mean", marks=pytest.mark.full)])
def test_a_wrong_mesh_fails(run, chosen, over, wrong):
    pytest.importorskip("torch")
    text, caught = WRONG[wrong]
    name = over("torch", wrong, TORCH + text)
    mode = EXPERT if wrong == "wrong_way_back" else FSDP
    status, printed, _ = run("run", "--target", name, "--vectors", chosen, *options(mode), "--algorithm", "moe_layer")
    failing = {line.split()[1] for line in printed.splitlines() if line.startswith("FAIL ")}
    assert (status, failing) == (1, caught), printed
    assert f"conformance show moe_layer/mlp_gradient --target {name} --dtype float64 --mode '{mode}'" in printed


def test_gradients_that_are_not_reduced_fail(run, chosen, over):
    """Each device has the same batch, but not the same weight."""
    pytest.importorskip("torch")
    text = "from moespec.backends.torch.spread import SpreadState\nSpreadState.add_gradients = lambda self, metrics: metrics\n"
    text += "class OnMesh(OnMesh):\n    def make_step(self, loss, optimizer, *, compiled=True, **options):\n"
    text += "        whole = lambda params, batch: (loss(params, batch)[0] * 2, loss(params, batch)[1])\n"
    text += "        return super().make_step(whole, optimizer, compiled=compiled, **options)\n"
    name = over("torch", "not_reduced", TORCH + text)
    words = ("--vectors", chosen, "--algorithm", "moe_layer", "--algorithm", "hierarchical_top_k")
    status, printed, _ = run("run", "--target", name, *words, *options("mesh data 2"))
    failing = {line.split()[1] for line in printed.splitlines() if line.startswith("FAIL ")}
    assert (status, failing) == (1, {"moe_layer/mlp_gradient", "hierarchical_top_k/gradient_losses"}), printed


def test_a_process_that_ends_fails_its_algorithm(run, chosen, over):
    pytest.importorskip("torch")
    text = (
        "import os\nclass OnMesh(OnMesh):\n    def multi_hash_mlp(self, *arguments, **options):\n        os._exit(3)\n"
    )
    name = over("torch", "ending", TORCH + text)
    words = ("--algorithm", "multi_hash", "--algorithm", "moe_layer")
    status, printed, _ = run("run", "--target", name, "--vectors", chosen, *words, *options(FSDP))
    assert (status, states(printed)) == (1, (2, 1, 0)), printed
    assert "of 2 ended with status 3" in printed


# What is repeated.


@pytest.mark.parametrize("devices", [1, 2, 3, 4])
def test_weights_differ_and_are_1_on_average(devices):
    weights = [copies.weight(device, devices) for device in range(devices)]
    assert len(set(weights)) == devices
    assert math.isclose(np.mean(weights), 1)


def test_each_device_has_the_groups_in_another_order():
    job = job_of(BY_ID["switch/values"], "moe_layer")
    target = Target("moespec.backends.numpy", DTYPES["float64"])
    rows = copies.repeated(target, job, {}).rows(range(2), 2)
    tokens = job.values["tokens"].array
    np.testing.assert_array_equal(rows["tokens"], np.concatenate([tokens, tokens[::-1]]))
    np.testing.assert_array_equal(copies.put_back(job, {"output": tokens[::-1]}, 1)["output"], tokens)


def test_what_is_drawn_from_the_number_of_an_image_stays_in_order():
    job = job_of(BY_ID["mixer/dropped"], "forward")
    rows = copies.repeated(Target("moespec.backends.numpy", DTYPES["float64"]), job, {}).rows(range(3), 3)
    images = job.values["images"].array
    np.testing.assert_array_equal(rows["images"], np.concatenate([images] * 3))


def test_what_runs_is_what_has_experts_or_is_a_model():
    chosen = [case for case in CASES if copies.chosen(case)]
    calls = {stage.call for case in chosen for stage in case.stages if copies.runs(stage)}
    assert calls == {*copies.LAYERS, *copies.MODELS}
    for case in CASES:
        assert copies.chosen(case) == any(s.call in calls and s.outputs for s in case.stages), case.id


@pytest.mark.parametrize(
    ("id", "stage", "sizes", "said"),
    [
        ("switch/values", "moe_layer", MeshSizes(expert=2), "mesh.expert=2 does not divide the 3 experts"),
        ("switch/values", "moe_layer", MeshSizes(expert=3), ""),
        ("switch/values", "moe_layer", MeshSizes(data=5, fsdp=7), ""),
        ("moe_layer/identity_experts", "moe_layer", MeshSizes(expert=5), "mesh.expert=5 does not divide the "),
        ("vit/multi_hash", "forward", MeshSizes(expert=2), "mesh.expert=2: MultiHash mixes the experts inside"),
        ("multi_hash/wide", "multi_hash_mlp", MeshSizes(expert=2), "mesh.expert=2: MultiHash mixes the experts inside"),
        ("multi_hash/wide", "multi_hash_mlp", MeshSizes(fsdp=2), ""),
        (
            "vit/training_switch",
            "train",
            MeshSizes(expert=2),
            "mesh.expert=2 does not divide the 3 experts of blocks/0/",
        ),
    ],
)
def test_the_reason_why_a_case_does_not_run(id, stage, sizes, said):
    reason = copies.reason(job_of(BY_ID[id], stage), sizes)
    assert reason.startswith(said)
    assert bool(reason) == bool(said)


# Modes.


@pytest.mark.parametrize("devices", [1, 2, 3, 4, 8])
def test_a_mesh_is_named_in_its_mode(devices):
    assert all(mesh_of(mesh_mode(sizes)) == sizes for sizes in meshes(devices))
    assert len(set(meshes(devices))) == len(list(meshes(devices))) == {1: 1, 2: 3, 3: 3, 4: 6, 8: 10}[devices]


@pytest.mark.parametrize(
    "mode",
    [
        "mesh",
        "mesh data",
        "mesh data 1",
        "mesh data 0",
        "mesh data 02",
        "mesh expert 2 x data 2",
        "mesh rows 2",
        "fast",
    ],
)
def test_what_names_no_mode(mode):
    assert not is_mode(mode)


def test_a_report_has_meshes(tmp_path):
    path, case = tmp_path / "report.json", BY_ID["switch/values"]
    outcomes = [Outcome("moe_layer/output", "fail", 2.0, "device 1 of 4: differs")]
    results = [CaseResult(case.id, case.algorithm, case.kind, "float64", mesh_mode(s), outcomes) for s in meshes(4)]
    one = report.Report("target", "my.router", suite.digest(), results)
    report.write(one, path)
    assert reading.read(path, CASES, suite.digest()) == one
    assert "FAIL switch/values [float64 mesh data 2 x expert 2] first at moe_layer/output" in matrix.failures(one)
    path.write_text(path.read_text().replace("mesh data 4", "mesh data 04"))
    with pytest.raises(report.ReportError, match="case switch/values: unknown mode 'mesh data 04'"):
        reading.read(path, CASES, suite.digest())


# Wrong usage.


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--mode", "mesh"), "--mode mesh and --devices N belong together"),
        (("--devices", "2"), "--mode mesh and --devices N belong together"),
        (("--mode", "mesh", "--devices", "0"), "run: --devices: '0': expected a whole number from 1 to 64"),
        (("--mode", "mesh", "--devices", "65"), "run: --devices: '65': expected a whole number from 1 to 64"),
        (
            ("--mode", "mesh rows 2"),
            "run: --mode: unknown 'mesh rows 2'; expected eager, compiled, strided, mesh, or a mesh",
        ),
        (("--processes", "2"), "--processes 2: no mesh is run"),
        (("--mode", "mesh", "--devices", "2"), "there is no mesh: moespec.backends.numpy.mesh cannot be imported"),
    ],
)
def test_wrong_options(run, words, said):
    status, printed, error = run("run", "--target", "moespec.backends.numpy", *words)
    assert (status, printed) == (2, "")
    assert said in error


NAMES = "OnMesh = join = leave = print\ndevices = lambda: 1\n"


@pytest.mark.parametrize(
    ("name", "text", "words", "said"),
    [
        ("meshless", "", (), "there is no mesh: meshless.mesh has no OnMesh and no devices and no join and no leave"),
        ("alone", NAMES, ("--processes", "1"), "2 devices cannot be those of 1 processes"),
        ("too_few", NAMES + "cpu_devices = print\n", (), "2 devices of too_few: there are 1"),
        (
            "exits",
            NAMES + "def cpu_devices(count):\n    raise SystemExit(0)\n",
            (),
            "2 devices of exits: ExitedError: ",
        ),
        ("ends", NAMES + "import os\ncpu_devices = os._exit\n", (), "process 0 of 1 ended with status 2"),
    ],
)
def test_devices_that_cannot_be_had(run, over, name, text, words, said):
    target = over("numpy", name, text)
    status, printed, error = run("run", "--target", target, *options(EXPERT), "--algorithm", "switch", *words)
    assert (status, printed) == (2, "")
    assert said in error
