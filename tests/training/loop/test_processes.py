"""Runs of several processes: the numbers of one, checkpoints that any number reads, a process that dies, and what is refused.

With torch, and with JAX where they differ; the processes are real, the devices their CPUs.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
from of_models import params_of

from moespec.backends.mesh import Shards, mesh_sizes
from moespec.models.errors import CheckpointError, RunError
from moespec.models.pytrees import flatten
from moespec.training.commands import train as command
from moespec.training.commands.launch import _free_port
from moespec.training.loop import checkpoint
from moespec.training.loop.checkpoint import Saver
from moespec.training.loop.runlog import read_log

PROGRAM = "import sys; from moespec.cli import main; sys.exit(main(sys.argv[1:]))"
TRAIN = (
    "train", "--router", "softmax_token_choice", "--experts", "4", "--data.mixup", "0.5", "--data.crop-padding", "1",
    "--data.balance", "0.5", "--training.keep-best", "accuracy",
    "--model.dropout", "0.1", "--training.steps", "12", "--training.checkpoint-every", "4", "--training.log-every", "1",
    "--training.evaluate-every", "12", "--training.keep", "9",
)  # fmt: skip
TWO_BY_TWO = ("--mesh.data", "2", "--mesh.expert", "2")


def moespec(*arguments, environment=None, wait=True):
    """The command in a process of its own."""
    quiet = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", PROGRAM, *map(str, arguments)]
    options = {"env": {**os.environ, **quiet, **(environment or {})}, "text": True}
    if not wait:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
    return subprocess.run(command, capture_output=True, timeout=300, check=False, **options)


def trained(*arguments, **options):
    ended = moespec(*arguments, **options)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended


def wait_for(launcher, come):
    until = time.monotonic() + 120
    while not come():
        assert launcher.poll() is None
        assert time.monotonic() < until
        time.sleep(0.01)


def losses(run):
    return np.array([line["loss"] for line in read_log(run, "train")])


@pytest.fixture(scope="module")
def of_one(tmp_path_factory):
    """A run of one process."""
    pytest.importorskip("torch")
    run = tmp_path_factory.mktemp("one") / "run"
    trained(*TRAIN, "--backend", "torch", "--run", run)
    return run


@pytest.fixture(scope="module")
def of_four(tmp_path_factory):
    """The same, of four."""
    pytest.importorskip("torch")
    run = tmp_path_factory.mktemp("four") / "run"
    ended = trained("launch", "-n", "4", *TRAIN, *TWO_BY_TWO, "--backend", "torch", "--run", run)
    assert "devices: data 2 x expert 2, in 4 processes" in ended.stdout
    assert ended.stdout.count("devices: ") == 1
    return run


def test_four_processes_train_to_the_numbers_of_one(of_one, of_four):
    """Data, augmentation, mixup with the neighbours of other processes, dropout, noise and evaluation."""
    np.testing.assert_allclose(losses(of_four), losses(of_one), rtol=2e-5)
    one, four = (read_log(run, "evaluation")[-1] for run in (of_one, of_four))
    assert one["images"] == four["images"] == 355
    np.testing.assert_allclose(four["loss"], one["loss"], rtol=1e-4)
    ours, theirs = (flatten(params_of(run)) for run in (of_four, of_one))
    for name, value in theirs.items():
        np.testing.assert_allclose(ours[name], value, rtol=0, atol=2e-4, err_msg=name)


def test_a_process_saves_what_it_has(of_four):
    """Each expert is in the file of a process that has it, and what all have in that of the first."""
    files = sorted((of_four / "checkpoints" / "00000012").glob("*.safetensors"))
    assert [file.name for file in files] == [f"arrays-{n:05d}-of-00004.safetensors" for n in (1, 2, 3, 4)]
    sizes = [file.stat().st_size for file in files]
    assert sizes[0] > sizes[1] > 100 * sizes[2]
    assert sizes[2] == sizes[3]


@pytest.mark.parametrize("backend", [pytest.param("torch", marks=pytest.mark.full), "jax"])
def test_a_run_of_four_goes_on_in_another_number_and_framework(backend, of_one, of_four, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(of_four, run)
    for step in ("00000008", "00000012"):
        shutil.rmtree(run / "checkpoints" / step)
    (run / "report.html").unlink()
    two = ("launch", "-n", "2", "train", "--resume", "--run", run, "--backend", backend)
    trained(*two, "--mesh.data", "1", "--mesh.fsdp", "2", "--mesh.expert", "1")
    np.testing.assert_allclose(losses(run), losses(of_one), rtol=2e-4)
    again = trained("train", "--resume", "--run", run, "--mesh.data", "None", "--mesh.fsdp", "1")
    assert "finished already, 12 steps" in again.stdout


@pytest.mark.parametrize(
    ("backend", "harm", "told"),
    [
        ("torch", signal.SIGKILL, "was killed by SIGKILL"),
        pytest.param("torch", signal.SIGSTOP, "stopped responding", marks=pytest.mark.full),
        pytest.param("jax", signal.SIGSTOP, "stopped responding", marks=pytest.mark.full),
    ],
)
def test_processes_are_started_again_after_one_is_lost(backend, harm, told, of_one, tmp_path):
    """The others end soon, the message names the process, and the run goes on from its last checkpoint to the same numbers."""
    run = tmp_path / "run"
    options = ("-n", "2", "--restarts", "1", *TRAIN, "--backend", backend, "--mesh.timeout", "10", "--run", run)
    launcher = moespec("launch", *options, wait=False)
    wait_for(launcher, (run / "checkpoints" / "00000004").exists)
    children = subprocess.run(["pgrep", "-P", str(launcher.pid)], capture_output=True, text=True, check=True).stdout
    os.kill(int(children.split()[1]), harm)
    _, errors = launcher.communicate(timeout=180)
    assert launcher.returncode == 0, errors[-2000:]
    assert f"process 1 of 2 {told}; the other processes were stopped; start 2 of 2" in errors
    np.testing.assert_allclose(losses(run), losses(of_one), rtol=2e-4 if backend == "jax" else 2e-5)


def test_a_signal_stops_all_processes_and_saves(tmp_path):
    run = tmp_path / "run"
    many = ("--training.steps", "100000", "--training.checkpoint-every", "100000", "--training.log-every", "5")
    many += ("--training.compile", "never")
    launcher = moespec("launch", "-n", "2", *TRAIN, *many, "--backend", "torch", "--run", run, wait=False)
    wait_for(launcher, lambda: read_log(run, "train"))
    launcher.send_signal(signal.SIGTERM)
    _, errors = launcher.communicate(timeout=120)
    assert launcher.returncode == 128 + signal.SIGTERM, errors[-2000:]
    (step,) = checkpoint.steps(run / "checkpoints")
    assert step % 5 == 0
    assert f"{step} of 100000 steps are done and saved" in errors


@pytest.mark.parametrize(
    ("processes", "options", "message"),
    [
        (3, (), "training.batch=64 cannot be split evenly among 3 devices (data 3)"),
        (2, ("--mesh.data", "4"), "mesh.data=4, mesh.fsdp=1, mesh.expert=1 need 4 devices, but there are 2"),
        (2, ("--mesh.expert", "2", "--experts", "3"), "mesh.expert=2 does not divide the 3 experts of MoE layer 2"),
        (2, ("--model", "sparse_mlp_tiny"), "a group of 2048 channels of layer 2_tokens would span several devices"),
        (2, ("--model.group-images", "64"), "each device gets 32 images (data 2). images: 32 images"),
        (2, ("--router", "hash", "--mesh.expert", "2", "--model.router-options.hashes", "2"), "MultiHash"),
    ],
)
def test_what_cannot_be_spread_is_refused_before_anything_is_written(
    processes, options, message, tmp_path, monkeypatch, said
):
    @contextmanager
    def connected(name, mesh):
        yield SimpleNamespace(process=0, processes=processes, sizes=mesh_sizes(processes, **mesh.axes))

    monkeypatch.setattr(command, "connected", connected)
    run = tmp_path / "run"
    assert message in said(["train", "--backend", "torch", *options, "--run", str(run)], 2)
    assert not run.exists()


@pytest.mark.parametrize("backend", ["torch", pytest.param("jax", marks=pytest.mark.full)])
def test_processes_with_other_configurations_are_refused_by_name(backend, tmp_path):
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    both = [
        moespec(
            *("train", "--backend", backend, "--run", tmp_path / "run", "--training.seed", seed),
            environment={**common, "RANK": rank, "LOCAL_RANK": rank},
            wait=False,
        )
        for rank, seed in (("0", "0"), ("1", "5"))
    ]
    for rank, process in enumerate(both):
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 2
        assert f"(process {rank}): training.seed is 0 in process 0, 5 in process 1" in errors
    assert not (tmp_path / "run").exists()


SHAPES = {"w": (4, 3), "b": (3,)}
PARTS = [f"arrays-{number:05d}-of-00002.safetensors" for number in (1, 2)]


def saving(folder, processes=(0, 1)):
    """What saves the parts of a checkpoint of two processes."""
    whole, savers = np.arange(12, dtype=np.float32).reshape(4, 3), []
    config = {"optimizer": {"name": "sgd", "momentum": 0.0}}
    record = {"step": 4, "config": config, "random": {}, "data": {}, "backend": "torch", "seconds": 1.0}
    for process in processes:
        half, both = whole[2 * process : 2 * process + 2], ((((0,), np.ones(3, np.float32)),), ())[process]
        params = {"w": Shards((4, 3), whole.dtype, (((2 * process, 0), half),)), "b": Shards((3,), whole.dtype, both)}
        B = SimpleNamespace(process=process, processes=2, sizes=SimpleNamespace(devices=2))
        savers.append(Saver(B, folder, keep=2, spare=None))
        savers[-1].save({"params": params, "step": 4}, record)
    return savers


def saved(folder):
    for one in reversed(saving(folder)):
        one.wait()
    return folder / "00000004"


def test_parts_become_whole(tmp_path):
    path = saved(tmp_path)
    read = checkpoint.read(path, SHAPES).state["params"]
    np.testing.assert_array_equal(read["w"], np.arange(12).reshape(4, 3))
    np.testing.assert_array_equal(read["b"], np.ones(3))
    lazy = checkpoint.read(path, SHAPES, whole=False).state["params"]["w"]
    np.testing.assert_array_equal(lazy[1:3, 1:], [[4, 5], [7, 8]])
    assert sorted(file.name for file in path.iterdir()) == [*PARTS, "state.json"]


def test_a_damaged_part_is_named_when_it_is_read(tmp_path):
    path = saved(tmp_path)
    part = path / PARTS[1]
    content = part.read_bytes()
    part.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(CheckpointError, match=f"{PARTS[1]}: damaged"):
        checkpoint.read(path, SHAPES)
    lazy = checkpoint.read(path, SHAPES, whole=False).state["params"]["w"]
    np.testing.assert_array_equal(lazy[:2, :], np.arange(6).reshape(2, 3))
    with pytest.raises(ValueError, match="damaged"):
        lazy[:, :]
    part.unlink()
    with pytest.raises(CheckpointError, match=f"{PARTS[1]}: cannot be read"):
        checkpoint.read(path, SHAPES, whole=False)
    part.write_bytes(content)
    state = json.loads((path / "state.json").read_text())
    state.pop("sha256")
    del state["files"][PARTS[0]]
    checkpoint.amend(path, state)
    with pytest.raises(CheckpointError, match=r"w: its parts do not add up to shape \(4, 3\)"):
        checkpoint.read(path, SHAPES)


def test_a_full_disk_of_one_process_is_named_and_leaves_no_checkpoint(tmp_path, monkeypatch):
    write = checkpoint.write_synced

    def full(path, content):
        if "00002-of" in path.name:
            raise OSError(28, "No space left on device", str(path))
        write(path, content)

    monkeypatch.setattr(checkpoint, "write_synced", full)
    first, second = saving(tmp_path)
    with pytest.raises(OSError, match="No space left"):
        second.wait()
    with pytest.raises(RunError, match=r"process 1 failed to save its part: .*No space left"):
        first.wait()
    assert checkpoint.steps(tmp_path) == []


def test_process_0_does_not_wait_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "PATIENCE", 0.2)
    (first,) = saving(tmp_path, processes=(0,))
    with pytest.raises(RunError, match="process 1 did not save its part within"):
        first.wait()
    assert checkpoint.steps(tmp_path) == []
