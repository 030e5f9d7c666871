"""Torch on a mesh of four processes computes what it computes on one device, and sends what it must."""

import importlib
import pickle
import socket

import mesh_cases as cases
import pytest

torch = pytest.importorskip("torch")
B = importlib.import_module("moespec.backends.torch")
torch_mesh_process = pytest.importorskip("torch_mesh_process")


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    """What each of four processes computed."""
    folder = tmp_path_factory.mktemp("processes")
    with socket.create_server(("localhost", 0)) as server:
        address = f"localhost:{server.getsockname()[1]}"
    torch.multiprocessing.spawn(torch_mesh_process.run, (address, folder), nprocs=torch_mesh_process.PROCESSES)
    return [pickle.loads((folder / str(rank)).read_bytes()) for rank in range(torch_mesh_process.PROCESSES)]


@pytest.fixture(scope="module")
def one_device():
    def computed(router):
        with torch.compiler.set_stance("force_eager"):
            result = cases.training(B, router)
            return {**result, "forward": cases.forward(B, router, result.pop("params"))}

    return {router: computed(router) for router in cases.CASES}


@pytest.mark.parametrize("router", cases.CASES)
@pytest.mark.parametrize("sizes", cases.MESHES, ids=str)
def test_a_mesh_computes_what_one_device_does(processes, one_device, sizes, router):
    """Losses and metrics of each step, the state after the last one, logits and statistics."""
    want = one_device[router]
    for process in processes:
        got = process[sizes, router]
        cases.assert_same(got["metrics"], want["metrics"])
        cases.assert_same(got["forward"], want["forward"])
    state = cases.together([process[sizes, router]["state"] for process in processes])
    cases.assert_same(state, cases.flat(want["state"]))
