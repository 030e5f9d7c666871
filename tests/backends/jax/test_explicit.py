"""Functions, models and layers of JAX under a user's mesh: the numbers of one device, and no more is sent than must be."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import mesh_cases as cases
import pytest

from moespec.spec import ROUTERS

for framework in ("jax", "flax", "equinox"):
    pytest.importorskip(framework)

SCRIPT = Path(__file__).parents[2] / "explicit_process.py"
CHOSEN = ("softmax_token_choice", "softmax_expert_choice", "soft_moe", "base", "sigmoid_token_choice")
"""Routers that choose tokens, experts, neither, that solve, and whose statistics add; of the others what is traced is enough."""


def some(routers):
    return [router if router in CHOSEN else pytest.param(router, marks=pytest.mark.full) for router in routers]


STUDY = some(router for router in cases.CASES if router != "noisy_top_k")


@pytest.fixture(scope="module")
def results(tmp_path_factory, request):
    """What a process with four devices computed."""
    file = tmp_path_factory.mktemp("devices") / "found"
    environment = {**os.environ, **cases.devices(4), "PYTHONPATH": os.pathsep.join(sys.path)}
    routers = ROUTERS if cases.which(request) == "all" else CHOSEN
    subprocess.run([sys.executable, SCRIPT, file, *routers], env=environment, check=True)
    return pickle.loads(file.read_bytes())


@pytest.mark.parametrize("router", ROUTERS)
def test_what_is_traced_exchanges_four_times(results, router):
    """Two all-to-alls forward and two backward."""
    assert results["traced", router] == 4


@pytest.mark.parametrize("router", some(ROUTERS))
def test_a_layer_with_split_experts(results, router):
    """Two all-to-alls forward and two backward; besides them only sums travel."""
    case = results["layer", router, "experts"]
    cases.assert_same(case["got"], case["want"])
    assert case["forward"]["all-to-all"] == 2
    assert case["sent"]["all-to-all"] == 4
    assert set(case["forward"] + case["sent"]) <= {"all-to-all", "all-reduce"}


@pytest.mark.parametrize("router", STUDY)
def test_a_layer_with_split_images(results, router):
    """Activations stay where they are."""
    case = results["layer", router, "data"]
    cases.assert_same(case["got"], case["want"])
    assert not case["forward"]
    assert set(case["sent"]) == {"all-reduce"}


@pytest.mark.parametrize("router", STUDY)
def test_a_model_with_split_images(results, router):
    case = results["model", router]
    cases.assert_same(case["got"], case["want"])
    assert set(case["sent"]) == {"all-reduce"}


@pytest.mark.parametrize("case", [*(("options", name) for name in ("pool", "drop", "hash", "mixer")), "fewer"], ids=str)
def test_other_models_and_images_on_fewer_axes_than_experts(results, case):
    cases.assert_same(results[case]["got"], results[case]["want"])


def test_automatic_axes_may_be_explicit_for_a_layer(results):
    cases.assert_same(results["automatic"]["got"], results["automatic"]["want"])
    assert results["automatic"]["sent"] == {"all-to-all": 2}
    assert results["automatic"]["by_xla"]["all-gather"]  # what XLA's partitioner does by itself


def test_modules(results):
    """Logical axes may split the width too: experts are made whole where they compute."""
    for name in ("nnx", "equinox"):
        cases.assert_same(results["modules"][name], results["modules"]["want"])
    assert results["modules"]["split"] == "P('expert', 'data', None)"


def test_errors(results):
    messages = results["errors"]
    assert messages["group"] == (
        "ShapeError: tokens: the 64 tokens of a group are split over data, expert of the mesh; they must be on one device"
    )
    assert (
        messages["groups"]
        == "ShapeError: inputs: 2 groups cannot be split evenly among the 4 devices along data, expert of the mesh"
    )
    assert messages["multi_hash"].startswith("ConfigError: params: the experts are split over a mesh; MultiHash")
