"""One of the processes of the tests of torch on a mesh."""

import pickle
from pathlib import Path
from typing import Any

import mesh_cases as cases
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from moespec.backends.processes import Process
from moespec.backends.torch.mesh import OnMesh, join, leave

PROCESSES = 4


class Collectives(TorchDispatchMode):
    """Records what is exchanged: the name of each collective, and the numbers that this process gives it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, int]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "c10d" in function.namespace and function.__name__ != "wait_tensor.default":
            given = [args[0]] if isinstance(args[0], torch.Tensor) else args[0]
            self.calls.append((function.__name__.removesuffix(".default"), sum(x.numel() for x in given)))
        return function(*args, **(kwargs or {}))


def run(rank: int, address: str, folder: Path) -> None:
    """Writes what this process computed, for each mesh and router."""
    torch.set_num_threads(1)
    cases.split_all()
    join(Process(rank, PROCESSES, rank, address))
    # What `compile` makes runs op by op.
    torch.compiler.set_stance("force_eager")
    found: dict[Any, Any] = {}
    for sizes in cases.MESHES:
        B = OnMesh(sizes)
        for router in cases.CASES:
            with Collectives() as record:
                result = cases.training(B, router)
            params = result.pop("params")
            found[sizes, router] = {**result, "forward": cases.forward(B, router, params), "calls": record.calls}
    found |= {"texts": B.exchanged("x" * rank), "rows": B.rows(8)}
    with (folder / str(rank)).open("wb") as file:
        pickle.dump(found, file)
    leave()
