"""JAX on a mesh of four devices computes what it computes on one, and its programs send what they must and no more."""

import importlib
import os
import pickle
import subprocess
import sys
from pathlib import Path

import mesh_cases as cases
import pytest

from moespec.backends import mesh
from moespec.backends.mesh import MeshSizes
from moespec.spec import ConfigError

pytest.importorskip("jax")
OnMesh = importlib.import_module("moespec.backends.jax.mesh").OnMesh

SCRIPT = Path(__file__).parents[2] / "jax_mesh_process.py"


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(mesh, "SMALL", cases.SMALL)


@pytest.fixture(scope="module")
def results(tmp_path_factory, request):
    """What a process with four devices computed."""
    file = tmp_path_factory.mktemp("devices") / "found"
    environment = {**os.environ, **cases.devices(4), "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, SCRIPT, file, cases.which(request)], env=environment, check=True)
    return pickle.loads(file.read_bytes())


@pytest.mark.parametrize(("sizes", "router"), cases.PAIRS)
def test_training_equals_that_of_one_device(results, sizes, router):
    cases.check_training([results], results[router], sizes, router)


@pytest.mark.parametrize(("sizes", "router"), cases.PAIRS)
def test_what_is_sent(results, sizes, router):
    """All-to-alls: two forward and two backward. One reduction of gradients for each set of axes."""
    case, count = cases.CASES[router], results[sizes, router]["collectives"]
    if sizes.devices == sizes.data:
        assert count == {"all-reduce": 1 + case.loads}
        return
    assert count["all-to-all"] == case.exchanges
    assert (count["all-gather"] > 0) == (count["reduce-scatter"] > 0) == (sizes.fsdp > 1)
    assert count["collective-permute"] == 0
    if case.optimizer.name == "adamw" and sizes.fsdp == 1:
        # Those of gradients, and that of the squares of the norm.
        assert count["all-reduce"] == cases.reductions(router, sizes) + 1 + case.loads


@pytest.mark.parametrize("router", cases.MOVED)
def test_a_state_goes_from_mesh_to_mesh(results, router):
    cases.check_continued([results], results[router]["continued"], router)


@pytest.mark.parametrize("name", cases.OBJECTIVES)
def test_an_objective_over_all_images_equals_that_of_one_device(results, name):
    cases.check_objective([results], results["one", name], name)


def test_one_process_has_all_rows_and_its_own_text(results):
    assert results["texts"] == ["alone"]
    assert results["rows"] == range(8)


def test_slots_may_travel_in_sixteen_bits(results):
    cases.check_narrow(results["narrow"]["metrics"], results["soft_moe"]["metrics"])
    assert results["narrow"]["dtypes"] == ["bf16"]


def test_a_mesh_has_as_many_devices_as_there_are():
    with pytest.raises(ConfigError, match=r"the mesh \(data 32 x expert 2\) needs 64 devices, but JAX has "):
        OnMesh(MeshSizes(data=32, expert=2))
