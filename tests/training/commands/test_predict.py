"""Predictions for a folder of pictures, and the walk-through of docs/photos.md at a small size."""

import base64
import csv
import io
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest
from of_models import drawn, images_for
from PIL import Image

from moespec import cli
from moespec.models import sparse_mlp, vit
from moespec.models.pages import render
from moespec.spec.errors import ConfigError
from moespec.training import interop
from moespec.training.data.pictures import read_image
from moespec.training.inspection.inspect_run import alone
from moespec.training.loop.resolve import load_backend, model_config
from moespec.training.reports.predictions import Prediction, check_model, make_shares, shown
from moespec.training.runs import load_run
from moespec.training.weights.files import write_safetensors
from moespec.training.weights.formats import PT

PAGE = (Path(__file__).parents[3] / "docs" / "photos.md").read_text()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`photos` of two classes, and `new`, in which a name is a formula, one is HTML and two files are broken."""
    root = tmp_path_factory.mktemp("pictures")
    names = [f"photos/{'<b>bright' if seed % 2 else '=dark'}/{seed}.jpg" for seed in range(16)]
    for seed, name in enumerate([*names, "new/=1+1.png", "new/below/<b>x.jpg", "new/below/further/c.jpg"]):
        pixels = np.random.default_rng(seed).integers(0, 160, (24, 36, 3), np.uint8) + np.uint8(90 * (seed % 2))
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(root / name)
    (root / "new/short.jpg").write_bytes((root / "new/below/further/c.jpg").read_bytes()[:700])
    for name in ("empty.png", ".hidden.jpg", "notes.txt"):
        (root / "new" / name).touch()
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


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text())))


def test_what_is_predicted(run: Path, folder: Path, tmp_path: Path, said, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    """By the model alone on what training would read; whatever else is in the folder, and however many are broken."""
    monkeypatch.setattr("moespec.training.commands.predict.BATCH", 2)  # so that the third batch is filled up
    out = tmp_path / "new.csv"
    shown = said(["predict", str(run), str(folder / "new"), "--csv", str(out), "--backend", "numpy"])
    assert shown.startswith(
        f"{folder}/new: ignored: hidden 1 (.hidden.jpg), .txt 1 (notes.txt)\n{folder}/new: 3 images"
    )
    assert re.search(r"skipped 2 of 5 images, which cannot be read:\n.*empty\.png: .*\n.*short\.jpg: ", shown)
    rows = rows_of(out)
    names = ["=1+1.png", "below/<b>x.jpg", "below/further/c.jpg"]
    assert [row["image"] for row in rows] == ["'=1+1.png", *names[1:]]
    assert {row[f"class_{rank}"] for row in rows for rank in "12"} == {"<b>bright", "'=dark"}
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
    (row,) = rows_of(out)
    assert (row["image"], row["class_1"]) == ("<b>x.jpg", rows[1]["class_1"])
    assert float(row["block_1_share"]) == pytest.approx(float(rows[1]["block_1_share"]), abs=1e-5), "also by torch"


def test_images_of_sparse_mlp_are_alone_in_a_batch() -> None:
    """Whose groups are whole batches otherwise."""
    model, B = alone(sparse_mlp.named("sparse_mlp_tiny")), load_backend("numpy")
    params, images = drawn(sparse_mlp.init(model, 0)), images_for(model, 3)
    together, shares = make_shares(B, model)(params, images)
    for row, (logits, own) in enumerate(make_shares(B, model)(params, images[row : row + 1]) for row in range(3)):
        np.testing.assert_allclose(together[row], logits[0], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose([share[row] for share in shares], [share[0] for share in own], rtol=1e-5)


def test_the_page_is_whole_and_sorted(run: Path, folder: Path, tmp_path: Path, said) -> None:  # type: ignore[no-untyped-def]
    said(["predict", str(run), str(folder / "new"), "--html", str(tmp_path / "new.html")])
    page = (tmp_path / "new.html").read_text()
    pictures = [base64.b64decode(each) for each in re.findall(r'src="data:image/jpeg;base64,([^"]*)"', page)]
    assert [Image.open(io.BytesIO(each)).size for each in pictures] == [(36, 24)] * 3
    shares = [*map(float, re.findall(r'<figcaption>\s*<div[^>]*><span>.*?</span> <meter value="(.*?)"', page))]
    assert len(shares) == 3
    assert shares == sorted(shares)
    assert "<title>new as classified by run</title>" in page
    assert "&lt;b&gt;bright" in page
    assert "<b>" not in page
    assert "short.jpg" in page.split("Unreadable images")[1]
    assert not re.search(r"https?:|<script|@import|url\(", re.sub(r"base64,[^\"]*", "", page))


def test_mistakes_of_a_labelled_folder(run: Path, folder: Path, tmp_path: Path, said: Any, monkeypatch: Any) -> None:
    """By file name, in the table and on the page, as the accuracy counts them: by a model that routes four images together."""
    names = [*(f"<b>bright/{seed} #.jpg" for seed in range(2, 8)), "=dark/0 #.jpg", "=dark/1 #.jpg"]
    files = [tmp_path / "labelled" / name for name in names]
    for file in files:  # of the dark ones, all but two are filed wrongly
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / f"photos/=dark/{2 * int(file.name[0])}.jpg", file)
    out, html, words = tmp_path / "m.csv", tmp_path / "m.html", ["evaluate", str(run), "--backend", "numpy"]
    words += ["--csv", str(out), "--html", str(html)]
    printed = said([*words, "--data.path", str(tmp_path / "labelled")])
    rows = rows_of(out)
    assert [row["image"] for row in rows] == [*map(str, files)]
    loaded = load_run(run, "numpy")
    images = np.stack([loaded.dataset.normalize(read_image(file, 16, resize=20)) for file in files])
    output = vit.forward(loaded.backend, model_config(loaded.config.model), loaded.params, images)
    weights = output.routings[0].dense().combine.sum(axis=3).reshape(8, -1, 2).sum(axis=1)
    labels, read = np.array([0] * 6 + [1] * 2), output.logits.argmax(axis=1)
    assert 0 < (wrong := int((read != labels).sum())) < 8
    for row, own, guess, share in zip(rows, labels, read, weights / weights.sum(axis=1)[:, None], strict=True):
        found = [row[name].lstrip("'") for name in ("true_class", "class_1")]
        assert found == [loaded.dataset.classes[k] for k in (own, guess)]
        assert row["right"] == str(int(own == guess))
        assert float(row["block_1_share"]) == pytest.approx(share.max(), abs=2e-6)
    recalls = [float((read[labels == own] == own).mean()) for own in (0, 1)]
    assert f"({8 - wrong} of 8)" in printed
    assert f"always <b>bright: 0.7500; balanced accuracy {np.mean(recalls):.4f}\n" in printed
    each = rf"\n<b>bright +6 +{recalls[0]:.1%} .*\n=dark +2 +{recalls[1]:.1%} .*\n"
    assert re.search(f"{each}{wrong} of 8 images are misclassified:\n", printed)
    text = html.read_text()
    links = [tmp_path / unquote(address) for address in re.findall(r'<a href="([^"#]*)"><img', text)]
    assert sorted(links) == sorted(file for file, row in zip(files, rows, strict=True) if row["right"] == "0")
    matrix = [int(count or 0) for count in re.findall(r"<td[^>]*>(\d*)</td>", text[text.index("<tbody>") :])]
    assert [matrix[1:3], matrix[4:]] == [[int((read[labels == i] == j).sum()) for j in (0, 1)] for i in (0, 1)]
    assert f"{wrong} of 8 images are misclassified." in text
    monkeypatch.setattr("moespec.training.reports.predictions.GALLERY", 1)
    said([*words, "--data.path", str(tmp_path / "labelled")])
    assert f"{wrong} of 8 images are misclassified; this page shows the 1 most confident" in html.read_text()
    assert html.read_text().count('<figure class="wrong">') == 1
    said(words)
    assert [Path(row["image"]).name for row in rows_of(out)] == ["3.jpg", "2.jpg"], "the validation images"
    out.unlink()
    monkeypatch.setattr(
        "moespec.training.commands.evaluate.predictions.table", lambda _: [f"written before: {out.is_file()}"]
    )
    assert "written before: True" in said(words), "so that `| head` does not lose it"
    assert "expected a name ending in .csv" in said(["evaluate", str(run), "--csv", "m.txt"], 2)
    (taken := folder / "photos/=dark/x.csv").touch()
    assert "is an input and would be overwritten; choose" in said(["evaluate", str(run), "--csv", str(taken)], 2)
    taken.unlink()
    with pytest.raises(ConfigError, match="its model has no head and therefore no classes"):
        check_model(run, "moco", vit.named("vit_tiny", classes=0))


def test_classes_of_one_name_are_told_apart() -> None:
    """As both cranes of ImageNet."""
    found = [Prediction(0, "x", [("crane", p)], {}, 1, label, "crane") for label, p in ((0, 0.2), (1, 0.9), (0, 0.5))]
    assert shown(found) == [found[2], found[0]]


def test_what_cannot_be_predicted_is_said_before_anything_is_loaded(  # type: ignore[no-untyped-def]
    run: Path, folder: Path, tmp_path: Path, said, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare, new = tmp_path / "bare", str(folder / "new")  # without checkpoints
    bare.mkdir()
    shutil.copy(run / "config.toml", bare)
    monkeypatch.setattr("moespec.training.commands.predict.GALLERY", 4)
    for words, message in (
        ([str(tmp_path), new], "not a run (no config.toml)"),
        ([str(bare), str(tmp_path / "absent")], "absent': no such file or folder"),
        ([str(bare), new, "--csv", str(tmp_path / "absent" / "x.csv")], "csv='"),
        ([str(bare), new, "--html", f"{new}/short.jpg"], "expected a name ending in .html"),
        ([str(bare), new, "--html", f"{run}/report.html"], f"belongs to the run '{run}'"),
        ([str(bare), new, "--html", str(tmp_path / "x.html")], "a page shows at most 4 images, got 5; use --csv"),
    ):
        assert message in (error := said(["predict", *words], 2))
        assert error.count("\n") == 1
    shutil.copytree(folder / "new", tmp_path / "broken", ignore=shutil.ignore_patterns("below", "=*"))
    assert "none of 2 images can be read: " in said(["predict", str(run), str(tmp_path / "broken")], 2)


def test_inspect_a_folder(run: Path, folder: Path, tmp_path: Path, said) -> None:  # type: ignore[no-untyped-def]
    words = ["inspect", str(run), "--out", str(tmp_path / "x.png"), "--image"]
    shown = said([*words, str(folder / "new")])
    assert re.search(r"x-2\.png: 1 MoE layers of <b>x\.jpg, predicted .*\n.*x-3\.png: .* of c\.jpg", shown)
    assert re.search(r"\nskipped 2 of 5 images, which cannot be read:\n.*empty\.png: .*\n.*short\.jpg: ", shown)
    assert (tmp_path / "x-2.png").read_bytes() != (tmp_path / "x-3.png").read_bytes()
    assert " images, expected at most 16" in said([*words, str(folder)], 2)


SMALL = {"embed_dim": 16, "depth": 2, "num_heads": 2, "patch_size": 8, "img_size": 32, "mlp_ratio": 2}
"""The arguments of a small model of timm, in place of those of the page's."""
FEWER = {"--model.image-size": "16", "--training.steps": "3", "--training.batch": "4"}


def test_the_walk_through(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said) -> None:  # type: ignore[no-untyped-def]
    """The page's commands and its Python, with fewer and smaller things; onnxruntime says what predict does.

    It takes seconds to make the program.
    """
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
    commands = re.findall(r"^\$ moespec (.*)$", PAGE.replace("\\\n", ""), re.MULTILINE)
    assert " ".join(line.split()[0] for line in commands) == "convert finetune evaluate predict export train"
    for command in commands:
        words = shlex.split(command, comments=True)
        words = [FEWER.get(before, word) for before, word in zip(["", *words], words, strict=False)]
        shown = said(words)
        assert "upcycled: " in shown or words[0] != "finetune"
    (block,) = (code for code in re.findall(r"```py\n(.*?)```", PAGE, re.DOTALL) if "import onnxruntime" in code)
    found: dict[str, object] = {}
    exec(block, found)
    rows = rows_of(Path("predictions.csv"))
    assert found["labels"] == {row["image"].lstrip("'"): row["class_1"].lstrip("'") for row in rows}


def test_a_page_shows_controls_as_text(tmp_path: Path) -> None:
    (tmp_path / "x.jinja").write_text("{{ text }} {{ text | breakable }}")
    assert render(tmp_path / "x.jinja", text="<\x1b\u202e\udcff") == " ".join(["&lt;\\x1b\\u202e\\udcff"] * 2)
