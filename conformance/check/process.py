"""A target in a process of its own, which knows nothing of what is expected and can only answer with bytes.

So a target cannot read or change the expected values, the comparison or the report, nor end the run; one that hangs is
ended when its time is over. It is not a sandbox: what a target does to the machine is that of any program of the user.
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
"""Seconds that one case may take: the slowest, 20 steps of training, take some 10 of one core, and compiling one less; a
machine may be ten times slower, or shared. Importing a framework may take as long."""
ROOM = 1 << 24
"""Bytes that an answer may have beside what is expected, for results that are not."""
WIDER = 16
"""How much larger an answer may be than what is expected."""
MAPS = 30_000
"""Memory maps after which a process is a new one at the next part. Linux gives a process 65 530, and every program that
LLVM compiles in it keeps some: JAX ends with a segmentation fault where there are no more."""
FOLDERS: list[str] = []
"""What is in front of the path in a target's process alone, once the suite is imported there: a command's working folder."""
TRUSTED: list[str] = []
"""Routers of the user's own, `package.module:ROUTER`, that a target's process imports."""
PROGRAM = (
    "import sys; sys.path[:] = {path}; from moespec.conformance.check.worker import main; "
    "sys.path[:0] = {folders}; main(*{arguments})"
)


Read = TypeVar("Read")


class EndedError(Exception):
    """A process gave no answer: it ended, took too long, or what it said is none."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.text)
        self.failure = failure


class Process:
    """A process that answers about one target; see `worker.py`. It has no terminal, and prints where errors go."""

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
        """What `read` makes of the answer to a request. Raises EndedError for want of one; the process is no more then.

        limit: seconds that it may take. size: bytes that it may have. read: of entry and arrays; it may raise anything.
        """
        deadline = time.monotonic() + limit
        try:
            self.socket.settimeout(limit)
            self.socket.sendall(request)
            length = int.from_bytes(self._read(8, deadline), "little")
            if length > size:
                raise ValueError(f"{length} bytes, expected at most {size}")
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
        except Exception as error:  # whatever it is, the answer is what is wrong
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
        """How a process that closed its socket ended."""
        try:
            status = self.popen.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return "the process closed its socket"
        if status < 0:
            return f"the process was killed by {signal.Signals(-status).name}"
        return f"the process exited with status {status}"

    def end(self) -> None:
        """End it, and all that it started and that is in its session still."""
        with suppress(ProcessLookupError):
            killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()
        self.socket.close()


_running: list[Process] = []


def process(interface: type[Target], name: str, memory: int = 0) -> Process:
    """The process of a target: that of the last call, or a new one, for which any other is ended."""
    if not _running or _running[0].key != (interface, name, memory, *TRUSTED):
        end()
        _running.append(Process(interface, name, memory))
    return _running[0]


def relieve() -> None:
    """End the process that is running if it has too many memory maps for another part, where the system tells."""
    with suppress(IndexError, OSError), open(f"/proc/{_running[0].popen.pid}/maps", "rb") as maps:
        if sum(1 for _ in maps) > MAPS:
            end()


@atexit.register
def end() -> None:
    """End the process that is running, if there is one."""
    while _running:
        _running.pop().end()


def claims(interface: type[Target], name: str) -> str:
    """The version of the specification that a target claims to follow, or an empty string.

    Raises ConfigError, naming it, for one that cannot be imported, or lacks what the suite calls.
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
    """A target in one dtype, in a process of its own. One that ends is started again for the next job.

    limit: seconds for each job, those that are compiled together as many times. memory: see `worker.main`. called: the
    functions of moespec that it is seen to call; see `watch.py`.
    """

    def __init__(self, interface: type[Target], name: str, dtype: Dtype, limit: float, memory: int) -> None:
        self.key, self.dtype, self.limit = (interface, name, memory), dtype, limit
        self.wanted, self.lacks = interface.wanted, interface.lacks
        self.called: list[str] = []
        relieve()

    def facts(self) -> Facts:
        """As of any target. What is imported is imported here, and takes no time of a case. Raises EndedError."""
        running, dtype = process(*self.key), self.dtype.name
        if dtype not in running.facts:
            request, limit = pack({"dtype": dtype}, {}), max(self.limit, LIMIT)
            running.facts[dtype] = running.ask(request, limit, ROOM, lambda entry, _: decoded(Facts, entry, {}))
        return running.facts[dtype]

    def answers(self, jobs: Sequence[Job], mode: str, *, gradient: bool = False) -> list[Answer]:
        """As `worker.answers`: all together if they are compiled, else, or where that ends the process, one by one."""
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
    """The answers for as many jobs. Raises an exception for anything else."""
    answers: list[Answer] = [{} for _ in range(count)]
    for name, array in arrays.items():
        number, _, result = name.partition("/")
        answers[int(number)][result] = array  # type: ignore[index]
    for number, failure in answer["failures"].items():
        answers[int(number)] = decoded(Failure, failure, {})
    return answers


NOTHING = Value(np.zeros(0), (), "int")


def _question(job: Job, gradient: bool) -> Case:
    """A case without what is expected: of the results of its stages those have numbers that the job reads."""
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
    """Those that are read, with the names of the others; no names of a stage that is neither read nor asked for."""
    alone = stage.name in read and len(stage.outputs) == 1
    known = {
        name: replace(value, scale="magnitude") if alone or f"{stage.name}/{name}" in read else NOTHING
        for name, value in stage.outputs.items()
    }
    return known if asked or any(value is not NOTHING for value in known.values()) else {}


def _size(case: Case) -> int:
    """The bytes of all that is expected of a case."""
    values = [value for stage in case.stages for value in stage.outputs.values()]
    values += case.gradients.wrt.values() if case.gradients else ()
    return sum(8 * value.array.size for value in values)
