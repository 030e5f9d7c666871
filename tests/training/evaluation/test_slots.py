"""What the slots of Soft MoE take in and give back: the numbers of the paper's figures, and the command that draws them."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import moespec.backends.numpy as B
from moespec import spec
from moespec.models import vit
from moespec.spec.errors import ConfigError
from moespec.spec.routing import Routing
from moespec.training.evaluation.metrics import make_forward
from moespec.training.evaluation.slots import SlotStatistics, largest_first, needed, numbers, slot_statistics
from moespec.training.inspection.analysis import draw_analysis
from moespec.training.loop import resolve

IMAGES = np.random.default_rng(0).uniform(-1, 1, (20, 8, 8, 1)).astype(np.float32)


def model(**changes: Any) -> vit.VitConfig:
    options = {"slots_per_expert": 2} if changes.get("router", "soft_moe") == "soft_moe" else {}
    fields: Any = {"depth": 3, "width": 16, "hidden": 8, "moe": "1,2", "experts": 3, "router_options": options}
    return vit.named("vit_tiny", **{**fields, **changes})


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_statistics_are_those_of_the_routings(backend: str) -> None:
    """Of the routing of each image by the specification; over two batches, of which the second is smaller, on each backend."""
    params = vit.init(model(), 0)
    for block in ("1", "2"):
        params["blocks"][block]["moe"]["router"]["scale"] = np.float32(4)
    B, reference = resolve.load_backend(backend), resolve.load_backend("numpy")
    output = vit.forward(reference, model(), reference.from_numpy(params), IMAGES)
    dense = [routing.dense() for routing in output.routings]
    routings = [[Routing(*each) for each in zip(*layer, strict=True)] for layer in dense]
    statistics = slot_statistics(B, model(), B.from_numpy(params), IMAGES)
    assert [one.block for one in statistics] == ["1", "2"]
    for one, routed in zip(statistics, routings, strict=True):
        assert (one.experts, one.capacity) == (3, 2)
        close: Any = {"rtol": 1e-4, "atol": 1e-6}
        np.testing.assert_allclose(one.dispatch, [spec.summed_dispatch(r) for r in routed], **close)
        np.testing.assert_allclose(one.dispatch.mean(), 6 / 16, rtol=1e-5)
        mean = np.mean([spec.cumulative_dispatch(r) for r in routed], axis=0)
        np.testing.assert_allclose(one.cumulative_dispatch, mean, **close)
        slots = np.stack([r.combine.sum(axis=0).ravel() for r in routed])
        np.testing.assert_allclose(one.combine, slots / slots.min(axis=1, keepdims=True), **close)
        assert (one.combine.min(axis=1) == 1).all()
        descending = -np.sort(-np.stack([r.combine.reshape(16, 6) for r in routed]), axis=2)
        np.testing.assert_allclose(one.cumulative_combine, descending.cumsum(axis=2).mean(axis=(0, 1)), **close)
        phi = params["blocks"][one.block]["moe"]["router"]["slots"]
        np.testing.assert_allclose(one.similarity, spec.slot_similarity(phi), **close)
        assert (one.tokens_needed.shape, one.slots_needed.shape) == ((20, 6), (20, 16))
        for image, slot in itertools.product((0, 17), range(6)):
            weights = np.sort(routed[image].dispatch[:, slot // 2, slot % 2])[::-1]
            count = one.tokens_needed[image, slot]
            assert weights[:count].sum() >= 0.9 - 1e-5
            assert weights[: count - 1].sum() < 0.9 + 1e-5


def test_largest_first() -> None:
    even = np.full((2, 10), 0.1)
    np.testing.assert_allclose(largest_first(even)[0], np.arange(1, 11) / 10)
    assert needed(largest_first(even)).tolist() == [9, 9], "rounding does not make it ten"
    sharp = np.array([0.02, 0.91, 0.05, 0.02])
    assert needed(largest_first(sharp), 0.95) == 2
    assert needed(largest_first(sharp / 2)) == 1, "of what there is"


def one_layer(**changes: Any) -> SlotStatistics:
    similarity = np.array([[1.0, 0.8, 0.1, 0.2], [0.8, 1.0, 0.3, 0.4], [0.1, 0.3, 1.0, 0.6], [0.2, 0.4, 0.6, 1.0]])
    fields: Any = {
        **{"block": "1", "experts": 2, "capacity": 2, "similarity": similarity},
        **{"dispatch": np.array([[1.0, 2.0, 1.0]]), "combine": np.array([[1.0, 2.0, 2.0, 3.0]])},
        **{"cumulative_dispatch": np.array([0.5, 0.8, 1.0]), "cumulative_combine": np.array([0.4, 0.7, 0.9, 1.0])},
        **{"tokens_needed": np.array([[3, 2, 3, 3]]), "slots_needed": np.array([[3, 3, 4]])},
    }
    return SlotStatistics(**{**fields, **changes})


def test_numbers() -> None:
    block = numbers([one_layer()])["1"]
    assert (block["tokens"], block["experts"], block["slots_per_expert"]) == (3, 2, 2)
    assert block["slot_similarity"]["same_expert"]["mean"] == pytest.approx(0.7)
    assert block["slot_similarity"]["other_experts"]["mean"] == pytest.approx(0.25)
    assert block["summed_dispatch"] == {"mean": 4 / 3, "smallest": 1, "5%": 1, "median": 1, "95%": 1, "largest": 2}
    alone = one_layer(experts=4, capacity=1, combine=np.full((1, 4), np.inf))
    block = numbers([alone])["1"]
    assert set(block["slot_similarity"]) == {"other_experts"}, "an expert with one slot"
    assert block["summed_combine_by_least"]["mean"] is None
    json.dumps(block, allow_nan=False)


def test_the_picture_shows_the_statistics() -> None:
    layers = [one_layer(), one_layer(block="10", dispatch=np.array([[0.5, 3.0, 0.5]]))]
    axes = draw_analysis(layers, "title").axes[:12]
    assert [axis.get_ylabel() for axis in axes[::6]] == ["block 1", "block 10"]
    assert axes[2].lines[0].get_ydata().tolist() == [0.5, 0.8, 1.0]
    assert axes[3].lines[0].get_ydata().tolist() == [0.4, 0.7, 0.9, 1.0]
    np.testing.assert_array_equal(axes[5].images[0].get_array(), layers[0].similarity)
    assert axes[0].get_xlim() == axes[6].get_xlim() == (0, 3), "one axis for all layers, from 0"
    assert axes[4].patches[0].get_data().values.tolist() == [0, 0.25, 0.75]


def test_other_models_are_errors() -> None:
    with pytest.raises(ConfigError, match=r"analysis: expected the router 'soft_moe', got 'softmax_token"):
        slot_statistics(resolve.load_backend("numpy"), model(router="softmax_token_choice"), {}, IMAGES)


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_inspect_analysis(runs, backend: str, tmp_path: Path, said) -> None:  # type: ignore[no-untyped-def]
    run, out = str(runs.whole(backend)), tmp_path / "slots.png"
    shown = said(["inspect", run, "--analysis", "--out", str(out)])
    assert out.read_bytes().startswith(b"\x89PNG")
    values = json.loads((tmp_path / "slots.json").read_text())
    assert (values["run"], values["step"], values["images"], values["fraction"]) == (run, 12, 64, 0.9)
    (block,) = values["blocks"].values()
    assert len(block["cumulative_dispatch"]) == block["tokens"] == 4
    assert f"block 1: 90% of a slot comes from {block['tokens_needed']['median']:.0f} of 4 tokens" in shown
    for flags, message in (
        (["--analysis", "--image", "x.png"], "inspect: set either --image FILE or --analysis"),
        (["--analysis", "--panels", "0", "1"], "panels='0 1' has no effect with --analysis, which covers all slots"),
        (["--analysis", "--out", str(tmp_path / "x.json")], "expected a name ending in .png"),
    ):
        assert message in said(["inspect", run, *flags], 2)


# What evaluation reports of MoE layers besides their metrics; the numbers are those of tests/spec/algorithms/test_metrics.


SOFT = {"dispatch_max", "combine_max"}
SPARSE = {"experts_min", "experts_max", "at_least_1", "at_least_2", "at_least_4"}


@pytest.mark.parametrize(
    ("router", "options", "expected"),
    [
        ("soft_moe", {}, SOFT),
        ("softmax_expert_choice", {}, SPARSE),
        ("hash", {}, SPARSE),
        ("hash", {"hashes": 2}, set()),
    ],
)
def test_what_is_reported_of_a_router(router: str, options: dict[str, int], expected: set[str]) -> None:
    """The reported routing of MultiHash is that of its first hash, though each token meets the experts of all."""
    fields = {"token_ids": "position"} if router == "hash" else {}
    config = model(router=router, router_options=options, **fields)
    _, evaluated = make_forward(B, config)(B.from_numpy(vit.init(config, 1)), IMAGES)
    assert {name.rpartition("/")[2] for name in evaluated} & (SOFT | SPARSE) == expected
