"""One of the processes of the tests of torch on a mesh."""

import functools
import pickle
from pathlib import Path
from typing import Any

import mesh_cases as cases
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from moespec.backends import mesh
from moespec.backends.processes import Process
from moespec.backends.torch.mesh import OnMesh, join, leave

PROCESSES = 4
COMPILED = "softmax_expert_choice"
NARROW = "soft_moe"


class Collectives(TorchDispatchMode):
    """Records what is exchanged: the name of each collective, and the numbers that this process gives it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, int]] = []
        self.dtypes: list[tuple[str, torch.dtype]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "c10d" in function.namespace and function.__name__ != "wait_tensor.default":
            self.dtypes.append((function.__name__, args[0].dtype))
            self.calls.append((function.__name__.removesuffix(".default"), args[0].numel()))
        return function(*args, **(kwargs or {}))


def run(rank: int, address: str, folder: Path, which: str) -> None:
    """Writes what this process computed: by mesh and router, and by name."""
    torch.set_num_threads(1)
    mesh.SMALL = cases.SMALL
    join(Process(rank, PROCESSES, rank, address))
    meshes = {sizes: OnMesh(sizes) for sizes in cases.MESHES}
    results: dict[Any, Any] = {}
    # What `compile` makes runs op by op.
    with torch.compiler.set_stance("force_eager"):
        for router, some in cases.WHICH[which].items():
            for sizes in some:
                B = meshes[sizes]
                with Collectives() as record:
                    result = cases.training(B, router, compiled=False)
                step, params = result.pop("step"), result.pop("params")
                results[sizes, router] = {**result, "forward": cases.forward(B, router, params), "calls": record.calls}
            if router in cases.CONTINUED and len(some) > 1:
                states: list[Any] = [None] * PROCESSES
                dist.all_gather_object(states, results[cases.MESHES[-2], router]["state"])
                results["continued", router] = cases.continued(B, step, router, cases.together(states))
        for name, sizes in cases.OBJECTIVES.items():
            results[name] = cases.of_objective(meshes[sizes], name, compiled=False)
    with Collectives() as record, torch.compiler.set_stance("force_eager"):
        narrow = OnMesh(cases.MESHES[1], transport="bfloat16")
        results["narrow"] = cases.training(narrow, NARROW, compiled=False)["metrics"]
    results["narrow dtypes"] = sorted({str(dtype) for name, dtype in record.dtypes if "all_to_all" in name})
    B = OnMesh(cases.MESHES[-1])  # a new one, of which nothing was read before it is compiled
    results |= {"texts": B.exchanged("text" * rank), "rows": B.rows(8)}
    B.compile = functools.partial(B.compile, compiler="aot_eager")  # whole graphs, which run op by op
    results["compiled"] = cases.training(B, COMPILED, compiled=True)["metrics"]
    with (folder / str(rank)).open("wb") as file:
        pickle.dump(results, file)
    leave()
