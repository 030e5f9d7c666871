"""Short runs in the environments that people have, each ended and resumed: `nox -s environments`.

Each row has the same three checks: the exit status, at most one line on standard error besides progress, and the bits of
the unbroken run after `--resume`.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys

import pytest

NEWEST = os.environ.get("MOESPEC_NEWEST_PYTHON", "")
"""An interpreter with JAX alone."""
TRAIN = (
    "train", "--router", "soft_moe", "--experts", "2", "--model.width", "16", "--model.depth", "1", "--model.moe", "first_1",
    "--model.image-size", "8", "--training.steps", "4", "--training.checkpoint-every", "2", "--training.keep", "9",
)  # fmt: skip
PLAIN = {"OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
OPTIMIZED, TWO, COMPILED = {"PYTHONOPTIMIZE": "1"}, ("launch", "-n", "2"), ("--training.compile", "always")
ROWS = {
    "torch, python -O, two processes": ("torch", OPTIMIZED, TWO, (), ""),
    "torch, two compiled processes": ("torch", {}, TWO, COMPILED, ""),
    "torch, standard output closed": ("torch", {}, (), (), ">&-"),
    "torch, standard output and error closed": ("torch", {}, (), (), ">&- 2>&-"),
    "jax, two compiled processes, python -O": ("jax", OPTIMIZED, TWO, (), ""),
    "newest Python, jax, experts without a capacity": ("newest", {}, (), ("--router", "sigmoid_token_choice"), ""),
    "newest Python, jax, two compiled processes": ("newest", {}, TWO, (), ""),
}
"""Framework, environment variables, how it is launched, options, and what becomes of the streams."""


def start(kind, environment, *words, streams=""):
    """The command in a process of its own; its framework must be there."""
    python = NEWEST if kind == "newest" else sys.executable
    if not python or importlib.util.find_spec(kind.replace("newest", "jax")) is None:
        pytest.skip(f"{kind}: not on this machine")
    command = ["bash", "-c", f'exec "$@" {streams}', "bash", python, "-m", "moespec", *map(str, words)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env={**os.environ, **PLAIN, **environment}, **pipes)


def ends(process, status=0, lines=1):
    """What the process says, besides progress, when it has ended with this status; of several processes each a line, and the launcher."""
    _, said = process.communicate(timeout=480)
    told = [
        line
        for line in re.split(r"[\r\n]+", said)
        if line.strip() and not re.match(r"\s*(train|images|decoding|headers|cache)\b", line)
    ]
    assert process.returncode == status, said[-3000:]
    assert len(told) <= lines, told
    return "".join(told)


def bits(run, step):
    return [file.read_bytes() for file in sorted((run / "checkpoints" / f"{step:08}").glob("*.safetensors"))]


@pytest.mark.parametrize("row", ROWS)
def test_a_run_is_ended_and_resumed(row, tmp_path):
    kind, environment, launch, options, streams = ROWS[row]
    run, backend = tmp_path / "run", "jax" if kind == "newest" else kind
    how = (*launch, *TRAIN, *options, "--backend", backend, "--run", run)
    assert ends(start(kind, environment, *how, streams=streams)) == ""
    unbroken = bits(run, 4)
    assert len(unbroken) == (2 if launch else 1)
    assert (run / "report.html").is_file()
    shutil.rmtree(run / "checkpoints" / "00000004")
    again = (*launch, "train", "--resume", "--run")
    if environment == OPTIMIZED:
        shutil.copytree(run, damaged := tmp_path / "damaged")
        file = sorted((damaged / "checkpoints" / "00000002").glob("*.safetensors"))[0]
        file.write_bytes((content := file.read_bytes())[:-1] + bytes([content[-1] ^ 1]))
        said = ends(start(kind, environment, *again, damaged), 2, lines=3)
        assert "damaged: its checksum does not match state.json" in said
    assert ends(start(kind, environment, *again, run, streams=streams)) == ""
    assert bits(run, 4) == unbroken


@pytest.mark.parametrize("kind", ["jax", "newest"])
def test_a_device_that_is_not_there_is_one_line(kind):
    assert "JAX_PLATFORMS='rocm'" in ends(start(kind, {"JAX_PLATFORMS": "rocm"}, *TRAIN, "--backend", "jax"), 2)
