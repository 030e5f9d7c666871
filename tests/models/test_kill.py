"""Runs that are killed at random, in the middle of a write too, lose no step and end with the bits of an unbroken run.

`MOESPEC_KILLS` says how many kills there are (6), at least three for each router and backend, `MOESPEC_KILLS_SEED` which (0).
A kill is SIGKILL, or an alarm without a handler, which ends a process as suddenly:

    operation   before one of the operations on files in the run's folder: open, rename, remove, make a folder
    torn        when half of a file is written
    time        at some moment, whatever the process does then
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

KILLS, SEED = (
    int(os.environ.get(name, value)) for name, value in (("MOESPEC_KILLS", "6"), ("MOESPEC_KILLS_SEED", "0"))
)
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks and kills, which only POSIX has")

PROGRAM = '''
import collections, json, os, random, signal, sys, time
from pathlib import Path
import jax, torch
import moespec.backends.jax, moespec.backends.torch
from moespec.models import cli, files
from moespec.models.commandline import commands
from moespec.models.training import checkpoint, runlog
from moespec.spec.routers import ROUTERS

kills, seed, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
random.seed(seed)
FLAGS = """--model.depth 1 --model.width 8 --model.hidden 8 --model.heads 1 --model.patch-size 4 --model.moe last_1
--experts 4 --schedule.warmup 1 --schedule.peak 1e-2 --training.steps 6 --training.batch 4 --training.checkpoint-every 2
--training.evaluate-every 3 --training.log-every 1 --training.evaluation-batch 355""".split()
OPERATIONS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir")

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def kill_at_operation(run, count):
    left = [count]
    def hook(event, arguments):
        if event in OPERATIONS and isinstance(arguments[0], (str, bytes, Path)) and str(run) in os.fsdecode(arguments[0]):
            left[0] -= 1
            if left[0] < 0:
                die()
    sys.addaudithook(hook)

def kill_in_a_write(run, count):
    left, real = [count], files.write_synced
    def write_synced(path, content):
        left[0] -= 1
        if left[0] < 0:
            path.write_bytes(content[: len(content) // 2])
            die()
        real(path, content)
    files.write_synced = checkpoint.write_synced = write_synced
    real_write = runlog.RunLog.write
    def write(self, *arguments):
        left[0] -= 1
        if left[0] < 0:
            self._file.write('{"kind": "tra')
            self._file.flush()
            die()
        real_write(self, *arguments)
    runlog.RunLog.write = write

def kill_in_time(run, seconds):
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)

def train(run, router, backend, kill=None):
    """Trains, or goes on, in a process of its own; how it ended, 0 if it was whole."""
    child = os.fork()
    if child == 0:
        log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1), os.dup2(log, 2)
        commands.write_report = lambda B, config, dataset, run, params: files.write_atomically(run / "report.html", b"x")
        if kill is not None:
            kill[0](run, kill[1])
        arguments = ["train", "--resume", "--backend", backend, "--router", router, "--run", str(run), *FLAGS]
        os._exit(cli.main(arguments))
    return os.waitpid(child, 0)[1]

def lines(run):
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in record.items() if "second" not in key and key != "sha256"} for record in records]

def arrays(run):
    return (run / "checkpoints" / "00000006" / "arrays.safetensors").read_bytes()

pairs = [(router, backend) for router in ROUTERS for backend in ("jax", "torch")]
random.shuffle(pairs)
each, done, ends = max(-(-kills // len(pairs)), 3), 0, collections.Counter()  # few pairs: each is compiled
for number, (router, backend) in enumerate(pairs):
    if done >= kills:
        break
    where, whole, runs, killed = f"{router} {backend}", folder / f"{number}-whole", 0, 0
    began = time.perf_counter()
    assert train(whole, router, backend) == 0, where
    took = time.perf_counter() - began
    while killed < min(each, kills - done):
        runs += 1
        run, newest = folder / f"{number}-{runs}", 0
        while True:
            kind = random.choice(("operation", "torn", "time"))
            if killed == min(each, kills - done):
                kill = None
            elif kind == "operation":
                kill = (kill_at_operation, random.randrange(80))
            elif kind == "torn":
                kill = (kill_in_a_write, random.randrange(16))
            else:
                kill = (kill_in_time, random.uniform(0.01, took))
            status = train(run, router, backend, kill)
            found = checkpoint.steps(run / "checkpoints")
            assert (found[-1] if found else 0) >= newest, f"{where}: {newest} was lost by {kind} {kill}"
            newest = found[-1] if found else 0
            if status == 0:
                break
            assert kill is not None and os.WIFSIGNALED(status), f"{where}: ended with {status} after {kind} {kill}"
            ends[kind] += 1
            killed += 1
        assert arrays(run) == arrays(whole), f"{where}: other bits"
        assert lines(run) == lines(whole), f"{where}: another log"
        rest = [str(path) for path in run.rglob("*.tmp")]
        assert not rest, f"{where}: {rest} are left"
    done += killed
    print(json.dumps({"pair": where, "kills": done, **ends}), flush=True)
'''


def test_kills(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    pytest.importorskip("torch")
    arguments = [sys.executable, "-c", PROGRAM, str(KILLS), str(SEED), str(tmp_path)]
    ended = subprocess.run(arguments, capture_output=True, text=True, check=False)
    log = (tmp_path / "log").read_text()[-3000:] if (tmp_path / "log").exists() else ""
    assert ended.returncode == 0, f"seed {SEED}:\n{ended.stdout}{ended.stderr}{log}"
    assert json.loads(ended.stdout.splitlines()[-1])["kills"] == KILLS
