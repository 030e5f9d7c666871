"""Experts of `MoE` layers split over processes, in a model that has nothing else of ours."""

import json
import socket

import pytest

torch = pytest.importorskip("torch")

import torch_parallel_process as processes  # noqa: E402


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What each process found out."""
    folder = tmp_path_factory.mktemp("parallel")
    with socket.create_server(("localhost", 0)) as server:
        address = f"localhost:{server.getsockname()[1]}"
    torch.multiprocessing.spawn(processes.run, (address, folder), nprocs=processes.PROCESSES)
    return [json.loads((folder / str(rank)).read_text()) for rank in range(processes.PROCESSES)]


@pytest.mark.parametrize("mode", processes.MODES)
def test_four_processes_train_as_one(results, mode):
    """Steps with a clip of the whole gradient, in float64: what differs is the order of sums."""
    for result in results:
        assert result[mode]["norms"] == pytest.approx(result["norms"], rel=1e-12)
        assert min(result["norms"]) > processes.CLIP
        assert result[mode]["difference"] < 1e-13
        assert result[mode]["parts"] == 3 * 2 * (8 * 16 + 16 + 16 * 8 + 8) + 2 * (8 * 16 + 16)


def test_what_a_router_keeps_is_of_the_tokens_of_all_processes(results):
    """By DDP and by FSDP, with the gradient of one process."""
    for router in processes.WITH_STATE:
        (alone, norm), *_ = results[0]["kept"][router]
        assert any(alone)
        for buffers, of_parts in (each for result in results for each in result["kept"][router]):
            assert buffers == pytest.approx(alone, rel=1e-12)
            assert of_parts == pytest.approx(norm, rel=1e-9)


def test_a_state_dict_has_whole_tensors(results):
    shapes = results[0]["state"]
    assert shapes["blocks.0.mlp.experts.fc1.weight"] == [4, 8, 16]
    assert shapes["blocks.1.mlp.router.scale"] == [1]


def test_initial_values_of_parts(results):
    """Made without memory, split, then drawn: the same bits as on one device."""
    assert all(result["late"] == 0 and result["tables"] for result in results)


def test_what_cannot_be_split(results):
    for result in results:
        assert result["errors"] == [
            "experts: 3 experts cannot be split evenly among 2 processes",
            "ExpertParallel: expected the `experts` of an MoE, got Linear",
        ]
