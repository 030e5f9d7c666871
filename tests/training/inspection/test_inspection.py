"""The pictures of routing: right numbers from a routing, different pictures from different routings, a whole report."""

import base64
import io
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from moespec import cli
from moespec.models import vit
from moespec.spec.errors import ConfigError
from moespec.training.data.datasets import load
from moespec.training.evaluation.classes import class_tables, confused, confusion
from moespec.training.inspection.inspect_run import (
    UNASSIGNED,
    BlockRouting,
    draw,
    main_experts,
    make_route,
    panels,
    prediction,
    times_uniform,
)
from moespec.training.loop import resolve
from moespec.training.loop.runlog import read_log
from moespec.training.reports import report
from moespec.training.reports.curves import constant, curves, loads, ticks
from moespec.training.runs import load_run


def test_main_expert() -> None:
    weights = np.array([[[0.0, 0.7], [0.4, 0.4]], [[0.0, 0.0], [0.1, 0.0]]])
    red_and_blue = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    picture = main_experts(BlockRouting("0", weights, np.zeros((2, 2, 2, 1)), False, 4), red_and_blue)
    assert picture[0, 0].tolist() == [0, 0, 1], "one expert alone: its pure colour"
    assert picture[1, 1].tolist() == [1, 0, 0]
    assert picture[1, 0].tolist() == list(UNASSIGNED)
    np.testing.assert_allclose(picture[0, 1], [1, 0.375, 0.375], err_msg="half and half: paler")


def soft_block(scores: np.ndarray) -> BlockRouting:  # type: ignore[type-arg]
    """A soft routing of the patches, of which each slot is the softmax of its scores `(rows, columns, E, C)`."""
    slots = np.exp(scores) / np.exp(scores).sum(axis=(0, 1))
    return BlockRouting("3", slots.sum(axis=3), slots, True, scores.shape[0] * scores.shape[1])


def test_slots_count_in_multiples_of_uniform_on_one_scale() -> None:
    flat = soft_block(np.random.default_rng(0).normal(size=(4, 4, 3, 2)) * 1e-3)
    np.testing.assert_allclose(times_uniform(flat), 1, atol=0.01)
    sharp = soft_block(np.log(np.array([[[[4.0, 1.0]], [[1.0, 1.0]]], [[[1.0, 1.0]], [[2.0, 1.0]]]])))
    np.testing.assert_allclose(times_uniform(sharp)[..., 0, 0], [[2, 0.5], [0.5, 1]])
    np.testing.assert_allclose(times_uniform(sharp)[..., 0, 1], 1)
    figure = draw(np.zeros((8, 8, 1), np.uint8), 255, "", [flat])
    scales = [axis.images[0].norm for axis in figure.axes if axis.get_title().startswith("slot")]
    assert [(norm.vmin, norm.vmax) for norm in scales] == [(0.5, 2)] * 6, "what is nearly uniform looks pale"


def test_experts_are_drawn_on_the_image_on_one_scale() -> None:
    weights = np.zeros((2, 2, 3))
    weights[0, 0, 0], weights[1, 1, 1] = 0.2, 0.8
    routing = BlockRouting("0", weights, np.zeros((2, 2, 3, 1)), False, 4)
    figure = draw(np.zeros((8, 8, 1), np.uint8), 255, "", [routing])
    shown = [axis for axis in figure.axes if axis.get_title().startswith("expert")]
    titles = [axis.get_title() for axis in shown]
    assert titles == ["expert 0\n1 patches, to 0.2", "expert 1\n1 patches, to 0.8", "expert 2\nnone"]
    blue, orange, nothing = (np.asarray(axis.images[0].get_array()) for axis in shown)
    np.testing.assert_allclose(nothing, 0.85, err_msg="a black image, of which a trace is left")
    np.testing.assert_allclose(orange[4:, 4:], np.broadcast_to(np.divide((255, 127, 14), 510), (4, 4, 3)))
    np.testing.assert_allclose(blue[:4, :4], 0.25 * np.divide((31, 119, 180), 510) + 0.75 * 0.85 + np.zeros((4, 4, 3)))
    assert (orange == nothing).all(axis=2).sum() == (blue == nothing).all(axis=2).sum() == 48


def test_chosen_panels() -> None:
    soft = soft_block(np.random.default_rng(0).normal(size=(2, 2, 12, 2)))
    assert [panel.name for panel in panels(soft)][::7] == ["slot 0.0", "slot 11.1"]
    assert len(panels(soft)) == 8
    chosen = panels(soft, ["7.1", "3", "3.0"])
    assert [(panel.name, panel.expert) for panel in chosen] == [("slot 7.1", 7), ("slot 3.0", 3), ("slot 3.1", 3)]
    np.testing.assert_array_equal(chosen[0].weights, times_uniform(soft)[..., 7, 1])
    hard = soft._replace(soft=False)
    assert [panel.name for panel in panels(hard, ["11", "0"])] == ["expert 11", "expert 0"]
    np.testing.assert_array_equal(panels(hard, ["11"])[0].weights, hard.experts[..., 11])
    for name in ("12", "0.2", "-1"):
        with pytest.raises(ConfigError, match=f"panels='{name}': block 3 has slots 0.0 to 11.1 or experts 0 to 11"):
            panels(soft, [name])
    many = soft_block(np.zeros((1, 1, 65, 1)))
    with pytest.raises(ConfigError, match="expected at most 64 panels, got 65"):
        panels(many, [str(expert) for expert in range(65)])


def test_prediction_has_a_name_and_a_probability() -> None:
    logits = np.log(np.array([1.0, 6.0, 3.0]))
    names = ("cat", "dog", "cow")
    assert prediction(logits, names, "softmax") == ", predicted dog (probability 0.600)"
    assert prediction(logits, names, "sigmoid") == ", predicted dog (probability 0.857)", "of this class only: 6 / 7"


@pytest.mark.parametrize("router", ["soft_moe", "softmax_token_choice", "softmax_expert_choice"])
@pytest.mark.parametrize("fields", [{"pool": "gap"}, {"pool": "token"}, {"group_tokens": 4}])
def test_route_of_an_image(router: str, fields: dict[str, Any]) -> None:
    """For a model trained with two images to a group and, maybe, a class token; groups that are parts of an image stay."""
    B = resolve.load_backend("numpy")
    groups = {} if "group_tokens" in fields else {"group_images": 2}
    sizes: Any = {"depth": 2, "width": 16, "hidden": 8, "moe": "last_1", "experts": 4, **groups, **fields}
    model = vit.named("vit_tiny", router=router, **sizes)
    params = B.from_numpy(vit.init(model, 0))
    params["head"]["kernel"] = np.random.default_rng(2).normal(size=params["head"]["kernel"].shape)
    image = np.random.default_rng(0).uniform(-1, 1, (8, 8, 1)).astype(np.float32)
    logits, (routing,) = make_route(B, model)(params, image)
    output = vit.forward(B, vit.regrouped(model, 1) if groups else model, params, image[None])
    np.testing.assert_allclose(logits, output.logits[0], rtol=1e-6)
    dispatch, combine = output.routings[0].dense()
    groups, tokens, experts, capacity = dispatch.shape
    assert (routing.block, routing.soft, routing.tokens) == ("1", router == "soft_moe", tokens)
    slots = routing.slots.reshape(16, experts, groups, capacity)
    for group, part in enumerate(np.split(slots, groups)):
        np.testing.assert_allclose(part[:, :, group], dispatch[group][-16 // groups :], rtol=1e-6)
        assert not np.delete(part, group, axis=2).any(), "nothing of another group"
    weights = combine[:, -16 // groups :].sum(axis=3).reshape(4, 4, experts)
    np.testing.assert_allclose(routing.experts, weights, rtol=1e-6)


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_inspect(runs, backend: str, tmp_path: Path, capsys, said) -> None:  # type: ignore[no-untyped-def]
    run, photo, pictures = str(runs.whole(backend)), tmp_path / "photo.png", []
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)).save(photo)
    for step in (["--step", "4"], []):
        assert cli.main(["inspect", run, "--image", str(photo), "--out", str(tmp_path / "routing.png"), *step]) == 0
        pictures.append((tmp_path / "routing.png").read_bytes())
    assert re.search(r"1 MoE layers, predicted \d \(probability 0\.\d{3}\)", capsys.readouterr().out)
    assert len(np.unique(np.asarray(Image.open(io.BytesIO(pictures[0]))).reshape(-1, 4), axis=0)) > 50
    assert pictures[0] != pictures[1]
    chosen = ["inspect", run, "--image", str(photo), "--out", str(tmp_path / "chosen.png"), "--panels"]
    said([*chosen, "1.0", "0"])
    assert (tmp_path / "chosen.png").read_bytes() != pictures[1]


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_evaluate_repeats_the_run_s_last_evaluation(runs, backend: str, said) -> None:  # type: ignore[no-untyped-def]
    run = runs.whole(backend)
    shown = said(["evaluate", str(run)])
    last = read_log(run, "evaluation")[-1]
    assert f"validation accuracy {last['accuracy']:.4f}" in shown
    assert f"cross-entropy {last['loss']:.4f}" in shown
    assert f"dispatch_max {last['moe']['1']['dispatch_max']:.3f}" in shown
    other = {"jax": "torch", "torch": "jax"}[backend]
    pytest.importorskip(other)
    assert f"validation accuracy {last['accuracy']:.4f}" in said(["evaluate", str(run), "--backend", other])


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_report(runs, backend: str) -> None:  # type: ignore[no-untyped-def]
    run = runs.whole(backend)
    page = (run / "report.html").read_text()
    last = read_log(run, "evaluation")[-1]
    wrong = last["images"] - round(last["accuracy"] * last["images"])
    assert (page.count(", predicted "), page.count('<figure class="wrong">')) == (2, min(wrong, 48))
    assert f"{wrong} of 355 images are misclassified; this page shows the 48 most confident mistakes" in page
    opening = page[page.index("<main>") : page.index("<table")]
    right, always = last["images"] - wrong, 100 * max(np.bincount(load("digits").validation.labels)) / 355
    assert f"<strong>{100 * last['accuracy']:.1f} %</strong> validation accuracy: {right} of 355 images" in opening
    assert f'<i style="left: {always:.2f}%">' in opening
    assert "points better than always answering <strong>1</strong>, the largest class\n" in opening
    assert f"class\n({always:.1f} %, marked on the bar)" in opening
    assert f"Balanced accuracy, the mean over classes: {100 * last['balanced_accuracy']:.1f} %" in opening
    pictures = re.findall(r'base64,([^"]*)"', page)
    assert len(pictures) == min(wrong, 48) + 2 * (1 + 1 + 4), "of two images: themselves, main experts, four slots"
    for picture in pictures:
        Image.open(io.BytesIO(base64.b64decode(picture))).load()
    cells = re.search(r"Confusion matrix.*?<tbody>(.*?)</tbody>", page, re.DOTALL)[1]  # type: ignore[index]
    green, red = (sum(map(int, re.findall(rf"rgb\({colour} [^>]*>(\d+)", cells))) for colour in ("46", "209"))
    assert (green, red) == (last["images"] - wrong, wrong), "the images of the last evaluation"
    assert "block 1, validation</th><td>coverage 1.000, dropped 0.000, entropy" in page
    days = last["seconds"] / 86_400
    passes = r"cost of the run</th><td>training on 192 images: [\d.]+ MFLOP \(3 forward passes per image\); "
    assert re.search(passes + f"{days:.4g} device-days \\(number of devices: 1\\)</td>", page)
    assert "http" not in re.sub(r"base64,[^\"]*", "", page), "the page needs nothing else"


def layer(load: tuple[float, ...] = (0.5, 0.5), dropped: float = 0.0, entropy: float = 0.1) -> dict[str, Any]:
    return {"load": list(load), "dropped": dropped, "entropy": entropy}


def training(layers: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The records of a log with these metrics of each layer, at the steps 1, 2, ..."""
    together = [dict(zip(layers, each, strict=True)) for each in zip(*layers.values(), strict=True)]
    return [{"step": step, "moe": moe} for step, moe in enumerate(together, start=1)]


def test_what_does_not_vary_is_said_and_not_drawn() -> None:
    soft = training({"3": [layer(entropy=2.0), layer((0.5, 0.5 + 1e-8), entropy=1.5)]})
    assert constant(soft) == {"3": "load of each expert 0.5, tokens dropped (fraction) 0"}
    (chart,) = loads(soft)
    assert [line.values for line in chart.lines] == [[2, 1.5]]
    uneven = training({"1": [layer((0.2, 0.4))] * 2, "2": [layer((0.1, 0.3)), layer((0.2, 0.3))]})
    assert constant(uneven)["2"] == "tokens dropped (fraction) 0, routing entropy (nats) 0.1"
    (chart,) = loads(uneven)
    assert [line.label for line in chart.lines] == ["expert 0", "expert 1"]
    (many,) = loads(training({"1": [layer((*range(20), high)) for high in (30, 40)]}))
    assert [(line.label, line.values) for line in many.lines[:2]] == [("largest", [30, 40]), ("median", [10, 10])]


def test_training_loss_has_a_running_mean_where_batches_are_mixed() -> None:
    saw = [{"step": step, "cross_entropy": 2.0 - step % 2} for step in range(1, 41)]
    how: Any = {"measure": ("cross_entropy", "cross-entropy"), "called": "accuracy"}
    several = [{"step": step, "loss": 1.0, "accuracy": step / 80} for step in (20, 40)]
    (first, second) = curves(saw, several, mixes=True, **how)
    raw, mean, validation = first.lines
    assert (raw.faint, mean.faint, validation.label) == (True, False, "validation")
    np.testing.assert_allclose(mean.values[20], np.mean(raw.values[16:25]))
    assert [(line.label, line.values) for line in second.lines] == [("accuracy", [0.25, 0.5])]
    (alone,) = curves(saw, several[1:], mixes=False, **how)
    assert [line.label for line in alone.lines] == ["training"], "one evaluation is a number, no curve"


def test_ticks_are_round_numbers_around_the_values() -> None:
    for low, high, texts in (
        (0.0, 1.386, "0.0 0.5 1.0 1.5"),
        (0.5, 0.51, "0.500 0.505 0.510"),
        (0.0, 1e-7, "0 5e-08 1e-07"),
    ):
        found = ticks(low, high)
        assert [text for _, text in found] == texts.split()
        assert found[0][0] <= low + 1e-12 < high <= found[-1][0] + 1e-12


def test_which_images_are_mistaken_for_what() -> None:
    labels, read = np.array([0, 0, 1, 2, 2]), np.array([0, 1, 2, 1, 1])
    counts = confusion(labels, read, 3)
    assert counts.tolist() == [[1, 1, 0], [0, 0, 1], [0, 2, 0]]
    assert confused(counts, 9) == [(2, 1), (0, 1), (1, 2)]
    rows = class_tables(np.array([[3, 1, 0], [0, 1, 0], [0, 0, 0]]), ("a", "b", "c"))["rows"]
    assert [" ".join(words) for _, words, _ in rows] == ["a 4 75.0% 100.0%", "b 1 100.0% 50.0%", "c 0 - -"]


def test_many_classes_and_many_images_are_cut(runs: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """The names of classes are those of folders: anything."""
    run = tmp_path / "run"
    shutil.copytree(runs.whole("torch"), run)
    loaded = load_run(run)
    monkeypatch.setattr("moespec.training.evaluation.classes.CLASSES", 3)
    monkeypatch.setattr(report, "MOST", 50)
    names = tuple(f"<b>{name}" for name in loaded.dataset.classes)
    report.write_report(loaded.backend, loaded.config, replace(loaded.dataset, classes=names), run, loaded.params)
    page = (run / "report.html").read_text()
    assert "50 of 355 images, evenly spaced" in page
    least, pairs = re.findall(r"<tbody>(.*?)</tbody>", page, re.DOTALL)
    assert least.count("<tr>") == 3 == pairs.count("<tr>")
    assert "&lt;b&gt;" in pairs
    assert "<b>" not in page
