"""Runs that are stopped: by signals, by another process that trains there, by a full disk."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from moespec.models import cli, interruption
from moespec.models.errors import RunError
from moespec.models.evaluation import evaluate as evaluation
from moespec.models.training import checkpoint
from moespec.models.training import train as training
from moespec.models.training.progress import Progress
from moespec.models.training.rundirectory import RunDirectory
from moespec.models.training.runlog import read_log

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals, /dev/full")


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_ends_the_step_and_saves(runs, tmp_path: Path, capsys, monkeypatch, request, name: str) -> None:  # type: ignore[no-untyped-def]
    """Even when the terminal is gone, which it is after SIGHUP; then the run resumes bit for bit."""
    whole, run, number = runs.whole("torch"), tmp_path / "a run", getattr(signal, name)
    real, steps, stops = Progress.step, [], []

    class Noted(interruption.Interruption):
        def __init__(self) -> None:
            super().__init__()
            stops.append(self)

    def step(self: Progress) -> None:
        real(self)
        steps.append(None)
        if len(steps) == 5:
            monkeypatch.setattr(self._bar, "update", gone)
            monkeypatch.setattr(self._bar, "close", gone)
            os.kill(os.getpid(), number)
            deadline = time.monotonic() + 30
            while stops[-1].signal is None and time.monotonic() < deadline:  # a thread notes it
                time.sleep(0.01)

    monkeypatch.setattr(training, "Interruption", Noted)
    monkeypatch.setattr(Progress, "step", step)
    request.addfinalizer(partial(signal.signal, number, signal.getsignal(number)))
    before = signal.default_int_handler  # whatever the tests were started with: a shell may ignore SIGINT
    signal.signal(number, before)
    assert cli.main(["train", "--backend", "torch", "--run", str(run), *runs.flags]) == 128 + number
    assert signal.getsignal(number) is before
    shown, newest = capsys.readouterr().err, checkpoint.steps(run / "checkpoints")[-1]
    assert newest == 6, "the step after the one that the signal came with"
    assert f"{name}: finishing this step or batch; again to end at once" in shown
    assert f"stopped by {name}; the {newest} steps done of 12 are saved. To go on: moespec train --run '{run}'" in shown
    monkeypatch.setattr(Progress, "step", real)
    assert cli.main(["train", "--run", str(run), "--resume"]) == 0
    last = Path("checkpoints", "00000012", "arrays.safetensors")
    assert (run / last).read_bytes() == (whole / last).read_bytes()
    assert [record["step"] for record in read_log(run, "train")] == list(range(1, 13))
    assert [record["step"] for record in read_log(run, "evaluation")] == [6, 12], "that of step 6 was owed"


def test_a_signal_ends_an_evaluation_between_batches(runs, tmp_path: Path, capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """The step is saved, and the evaluation made when the run goes on; also that of its last step, once."""
    run, batches = runs.broken("torch", tmp_path / "run", step=8), []

    def check(B: Any) -> None:
        batches.append(None)
        if len(batches) == 2:
            interruption.Interruption.current.signal = signal.SIGTERM  # type: ignore[union-attr]
        interruption.check(B)

    monkeypatch.setattr(evaluation, "check", check)
    for _ in range(2):  # in the evaluation after the last step, and in the same, which is owed
        batches.clear()
        assert cli.main(["train", "--run", str(run), "--resume"]) == 128 + signal.SIGTERM
        assert "stopped by SIGTERM; the 12 steps done of 12 are saved" in capsys.readouterr().err
    assert checkpoint.steps(run / "checkpoints")[-1] == 12
    batches.clear()
    assert cli.main(["evaluate", str(run)]) == 128 + signal.SIGTERM
    assert "moespec: the evaluation was stopped by SIGTERM" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr(training, "settle", gone)  # as when killed after the evaluation, which is then still owed
        assert cli.main(["train", "--run", str(run), "--resume"]) != 0
    for shown in (f"{run}: finished, 12 steps", f"{run}: finished already, 12 steps"):
        assert cli.main(["train", "--run", str(run), "--resume"]) == 0
        assert shown in capsys.readouterr().out
    ours, whole = (read_log(folder, "evaluation") for folder in (run, runs.whole("torch")))
    assert [(line["step"], line["accuracy"]) for line in ours] == [(line["step"], line["accuracy"]) for line in whole]


def gone(*arguments: Any, **options: Any) -> None:
    raise OSError(5, "Input/output error")


SECOND = """
import hashlib, os, signal, sys
from moespec.models.interruption import Interruption
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
signal.signal(signal.SIGWINCH, lambda *_: None)  # of the program around, no signal to stop
with Interruption() as interruption:
    print("ready", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)  # as a compiler: minutes, within one instruction of Python
"""


def test_a_second_signal_ends_at_once() -> None:
    with subprocess.Popen([sys.executable, "-c", SECOND], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        stuck = threading.Timer(60, process.kill)
        stuck.start()
        try:
            assert process.stdout.readline() == b"ready\n"
            process.send_signal(signal.SIGWINCH)  # as a terminal does that is made larger
            process.send_signal(signal.SIGINT)
            process.stderr.readline()
            assert b"SIGINT: finishing this step" in process.stderr.readline()
            assert process.poll() is None
            process.send_signal(signal.SIGWINCH)
            process.send_signal(signal.SIGTERM)
            assert process.wait() == 128 + signal.SIGTERM
        finally:
            stuck.cancel()
            process.kill()


def test_a_signal_that_is_ignored_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `nohup` makes it."""
    old = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruption.Interruption() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            time.sleep(0.1)
            assert stop.signal is None
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, old)


def test_what_was_there_before_comes_back(capfd: pytest.CaptureFixture[str]) -> None:
    """The handlers and the descriptor of the program around; the end is told also where no terminal is left."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    outer, handler = signal.set_wakeup_fd(writer), signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with interruption.Interruption() as stop:
            os.kill(os.getpid(), signal.SIGINT)
            deadline = time.monotonic() + 30
            while stop.signal is None and time.monotonic() < deadline:
                time.sleep(0.01)
        assert stop.signal is signal.SIGINT
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert signal.set_wakeup_fd(writer) == writer
    finally:
        signal.set_wakeup_fd(outer)
        signal.signal(signal.SIGINT, handler)
        os.close(reader)
        os.close(writer)


def test_a_terminal_that_is_gone_ends_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second signal must still be read."""
    ended: list[int] = []
    monkeypatch.setattr("builtins.print", gone)
    monkeypatch.setattr(interruption.os, "_exit", ended.append)
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with interruption.Interruption():
            deadline = time.monotonic() + 10
            while not ended and time.monotonic() < deadline:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(0.05)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert set(ended) == {128 + signal.SIGTERM}


def test_outside_of_the_main_thread_nothing_changes() -> None:
    """Where Python sets no handlers."""
    found: list[Any] = []

    def train() -> None:
        with interruption.Interruption() as stop:
            found.append(stop.signal)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert found == [None]


LOCKED = """
import sys, time
from pathlib import Path
from moespec.models.training.rundirectory import RunDirectory
with RunDirectory(Path(sys.argv[1])).locked():
    print("ready", flush=True)
    time.sleep(600)
"""


def test_a_second_process_is_rejected_until_the_first_is_killed(runs, tmp_path: Path, capsys, request) -> None:  # type: ignore[no-untyped-def]
    run = runs.broken("torch", tmp_path / "run", step=4)
    files = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with subprocess.Popen([sys.executable, "-c", LOCKED, str(run)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        watch = threading.Timer(120, process.kill)  # which ends the lock, and the wait for it
        watch.start()
        request.addfinalizer(watch.cancel)
        request.addfinalizer(process.kill)
        assert process.stdout.readline() == b"ready\n"
        assert cli.main(["train", "--run", str(run), "--resume"]) == 2
        assert f"run='{run}': another process is training there" in capsys.readouterr().err
        assert {path: path.read_bytes() for path in files} == files
        assert cli.main(["evaluate", str(run)]) == 0, "reading is allowed"
        process.kill()
    with RunDirectory(run).locked(), pytest.raises(RunError, match="another process"), RunDirectory(run).locked():
        pass


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize(
    "name", ["config.toml", "metrics.jsonl", "arrays.safetensors", "state.json", "load.png", "report.html"]
)
def test_a_full_disk_is_named_with_the_file(runs, tmp_path: Path, capsys, monkeypatch, name: str) -> None:  # type: ignore[no-untyped-def]
    pytest.importorskip("torch")
    run, real = tmp_path / "run", Path.open

    def open_full(path: Path, mode: str = "r", **options: Any) -> Any:
        full = path.name.removeprefix(".").removesuffix(".tmp") == name and mode in ("wb", "a")
        return real(Path("/dev/full") if full else path, mode, **options)

    monkeypatch.setattr(Path, "open", open_full)
    assert cli.main(["train", "--backend", "torch", "--run", str(run), *runs.flags]) == 2
    shown = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(rf"moespec: \[Errno 28\] No space left on device: '{run}/.*{re.escape(name)}(\.tmp)?'", shown)
    assert not list(run.rglob("*.tmp")), "nothing half-written takes room"
    monkeypatch.setattr(Path, "open", real)
    assert cli.main(["train", "--backend", "torch", "--run", str(run), "--resume", *runs.flags]) == 0
    last = Path("checkpoints", "00000012", "arrays.safetensors")
    assert (run / last).read_bytes() == (runs.whole("torch") / last).read_bytes()
