"""Exported programs: they compute what the model does, where moespec is not installed, for any number of images."""

import importlib.util
import json
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from absent import run_without
from my_routers import averaged, nearest, tempered
from of_models import drawn

from moespec import cli, training
from moespec.models import sparse_mlp, vit
from moespec.models.errors import RunError
from moespec.models.families import fewest_images
from moespec.spec.errors import ConfigError
from moespec.spec.routers import ROUTERS
from moespec.training.commands import export as command
from moespec.training.weights.own import write_file
from moespec.training.weights.record import Weights
from moespec.version import version

TOLERANCE = 1e-5
"""Of logits of about 1. The two frameworks add up in different orders; another choice of experts is 1e-2 or more."""


def written(path: Path, router: str, *, scores: float = 1.0, **fields) -> Path:
    """A file of weights of a ViT of one MoE block whose parameters are all drawn: the head of `init` is 0.

    scores: a factor of the kernel of the router.
    """
    sizes = {"image_size": 8, "patch_size": 2, "channels": 1, "classes": 5, "width": 16, "depth": 1, "hidden": 32}
    config = vit.VitConfig(**{**sizes, "heads": 2, "moe": "last_1", "experts": 4, "router": router, **fields})
    params = drawn(vit.init(config, 0))
    if scores != 1:
        params["blocks"]["0"]["moe"]["router"]["kernel"] *= np.float32(scores)
    write_file(path, Weights(config, params, {"Source": "a test"}))
    return path


def images(count: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(count, 8, 8, 1)).astype(np.float32)


def logits(path: Path, count: int, backend: str = "torch") -> np.ndarray:
    model, params = training.load(path, backend=backend)
    B = model.backend
    return B.to_numpy(model.forward(params, B.from_numpy(images(count))).logits)


def exported(source: Path, format: str) -> Path:
    target = source.with_suffix(f".out.{format}")
    assert cli.main(["export", str(source), "--format", format, "--out", str(target)]) == 0
    return target


def onnx_logits(path: Path, count: int) -> np.ndarray:
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    return session.run(None, {"images": images(count)})[0]


# Fewer steps than by default: a program has them one after the other.
FEWER = {"transport_steps": 4}
OPTIONS = {"sparsity_constrained_expert_choice": FEWER, "sparsity_constrained_token_choice": FEWER}


OWN = tuple(f"{module.__name__}:ROUTER" for module in (averaged, nearest, tempered))
EXPORTED = (OWN[0], "importance_score")
"""Routers whose programs are made in every run of the tests, as is Soft MoE's; those of the others with `pytest -m full`."""


@pytest.mark.parametrize(
    "router",
    [router if router in EXPORTED else pytest.param(router, marks=pytest.mark.full) for router in (*ROUTERS, *OWN)],
)
def test_onnx_of_every_router(router, tmp_path):
    source = written(tmp_path / "x.safetensors", router, router_options=OPTIONS.get(router, {}))
    program = exported(source, "onnx")
    expected = logits(source, 5)
    assert expected.std() > 0.1
    np.testing.assert_allclose(onnx_logits(program, 5), expected, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(onnx_logits(program, 1), expected[:1], rtol=0, atol=TOLERANCE)


def test_onnx_of_equal_scores_many_experts_and_groups_of_images(tmp_path):
    """The lower index of equal scores comes first."""
    options = {"router_options": {"capacity_factor": 0.5}, "experts": 33, "group_images": 2}
    source = written(tmp_path / "x.safetensors", "softmax_expert_choice", scores=0.0, **options)
    program = exported(source, "onnx")
    for count in (2, 6):
        np.testing.assert_allclose(onnx_logits(program, count), logits(source, count), rtol=0, atol=TOLERANCE)


WITHOUT = """
    import numpy as np
    folder, name = sys.argv[1:]
    for count in (1, 6):
        images = np.load(f"{folder}/images{count}.npy")
        if name.endswith("pt2"):
            import torch
            got = torch.export.load(f"{folder}/{name}").module()(torch.from_numpy(images)).detach().numpy()
        else:
            from jax import export
            got = np.asarray(export.deserialize(open(f"{folder}/{name}", "rb").read()).call(images))
        np.save(f"{folder}/{name}{count}.npy", got)
"""


@pytest.mark.parametrize(("format", "backend"), [("pt2", "torch"), ("stablehlo", "jax")])
def test_programs_run_without_moespec(format, backend, tmp_path):
    """Of this router the filled slots alone are computed."""
    source = written(tmp_path / "x.safetensors", "noisy_top_k")
    program = exported(source, format)
    for count in (1, 6):
        np.save(tmp_path / f"images{count}.npy", images(count))
    result = run_without(["moespec"], WITHOUT, str(tmp_path), program.name)
    assert result.returncode == 0, result.stderr
    for count in (1, 6):
        got = np.load(f"{program}{count}.npy")
        np.testing.assert_allclose(got, logits(source, count, backend), rtol=0, atol=TOLERANCE)


def test_a_run_says_how_its_images_are_normalised(runs, tmp_path, monkeypatch):
    onnx = pytest.importorskip("onnx")
    run = runs.whole("torch")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["export", str(run), "--format", "onnx"]) == 0
    program = onnx.load(tmp_path / "torch.onnx")
    about = {entry.key: json.loads(entry.value) for entry in program.metadata_props if entry.key.startswith("moespec.")}
    images = about["moespec.images"]
    assert (images["shape"], images["mean"], images["std"]) == (["batch", 8, 8, 1], [0.5], [0.5])
    assert about["moespec.about"]["Steps"] == "12 of 12"
    assert about["moespec.version"] == version()
    assert [opset.version for opset in program.opset_import if not opset.domain] == [18]


def test_onnx_of_a_model_in_bfloat16_computes_in_float32_and_is_made_quietly(tmp_path, capfd):
    source = written(tmp_path / "x.safetensors", "soft_moe", dtype="bfloat16")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program = exported(source, "onnx")
    out, err = capfd.readouterr()
    assert out.startswith("note: the program computes in float32")
    assert (out.count("\n"), err) == (2, "")
    expected = logits(written(tmp_path / "y.safetensors", "soft_moe"), 2)
    np.testing.assert_allclose(onnx_logits(program, 2), expected, rtol=0, atol=TOLERANCE)


def export(source: Path, format: str, out: Path) -> None:
    command.export_command(source, format=format, out=out, step=None)


def test_wrong_arguments_are_told_before_anything_is_read(tmp_path, monkeypatch):
    nothing = tmp_path / "nothing"
    with pytest.raises(RunError, match="expected a file, got a folder"):
        export(nothing, "pt2", tmp_path)
    for out, message in (
        ("x.jpg", r"name ending in \.pt2"),
        ("nothing.pt2", "is an input and would be overwritten; choose"),
    ):
        with pytest.raises(RunError, match=message):
            export(tmp_path / "nothing.pt2", "pt2", tmp_path / out)
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnxscript" else find(name))
    with pytest.raises(ConfigError, match=r"onnxscript is not installed.*moespec\[export,torch\]"):
        export(nothing, "onnx", tmp_path / "x.onnx")


def test_parameters_of_2_gb_are_an_error_before_there_is_a_file(tmp_path, monkeypatch):
    source = written(tmp_path / "x.safetensors", "soft_moe")
    monkeypatch.setattr(command, "LARGEST", 1000)
    with pytest.raises(ConfigError, match="parameters exceed the 2 GB limit of this format; use pt2"):
        export(source, "stablehlo", tmp_path / "x.stablehlo")
    assert [path.name for path in tmp_path.iterdir()] == ["x.safetensors"]


def test_a_model_that_routes_a_whole_batch_together(tmp_path):
    """Sparse-MLP: with groups of a fixed size the program computes what it does; without, there is none."""
    sizes = {"image_size": 8, "channels": 1, "classes": 5, "patch_size": 4, "width": 8, "depth": 1, "hidden": 8}
    sizes |= {"moe": "last_1", "sparse_tokens": 8, "sparse_width": 6, "sparse_token_hidden": 4}
    whole = sparse_mlp.named("sparse_mlp_tiny", **sizes, experts=2, sparse_hidden=4)
    source = tmp_path / "x.safetensors"
    write_file(source, Weights(whole, sparse_mlp.init(whole), {}))
    with pytest.raises(ConfigError, match="format='stablehlo': the model routes each batch as one group, but a"):
        export(source, "stablehlo", tmp_path / "y.stablehlo")
    grouped = replace(whole, group_size=2 * whole.sparse_width, group_images=3)
    write_file(source, Weights(grouped, drawn(sparse_mlp.init(grouped)), {}))
    assert fewest_images(grouped) == 6
    program = exported(source, "stablehlo")
    found = pytest.importorskip("jax.export").deserialize(program.read_bytes())
    assert found.platforms == ("cpu", "cuda", "tpu")
    assert [str(size) for size in found.in_avals[0].shape] == ["6*groups", "8", "8", "1"]
    assert json.loads(json.loads(Path(f"{program}.json").read_text())["moespec.model"])["experts"] == 2
    for count in (12, 18):
        expected = logits(source, count)
        assert expected.std() > 0.1
        np.testing.assert_allclose(found.call(images(count)), expected, rtol=0, atol=TOLERANCE)
