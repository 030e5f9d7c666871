"""A run that is killed with SIGKILL, at a random moment or while it writes a checkpoint, goes on to the same bits."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from moespec.models.training import checkpoint
from moespec.models.training.runlog import read_log

pytestmark = pytest.mark.skipif(os.name != "posix", reason="SIGKILL")

AT_A_LINE_OF_THE_LOG = """
import os, signal, sys
from moespec.models import cli
from moespec.models.training import runlog
real, left = runlog.RunLog.write, int(sys.argv[1])
def write(self, *arguments):
    global left
    left -= 1
    if left < 0:
        self._file.write('{"kind": "tra')  # the system may have taken a part of a line
        self._file.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    real(self, *arguments)
runlog.RunLog.write = write
cli.main(sys.argv[2:])
"""
IN_A_CHECKPOINT = """
import os, signal, sys
from moespec.models import cli
from moespec.models.training import checkpoint
real, left = checkpoint.write_synced, int(sys.argv[1])
def write_synced(path, content):
    global left
    left -= 1
    if left < 0:
        path.write_bytes(content[: len(content) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
    real(path, content)
checkpoint.write_synced = write_synced
cli.main(sys.argv[2:])
"""


@pytest.mark.parametrize(
    ("program", "count"),
    [(AT_A_LINE_OF_THE_LOG, random.randrange(14)), (IN_A_CHECKPOINT, random.randrange(6))],
    ids=["log", "checkpoint"],
)
def test_kill(runs, tmp_path: Path, program: str, count: int) -> None:  # type: ignore[no-untyped-def]
    whole, run = runs.whole("torch"), tmp_path / "run"
    arguments = ["train", "--backend", "torch", "--run", str(run), *runs.flags]
    killed = subprocess.run(
        [sys.executable, "-c", program, str(count), *arguments], capture_output=True, text=True, timeout=120
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert checkpoint.steps(run / "checkpoints") != [4, 8, 12], f"killed at {count}"
    runs.train(run, "torch")
    last = Path("checkpoints", "00000012", "arrays.safetensors")
    assert (run / last).read_bytes() == (whole / last).read_bytes(), f"killed at {count}"
    assert [record["step"] for record in read_log(run, "train")] == list(range(1, 13)), f"killed at {count}"
    assert not list((run / "checkpoints").glob(".*")), "nothing half-written is left"
