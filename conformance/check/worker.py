"""Run the process of a target, which receives jobs as frames of bytes and answers with results or failures.

A frame consists of a length (8 bytes) and a safetensors file, in which the tensor with an empty name contains JSON. A request
names a dtype, a mode and jobs. The jobs contain no expected values of the results to compute. `process.py` sends requests.
"""

import importlib
import json
import os
import resource
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from moespec.conformance.check.gradients import gradients
from moespec.conformance.check.target import STRIDED, Job, Target, Values, execute, job_of
from moespec.conformance.check.watch import OURS, watched
from moespec.conformance.compare import ALL_DTYPES
from moespec.conformance.failure import Failure, MalformedError
from moespec.conformance.format import Case
from moespec.conformance.manifest import decoded
from moespec.models import tensors
from moespec.spec.errors import ConfigError
from moespec.spec.own import load_own

__all__ = ["Answer", "answers", "main", "pack", "unpack"]

Answer = Values | Failure
Arrays = dict[str, NDArray[Any]]
CALLED: set[str] = set()
MET: set[tuple[str, str]] = set()
"""The functions of moespec that this process's target calls, and the pairs (algorithm, called name) already watched."""
SENT = "fiub"
"""Valid dtype kinds of results. Arrays of other kinds, or with more than 8 bytes per number, are invalid results."""


def answers(target: Target, jobs: Sequence[Job], mode: str, *, gradient: bool = False) -> list[Answer]:
    """Returns a target's answers (results or failures) to the jobs of one algorithm, or to the gradients of these jobs."""
    with target.context():
        target.strided = mode == STRIDED
        found = (gradients if gradient else execute)(target, jobs, mode)
        return [Failure.of(r, declines=target.declines) if isinstance(r, Exception) else r for r in found]


def pack(entry: Any, arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Returns a frame that contains an entry as JSON, and arrays by name."""
    body = save({"": np.frombuffer(json.dumps(entry).encode(), np.uint8), **arrays})
    return len(body).to_bytes(8, "little") + body


def unpack(body: bytes) -> tuple[Any, Arrays]:
    """Returns the entry and the arrays of a frame whose length is already removed. Raises an exception if the frame is invalid."""
    arrays = {name: tensor.array for name, tensor in tensors.decoded(body, half=True).items()}
    return json.loads(arrays.pop("").tobytes()), arrays


def main(interface: str, name: str, descriptor: int, memory: int, trusted: Sequence[str]) -> None:
    """Answers requests about the target `name` until the socket closes.

    interface: `module:class` of the target. descriptor: the socket's file descriptor. memory: bytes that the process
    may address; 0 for unlimited. trusted: names of custom objects to import.
    """
    if memory:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    module, _, kind = interface.partition(":")
    opened = cache(lambda dtype: getattr(importlib.import_module(module), kind)(name, ALL_DTYPES[dtype]))
    os.set_inheritable(descriptor, False)
    stream = socket.socket(fileno=descriptor).makefile("rwb")
    while head := stream.read(8):
        entry, arrays = unpack(stream.read(int.from_bytes(head, "little")))
        try:
            for each in trusted:
                load_own("trust", each)
            reply = pack(*_reply(opened, entry, arrays))
        except BaseException as error:  # includes SystemExit and MemoryError
            reply = pack({"failure": asdict(Failure.of(error))}, {})
        stream.write(reply)
        stream.flush()


def _reply(opened: Callable[[str], Target], entry: Any, arrays: Arrays) -> tuple[Any, Arrays]:
    if "jobs" in entry:
        jobs = [job_of(decoded(Case, each["case"], arrays), each["stage"]) for each in entry["jobs"]]
        target, first = opened(entry["dtype"]), {(job.case.algorithm, job.stage.call) for job in jobs} - MET
        watches = first and entry["mode"] != "compiled" and not entry["gradient"] and not target.name.startswith(OURS)
        with watched(CALLED) if watches else nullcontext():
            found = answers(target, jobs, entry["mode"], gradient=entry["gradient"])
        MET.update(first if watches else ())
        if (lost := _lost_device()) is None:
            return _told(found)
        told, arrays = _told([each if isinstance(each, Failure) else lost for each in found])
        return {**told, "last": True}, arrays
    if "dtype" in entry:
        return asdict(opened(entry["dtype"]).facts()), {}
    return _checked(opened), {}


def _lost_device() -> Failure | None:
    """Returns a failure if this process has lost torch's GPU context, for example after an out-of-bounds index; else None."""
    torch = sys.modules.get("torch")
    try:
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.synchronize()
    except RuntimeError as error:
        return Failure.of(error)
    return None


def _checked(opened: Callable[[str], Target]) -> dict[str, str]:
    """Returns the reason why the target cannot run, or "", and the version of the specification that the target claims to follow."""
    try:
        target = opened("float64")
        target.check()
    except ConfigError as error:
        return {"problem": str(error), "claims": ""}
    except BaseException as error:  # a third-party module may raise anything
        return {"problem": f"cannot be imported: {type(error).__name__}: {error}", "claims": ""}
    return {"problem": "", "claims": target.claims}


def _told(answers: Sequence[Answer]) -> tuple[Any, Arrays]:
    """Returns failures and result arrays by job number. A job fails if the frame format cannot store one of its arrays."""
    failures: dict[str, Any] = {}
    arrays: Arrays = {}
    for number, answer in enumerate(answers):
        results = {} if isinstance(answer, Failure) else answer
        own = {f"{number}/{name}": np.asarray(value, order="C") for name, value in results.items()}
        wrong = [f"{name} has dtype {a.dtype}" for name, a in own.items() if a.dtype.kind not in SENT or a.itemsize > 8]
        if wrong:
            answer, own = Failure.of(MalformedError(wrong[0].partition("/")[2])), {}
        if isinstance(answer, Failure):
            failures[str(number)] = asdict(answer)
        arrays |= own
    return {"failures": failures, "called": sorted(CALLED)}, arrays
