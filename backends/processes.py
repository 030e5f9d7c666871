"""Identifies the current process from the environment variables that a launcher sets.

* `torchrun` and `moespec launch` set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, for JAX and torch.
* `srun` sets SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID and SLURM_STEP_NODELIST. With `srun`, MASTER_ADDR and MASTER_PORT are optional.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from moespec.spec.errors import ConfigError

__all__ = ["Process", "process_of"]

PORT = 29500
"""The port of process 0 under SLURM, unless MASTER_PORT sets it."""


@dataclass(frozen=True)
class Process:
    """A process: its index, the number of processes, its index on the machine, and the address of process 0."""

    index: int
    count: int
    local: int
    address: str


def process_of(environment: Mapping[str, str]) -> Process | None:
    """Returns the process that the variables describe, or None for a single process. Raises ConfigError for missing or invalid variables.

    >>> process_of({"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "2900"})
    Process(index=1, count=4, local=1, address='localhost:2900')
    """
    if "RANK" in environment and "WORLD_SIZE" in environment:
        names = ("RANK", "WORLD_SIZE")
        local = environment.get("LOCAL_RANK", "0")
        for name in ("MASTER_ADDR", "MASTER_PORT"):
            if not environment.get(name):
                raise ConfigError(
                    f"{name} is not set; the {environment.get('WORLD_SIZE')} processes need it to connect"
                )
        host, port = environment["MASTER_ADDR"], environment["MASTER_PORT"]
    # SLURM also sets SLURM_NTASKS in sbatch scripts, but sets SLURM_STEP_NODELIST only in tasks that `srun` starts.
    elif environment.get("SLURM_NTASKS", "1") != "1" and "SLURM_STEP_NODELIST" in environment:
        names = ("SLURM_PROCID", "SLURM_NTASKS")
        local = environment.get("SLURM_LOCALID", "0")
        host = environment.get("MASTER_ADDR") or _first(environment["SLURM_STEP_NODELIST"])
        port = environment.get("MASTER_PORT") or str(PORT)
    else:
        return None
    index, count = (_number(environment, name) for name in names)
    if not 0 <= index < count:
        raise ConfigError(f"{names[0]}={index!r}: expected a number below {names[1]}={count!r}")
    if not port.isdigit() or not 0 < int(port) < 2**16:
        raise ConfigError(f"MASTER_PORT={port!r}: expected a number from 1 to {2**16 - 1}")
    if not local.isdigit():
        raise ConfigError(f"LOCAL_RANK={local!r}: expected a number")
    return Process(index, count, int(local), f"{host}:{port}")


def _number(environment: Mapping[str, str], name: str) -> int:
    value = environment.get(name, "")
    if not value.isdigit():
        raise ConfigError(f"{name}={value!r}: expected a number")
    return int(value)


def _first(nodes: str) -> str:
    """The first node in a SLURM node list such as `gpu[07-09,12],other`."""
    match = re.match(r"([^,\[]+)(?:\[([^\],-]+))?", nodes)
    return "".join(part or "" for part in match.groups()) if match else nodes
