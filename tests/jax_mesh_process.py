"""What the tests of JAX on a mesh run in a process of their own, which has four devices: FILE all|some"""

import pickle
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import mesh_cases as cases

from moespec.backends import jax as one_device
from moespec.backends import mesh
from moespec.backends.jax.mesh import OnMesh

NARROW = "soft_moe"


def main(file: str, which: str) -> None:
    """Writes what was computed, for one device and for each mesh and router, or for some."""
    jax.config.update("jax_enable_x64", True)
    mesh.SMALL = cases.SMALL
    results: dict[Any, Any] = {}
    for router, meshes in cases.WHICH[which].items():
        one = cases.training(one_device, router)
        forward = cases.forward(one_device, router, one["params"])
        results[router] = {"metrics": one["metrics"], "state": one["state"], "forward": forward}
        for sizes in meshes:
            B, programs = OnMesh(sizes), []
            result = cases.training(B, router, before=lambda *given: programs.append(collectives(*given)))  # noqa: B023
            step, params = result.pop("step"), result.pop("params")
            results[sizes, router] = {**result, "collectives": programs[0]}
            if cases.FORWARD[router] == sizes:
                results[sizes, router]["forward"] = cases.forward(B, router, params)
        if router == NARROW:
            narrow = OnMesh(cases.MESHES[1], transport="bfloat16")
            result = cases.training(narrow, router, before=lambda *given: programs.append(sent(*given)))  # noqa: B023
            results["narrow"] = {"metrics": result["metrics"], "dtypes": programs[-1]}
        if router in cases.CONTINUED and len(meshes) > 1:
            exported = cases.together([results[cases.MESHES[-2], router]["state"]])
            results["continued", router] = cases.continued(B, step, router, exported)
            results[router]["continued"] = cases.continued(one_device, one["step"], router, one["state"])
    for name, sizes in cases.OBJECTIVES.items():
        results[name] = cases.of_objective(OnMesh(sizes), name)
        results["one", name] = cases.of_objective(one_device, name)
    B = OnMesh(cases.MESHES[-1])
    results |= {"texts": B.exchanged("alone"), "rows": B.rows(8)}
    Path(file).write_bytes(pickle.dumps(results))


def sent(step: Any, state: Any, batch: Any) -> list[str]:
    """The dtypes in which all-to-alls are asked for."""
    text = step.__wrapped__.lower(state, batch, cases.RATE).as_text()
    return sorted(set(re.findall(r"all_to_all.*: \(tensor<[\dx]*x(\w+)>\)", text)))


def collectives(step: Any, state: Any, batch: Any) -> Counter[str]:
    """How often each collective is in the compiled step."""
    return collectives_of(step.__wrapped__.lower(state, batch, cases.RATE).compile().as_text())


def collectives_of(text: str) -> Counter[str]:
    """How often each collective is in the text of a program."""
    names = "all-to-all|all-gather|all-reduce|reduce-scatter|collective-permute"
    return Counter(re.findall(rf" ({names})(?:-start)?\(", text))


if __name__ == "__main__":
    main(*sys.argv[1:])
