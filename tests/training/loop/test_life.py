"""The life of a run: what stops, fills, spoils, edits or kills it, what it says then, and that it goes on to the same bits."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from tqdm import tqdm

from moespec import cli
from moespec.models import files, vit
from moespec.models.errors import DataError
from moespec.training import interruption
from moespec.training.configuration.config import Config
from moespec.training.evaluation import evaluate as evaluation
from moespec.training.interruption import Interruption
from moespec.training.loop import checkpoint
from moespec.training.loop import train as training
from moespec.training.loop.config_compatibility import FREE
from moespec.training.loop.resolve import load_backend
from moespec.training.loop.rundirectory import RunDirectory
from moespec.training.loop.runlog import RunLog, read_log
from moespec.training.objectives import classification

POSIX = pytest.mark.skipif(os.name != "posix", reason="signals and forks of POSIX")
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
LAST = Path("checkpoints", "00000012", "arrays.safetensors")
ADVICE = "try a smaller schedule.peak"


def log(run: Path) -> list[dict[str, Any]]:
    """All lines of the log, without what the clock says."""
    lines = read_log(run, "train") + read_log(run, "evaluation")
    return [
        {name: value for name, value in line.items() if "second" not in name and name != "sha256"} for line in lines
    ]


def gone(*arguments: Any, **options: Any) -> None:
    raise OSError(5, "Input/output error")


def wait_until(come: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 30
    while not come() and time.monotonic() < deadline:
        time.sleep(0.01)


def not_handled(number: int, frame: Any) -> None:
    raise AssertionError(f"{signal.Signals(number).name} came to the program around")


@pytest.fixture
def handlers() -> Iterator[None]:
    """Those of a program around, which a run restores; a shell may have had SIGINT ignored."""
    numbers = [getattr(signal, name) for name in SIGNALS if hasattr(signal, name)]
    before = {number: signal.signal(number, not_handled) for number in numbers}
    yield
    assert {signal.signal(number, handler) for number, handler in before.items()} == {not_handled}


# ------------------------------------------------------------------------------------- what ends a run, and its resumption

Disturb = Callable[[pytest.MonkeyPatch, Any], None]


class Case(NamedTuple):
    """What happens to a run of 12 steps that is saved every 4: what it says, its status, and the steps it has saved then.

    log_from: the first step that is in the log at the end, where `flags` keep others out.
    """

    disturb: Disturb
    message: str
    steps: list[int]
    status: int = 2
    flags: tuple[str, ...] = ()
    log_from: int = 1


def changed(name: str, change: Callable[..., Any], module: Any = None) -> Disturb:
    """The function `name` of a module, or of the backend, with another result: `change` of it and of the arguments."""

    def disturb(patch: pytest.MonkeyPatch, B: Any) -> None:
        real = getattr(module or B, name)
        patch.setattr(module or B, name, lambda *given, **options: change(real(*given, **options), *given, **options))

    return disturb


def signaled(name: str) -> Disturb:
    """A signal within step 6, whose evaluation is then pending, and a terminal that is gone, as it is after SIGHUP."""

    def step_of(update: Any, *given: Any, **options: Any) -> Any:
        def step(*arguments: Any, steps: Any = count(1)) -> Any:  # noqa: B008
            if next(steps) == 6:
                os.kill(os.getpid(), getattr(signal, name))
                wait_until(lambda: Interruption.current and Interruption.current.signal)  # a thread notes it
            return update(*arguments)

        return step

    def disturb(patch: pytest.MonkeyPatch, B: Any) -> None:
        changed("make_step", step_of)(patch, B)
        patch.setattr("tqdm.tqdm.update", gone)
        patch.setattr("tqdm.tqdm.close", gone)

    return disturb


def full(name: str) -> Disturb:
    """No room for a file."""

    def disturb(patch: pytest.MonkeyPatch, B: Any) -> None:
        real = Path.open

        def open_full(path: Path, mode: str = "r", **options: Any) -> Any:
            is_full = name in (path.name, path.name[1 : -len(".01234567.tmp")]) and mode in ("xb", "a")
            return real(Path("/dev/full") if is_full else path, mode.replace("x", "w"), **options)

        patch.setattr(Path, "open", open_full)

    return disturb


def nan_in_a_batch(arrays: dict[str, Any], *given: Any, **options: Any) -> dict[str, Any]:
    return {**arrays, "images": arrays["images"] * np.float32(np.nan)} if given[-1] == 6 else arrays


def unreadable(arrays: dict[str, Any], *given: Any, **options: Any) -> dict[str, Any]:
    if given[-1] == 6:
        raise DataError("bee/3.jpg: broken")
    return arrays


def spoiled(tree: str, value: float, *, step: int | None = None) -> Callable[..., Any]:
    """Parameters, or the state of a step, with one entry that is not finite; loss and gradient of that step were."""

    def change(trees: dict[str, Any], *given: Any, **options: Any) -> dict[str, Any]:
        if trees.get("step") == step:
            (trees[tree] if tree else trees)["head"]["bias"][3] = value
        return trees

    return change


BATCH = partial(changed, "training_batch", module=classification)
RARELY = ("--training.log-every", "100", "--training.evaluate-every", "100")
STOPPED = (
    r"{0}: finishing this step or batch; repeat to stop at once\n.*stopped by {0}; 6 of 12 steps are done and saved\. "
    r"To resume: moespec train --run '.*/a run' --resume"
)
DIVERGED = f"training diverged at step 7: the loss is nan; {ADVICE}"
CASES = {
    **{name: Case(signaled(name), STOPPED.format(name), [4, 6], 128 + getattr(signal, name, 0)) for name in SIGNALS},
    **{
        name: Case(
            full(name), rf"\[Errno 28\] No space left on device: '.*/a run/.*{re.escape(name)}(\.\w+\.tmp)?'", steps
        )
        for steps, names in (
            ([], ("config.toml", "metrics.jsonl", "arrays.safetensors", "state.json")),
            ([4, 8, 12], ("report.html",)),
        )
        for name in names
    },
    "images of NaN": Case(BATCH(nan_in_a_batch), DIVERGED, [4], 2, RARELY, log_from=5),
    **{
        f"infinity in {tree}": Case(
            changed("export_state", spoiled(tree, np.inf, step=8)),
            *(rf"at step 8: .* head/bias has infinity; {ADVICE}", [4], 2, ("--training.keep", "1")),
        )
        for tree in ("params", "nu")
    },
    "an image that cannot be read": Case(
        BATCH(unreadable),
        r"from step 6 once the file is readable \(with --override if it changed\); to leave it out, start a new run",
        [4, 6],
    ),
    "a parameter of NaN": Case(
        changed("init", spoiled("", np.nan), vit), "the initial parameter head/bias contains NaN or infinity", []
    ),
}


@pytest.mark.filterwarnings("ignore:Exception ignored in")  # the bar that cannot be closed
@pytest.mark.parametrize("name", [pytest.param(name, marks=POSIX if name in SIGNALS else ()) for name in CASES])
def test_what_ends_a_run_is_one_line_and_it_goes_on_to_the_same_bits(  # type: ignore[no-untyped-def]
    runs, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch, handlers: None, name: str
) -> None:
    case, run = CASES[name], tmp_path / "a run"
    if case.disturb.__qualname__.startswith("full") and not Path("/dev/full").exists():
        pytest.skip("no device that is always full")
    whole, command = runs.whole("torch"), ["train", "--backend", "torch", "--run", str(run), *runs.flags]
    capsys.readouterr()
    with monkeypatch.context() as patch:
        case.disturb(patch, load_backend("torch"))
        assert cli.main([*command, *case.flags]) == case.status
    error = capsys.readouterr().err.rstrip()
    assert re.search(rf"(?s){case.message}$", error)
    assert error.splitlines()[-1].startswith("moespec: ")
    assert checkpoint.steps(run / "checkpoints") == case.steps
    assert not list(run.rglob("*.tmp")), "nothing half-written takes room"
    assert cli.main([*command, "--resume"]) == 0
    assert (run / LAST).read_bytes() == (whole / LAST).read_bytes()
    assert log(run) == [line for line in log(whole) if line["step"] >= case.log_from]


@POSIX
def test_a_router_of_one_s_own_goes_on_as_the_message_says(  # type: ignore[no-untyped-def]
    runs, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch, handlers: None
) -> None:
    command = ["train", "--backend", "torch", "--router", "my_routers.averaged:ROUTER", *runs.flags, "--run"]
    monkeypatch.setattr("moespec.training.commands.train.write_report", lambda *_, **__: None)
    assert cli.main([*command, str(tmp_path / "whole")]) == 0
    with monkeypatch.context() as patch:
        signaled("SIGTERM")(patch, load_backend("torch"))
        cli.main([*command, str(tmp_path / "run")])
    words = shlex.split(capsys.readouterr().err.partition("To resume: moespec ")[2])
    assert words[-2:] == ["--trust", "my_routers.averaged:ROUTER"]
    assert cli.main(words) == 0
    assert (tmp_path / "run" / LAST).read_bytes() == (tmp_path / "whole" / LAST).read_bytes()


@POSIX
def test_a_signal_ends_an_evaluation_between_batches(runs, tmp_path: Path, capsys, said, monkeypatch, handlers) -> None:  # type: ignore[no-untyped-def]
    """The step is saved, and the evaluation made when the run goes on; also that of its last step, once."""
    run, batches = runs.broken("torch", tmp_path / "run", step=8), count(1)
    resume, evaluate = ["train", "--run", str(run), "--resume"], ["evaluate", str(run)]

    def check(B: Any) -> None:
        if next(batches) == 2:
            Interruption.current.signal = signal.SIGTERM  # type: ignore[union-attr]
        interruption.check(B)

    monkeypatch.setattr(evaluation, "check", check)
    for command, message in (
        (resume, "stopped by SIGTERM; 12 of 12 steps are done and saved"),
        (resume, "stopped by SIGTERM; 12 of 12 steps are done and saved"),  # in the same evaluation, which is pending
        (evaluate, "moespec: evaluation stopped by SIGTERM"),
    ):
        batches = count(1)
        assert cli.main(command) == 128 + signal.SIGTERM
        assert message in capsys.readouterr().err
        assert checkpoint.steps(run / "checkpoints")[-1] == 12
    with monkeypatch.context() as patch:
        patch.setattr(training, "settle", gone)  # as when killed after the evaluation, which is then still pending
        assert cli.main(resume) != 0
    for message in (f"{run}: finished, 12 steps", f"{run}: finished already, 12 steps"):
        assert message in said(resume)
    assert log(run) == log(runs.whole("torch"))


# ------------------------------------------------------------------------------------------------- signals and the lock


SECOND = """
import hashlib, os, signal, sys
from moespec.training.interruption import Interruption
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
signal.signal(signal.SIGWINCH, lambda *_: None)  # of the program around, no signal to stop
with Interruption() as interruption:
    print("ready", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)  # as a compiler: minutes, within one instruction of Python
"""


@POSIX
def test_a_second_signal_ends_at_once() -> None:
    with subprocess.Popen([sys.executable, "-c", SECOND], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        watch = threading.Timer(120, process.kill)  # which ends each wait for it
        watch.start()
        try:
            assert process.stdout.readline() == b"ready\n"  # type: ignore[union-attr]
            process.send_signal(signal.SIGWINCH)  # as a terminal does that is made larger
            process.send_signal(signal.SIGINT)
            process.stderr.readline()  # type: ignore[union-attr]
            assert b"SIGINT: finishing this step" in process.stderr.readline()  # type: ignore[union-attr]
            assert process.poll() is None
            process.send_signal(signal.SIGWINCH)
            process.send_signal(signal.SIGTERM)
            assert process.wait() == 128 + signal.SIGTERM
        finally:
            process.kill()
            watch.cancel()


@POSIX
def test_the_program_around_keeps_its_descriptor_and_the_signals_that_it_ignores(handlers: None) -> None:
    """As `nohup` makes it ignore one."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    outer = signal.set_wakeup_fd(writer)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interruption() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGINT)
            wait_until(lambda: stop.signal)
        assert stop.signal is signal.SIGINT
        assert signal.signal(signal.SIGHUP, not_handled) is signal.SIG_IGN
        assert signal.set_wakeup_fd(outer) == writer
    finally:
        os.close(reader)
        os.close(writer)


def test_outside_of_the_main_thread_nothing_changes() -> None:
    """Where Python sets no handlers."""

    def train() -> Any:
        with Interruption() as stop:
            return stop.signal

    with ThreadPoolExecutor() as pool:
        assert pool.submit(train).result() is None


def test_a_second_process_is_rejected(runs, tmp_path: Path, said) -> None:  # type: ignore[no-untyped-def]
    """While the first has the lock, which the system ends with its process."""
    run = runs.broken("torch", tmp_path / "run", step=4)
    with RunDirectory(run).locked():
        files = runs.files(run)
        assert f"run='{run}': another process is training there" in said(["train", "--run", str(run), "--resume"], 2)
        assert runs.files(run) == files
        said(["evaluate", str(run)])  # reading is allowed


# ------------------------------------------------------------------------------------------- what would be another run


def edited(old: str, new: str) -> Callable[[Path], None]:
    """Changes a line of config.toml."""

    def edit(run: Path) -> None:
        file = run / "config.toml"
        text, changes = re.subn(rf"(?m)^{re.escape(old)}$", new, file.read_text())
        assert changes == 1
        file.write_text(text)

    return edit


def other_classes(run: Path) -> None:
    """As when a folder of pictures was sorted anew: the labels would be others."""
    (run / "classes.json").write_text(SEVEN)


def truncated(run: Path) -> None:
    """Before the first checkpoint, which config.toml is compared with afterwards."""
    edited("batch = 16", "")(run)
    (run / "checkpoints" / "00000004").rename(run.parent / "aside")


def as_begun(run: Path) -> None:
    """Nothing is changed but by flags."""


SEVEN = json.dumps([*"0123456", "seven", *"89"])
OTHER_CLASS = "class 7 is '7' in the data, but 'seven' in classes.json"
RESUME = "train --run {} --resume"
OTHER_RUNS: list[tuple[Callable[[Path], None], str, str]] = [
    (edited("peak = 0.01", "peak = 0.02"), RESUME, r"schedule\.peak is 0\.01 there, 0\.02 here"),
    (edited('norm_form = "paper"', 'norm_form = "rsqrt"'), RESUME, r"router_options\.norm_form is 'paper' there, 'rsqrt' here"),
    (edited("steps = 12", ""), RESUME, r"training\.steps is 12 there, 1500 here"),
    (truncated, RESUME, "the entries training.batch are missing"),
    (as_begun, f"{RESUME} --schedule.peak 0.02", "Choose another --run, or change this run with moespec train"),
    (as_begun, f"{RESUME} --override --training.seed 1", r"training\.seed is 0 there, 1 here; this change cannot be"),
    (as_begun, f"{RESUME} --override --training.batch 8", r"training\.batch is 16 there, 8 here; this change cannot be"),
    (as_begun, f"{RESUME} --override --model.width 32", "expected F32"),
    (other_classes, RESUME, OTHER_CLASS),
    (edited("peak = 0.01", "peak = 0.02"), "evaluate {}", ""),  # no evaluation looks at it
    (edited('gelu = "tanh"', 'gelu = "erf"'), "evaluate {}", "step 4: trained with another config.toml: model.gelu is 'tanh' there, 'erf'"),
    (other_classes, "evaluate {}", OTHER_CLASS),
]  # fmt: skip


@pytest.mark.parametrize(("change", "command", "message"), OTHER_RUNS)
def test_a_run_does_not_become_another(runs, tmp_path: Path, said, change, command: str, message: str) -> None:  # type: ignore[no-untyped-def]
    """Nor is another model evaluated than that which was trained."""
    run = runs.broken("torch", tmp_path / "run", step=4)
    change(run)
    files = runs.files(run)
    assert re.search(rf"(?s){message}", said(command.format(run).split(), 2 if message else 0))
    assert files.items() <= runs.files(run).items()


def record(run: Path) -> dict[str, Any]:
    newest = checkpoint.latest(run / "checkpoints")
    return checkpoint.read_record(newest)


def test_an_override_is_recorded(runs, tmp_path: Path, said) -> None:  # type: ignore[no-untyped-def]
    run, names = runs.broken("torch", tmp_path / "run", step=4), runs.whole("torch") / "classes.json"
    resume = ["train", "--run", str(run), "--resume"]
    begin = ["train", "--run", str(run), *runs.flags, "--backend", "torch"]
    assert "unfinished; resume it with --resume, or choose another --run" in said(begin, 2)
    assert "--override requires --resume" in said([*begin, "--override"], 2)
    (run / "classes.json").write_text(SEVEN)
    assert cli.main([*resume, "--override", "--schedule.peak", "0.02"]) == 0
    ((entry, *more), first) = record(run)["overrides"], checkpoint.read_record(run / "checkpoints" / "00000004")
    assert (more, first["overrides"]) == ([], [entry])
    assert [labels[7] for labels in entry["changes"].pop("classes.json")] == ["seven", "7"]
    assert entry == {"step": 4, "changes": {"schedule.peak": [0.01, 0.02]}}
    assert record(run)["config"]["schedule"]["peak"] == 0.02
    rates = [[line["learning_rate"] for line in read_log(where, "train")] for where in (run, runs.whole("torch"))]
    assert rates[0][:4] == rates[1][:4]
    assert rates[0][4:11] == pytest.approx([2 * rate for rate in rates[1][4:11]])
    (run / "classes.json").unlink()  # as of a version that did not write it
    assert cli.main(resume) == 0, "from now on it is the configuration of the run"
    assert (run / "classes.json").read_text() == names.read_text()
    assert cli.main(["evaluate", str(run)]) == 0


def test_what_may_change_without_more_ado(runs, tmp_path: Path, said) -> None:  # type: ignore[no-untyped-def]
    rsqrt = ["--schedule.name", "rsqrt", "--training.steps", "8"]
    whole = tmp_path / "whole"
    assert cli.main(["train", "--backend", "torch", "--run", str(whole), *runs.flags, *rsqrt]) == 0
    run = runs.stopped(whole, tmp_path / "run", step=8)
    fields = {"training.log_every": "7", "training.keep": "3", "training.compile": "never", "data.prefetch": "1"}
    fields |= {"training.evaluate_every": "7", "training.checkpoint_every": "7", "training.steps": "14"}
    fields |= {"mesh.data": "1", "training.patience": "0"}
    # The digits have nothing to decode, and one process has one device, which is no GPU.
    others = {"training.recompute", "training.cuda_graph", "backend", "data.workers"}
    others |= {"mesh.fsdp", "mesh.expert", "mesh.transport", "mesh.timeout"}
    assert {*fields, *others} == FREE | {"training.steps"}
    flags = [word for key, value in fields.items() for word in (f"--{key.replace('_', '-')}", value)]
    assert cli.main(["train", "--run", str(run), "--resume", "--training.recompute", *flags]) == 0
    assert checkpoint.steps(run / "checkpoints") == [8, 14]
    assert record(run)["config"]["training"]["steps"] == 14
    shorter = said(["train", "--run", str(run), "--resume", "--training.steps", "13"], 2)
    assert "training.steps=13: the run already has 14 steps" in shorter


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_how_an_array_lies_in_memory_does_not_matter(backend: str) -> None:
    """A state of arrays in column-major order computes as the same state from a file, which are in row-major order."""
    B, optimizer = load_backend(backend), Config().optimizer
    random = np.random.default_rng(0)
    columns = {"kernel": np.asfortranarray(random.standard_normal((640, 480), np.float32))}
    rows = {"kernel": np.ascontiguousarray(columns["kernel"])}
    exported = {"params": columns, "mu": columns, "nu": columns, "step": 3}
    for state in (B.init_state(columns, optimizer), B.import_state(exported, optimizer)):
        again = B.export_state(B.import_state(B.export_state(state), optimizer))
        assert again["params"]["kernel"].tobytes() == B.export_state(state)["params"]["kernel"].tobytes()
        first, second = (
            np.hstack([B.to_numpy(B.sum(B.state_params(one)["kernel"] ** 2, axis)) for axis in (0, 1, None)])
            for one in (state, B.init_state(rows, optimizer))
        )
        assert first.tobytes() == second.tobytes()


# -------------------------------------------------------------------------------------------------------------- kills


def over_nothing(*arguments: Any, **options: Any) -> Iterator[Any]:
    yield (np.zeros((1, 10)), {}), {"count": 1, "targets": np.eye(10)[:1]}


def ended(function: Callable[[], Any]) -> int:
    """How a process that calls it ended: 0 if it returned."""
    child = os.fork()
    if child == 0:
        signal.alarm(120)
        tqdm.set_lock(threading.RLock())  # its own is one with that of this process
        try:
            function()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1]


def countdown(number: int) -> Callable[..., None]:
    """A function that does what it is told, and ends the process, when it is called once more than `number` times."""
    calls = iter(range(number))

    def call(last: Callable[..., Any] = lambda: None, *arguments: Any) -> None:
        if next(calls, None) is None:
            last(*arguments)
            os.kill(os.getpid(), signal.SIGKILL)

    return call


def at_an_operation(run: Path, number: int) -> None:
    """Kills before one of the operations on files in the run's folder."""
    call = countdown(number)

    def hook(event: str, arguments: Any) -> None:
        if event in ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir") and str(run) in str(arguments[0]):
            call()

    sys.addaudithook(hook)


def in_a_write(run: Path, number: int) -> None:
    """Kills when half of a file is written, or of a line of the log."""
    call, real, line = countdown(number), files.write_synced, RunLog.write

    def write_synced(path: Path, content: bytes) -> None:
        call(path.write_bytes, content[: len(content) // 2])
        real(path, content)

    def write(self: Any, *arguments: Any) -> None:
        call(lambda: (self._file.write('{"kind": "tra'), self._file.flush()))
        line(self, *arguments)

    files.write_synced = checkpoint.write_synced = write_synced  # type: ignore[attr-defined]
    RunLog.write = write  # type: ignore[method-assign]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks and kills, which only POSIX has")
@pytest.mark.filterwarnings("ignore:.*fork")
@pytest.mark.parametrize("kill", [at_an_operation, in_a_write])
def test_a_kill_at_any_write_loses_no_step(runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kill) -> None:  # type: ignore[no-untyped-def]
    """Killed at the first, at the second ... until there are no more, each time to the result of an unbroken run.

    The backend is NumPy, whose step here adds 1 to a bias: what is on the disk depends on no framework.
    """
    B, steps = load_backend("numpy"), list[int]()

    def make_step(*arguments: Any, **options: Any) -> Any:
        def step(state: Any, batch: Any, rate: float) -> Any:
            steps.append(state["step"] + 1)
            head = {**state["params"]["head"], "bias": state["params"]["head"]["bias"] + 1}
            trees = {**state, "params": {**state["params"], "head": head}, "step": state["step"] + 1}
            return trees, {"loss": 1.0 + rate, "grad_norm": 1.0}

        return step

    monkeypatch.setattr(B, "make_step", make_step)
    monkeypatch.setattr(evaluation, "over", over_nothing)
    config = replace(runs.config, training=replace(runs.config.training, steps=6, checkpoint_every=2, keep=1))
    last = Path("checkpoints", "00000006", "arrays.safetensors")
    runs.train(whole := tmp_path / "whole", "numpy", config)
    for number in count():
        run = tmp_path / f"{number}"

        def train(run: Path = run, number: int = number) -> None:
            kill(run, number)
            runs.train(run, "numpy", config)

        status = ended(train)
        newest = [0, *checkpoint.steps(run / "checkpoints")][-1]
        assert status == 0 or os.WTERMSIG(status) == signal.SIGKILL, f"{number}: ended with {status}"
        logged = (run / "metrics.jsonl").read_text().count('"train"') if (run / "metrics.jsonl").exists() else 0
        assert newest >= (logged - 1) // 2 * 2, f"{number}: only {newest} is saved, but {logged} is logged"
        del steps[:]
        runs.train(run, "numpy", config)
        assert steps == [*range(newest + 1, 7)], "it went on from its last checkpoint"
        assert (run / last).read_bytes() == (whole / last).read_bytes(), number
        assert log(run) == log(whole), number
        assert not list(run.rglob("*.tmp")), number
        if status == 0:
            break
    assert number > 10


@POSIX
@pytest.mark.parametrize(
    ("command", "streams", "status"),
    [
        *(("list", streams, 0) for streams in (">&-", ">&- 2>&- <&-", "2>/dev/full")),
        ("list", ">/dev/full", 2),
        ("list x", ">&- 2>/dev/full", 2),
    ],
)
def test_streams_that_are_closed_or_full(command: str, streams: str, status: int) -> None:
    """tests/environments trains with such."""
    words = ["sh", "-c", f"{sys.executable} -m moespec {command} {streams}"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("Traceback")) == (status, 0), done.stderr
