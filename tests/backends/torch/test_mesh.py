"""Torch on a mesh of four processes computes what it computes on one device, and sends what it must and no more."""

import importlib
import pickle
import socket
from collections import Counter

import mesh_cases as cases
import pytest

from moespec.backends import mesh
from moespec.backends.mesh import MeshSizes
from moespec.spec import ConfigError

torch = pytest.importorskip("torch")
B = importlib.import_module("moespec.backends.torch")
OnMesh = importlib.import_module("moespec.backends.torch.mesh").OnMesh
worker = importlib.import_module("torch_mesh_process")


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(mesh, "SMALL", cases.SMALL)


@pytest.fixture(scope="module")
def processes(tmp_path_factory, request):
    """What each of four processes computed."""
    folder = tmp_path_factory.mktemp("processes")
    with socket.create_server(("localhost", 0)) as server:
        address = f"localhost:{server.getsockname()[1]}"
    torch.multiprocessing.spawn(worker.run, (address, folder, cases.which(request)), nprocs=worker.PROCESSES)
    return [pickle.loads((folder / str(rank)).read_bytes()) for rank in range(worker.PROCESSES)]


@pytest.fixture(scope="module")
def one_device(request):
    """The same of one device, by router."""
    computed = {}
    with torch.compiler.set_stance("force_eager"):
        for router in {**cases.WHICH[cases.which(request)], worker.COMPILED: ()}:
            result = cases.training(B, router, compiled=False)
            computed[router] = {**result, "forward": cases.forward(B, router, result["params"])}
    return computed


@pytest.mark.parametrize(("sizes", "router"), cases.PAIRS)
def test_training_equals_that_of_one_device(processes, one_device, sizes, router):
    cases.check_training(processes, one_device[router], sizes, router)


@pytest.mark.parametrize(("sizes", "router"), cases.PAIRS)
def test_what_is_sent(processes, sizes, router):
    """All-to-alls: two forward and two backward, of the slots alone. One reduction of gradients for each set of axes."""
    case = cases.CASES[router]
    passes = case.accumulate * cases.STEPS
    images = cases.BATCH // sizes.devices // case.accumulate
    for process in processes:
        calls = process[sizes, router]["calls"]
        assert calls == processes[0][sizes, router]["calls"]
        count = Counter(name for name, _ in calls)
        slots = [size for name, size in calls if name == "all_to_all_single"]
        each = case.exchanges if sizes.expert > 1 else 0
        assert slots == [cases.slot_entries(router, images)] * each * passes
        assert (count["all_gather_into_tensor"] > 0) == (sizes.fsdp > 1)
        assert set(count) <= {"all_to_all_single", "all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor"}
        if sizes.devices == sizes.data:
            assert count["all_reduce"] == (1 + case.loads) * cases.STEPS
        elif case.optimizer.name == "adamw":
            # Those of gradients, and that of the squares of the norm.
            assert count["all_reduce"] == (cases.reductions(router, sizes) + 1 + case.loads) * cases.STEPS


@pytest.mark.parametrize("router", cases.MOVED)
def test_a_state_goes_from_mesh_to_mesh(processes, one_device, router):
    one = one_device[router]
    cases.check_continued(processes, cases.continued(B, one["step"], router, one["state"]), router)


@pytest.mark.parametrize("name", cases.OBJECTIVES)
def test_an_objective_over_all_images_equals_that_of_one_device(processes, name):
    cases.check_objective(processes, cases.of_objective(B, name, compiled=False), name)


def test_a_compiled_step_equals_one_op_by_op(processes, one_device):
    for process in processes:
        cases.assert_same(process["compiled"], one_device[worker.COMPILED]["metrics"])


def test_processes_exchange_texts_and_share_a_batch(processes):
    for rank, process in enumerate(processes):
        assert process["texts"] == ["", "text", "texttext", "texttexttext"]
        assert process["rows"] == range(2 * rank, 2 * rank + 2)


def test_slots_may_travel_in_sixteen_bits(processes, one_device):
    for process in processes:
        cases.check_narrow(process["narrow"], one_device["soft_moe"]["metrics"])
        assert process["narrow dtypes"] == ["torch.bfloat16"]


def test_a_mesh_has_as_many_devices_as_there_are_processes():
    with pytest.raises(ConfigError, match=r"the mesh \(expert 2\) needs 2 processes, but there are 1"):
        OnMesh(MeshSizes(expert=2))


def test_a_mesh_of_one_device_is_that_device(one_device):
    result = cases.training(OnMesh(MeshSizes()), "soft_moe", compiled=False)
    want = one_device["soft_moe"]
    cases.assert_same(result["metrics"], want["metrics"], exact=True)
    cases.assert_same(cases.together([result["state"]]), want["state"], exact=True)
