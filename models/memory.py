"""Checks, before allocation, that arrays fit into memory and into the limits of the process."""

import math
import os
from collections.abc import Iterable
from zipfile import ZipInfo

from moespec.spec.errors import ConfigError

__all__ = ["check_limits", "check_memory", "check_unpacked", "cores"]

NEEDED = {"jax": 2.25, "torch": 1.7, "numpy": 1.3}
"""The address space, in GiB, that each backend needs. With less, importing the backend or the data reader fails with an unclear error."""


def check_memory(arguments: str, numbers: int) -> None:
    """Raises a ConfigError that begins with `arguments` if `numbers` float32 numbers exceed the memory of the machine.

    Arrays above this limit always fail. Smaller arrays may fail as well, since other data also needs memory.
    """
    size, memory = 4 * numbers, of_machine()
    if size > memory:
        raise ConfigError(f"{arguments}: needs {size / 2**30:.3g} GiB, but this machine has {memory / 2**30:.3g} GiB")


def check_unpacked(members: Iterable[ZipInfo]) -> None:
    """Raises ValueError if the archive members, by the sizes in the archive's directory, exceed the memory of the machine."""
    size, memory = sum(member.file_size for member in members), of_machine()
    if size > memory:
        raise ValueError(f"its arrays need {size:,} bytes, but this machine has {memory:,} bytes of memory")


def check_limits(backend: str = "", *, workers: int = 0) -> None:
    """Raises ConfigError if a resource limit of this process is too low to start the backend or the worker processes."""
    if os.name != "posix":
        return
    import resource

    workers = min(workers, cores())
    space, files = (resource.getrlimit(name)[0] for name in (resource.RLIMIT_AS, resource.RLIMIT_NOFILE))
    if resource.RLIM_INFINITY != space < NEEDED.get(backend, 0) * 2**30:
        limit = f"the limit of this process is {space / 2**30:.3g} GiB (ulimit -v)"
        raise ConfigError(f"backend={backend!r}: needs {NEEDED[backend]} GiB of address space, but {limit}")
    if workers and resource.RLIM_INFINITY != files < (needed := 32 + 6 * workers):
        raise ConfigError(
            f"workers={workers}: needs {needed} open files, but the limit of this process is {files} (ulimit -n)"
        )


def cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def of_machine() -> float:
    """Returns the memory of the machine in bytes, or infinity if the system does not report the memory."""
    if os.name != "posix":
        return math.inf
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
