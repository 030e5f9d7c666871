"""Evaluations besides the run's own: what each measures, when, and that a wrong one is named before anything begins."""

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg

import moespec.backends.jax as B
import moespec.backends.numpy as N
from moespec import cli
from moespec.backends.mesh import MeshSizes
from moespec.models import families, vit
from moespec.spec.errors import SpecError
from moespec.training.configuration import configfile
from moespec.training.data.datasets import load, load_others
from moespec.training.data.options import DataConfig
from moespec.training.evaluation.evaluate import evaluate, evaluation_size, features
from moespec.training.evaluation.few_shot import best_l2, few_shot, ridge
from moespec.training.evaluation.metrics import make_features, make_forward
from moespec.training.evaluation.neighbours import nearest_neighbours
from moespec.training.loop import resolve
from moespec.training.loop.evaluations import load_sets
from moespec.training.loop.runlog import read_log
from moespec.training.runs import load_run

TABLES = """
[evaluation.plain]
every = 5

[evaluation.real]
labels = "{labels}"
every = 6

[evaluation.linear]
kind = "few_shot"
shots = [1, 10]
l2 = [1.0, 1024]
seeds = 2
every = 100

[evaluation.near]
kind = "neighbours"
neighbours = [1, 20]
every = 100
"""


@pytest.fixture(scope="module")
def digits():  # type: ignore[no-untyped-def]
    return load("digits")


def several(images: int) -> list[list[int]]:
    """Labels as those of ImageNet-ReaL are: some images have several, some none."""
    return [[index % 10, (index + 3) % 10] if index % 5 else [] for index in range(images)]


def logits_of(digits, model, params) -> np.ndarray:  # type: ignore[no-untyped-def]
    images = digits.normalize(digits.validation.read(np.arange(len(digits.validation))))
    return np.asarray(vit.forward(B, model, params, B.from_numpy(images)).logits)


@pytest.fixture(scope="module")
def trained(runs, tmp_path_factory, digits) -> Path:  # type: ignore[no-untyped-def]
    """A run with the evaluations of `TABLES`."""
    folder = tmp_path_factory.mktemp("evaluated")
    (folder / "labels.json").write_text(json.dumps(several(len(digits.validation))))
    (folder / "own.toml").write_text(TABLES.format(labels=folder / "labels.json"))
    flags = ["--config", str(folder / "own.toml"), "--run", str(folder / "run"), *runs.flags]
    assert cli.main(["train", "--backend", "jax", *flags, "--router", "softmax_token_choice"]) == 0
    return folder / "run"


def loaded(run: Path):  # type: ignore[no-untyped-def]
    found = load_run(run)
    return resolve.model_config(found.config.model), B.from_numpy(found.params)


def test_each_has_its_schedule(trained: Path) -> None:
    expected = {"plain": [5, 10, 12], "real": [6, 12], "linear": [12], "near": [12]}
    assert {name: [line["step"] for line in read_log(trained, f"evaluation/{name}")] for name in expected} == expected
    assert [line["step"] for line in read_log(trained, "evaluation")] == [6, 12], "the run's own are as they were"
    own, plain = read_log(trained, "evaluation")[-1], read_log(trained, "evaluation/plain")[-1]
    assert all(plain[key] == own[key] for key in ("accuracy", "loss", "images", "moe", "top5"))


def test_precision_with_one_label_and_with_several(trained: Path, digits) -> None:  # type: ignore[no-untyped-def]
    logits = logits_of(digits, *loaded(trained))
    found = read_log(trained, "evaluation/real")[-1]
    labels = several(len(logits))
    counted = [index for index, own in enumerate(labels) if own]
    order = np.argsort(-logits, axis=1)
    assert found["images"] == len(counted) == 284
    assert found["accuracy"] == np.mean([order[index, 0] in labels[index] for index in counted])
    assert found["top5"] == np.mean([bool(set(order[index, :5]) & set(labels[index])) for index in counted])
    assert "loss" not in found
    last = read_log(trained, "evaluation")[-1]
    assert last["accuracy"] == np.mean(order[:, 0] == digits.validation.labels) < last["top5"]
    own = [(order[digits.validation.labels == label, 0] == label).mean() for label in range(10)]
    assert last["balanced_accuracy"] == pytest.approx(np.mean(own), abs=1e-12)
    assert "balanced_accuracy" not in found, "with several labels an image has no class"
    assert last["top5"] == np.mean((order[:, :5] == digits.validation.labels[:, None]).any(axis=1)) < 1


def test_features_are_what_the_head_sees(trained: Path, digits) -> None:  # type: ignore[no-untyped-def]
    """Of every image, in order, whatever the batches are; the classifiers are told these."""
    model, params = loaded(trained)
    extract = make_features(B, model)
    splits = (digits.train, digits.validation)
    train, held = ((features(B, extract, params, digits, split, batch=128), split.labels) for split in splits)
    head = {name: np.asarray(value) for name, value in params["head"].items()}
    logits = logits_of(digits, model, params)
    np.testing.assert_allclose(held[0] @ head["kernel"] + head["bias"], logits, atol=1e-5)
    linear, near = (read_log(trained, f"evaluation/{name}")[-1] for name in ("linear", "near"))
    expected = few_shot(train, held, classes=10, shots=(1, 10), l2=(1.0, 1024.0), seeds=2)
    assert linear["shots_10"]["accuracy"] == pytest.approx(expected["shots_10"]["accuracy"], abs=0.01)
    expected = nearest_neighbours(train, held, classes=10, neighbours=(20,), temperature=0.07)
    assert near["neighbours_20"]["accuracy"] == pytest.approx(expected["neighbours_20"]["accuracy"], abs=0.01)


def test_the_command_measures_the_same(trained: Path, said: Any) -> None:
    words = ["--fewshot", "10", "--l2", "1", "1024", "--seeds", "2", "--knn", "20"]
    shown = said(["evaluate", str(trained), *words])
    lines = dict(line.split(": ", 1) for line in shown.splitlines() if ": " in line)
    real = read_log(trained, "evaluation/real")[-1]
    assert lines["real"] == f"accuracy {real['accuracy']:.4f}, top5 {real['top5']:.4f}, images 284"
    always = np.bincount(load("digits").validation.labels).max() / 355
    assert lines["linear"].split("; ")[1] == lines["few-shot"]
    assert lines["near"].split("; ")[1] == lines["nearest neighbours"]
    assert lines["always 1"].startswith(f"{always:.4f}; balanced accuracy ")
    page = (trained / "report.html").read_text()
    assert f"accuracy {real['accuracy']:.4f}, top5 {real['top5']:.4f}, images 284" in page
    assert " ms in batches of 119" in page  # as the evaluation of 355 images
    assert "kFLOP per image" in page


GROUPED = {"moe": "last_1", "experts": 2, "group_images": 8}


@pytest.mark.parametrize(
    ("model", "devices", "batch", "images", "size"),
    [
        (("vit_tiny", {}), 1, 128, 355, 119),  # three batches, as it were with 128
        (("vit_tiny", GROUPED), 4, 128, 130, 96),
        (("vit_tiny", {}), 4, 128, 130, 68),
        (("sparse_mlp_tiny", {}), 1, 128, 42, 42),  # a group is all of a batch
    ],
)
def test_a_batch_of_an_evaluation_is_as_small_as_its_groups_allow(
    model: tuple[str, dict[str, Any]], devices: int, batch: int, images: int, size: int
) -> None:
    made = families.of_name(model[0]).named(model[0], **model[1])
    assert evaluation_size(MeshSizes(devices), made, batch, images) == size


def test_smaller_batches_have_the_same_groups(digits) -> None:  # type: ignore[no-untyped-def]
    """So that each image is read as it was, also those of the last group, which copies fill."""
    fields: Any = {"router": "softmax_expert_choice", "depth": 2, "width": 16, "heads": 2, "hidden": 16, **GROUPED}
    model = vit.named("vit_tiny", classes=10, **fields)
    params = {**vit.init(model, 0), "head": {"kernel": np.eye(16, 10), "bias": np.zeros(10)}}
    found = [
        evaluate(N, make_forward(N, model), N.from_numpy(params), digits, batch=size, kind="softmax")
        for size in (128, evaluation_size(MeshSizes(), model, 128, 355))
    ]
    assert found[0]["accuracy"] == found[1]["accuracy"]
    assert found[0]["loss"] == pytest.approx(found[1]["loss"], rel=1e-6)


def test_other_images(trained: Path, digits, tmp_path: Path, said: Any) -> None:  # type: ignore[no-untyped-def]
    """All of a file without a validation part, of the classes of the run by name; training images stay the run's."""
    images, labels = digits.validation.read(np.arange(90)), digits.validation.labels[:90]
    np.savez(tmp_path / "new.npz", images=images, labels=labels, maximum=16)
    path = str(tmp_path / "new.npz")
    for own, expected in (
        (replace(digits, classes=digits.classes[::-1]), 9 - labels),
        (replace(digits, classes=digits.classes[:9]), r"new\.npz: class '9' is not in the run's classes 0, 1, 2"),
        (replace(digits, shape=(8, 8, 3)), r"shape \(8, 8, 1\) .*, but in the run they have shape \(8, 8, 3\)"),
    ):
        with pytest.raises(SpecError, match=expected) if isinstance(expected, str) else nullcontext():
            found = load_others(DataConfig(), own, name="npz", path=path, broken="error")
            np.testing.assert_array_equal(found.validation.labels, expected)
            assert found.train is digits.train
    for wrong, message in (("--data=digits", "is the run's own data; omit"), ("--data.broken=skip", "data.path=''")):
        assert message in said(["evaluate", str(trained), wrong], 2)
    out = said(["evaluate", str(trained), "--data", "npz", "--data.path", path])
    right = int((logits_of(digits, *loaded(trained))[:90].argmax(axis=1) == labels).sum())
    assert f"data new\naccuracy {right / 90:.4f} ({right} of 90)" in out
    assert "real:" not in out


def test_what_is_evaluated_may_change_between_sittings(trained: Path, tmp_path: Path, runs) -> None:  # type: ignore[no-untyped-def]
    """And a run that goes on logs what an unbroken one does."""
    resumed = runs.stopped(trained, tmp_path / "resumed", step=8)
    text = (resumed / "config.toml").read_text()
    (resumed / "config.toml").write_text(text.replace("every = 5\n", "every = 4\n"))
    assert cli.main(["train", "--run", str(resumed), "--resume"]) == 0
    assert [line["step"] for line in read_log(resumed, "evaluation/plain")] == [5, 12]
    for name in ("linear", "near", "real"):
        assert read_log(resumed, f"evaluation/{name}")[-1] == read_log(trained, f"evaluation/{name}")[-1]


WRONG = [
    ("every = 0", r"evaluation\.one\.every=0: expected integers >= 1"),
    ("evry = 5", r"unknown key 'evaluation\.one\.evry'; did you mean evaluation\.one\.every\?"),
    ('kind = "few_shot"\nlabels = "x"', r"evaluation\.one\.labels='x' has no effect unless kind='head'"),
    ('path = "x.npz"', r"evaluation\.one\.path='x\.npz': `data` is required with `path`"),
    ('data = "npz"', r"data\.path is not set"),
    ('data = "npz"\npath = "none.npz"', r"evaluation\.one\.path='none\.npz': none\.npz: no such file"),
    ('kind = "retrieval"', r"the run has no text tower \(objective="),
    ('labels = "short.json"', r"short\.json: expected 355 lists of labels, one for each image, got a list of 1"),
    ('labels = "large.json"', r"large\.json: image 0 has \[10\], expected a list of labels from 0 to 9"),
    ("capacity_factor = 2.0", r"evaluation\.one\.capacity_factor=2\.0: .*soft_moe does not have this option"),
    ('data = "npz"\npath = "colour.npz"', r"evaluation\.one: images of \(8, 8, 3\).*the model takes \(8, 8, 1\)"),
]


@pytest.mark.parametrize(("lines", "message"), WRONG)
def test_a_wrong_evaluation_is_named(
    lines: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, digits, runs
) -> None:  # type: ignore[no-untyped-def]
    """Before there is a folder of a run."""
    monkeypatch.chdir(tmp_path)
    Path("short.json").write_text("[[1]]")
    Path("large.json").write_text(json.dumps([[10]] * 355))
    np.savez("colour.npz", images=np.zeros((30, 9, 9, 3), np.uint8), labels=np.arange(30) % 3)
    Path("own.toml").write_text(f"[evaluation.one]\n{lines}\n")

    def begin() -> None:
        config = configfile.read(Path("own.toml"), base=runs.config)
        load_sets(resolve.resolve(config, digits, "jax"), digits)

    with pytest.raises(SpecError, match=message):
        begin()
    assert cli.main(["train", "--config", "own.toml", "--backend", "jax", "--run", "run", *runs.flags]) == 2
    assert not Path("run").exists()


def test_the_tables_of_the_documentation(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "evaluation.md").read_text()
    (tmp_path / "docs.toml").write_text(page.split("```toml\n")[1].split("```")[0])
    assert list(configfile.read(tmp_path / "docs.toml").evaluation) == ["real", "roomy", "pets", "near"]


# Classifiers of frozen features: what the formulas say, on features that are made up.


def made_up(images: int, width: int, classes: int, *, noise: float = 1.0, seed: int = 0):  # type: ignore[no-untyped-def]
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, images)
    centres = np.random.default_rng(99).standard_normal((classes, width))
    return (centres[labels] + noise * random.standard_normal((images, width))).astype(np.float32), labels


@pytest.mark.parametrize("width", [5, 40])
def test_ridge_solves_the_normal_equations(width: int) -> None:
    """With more images than features and with fewer; features of different sizes, one of them constant."""
    features, labels = made_up(20, width, 3)
    features = features * np.linspace(0.1, 30, width, dtype=np.float32) + 7
    features[:, 0] = 2.0
    held, _ = made_up(200, width, 3, seed=1)
    found = ridge(features, labels, held, classes=3, l2=(0.5, 1024.0))
    mean, deviation = features.mean(0, np.float64), features.astype(np.float64).std(0) + 1e-5
    x, z = (np.c_[(part - mean) / deviation, np.full(len(part), 100.0)] for part in (features, held))
    y = np.where(labels[:, None] == np.arange(3), 1.0, -1.0)
    for l2, predictions in zip((0.5, 1024.0), found, strict=True):
        w = scipy.linalg.solve(x.T @ x + l2 * np.eye(width + 1), x.T @ y, assume_a="pos")
        np.testing.assert_array_equal(predictions, (z @ w).argmax(axis=1))
    assert (found[0] != found[1]).any(), "the regularisation changes nothing here"


def test_the_images_of_a_seed() -> None:
    """Those that `numpy.random.default_rng(seed)` puts first, class by class, as the public code has it."""
    train, test = made_up(200, 8, 4, noise=1.5), made_up(300, 8, 4, noise=1.5, seed=1)
    results = few_shot(train, test, classes=4, shots=(1, 5, 500), l2=(1024.0,), seeds=3)
    assert list(results) == ["shots_1", "shots_5", "shots_500"]
    for shots in (1, 5, 500):
        accuracies = []
        for seed in range(3):
            random = np.random.default_rng(seed)
            indices = [random.permutation(np.where(train[1] == label)[0]) for label in range(4)]
            chosen = np.concatenate([own[:shots] for own in indices])
            (predictions,) = ridge(train[0][chosen], train[1][chosen], test[0], classes=4, l2=(1024.0,))
            accuracies.append((predictions == test[1]).mean())
        assert results[f"shots_{shots}"]["by_seed"] == pytest.approx(accuracies, abs=0)
        assert results[f"shots_{shots}"]["accuracy"] == pytest.approx(np.mean(accuracies))
    assert len(set(results["shots_1"]["by_seed"])) > 1


def test_of_several_l2_the_best_mean_rank() -> None:
    """Not the best mean, which the last column has thanks to one seed."""
    accuracies = np.array([[0.3, 0.4, 0.2], [0.3, 0.4, 0.2], [0.2, 0.3, 0.9]])
    assert accuracies.mean(axis=0).argmax() == 2
    assert best_l2(accuracies) == 1
    train, test = made_up(100, 30, 3, noise=2.0), made_up(300, 30, 3, noise=2.0, seed=1)
    one = {l2: few_shot(train, test, classes=3, shots=(5,), l2=(l2,), seeds=2)["shots_5"] for l2 in (1e-3, 1e3)}
    both = few_shot(train, test, classes=3, shots=(5,), l2=(1e-3, 1e3), seeds=2)["shots_5"]
    assert both == one[both["l2"]]


def test_neighbours_vote_by_their_cosine() -> None:
    train, test = made_up(50, 6, 3, noise=2.0), made_up(40, 6, 3, noise=2.0, seed=1)
    scale = np.linspace(0.1, 9, 50, dtype=np.float32)[:, None]  # lengths do not count
    results = nearest_neighbours((train[0] * scale, train[1]), test, classes=3, neighbours=(1, 7, 50), temperature=0.07)
    for count in (1, 7, 50):
        right = 0
        for feature, label in zip(*test, strict=True):
            cosines = train[0] @ feature / np.linalg.norm(train[0], axis=1) / np.linalg.norm(feature)
            votes = np.zeros(3)
            for index in np.argsort(-cosines)[:count]:
                votes[train[1][index]] += np.exp(cosines[index] / 0.07)
            right += votes.argmax() == label
        assert results[f"neighbours_{count}"] == {"accuracy": right / 40}
