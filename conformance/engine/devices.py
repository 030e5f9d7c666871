"""The processes of a mesh, which run what they are sent, together."""

import importlib
import multiprocessing
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any

from moespec.backends import mesh
from moespec.backends.mesh import MeshSizes
from moespec.backends.processes import Process
from moespec.conformance.engine.compare import Dtype
from moespec.conformance.engine.on_mesh import Share, shares
from moespec.conformance.engine.target import Job, Target, contained

__all__ = ["Devices", "LostError", "MeshError", "Work", "processes_of"]

LIMIT = 600.0
"""Seconds in which the first process must answer."""
GRACE = 60.0
"""Seconds in which the others must, then."""

Key = tuple[str, str]
Jobs = Mapping[Key, Job]


class MeshError(Exception):
    """The devices that were asked for cannot be had; the message says why."""


class LostError(Exception):
    """A process ended, or did not answer; the message says which."""


def _mesh_of(name: str) -> Any:
    """The module `mesh` of a target. Raises MeshError if there is none, or it lacks what the suite takes of it."""
    try:
        module = importlib.import_module(f"{name}.mesh")
    except (Exception, SystemExit) as error:  # a third party's module may do anything
        raise MeshError(f"there is no mesh: {name}.mesh cannot be imported: {type(error).__name__}: {error}") from error
    lacking = [needed for needed in ("OnMesh", "devices", "join", "leave") if not hasattr(module, needed)]
    if lacking:
        raise MeshError(f"there is no mesh: {name}.mesh has no {' and no '.join(lacking)}")
    return module


def processes_of(name: str, devices: int, processes: int | None) -> int:
    """How many processes have the devices of a target, by default one that has all if there can be.

    Raises MeshError for a target without a mesh, and where it cannot be the number that is asked for.
    """
    several = hasattr(_mesh_of(name), "cpu_devices")
    if processes is None:
        return 1 if several else devices
    if devices % processes or not (several or processes == devices):
        why = "each has as many" if several else "each has one"
        raise MeshError(f"{devices} devices cannot be those of {processes} processes: {why}")
    return processes


@dataclass(frozen=True)
class Work:
    """Jobs that all processes run together."""

    dtype: Dtype
    sizes: MeshSizes
    jobs: Jobs


class Devices:
    """Processes of this machine that have some devices together, of a target `name`. To be used in a `with` statement.

    Raises MeshError if they cannot be had.
    """

    def __init__(self, name: str, devices: int, processes: int) -> None:
        with socket.create_server(("localhost", 0)) as server:
            address = f"localhost:{server.getsockname()[1]}"
        # Frameworks have threads, so that a process of their own must not begin as a copy of this one.
        context = multiprocessing.get_context("spawn")
        self.connections, self.processes, self.lost = [], [], False
        for index in range(processes):
            here, there = context.Pipe()
            process = Process(index, processes, index, address)
            started = context.Process(target=_work, args=(name, devices, process, there), daemon=True)
            started.start()
            there.close()
            self.connections.append(here)
            self.processes.append(started)

    def __enter__(self) -> "Devices":
        try:
            for told in self._answers():
                if told:
                    raise MeshError(told)
        except LostError as error:
            self._end()
            raise MeshError(str(error)) from error
        except MeshError:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None and not self.lost:
            for connection in self.connections:
                connection.send(None)
            for process in self.processes:
                process.join(GRACE)
        self._end()

    def _end(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()

    def run(self, work: Work) -> tuple[list[dict[Key, Share]], str]:
        """The shares of all processes, and why the target does not have the dtype, or an empty string.

        Raises LostError if a process ends, or does not answer.
        """
        try:
            for connection in self.connections:
                connection.send(work)
            answers = self._answers()
        except (LostError, OSError) as error:
            self.lost = True
            raise LostError(str(error)) from error
        return [shares for shares, _ in answers], answers[0][1]

    def _answers(self) -> list[Any]:
        answers: dict[int, Any] = {}
        until = time.monotonic() + LIMIT
        while len(answers) < len(self.connections):
            waiting = {self.connections[i]: i for i in range(len(self.connections)) if i not in answers}
            ready = wait(list(waiting), max(0.0, until - time.monotonic()))
            if not ready:
                first = min(waiting.values())
                raise LostError(f"process {first} of {len(self.connections)} did not answer")
            for index in [waiting[connection] for connection in waiting if connection in ready]:
                try:
                    answers[index] = self.connections[index].recv()
                except EOFError:
                    self.processes[index].join()
                    status = self.processes[index].exitcode
                    told = f"process {index} of {len(self.connections)} ended with status {status}"
                    raise LostError(told) from None
            until = min(until, time.monotonic() + GRACE)
        return [answers[index] for index in sorted(answers)]


def _work(name: str, devices: int, process: Process, connection: Connection) -> None:
    """A process: joins the others, answers with an empty string or why it cannot, and then for each `Work` it gets."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    mesh.SMALL = 1  # The parameters of a case are small, and here they are split.
    try:
        with contained():
            module: Any = importlib.import_module(f"{name}.mesh")
            if hasattr(module, "cpu_devices"):
                module.cpu_devices(devices // process.count)
            if process.count > 1:
                module.join(process)
            if module.devices() != devices:
                connection.send(f"{devices} devices of {name}: there are {module.devices()}")
                return
    except Exception as error:
        connection.send(f"{devices} devices of {name}: {type(error).__name__}: {error}")
        return
    connection.send("")
    while (work := connection.recv()) is not None:
        connection.send(_answer(name, module, work))
    if process.count > 1:
        module.leave()


def _answer(name: str, module: Any, work: Work) -> tuple[dict[Key, Share], str]:
    try:
        with contained():
            target = Target(name, work.dtype, module.OnMesh(work.sizes))
            reason = target.unsupported()
            if reason:
                return {}, reason
            with target.context():
                return shares(target, work.jobs), ""
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        return {key: Share(error=told) for key in work.jobs}, ""
