"""Run a target in a separate process that receives no expected values and answers only with bytes.

A target can therefore neither read nor change the expected values, the comparison or the report, and cannot end the run. A target
that exceeds its time limit is killed. The process is not a sandbox: a target can do anything that the user's own programs can do.
"""

import atexit
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from os import killpg
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from moespec.conformance.check.target import Facts, Job, Target, job_of
from moespec.conformance.check.worker import Answer, pack, unpack
from moespec.conformance.compare import Dtype
from moespec.conformance.failure import Failure
from moespec.conformance.format import Case, Edit, Expectation, Stage, Value
from moespec.conformance.manifest import decoded, encoded
from moespec.spec.errors import ConfigError

__all__ = ["LIMIT", "EndedError", "Remote", "claims", "end", "process"]

LIMIT = 120.0
"""Time limit per case in seconds. The slowest case, 20 training steps, takes about 10 s of one core and compilation
takes less, but a machine may be ten times slower or shared. Importing a framework has the same limit."""
ROOM = 1 << 24
"""Bytes allowed in an answer beyond the expected size, for unexpected results."""
WIDER = 16
"""Factor by which an answer may exceed the expected size."""
MAPS = 30_000
"""If a process has more memory maps than this, the next part of the run starts a new process. Linux allows 65 530 per process, and every
program that LLVM compiles keeps some maps. Without a free map, JAX ends with a segmentation fault."""
FOLDERS: list[str] = []
"""Folders, such as a command's working folder, that only a target's process prepends to `sys.path`, after importing the suite."""
TRUSTED: list[str] = []
"""Custom routers, `package.module:ROUTER`, that a target's process imports."""
PROGRAM = (
    "import sys; sys.path[:] = {path}; from moespec.conformance.check.worker import main; "
    "sys.path[:0] = {folders}; main(*{arguments})"
)


Read = TypeVar("Read")


class EndedError(Exception):
    """Raised if a target's process gives no valid answer, because the process ended, timed out, or sent invalid data."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.text)
        self.failure = failure


class Process:
    """A process that runs one target; see `worker.py`. The process has no terminal, and writes its stdout to stderr."""

    def __init__(self, interface: type[Target], name: str, memory: int) -> None:
        self.key = (interface, name, memory, *TRUSTED)
        self.facts: dict[str, Facts] = {}
        self.socket, its = socket.socketpair()
        path = f"{interface.__module__}:{interface.__qualname__}"
        arguments, where = (path, name, its.fileno(), memory, TRUSTED), [str(each) for each in sys.path]
        program = PROGRAM.format(path=where, folders=FOLDERS, arguments=arguments)
        with its:
            self.popen = subprocess.Popen(
                [sys.executable, "-c", program],
                stdin=subprocess.DEVNULL,
                stdout=2,
                pass_fds=[its.fileno()],
                start_new_session=True,
            )

    def ask(self, request: bytes, limit: float, size: int, read: Callable[[Any, Any], Read]) -> Read:
        """Sends a request and returns the answer parsed by `read`. Raises EndedError if there is no valid answer.

        limit: maximum seconds. size: maximum bytes of the answer. read: parses the answer's entry and arrays.
        """
        deadline = time.monotonic() + limit
        try:
            self.socket.settimeout(limit)
            self.socket.sendall(request)
            length = int.from_bytes(self._read(8, deadline), "little")
            if length > size:
                raise ValueError(f"the answer has {length} bytes, expected at most {size}")
            answer, arrays = unpack(self._read(length, deadline))
            if "failure" not in answer:
                if "last" in answer:
                    end()
                return read(answer, arrays)
            raise EndedError(decoded(Failure, answer["failure"], {}))
        except EndedError:
            raise
        except TimeoutError:
            reason = f"no answer within {limit:g} s"
        except (EOFError, ConnectionError):
            reason = self._status()
        except Exception as error:  # any exception means that the answer is invalid
            reason = f"unreadable answer: {type(error).__name__}: {error}"
        end()
        raise EndedError(Failure(reason))

    def _read(self, size: int, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < size:
            self.socket.settimeout(max(deadline - time.monotonic(), 1e-3))
            part = self.socket.recv(min(size - len(data), 1 << 20))
            if not part:
                raise EOFError
            data += part
        return bytes(data)

    def _status(self) -> str:
        """Describes how the process ended after it closed its socket."""
        try:
            status = self.popen.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return "the process closed its socket"
        if status < 0:
            return f"the process was killed by {signal.Signals(-status).name}"
        return f"the process exited with status {status}"

    def end(self) -> None:
        """Kills the process and all its descendants that are still in its session."""
        with suppress(ProcessLookupError):
            killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()
        self.socket.close()


_running: list[Process] = []


def process(interface: type[Target], name: str, memory: int = 0) -> Process:
    """Returns the running process if it runs this target. Otherwise ends the running process and starts one for the target."""
    if not _running or _running[0].key != (interface, name, memory, *TRUSTED):
        end()
        _running.append(Process(interface, name, memory))
    return _running[0]


def relieve() -> None:
    """Ends the running process if it has more than `MAPS` memory maps, since the next part of the run might exceed the system's limit."""
    with suppress(IndexError, OSError), open(f"/proc/{_running[0].popen.pid}/maps", "rb") as maps:
        if sum(1 for _ in maps) > MAPS:
            end()


@atexit.register
def end() -> None:
    """Ends the running process, if there is one."""
    while _running:
        _running.pop().end()


def claims(interface: type[Target], name: str) -> str:
    """Returns the version of the specification that a target claims to follow, or "".

    Raises ConfigError, which names the target, if the target cannot be imported or lacks a name that the suite always calls.
    """
    problem = "expected a module name, such as package.module"
    if name and not name.startswith("."):
        try:
            problem, claimed = process(interface, name).ask(
                pack({}, {}), LIMIT, ROOM, lambda answer, _: (str(answer["problem"]), str(answer["claims"]))
            )
        except EndedError as error:
            problem = f"cannot be imported: {error}"
    if problem:
        raise ConfigError(f"{interface.kind} {name!r}: {problem}")
    return claimed


class Remote:
    """A target in one dtype, in a separate process. If the process ends, the next job starts a new process.

    limit: seconds per job; jobs that are compiled together may use the sum of their limits. memory: see `worker.main`.
    called: the functions of moespec that the target was observed to call; see `watch.py`.
    """

    def __init__(self, interface: type[Target], name: str, dtype: Dtype, limit: float, memory: int) -> None:
        self.key, self.dtype, self.limit = (interface, name, memory), dtype, limit
        self.wanted, self.lacks = interface.wanted, interface.lacks
        self.called: list[str] = []
        relieve()

    def facts(self) -> Facts:
        """Returns the target's properties. This request triggers all imports, so no case's time includes them. Raises EndedError."""
        running, dtype = process(*self.key), self.dtype.name
        if dtype not in running.facts:
            request, limit = pack({"dtype": dtype}, {}), max(self.limit, LIMIT)
            running.facts[dtype] = running.ask(request, limit, ROOM, lambda entry, _: decoded(Facts, entry, {}))
        return running.facts[dtype]

    def answers(self, jobs: Sequence[Job], mode: str, *, gradient: bool = False) -> list[Answer]:
        """Returns answers like `worker.answers`. Runs compiled jobs together. In other modes, or if that fails, runs jobs one by one."""
        if mode == "compiled" and len(jobs) > 1:
            with suppress(EndedError):
                return self._answers(jobs, mode, gradient)
        answers: list[Answer] = []
        for job in jobs:
            try:
                answers += self._answers([job], mode, gradient)
            except EndedError as error:
                answers.append(error.failure)
        return answers

    def _answers(self, jobs: Sequence[Job], mode: str, gradient: bool) -> list[Answer]:
        self.facts()
        large: dict[str, NDArray[Any]] = {}
        entries = [
            {"case": encoded(_question(job, gradient), str(i), large), "stage": job.stage.name}
            for i, job in enumerate(jobs)
        ]
        entry = {"dtype": self.dtype.name, "mode": mode, "gradient": gradient, "jobs": entries}
        size = ROOM + WIDER * sum(_size(job.case) for job in jobs)

        def read(answer: Any, arrays: Mapping[str, NDArray[Any]]) -> list[Answer]:
            self.called = [str(name) for name in answer["called"]]
            return _found(len(jobs), answer, arrays)

        return process(*self.key).ask(pack(entry, large), self.limit * len(jobs), size, read)


def _found(count: int, answer: Any, arrays: Mapping[str, NDArray[Any]]) -> list[Answer]:
    """Parses the answers to `count` jobs. Raises an exception if the answers are malformed."""
    answers: list[Answer] = [{} for _ in range(count)]
    for name, array in arrays.items():
        number, _, result = name.partition("/")
        answers[int(number)][result] = array  # type: ignore[index]
    for number, failure in answer["failures"].items():
        answers[int(number)] = decoded(Failure, failure, {})
    return answers


NOTHING = Value(np.zeros(0), (), "int")


def _question(job: Job, gradient: bool) -> Case:
    """Returns the job's case without expected values, except for results of earlier stages that the job reads."""
    case, asked = job.case, {job.stage.name: set(job.values)}
    if gradient and case.expected_gradients.losses:
        asked["route"] = set(job_of(case, "route").values)
    read = set().union(*asked.values())
    return replace(
        case,
        cites="",
        purpose="",
        stages=tuple(replace(s, outputs=_outputs(s, read, s.name in asked)) for s in case.stages),
        decisions={},
        gradients=replace(case.gradients, wrt=dict.fromkeys(case.gradients.wrt, NOTHING)) if case.gradients else None,
        expect=Expectation("", "", "", "", Edit({}, {})) if case.expect else None,
    )


def _outputs(stage: Stage, read: set[str], asked: bool) -> dict[str, Value]:
    """Returns a stage's results without the numbers that the job does not read, or {} if the job neither reads nor runs the stage."""
    alone = stage.name in read and len(stage.outputs) == 1
    known = {
        name: replace(value, scale="magnitude") if alone or f"{stage.name}/{name}" in read else NOTHING
        for name, value in stage.outputs.items()
    }
    return known if asked or any(value is not NOTHING for value in known.values()) else {}


def _size(case: Case) -> int:
    """Returns the size in bytes of a case's expected results."""
    values = [value for stage in case.stages for value in stage.outputs.values()]
    values += case.gradients.wrt.values() if case.gradients else ()
    return sum(8 * value.array.size for value in values)
