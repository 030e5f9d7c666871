"""A check that arrays fit into the memory of the machine, before they are made."""

import math
import os
from collections.abc import Iterable
from zipfile import ZipInfo

from moespec.spec.errors import ConfigError

__all__ = ["check_memory", "check_unpacked"]


def check_memory(arguments: str, numbers: int) -> None:
    """ConfigError, which begins with `arguments`, if so many float32 numbers are more than the machine has memory for.

    What is more than that can only fail, at the latest when the system ends the process; what is less may still fail.
    """
    size, memory = 4 * numbers, of_machine()
    if size > memory:
        raise ConfigError(f"{arguments}: takes {size / 2**30:.3g} GiB, this machine has {memory / 2**30:.3g} GiB")


def check_unpacked(members: Iterable[ZipInfo]) -> None:
    """ValueError if these members of an archive, by its directory, are more than the machine has memory for."""
    size, memory = sum(member.file_size for member in members), of_machine()
    if size > memory:
        raise ValueError(f"its arrays have {size:,} bytes, this machine has {memory:,} of memory")


def of_machine() -> float:
    """Bytes of memory; infinity if the system does not say."""
    if os.name != "posix":
        return math.inf
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
