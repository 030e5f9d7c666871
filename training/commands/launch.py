"""Starts several processes of one command on one machine, watches them, and ends them together.

Each process has the environment variables that `torchrun` sets (`moespec.backends.processes`), so a command runs as under
`torchrun`. When one process fails, the other processes are ended as well, since they might wait for the failed process forever. All
processes then restart, up to the requested number of times, and resume from the last checkpoint.
"""

import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType

from moespec.models.checks import Natural, Number
from moespec.models.errors import Interrupted, RunError
from moespec.models.options import option
from moespec.spec.errors import SpecError
from moespec.training.commandline.parse import parse
from moespec.training.loop import watchdog

__all__ = ["follow", "main"]

LOOK = 0.1
"""Seconds between checks of the processes."""
GRACE = 5.0
"""Seconds that the other processes have to exit after one process has failed."""
USAGE, LOST = 2, 75
"""Exit status after a user error, which a restart would not fix; exit status of a process that has lost contact with another process."""
PROGRAM = """\
import sys
from moespec.cli import main
from moespec.training.commands.launch import follow
follow()
sys.exit(main())
"""


@dataclass(frozen=True)
class LaunchArguments:
    """Run train or finetune in several processes on this machine: moespec launch -n 4 train --backend torch --mesh.expert 2

    With torch, each process uses one device; with JAX, each process uses all visible devices. Options after the command are passed to
    the command. If a process fails, all processes stop; with --restarts, they restart from the last checkpoint. `torchrun
    --nproc-per-node 4 --no-python -- moespec train ...` and srun can also start the processes.
    """

    processes: Number = option(flags=("-n", "--processes"))
    """number of processes to start"""
    restarts: Natural = 0
    """maximum number of restarts after a process fails"""


def main(words: list[str]) -> None:
    """Runs train or finetune in several processes. words: the options of launch, the command, and the options of the command.

    Raises RunError, naming the process, if a process fails and is not restarted, and Interrupted after a signal.
    """
    place = next((place for place, word in enumerate(words) if word in ("train", "finetune")), len(words))
    parsed = parse("launch", LaunchArguments, words[:place])
    if place == len(words):
        raise SpecError("launch: expected train or finetune, as in: moespec launch -n 4 train")
    arguments, processes, restarts = words[place:], parsed.processes, parsed.restarts
    for attempt in range(restarts + 1):
        failed = _run(arguments, processes)
        if failed is None:
            return
        index, status = failed
        ended = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"exited with status {status}"
        ended = "stopped responding" if status == LOST else ended
        told = f"process {index} of {processes} {ended}; the other processes were stopped"
        if attempt == restarts or status == USAGE:
            raise RunError(told)
        print(f"moespec: {told}; start {attempt + 2} of {restarts + 1}", file=sys.stderr, flush=True)
        if "--resume" not in arguments:
            arguments.append("--resume")


def _run(arguments: list[str], processes: int) -> tuple[int, int] | None:
    """Runs all processes. Returns the index and the exit status of a failed process, or None if all processes succeeded."""
    started: list[subprocess.Popen[bytes]] = []
    caught: list[signal.Signals] = []

    def forward(number: int, frame: FrameType | None) -> None:
        caught.append(signal.Signals(number))
        for process in started:
            process.send_signal(signal.SIGKILL if len(caught) > 1 else number)

    before = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        port = _free_port()
        for index in range(processes):
            started.append(_started(arguments, index, processes, port))
        until = math.inf
        while any(process.poll() is None for process in started) and time.monotonic() < until:
            if _failed(started) is not None and until == math.inf and not caught:
                until = time.monotonic() + GRACE
            time.sleep(LOOK)
        if caught:
            raise Interrupted(f"all {processes} processes were stopped by {caught[0].name}", caught[0])
        return _failed(started)
    finally:
        for process in started:
            process.kill()
            process.wait()
        for number, handler in before.items():
            signal.signal(number, handler)


def _started(arguments: list[str], index: int, processes: int, port: int) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        **{"RANK": str(index), "LOCAL_RANK": str(index), "WORLD_SIZE": str(processes)},
        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "MOESPEC_LAUNCHED": str(processes)},
    }
    environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    # All processes print the same text, so only the output of process 0 is shown. The errors of all processes are shown.
    output = None if index == 0 else subprocess.DEVNULL
    # Each process has its own process group, so Ctrl-C in the terminal reaches the process only through `forward`.
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments], env=environment, stdout=output, process_group=0
    )


def _failed(started: list[subprocess.Popen[bytes]]) -> tuple[int, int] | None:
    """Returns the index and status of a failed process. If all failures have status `LOST`, returns a running process and `LOST`."""
    ended = {index: status for index, process in enumerate(started) if (status := process.poll())}
    own = {index: status for index, status in ended.items() if status != LOST}
    still = [index for index, process in enumerate(started) if process.poll() is None]
    if ended and not own and still:
        return still[0], LOST
    return next(iter((own or ended).items()), None)


def follow() -> None:
    """Ends this process when the parent process has ended. Makes the watchdog exit with status `LOST` if another process is lost."""
    watchdog.LOST = LOST
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _free_port() -> int:
    """Returns the first of two consecutive free ports. `moespec.training.loop.watchdog` uses the second port."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            with suppress(OSError, OverflowError):
                second.bind(("127.0.0.1", port + 1))
                return port
