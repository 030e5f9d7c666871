"""Predictions for a folder of pictures, and the walk-through of docs/photos.md at a small size."""

import base64
import csv
import io
import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from of_models import drawn
from PIL import Image

from moespec.models import cli, interop, vit
from moespec.models.commandline.commands import load_run
from moespec.models.commandline.predict import Prediction, table
from moespec.models.data.pictures import read_image
from moespec.models.training.resolve import model_config
from moespec.models.weights.files import write_safetensors
from moespec.models.weights.formats import PT

PAGE = (Path(__file__).parents[2] / "docs" / "photos.md").read_text()


def draw(path: Path, seed: int, *, upright: bool) -> None:
    """Noise with bars, upright or not, wider than high."""
    pixels = np.random.default_rng(seed).integers(0, 160, (24, 36, 3), np.uint8)
    pixels[(..., slice(seed % 2, None, 4), slice(None)) if upright else slice(seed % 2, None, 4)] += 90
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`photos` of two classes, and `new`, in which a name is a formula, one is HTML and two files are broken."""
    root = tmp_path_factory.mktemp("pictures")
    for seed in range(16):
        draw(root / "photos" / ("<b>bars" if seed % 2 else "=rows") / f"{seed}.jpg", seed, upright=bool(seed % 2))
    for name, seed in (("=1+1.png", 20), ("below/<b>x.jpg", 21), ("below/further/c.jpg", 22)):
        draw(root / "new" / name, seed, upright=bool(seed % 2))
    (root / "new/empty.png").touch()
    (root / "new/short.jpg").write_bytes((root / "new/below/further/c.jpg").read_bytes()[:700])
    (root / "new/.hidden.jpg").touch()
    (root / "new/notes.txt").touch()
    return root


@pytest.fixture(scope="module")
def run(runs, folder: Path) -> Path:  # type: ignore[no-untyped-def]
    """A run whose routers take four images together in training."""
    pytest.importorskip("torch")
    flags = (*runs.flags, "--model.image-size", "16", "--router", "softmax_expert_choice", "--model.group-images", "4")
    data = ("--data", "folder", "--data.path", str(folder / "photos"), "--data.resize", "20", "--data.mean", "0.4")
    path = str(folder / "run")
    assert cli.main(["train", "--backend", "torch", *flags, *data, "--run", path]) == 0
    return folder / "run"


def test_what_is_predicted(run: Path, folder: Path, tmp_path: Path, said) -> None:  # type: ignore[no-untyped-def]
    """By the model alone on what training would read; whatever else is in the folder, and however many are broken."""
    out = tmp_path / "new.csv"
    shown = said(["predict", str(run), str(folder / "new"), "--csv", str(out), "--backend", "numpy"])
    assert "3 pictures in" in shown
    assert re.search(r"2 of 5 pictures cannot be read .*\n.*empty\.png: .*\n.*short\.jpg: ", shown)
    text = out.read_text()
    assert '"\'=1+1.png"' in text
    assert '"\'=rows"' in text
    rows = list(csv.DictReader(io.StringIO(text)))
    names = ["=1+1.png", "below/<b>x.jpg", "below/further/c.jpg"]
    assert [row["image"].lstrip("'") for row in rows] == names
    loaded = load_run(run, "numpy")
    model = vit.regrouped(model_config(loaded.config.model), 1)
    for name, row in zip(names, rows, strict=True):
        image = loaded.dataset.normalize(read_image(folder / "new" / name, 16, resize=20))
        output = vit.forward(loaded.backend, model, loaded.params, image[None])
        likely = np.exp(output.logits[0]) / np.exp(output.logits[0]).sum()
        best = int(likely.argmax())
        assert row["class_1"].lstrip("'") == loaded.dataset.classes[best]
        assert float(row["probability_1"]) == pytest.approx(likely[best], abs=2e-6)
        assert float(row["probability_2"]) == pytest.approx(1 - likely[best], abs=2e-6)
        weights = output.routings[0].dense().combine[0].sum(axis=(0, 2))
        assert int(row["block_1_expert"]) == weights.argmax()
        assert float(row["block_1_share"]) == pytest.approx(weights.max() / weights.sum(), abs=2e-6)
    said(["predict", str(run), str(folder / "new/below/<b>x.jpg"), "--csv", str(out), "--top", "1"])
    (row,) = csv.DictReader(io.StringIO(out.read_text()))
    assert (row["image"], row["class_1"]) == ("<b>x.jpg", rows[1]["class_1"])
    assert float(row["block_1_share"]) == pytest.approx(float(rows[1]["block_1_share"]), abs=1e-5), "also by torch"
    assert "class_2" not in row


def test_the_page_is_whole_and_sorted(run: Path, folder: Path, tmp_path: Path, said) -> None:  # type: ignore[no-untyped-def]
    said(["predict", str(run), str(folder / "new"), "--html", str(tmp_path / "new.html")])
    page = (tmp_path / "new.html").read_text()
    pictures = [base64.b64decode(each) for each in re.findall(r'src="data:image/jpeg;base64,([^"]*)"', page)]
    assert [Image.open(io.BytesIO(each)).size for each in pictures] == [(36, 24)] * 3
    shares = [
        float(each) for each in re.findall(r'<figcaption>\s*<div[^>]*><span>.*?</span> <meter value="(.*?)"', page)
    ]
    assert len(shares) == 3
    assert shares == sorted(shares, reverse=True)
    assert "&lt;b&gt;bars" in page
    assert "<b>" not in page
    assert "short.jpg" in page.split("Not read")[1]
    assert not re.search(r"https?:|<script|@import|url\(", re.sub(r"base64,[^\"]*", "", page))


def test_a_terminal_shows_few_lines_of_many_pictures() -> None:
    many = [Prediction(f"{n}.jpg", [("cat", n / 100)], {"1": np.array([0.25, 0.75])}) for n in range(99, 0, -1)]
    title, heads, *rows = table(many)
    assert title == "the 20 least certain:"
    assert heads.split("  ")[-1] == "experts of block 1"
    assert [row.split()[0] for row in rows] == [f"{n}.jpg" for n in range(1, 21)]
    assert rows[0].endswith("cat 0.010  1 (75 %), 0 (25 %)")
    assert len(table([one._replace(experts={}) for one in many[:20]])) == 21


def test_what_cannot_be_predicted_is_said_before_anything_is_loaded(  # type: ignore[no-untyped-def]
    run: Path, folder: Path, tmp_path: Path, said, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare, new = tmp_path / "bare", str(folder / "new")  # without checkpoints
    bare.mkdir()
    text = (run / "config.toml").read_text()
    (bare / "config.toml").write_text(text)
    (tmp_path / "none").mkdir()
    monkeypatch.setattr("moespec.models.commandline.predict.GALLERY", 4)
    for words, message in (
        ([str(tmp_path), new], "there is no run, no config.toml in it"),
        ([str(bare), str(tmp_path / "absent")], "absent': there is no such file or folder"),
        ([str(bare), str(tmp_path / "none")], "none': no pictures in it"),
        ([str(bare), new, "--top", "0"], "top=0: expected an integer >= 1"),
        ([str(bare), new, "--csv", str(tmp_path / "absent" / "x.csv")], "csv='"),
        ([str(bare), new, "--html", str(tmp_path)], "is a folder"),
        ([str(bare), new, "--html", str(tmp_path / "x.html")], "5 pictures, a page has at most 4"),
    ):
        assert message in (error := said(["predict", *words], 2))
        assert error.count("\n") == 1
    (bare / "config.toml").write_text(re.sub(r"^classes = 2$", "classes = 0", text, flags=re.MULTILINE))
    assert "has no head, so no classes (objective='classification')" in said(["predict", str(bare), new], 2)
    shutil.copytree(folder / "new", tmp_path / "broken", ignore=shutil.ignore_patterns("below", "=*"))
    assert "none of 2 pictures can be read: " in said(["predict", str(run), str(tmp_path / "broken")], 2)


def test_evaluate_on_a_folder_that_has_val_alone(run: Path, folder: Path, tmp_path: Path, said) -> None:  # type: ignore[no-untyped-def]
    shutil.copytree(folder / "photos", tmp_path / "other" / "val")
    shown = said(["evaluate", str(run), "--data.path", str(tmp_path / "other")])
    assert re.search(r"data other\naccuracy [\d.]+ \(\d+ of 16\)", shown)


def test_inspect_a_folder(run: Path, folder: Path, tmp_path: Path, said) -> None:  # type: ignore[no-untyped-def]
    words = ["inspect", str(run), "--out", str(tmp_path / "x.png"), "--image"]
    shown = said([*words, str(folder / "new" / "below")])
    assert re.search(r"x-1\.png: 1 MoE layers of <b>x\.jpg, read as .*\n.*x-2\.png: .* of c\.jpg", shown)
    assert (tmp_path / "x-1.png").read_bytes() != (tmp_path / "x-2.png").read_bytes()
    draw(tmp_path / "many/0.png", 0, upright=True)
    for number in range(1, 17):
        shutil.copy(tmp_path / "many/0.png", tmp_path / f"many/{number}.png")
    assert "17 pictures, expected at most 16" in said([*words, str(tmp_path / "many")], 2)


SMALL = {"embed_dim": 16, "depth": 2, "num_heads": 2, "patch_size": 8, "img_size": 32, "mlp_ratio": 2}
"""The arguments of a small model of timm, in place of those of the page's."""
FEWER = {"--model.image-size": "16", "--training.steps": "3", "--training.batch": "4"}


def test_the_walk_through(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said) -> None:  # type: ignore[no-untyped-def]
    """The page's commands and its Python, with fewer and smaller things; onnxruntime says what predict does."""
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MOESPEC_BACKEND", "torch")  # which compiles nothing for three steps
    shutil.copytree(folder / "photos", "photos")
    shutil.copytree(folder / "new", "new")
    described = {"architecture": "vit_small_patch14_dinov2", "num_classes": 0, "model_args": SMALL}
    config = interop.config_from_timm(interop.timm_arguments(described))
    Path("encoder").mkdir()
    Path("encoder/config.json").write_text(json.dumps(described))
    write_safetensors(Path("encoder/model.safetensors"), interop.to_timm(drawn(vit.init(config, 0)), config), PT)
    blocks = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    commands = re.findall(r"^\$ moespec (.*)$", "\n".join(blocks).replace("\\\n", ""), re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["convert", "finetune", "predict", "export"]
    for command in commands:
        words = shlex.split(command, comments=True)
        words = [FEWER.get(before, word) for before, word in zip(["", *words], words, strict=False)]
        shown = said(words)
        assert "upcycled: " in shown or words[0] != "finetune"
    (block,) = re.findall(r"```py\n(.*?)```", PAGE, re.DOTALL)
    found: dict[str, object] = {}
    exec(block, found)
    with open("predictions.csv") as file:
        labels = {row["image"].lstrip("'"): row["class_1"].lstrip("'") for row in csv.DictReader(file)}
    assert found["labels"] == labels
