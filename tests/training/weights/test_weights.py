"""Weights in files: those of other projects are read, compute what they computed there, and come back equal.

The files in `weight_files` were written by those projects, see record.json there; timm's is made of the recorded
parameters in `interop/interop_vectors`.
"""

import io
import json
import random
import re
import shutil
from dataclasses import replace
from pathlib import Path

import msgpack
import numpy as np
import pytest
import safetensors.numpy
from damaged import message_of
from of_models import drawn
from PIL import Image
from safetensors.numpy import load_file

import moespec.backends.numpy as numpy_backend
from moespec import cli, training
from moespec.models import vit
from moespec.models.errors import CheckpointError, RunError
from moespec.models.pytrees import flatten
from moespec.spec.errors import ConfigError, ShapeError
from moespec.spec.routers import ROUTERS
from moespec.training import interop
from moespec.training.loop.runlog import read_log
from moespec.training.weights import files, formats, hub, vmoe_files
from moespec.training.weights.formats import Given, read, write
from moespec.training.weights.record import Weights
from moespec.version import version

FILES = Path(__file__).parent / "weight_files"
VECTORS = Path(__file__).parents[1] / "interop" / "interop_vectors"

WITH_OUTPUTS = {
    "big_vision.npz": {},
    "big_vision_token.npz": {},
    "big_vision_map.npz": {"image_size": 8, "positions": "sincos2d"},
    "big_vision_scanned.npz": {},
    "mixer.npz": {},
    "vision_transformer.npz": {},
    "huggingface": {},
    "huggingface_headless": {},
}


def tiny(**fields) -> Weights:
    sizes = {"image_size": 8, "patch_size": 4, "channels": 1, "classes": 3, "width": 8, "depth": 2, "hidden": 12}
    config = vit.VitConfig(**{**sizes, "heads": 2, **fields})
    return Weights(config, vit.init(config, 1), {"Source": "a test"})


def moe(**fields) -> Weights:
    return tiny(moe="last_1", experts=2, router="soft_moe", gelu="tanh", **fields)


def vector(name: str) -> dict[str, np.ndarray]:
    """The recorded parameters, by the other project's names."""
    tensors = load_file(VECTORS / f"{name}.safetensors")
    return {key.removeprefix("params/"): value for key, value in tensors.items() if key.startswith("params/")}


def arguments(name: str) -> dict:
    return json.loads((VECTORS / f"{name}.json").read_text())["model"]


def equal(one: dict, other: dict) -> None:
    one, other = flatten(one), flatten(other)
    assert set(one) == set(other)
    for name, value in one.items():
        assert value.dtype == other[name].dtype, name
        np.testing.assert_array_equal(value, other[name], err_msg=name)


@pytest.mark.filterwarnings("ignore:config.layer_norm_eps")
@pytest.mark.parametrize(("name", "fields"), WITH_OUTPUTS.items())
def test_outputs_are_those_of_the_other_project(name, fields):
    model, params = training.load(FILES / name, backend="numpy", **fields)
    expected = np.load(FILES / f"{name.removesuffix('.npz')}_expected.npz")
    output = model.forward(params, model.backend.from_numpy(expected["x"]))
    got = output.features if output.logits is None else output.logits
    np.testing.assert_allclose(got, expected["y"], rtol=0, atol=2e-6)


@pytest.mark.parametrize("name", ["vmoe_soft_moe", "vmoe_soft_moe.index", "vmoe_soft_moe.data-00001-of-00003"])
def test_a_checkpoint_of_vmoe_is_read(name):
    weights = read(FILES / name, Given(arguments=arguments("vmoe_soft_moe")))
    assert (weights.config.router, weights.config.image_size) == ("soft_moe", 8)
    theirs = flatten(interop.to_vmoe(weights.params, weights.config))
    assert theirs.keys() == (expected := vector("vmoe_soft_moe")).keys()
    assert all(np.array_equal(theirs[name], expected[name]) for name in expected)


def test_bfloat16_in_a_checkpoint_of_vmoe_becomes_float32():
    params = read(FILES / "vmoe_dense_token", Given()).params
    exact = vector("vmoe_dense_token")["head/bias"]
    assert params["head"]["bias"].dtype == np.float32
    np.testing.assert_allclose(params["head"]["bias"], exact, rtol=2**-8)
    assert not (params["head"]["bias"] == exact).any()
    np.testing.assert_array_equal(params["head"]["kernel"], vector("vmoe_dense_token")["head/kernel"])


@pytest.mark.filterwarnings("ignore:norm_epsilon and gelu")
def test_timm_by_its_names(tmp_path):
    """What the shapes show, such as the number of classes, is theirs; what they do not, the name's."""
    arguments = {"embed_dim": 192, "num_heads": 3, "num_classes": 7, "img_size": 32, "act_layer": "gelu_tanh"}
    config = interop.config_from_timm(arguments)
    write(tmp_path / "x.safetensors", Weights(config, vit.init(config), {}), "timm")
    assert files.read_safetensors(tmp_path / "x.safetensors")[1]["format"] == "pt"
    ours = read(tmp_path / "x.safetensors", Given(model="vit_tiny_patch16_224")).config
    assert ours == replace(config, gelu="erf")
    with pytest.raises(ConfigError, match="model='vit_base_patch16_224' has width=768, the weights have 192"):
        read(tmp_path / "x.safetensors", Given(model="vit_base_patch16_224"))
    with pytest.raises(ConfigError, match="heads: cannot be inferred from the weights; pass --set heads=6 or --model"):
        read(tmp_path / "x.safetensors", Given())


def test_positions_that_fit_two_grids_are_asked_for(tmp_path):
    """A class token, 8 registers and 16 patches, or 25 patches."""
    theirs = tiny(pool="token", registers=8, gelu="erf", patch_size=2)
    assert theirs.params["positions"].shape[1] == 25
    write(tmp_path / "x.safetensors", theirs, "timm")
    with pytest.raises(ConfigError, match="image_size: cannot be inferred from the weights"):
        read(tmp_path / "x.safetensors", Given(fields={"heads": 2}))
    with pytest.warns(UserWarning, match="norm_epsilon and gelu: cannot be inferred from the weights"):
        found = read(tmp_path / "x.safetensors", Given(fields={"heads": 2, "image_size": 8, "positions": "learned"}))
    assert found.config == theirs.config


def test_models_of_timm_by_name():
    ours = interop.config_from_timm(interop.timm_arguments({"architecture": "vit_small_patch14_reg4_dinov2"}))
    assert (ours.registers, ours.layer_scale) == (4, 1e-5)
    with pytest.raises(ConfigError, match="architecture='resnet50': not a VisionTransformer"):
        interop.timm_arguments({"architecture": "resnet50"})
    names, counterparts = interop.models_of_timm(), []
    for name, arguments in names.items():
        try:
            counterparts.append(interop.config_from_timm(arguments) and name)
        except ConfigError:
            continue
    assert (len(names), len(counterparts)) == (163, 114)


@pytest.mark.filterwarnings("ignore:config.layer_norm_eps")
@pytest.mark.parametrize(
    "name", ["big_vision.npz", "big_vision_token.npz", "mixer.npz", "huggingface", "huggingface_headless"]
)
def test_what_is_read_is_written_equal(tmp_path, name):
    path, back = FILES / name, tmp_path / name
    write(back, read(path, Given()), formats.format_of(path))
    if path.suffix == ".npz":
        equal(dict(np.load(back)), dict(np.load(path)))
    else:
        (arrays, metadata), (others, before) = (files.read_safetensors(x / "model.safetensors") for x in (back, path))
        equal(arrays, others)
        assert before.items() <= metadata.items()
        assert read(back, Given()).config == read(path, Given()).config


def test_vision_transformer_comes_back_with_the_names_of_its_released_files(tmp_path):
    weights = read(FILES / "vision_transformer.npz", Given())
    write(tmp_path / "back.npz", weights, "vision_transformer")
    names = {name for name in np.load(tmp_path / "back.npz") if "encoderblock_1" in name}
    assert {name.split("/")[2] for name in names} == {
        *("LayerNorm_0", "MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3")
    }
    equal(read(tmp_path / "back.npz", Given()).params, weights.params)


DENSE = (tiny(qk_norm=True), tiny(pool="map"), tiny(pool="token", representation=4), tiny(classes=0))


@pytest.mark.parametrize(
    ("name", "weights"),
    [*((name, moe()) for name in ("vmoe", "vmoe.npz", "hub", "own.safetensors")), *(("vmoe", one) for one in DENSE)],
)
def test_what_we_write_we_read(tmp_path, name, weights):
    """The sizes of a dense model are read off its arrays."""
    format = {"vmoe.npz": "vmoe", "own.safetensors": "moespec"}.get(name, name)
    write(tmp_path / name, weights, format)
    given = format not in ("hub", "moespec") and weights.config.experts
    fields = {key: getattr(weights.config, key) for key in MOE} if given else {}
    copy = read(tmp_path / name, Given(fields=fields))
    assert copy.config == weights.config
    equal(copy.params, weights.params)
    if format in ("hub", "moespec"):
        assert copy.about == weights.about


MOE = ("moe", "experts", "router")


def unpacked(path: Path) -> dict:
    return msgpack.unpackb(path.read_bytes(), ext_hook=msgpack.ExtType)


def test_a_checkpoint_of_vmoe_is_written_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(vmoe_files, "LARGEST_PART", 64)
    write(tmp_path / "x", moe(), "vmoe")
    leaves = [leaf for key, leaf in unpacked(tmp_path / "x.data-00000-of-00001").items() if key.isdigit()]
    largest = max(value.nbytes for value in flatten(moe().params).values())
    assert max(len(parts) for ((parts, _),) in leaves) == largest // 64
    equal(read(tmp_path / "x", Given(fields={key: getattr(moe().config, key) for key in MOE})).params, moe().params)


@pytest.mark.parametrize(
    ("weights", "format", "message"),
    [
        (tiny(pool="token"), "big_vision", "positions: expected 0 for the class token, since big_vision gives"),
        *((moe(pool="token"), name, r"moe='last_1'") for name in ("timm", "huggingface", "big_vision", "vision_transformer")),
        (tiny(), "run", "to='run': this format can only be read"),
    ],
)  # fmt: skip
def test_what_has_no_place_there_is_not_written(tmp_path, weights, format, message):
    with pytest.raises(ConfigError, match=message):
        write(tmp_path / "x", weights, format)
    assert not list(tmp_path.iterdir())


def test_a_bit_of_converted_weights(tmp_path):
    """Is noticed wherever it is, but in the name of the checksum; a file without one is read, as those of others are."""
    path, weights = tmp_path / "x.safetensors", tiny()
    formats.own.write_file(path, weights)
    content, draw = path.read_bytes(), random.Random(1)
    for _ in range(40):
        place = draw.randrange(len(content))
        path.write_bytes(content[:place] + bytes([content[place] ^ 1 << draw.randrange(8)]) + content[place + 1 :])
        if not content.find(b"moespec.sha256") <= place < content.find(b"moespec.sha256") + 14:
            assert str(path) in message_of(CheckpointError, read, path, Given()), place
    path.write_bytes(safetensors.numpy.save(flatten(weights.params), formats.own.metadata_of(weights)))
    equal(flatten(read(path, Given()).params), flatten(weights.params))


def test_what_is_wrong_with_a_file_names_the_file_and_the_array(tmp_path):
    path, weights = tmp_path / "x.safetensors", tiny()
    wrong = flatten(weights.params) | {"norm/scale": np.ones(9, np.float32)}
    files.write_safetensors(path, wrong, formats.own.metadata_of(weights))
    with pytest.raises(ShapeError, match=rf"{re.escape(str(path))}.*norm/scale has shape \(9,\), expected \(8,\)"):
        read(path, Given())
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(CheckpointError, match=rf"{re.escape(str(path))}: not a safetensors file"):
        read(path, Given())


@pytest.mark.parametrize(
    ("name", "metadata", "message"),
    [
        ("model", "{", "metadata: not JSON"),
        ("model", '{"family": "vit", "width": "8", "depth": 1, "hidden": 8, "heads": 1}', "width='8': expected an integer"),
        ("model", '{"family": "vit", "beams": 8}', "beams=8: VitConfig has only"),
        ("model", '{"family": "vit", "width": 8, "depth": 1, "hidden": 8, "heads": 1, "router_options": 8}', "router_options=8: expected"),
        ("images", '{"mean": ["x"], "std": [0.1]}', "moespec.images: expected mean, std"),
    ],
)  # fmt: skip
def test_metadata_that_describes_nothing(tmp_path, name, metadata, message):
    path, weights = tmp_path / "x.safetensors", tiny()
    described = formats.own.metadata_of(weights) | {f"moespec.{name}": metadata}
    files.write_safetensors(path, flatten(weights.params), described)
    with pytest.raises((CheckpointError, ConfigError), match=rf"{re.escape(str(path))}.*{re.escape(message)}"):
        read(path, Given())


class Pickled:
    def __reduce__(self):
        return (print, ("this must not run",))


def npz(**arrays) -> bytes:
    content = io.BytesIO()
    np.savez(content, **arrays)
    return content.getvalue()


SCALE = npz(**{"Transformer/encoder_norm/scale": np.ones(8, np.float32)})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (SCALE.replace(b"(8,)", b"(9,)"), "'Transformer/encoder_norm/scale': "),
        (npz(evil=np.array([Pickled()], object)), "'evil': "),
    ],
    ids=["header", "pickle"],
)
def test_a_damaged_npz(tmp_path, content, message, capsys):
    """test_datasets has what else may be wrong with one."""
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"x\.npz: not a readable .npz file of arrays \({message}"):
        read(tmp_path / "x.npz", Given())
    assert "must not run" not in capsys.readouterr().out


def copied(tmp_path: Path) -> Path:
    for file in FILES.glob("vmoe_soft_moe.*"):
        shutil.copy(file, tmp_path)
    return tmp_path / "vmoe_soft_moe"


SOFT = Given(arguments=arguments("vmoe_soft_moe"))


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def of_version(version: str | None):
    """Leaves of a state are numbered in the order of a class that only vmoe knows, in files that tell no version."""

    def change(path: Path) -> None:
        index = {**unpacked(path), "version": version}
        path.write_bytes(msgpack.packb({key: value for key, value in index.items() if value is not None}))

    return change


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("data-00001-of-00003", Path.unlink, r"data-00001-of-00003: cannot be read"),
        ("index", cut_off, "index: not a checkpoint file"),
        ("data-00002-of-00003", cut_off, "data-00002-of-00003: not a checkpoint file"),
        (
            "data-00001-of-00003",
            lambda path: shutil.copy(path.with_suffix(".data-00000-of-00003"), path),
            "is incomplete: ",
        ),
        ("index", of_version(None), "older than version 20220622 and has 'opt_state'"),
        ("index", of_version("20990101"), "version '20990101', expected '20220622'"),
    ],
)
def test_a_damaged_checkpoint_of_vmoe(tmp_path, name, damage, message):
    prefix = copied(tmp_path)
    damage(tmp_path / f"vmoe_soft_moe.{name}")
    with pytest.raises(CheckpointError, match=message):
        read(prefix, SOFT)


def test_the_leaves_of_vmoe_are_numbered_by_sorted_keys(tmp_path):
    """However the file has them: so does JAX, which numbered them."""
    prefix = copied(tmp_path)
    path = tmp_path / "vmoe_soft_moe.index"

    def turned(tree):
        return {key: turned(tree[key]) for key in reversed(tree)} if isinstance(tree, dict) else tree

    path.write_bytes(msgpack.packb(turned(unpacked(path))))
    equal(read(prefix, SOFT).params, read(FILES / "vmoe_soft_moe", SOFT).params)


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        ("vmoe_soft_moe", Given(), "the routers of the MoE blocks cannot be inferred from the weights"),
        ("big_vision_map.npz", Given(), "image_size: cannot be inferred from the weights; pass --set image_size=224"),
        ("big_vision.npz", Given(model="vit_s16"), "model='vit_s16' has patch_size=16, the weights have 2"),
        ("", Given(), "expected a run (config.toml) or a hub folder (config.json)"),
    ],
)
def test_sources_that_cannot_be_read(path, options, message):
    with pytest.raises((CheckpointError, ConfigError), match=rf"{re.escape(str(FILES / path))}.*{re.escape(message)}"):
        read(FILES / path, options)


def test_faults_of_the_command_are_one_line(tmp_path, said):
    source, target = FILES / "mixer.npz", tmp_path / "x.safetensors"
    for more, message in (
        (["--from", "keras"], "from='keras': expected one of run, moespec"),
        (["--set", "heads"], "set='heads': expected FIELD=VALUE"),
        (["--set", "heads=2"], "heads=2: MixerConfig has only"),
        (["--to", "timm"], "MixerConfig: timm has no such model"),
        (["--arguments", str(tmp_path / "nowhere.json")], "nowhere.json: cannot be read"),
    ):
        assert message in said(["convert", str(source), str(target), *more], 2)
    assert "x.bin': expected NAME.safetensors" in said(["convert", str(source), str(tmp_path / "x.bin")], 2)
    assert not list(tmp_path.iterdir())
    (target := tmp_path / "model.safetensors").touch()
    for words in ([tmp_path, target], [target, tmp_path, "--to", "hub"]):
        assert ": is an input and would be overwritten; choose another path" in said(["convert", *map(str, words)], 2)


def test_the_hub_folder_of_a_run(tmp_path, runs):
    run = runs.whole("jax")
    assert cli.main(["convert", str(run), str(tmp_path / "hub"), "--to", "hub"]) == 0
    assert {path.name for path in (tmp_path / "hub").iterdir()} == set(hub.OWN)
    card = (tmp_path / "hub/README.md").read_text()
    last = read_log(run, "evaluation")[-1]
    assert f"| Validation accuracy | {last['accuracy']:.4f} of 355 images |" in card
    equal(read(tmp_path / "hub", Given()).params, read(run, Given()).params)
    earlier = read(run, Given(step=4))
    assert not np.array_equal(earlier.params["head"]["kernel"], read(run, Given()).params["head"]["kernel"])


def test_a_hub_folder_is_replaced_whole_and_no_other_is(tmp_path):
    """And is made with the folders above it."""
    write(tmp_path / "hub/x", tiny(), "hub")
    write(tmp_path / "hub/x", moe(), "hub")
    assert read(tmp_path / "hub/x", Given()).config == moe().config
    (tmp_path / "hub/x/notes.txt").write_text("mine")
    with pytest.raises(RunError, match=r"contains 'notes\.txt'"):
        write(tmp_path / "hub/x", tiny(), "hub")
    assert sorted(path.name for path in (tmp_path / "hub").iterdir()) == ["x"]


def test_a_crash_while_writing_a_folder_leaves_the_old_one(tmp_path, monkeypatch):
    write(tmp_path / "x", moe(), "hub")

    def full(path: Path) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(hub, "sync_directory", full)
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path / "x", tiny(), "hub")
    assert read(tmp_path / "x", Given()).config == moe().config
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda config: {**config, "model": {**config["model"], "gelu": "erf"}}, "its model differs from the one in"),
        (lambda config: {**config, "model": None}, "expected a table"),
        (lambda config: {**config, "id2label": {"0": "a", "1": "d", "2": "c"}}, "its classes differ from those in"),
    ],
)  # fmt: skip
def test_a_config_json_that_does_not_fit_is_refused(tmp_path, change, message):
    write(tmp_path / "x", replace(tiny(), classes=("a", "b", "c")), "hub")
    path = tmp_path / "x/config.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(CheckpointError, match=rf"config\.json: .*{message}"):
        read(tmp_path / "x", Given())


def test_a_module_is_saved_for_the_hub_and_comes_back(runs, tmp_path):
    torch = pytest.importorskip("torch")
    pytest.importorskip("huggingface_hub")
    run = runs.whole("torch")
    module = training.load(run, backend="torch").module().eval()
    with torch.no_grad():
        module.get_parameter("head.bias").add_(0.5)  # as training would
    module.save_pretrained(tmp_path / "x")
    config = json.loads((tmp_path / "x/config.json").read_text())
    assert (config["id2label"], config["moespec_version"]) == ({str(n): str(n) for n in range(10)}, version())
    again = type(module).from_pretrained(tmp_path / "x").eval()
    images = torch.rand(2, 8, 8, 1)
    assert torch.equal(again(images), module(images))
    assert again.classes == module.classes == read(run, Given()).classes
    model, params = training.load(tmp_path / "x", backend="torch")
    assert torch.equal(model.forward(params, images).logits, module(images))
    module(images).sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())
    with pytest.raises(ConfigError, match="backend='numpy': torch modules need load"):
        training.load(run, backend="numpy").module()
    with pytest.raises(ConfigError, match="map_location='meta' is not an option of from_pretrained"):
        type(module).from_pretrained(tmp_path / "x", map_location="meta")


@pytest.mark.parametrize("fields", [{}, {"channels": 3, "moe": "last_1", "experts": 2, "group_images": 2}])
def test_the_lines_of_the_card_go_from_a_picture_to_its_label(fields, tmp_path, monkeypatch, capsys):
    """With the size, mean and deviation of the run, of a module that was loaded and saved."""
    pytest.importorskip("torch")
    pytest.importorskip("huggingface_hub")
    plain = tiny(**fields)
    images = {"mean": [0.2, 0.3, 0.9][: plain.config.channels], "std": [0.1], "resize": 12, "background": "white"}
    weights = replace(plain, params=drawn(plain.params), classes=("cat", "dog", "owl"), images=images)
    write(tmp_path / "x", weights, "hub")
    training.load(tmp_path / "x", backend="torch").module().save_pretrained(tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    code = re.search("```python\n(.*?)```", (tmp_path / "mine/README.md").read_text(), re.DOTALL)[1]
    labels = set()
    for seed in range(8):
        noise = np.random.default_rng(seed).integers(0, 256, (12, 18, 3), np.uint8)
        Image.fromarray(noise).convert("RGB" if fields else "L").save("photo.jpg", quality=95)
        pixels = np.asarray(Image.open("photo.jpg")).reshape(12, 18, -1)[2:10, 5:13]
        batch = np.repeat(((pixels / 255 - images["mean"]) / images["std"])[None], 2, axis=0)
        logits = vit.forward(numpy_backend, weights.config, numpy_backend.from_numpy(weights.params), batch).logits
        exec(code, {})
        labels.add(label := capsys.readouterr().out.strip())
        assert label == weights.classes[logits[0].argmax()]
    assert len(labels) > 1, "the model tells pictures apart"


@pytest.mark.parametrize("router", list(ROUTERS))
def test_a_saved_module_of_every_router_is_read(router, tmp_path):
    torch = pytest.importorskip("torch")
    pytest.importorskip("huggingface_hub")
    write(tmp_path / "x", tiny(moe="last_1", experts=2, router=router), "hub")
    module = training.load(tmp_path / "x", backend="torch").module().eval()
    module.save_pretrained(tmp_path / "y")
    images = torch.rand(2, 8, 8, 1)
    assert torch.equal(type(module).from_pretrained(tmp_path / "y").eval()(images), module(images))
    equal(read(tmp_path / "y", Given()).params, read(tmp_path / "x", Given()).params)


@pytest.mark.parametrize(("name", "format"), [("hub", "hub"), ("x.safetensors", "moespec"), ("hf", "huggingface")])
def test_names_of_classes_travel(tmp_path, name, format):
    weights = read(FILES / "huggingface", Given()) if format == "huggingface" else tiny()
    named = replace(weights, classes=tuple(f"Häuser\n{label}" for label in range(weights.config.classes)))
    write(tmp_path / name, named, format)
    assert read(tmp_path / name, Given()).classes == named.classes
    assert training.load(tmp_path / name, backend="numpy").model.classes == named.classes


def test_a_run_whose_names_are_too_few(runs, tmp_path):
    run = runs.broken("torch", tmp_path / "run", step=4)
    assert read(run, Given()).classes == ()
    (run / "classes.json").write_text('["0", "1"]')
    with pytest.raises(CheckpointError, match=r"classes\.json: expected 10 class names, got 2"):
        read(run, Given())


@pytest.mark.parametrize("labels", [None, [], {"0": 1}, {"1": "a"}, {"0": "a"}, {str(n): n for n in range(5)}])
def test_labels_that_are_no_names(tmp_path, labels):
    """Also transformers' placeholders, which the file has."""
    shutil.copytree(FILES / "huggingface", tmp_path / "x")
    if labels is not None:
        path = tmp_path / "x/config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "id2label": labels}))
    assert read(tmp_path / "x", Given()).classes == ()


@pytest.mark.parametrize("wrapper", ["params", "state_dict"])
def test_a_wrapped_tree_is_taken(wrapper):
    config = interop.config_from_timm(arguments("timm_token"))
    theirs = vector("timm_token")
    equal(interop.from_timm({wrapper: theirs, "epoch": 3}, config), interop.from_timm(theirs, config))


def test_tensors_in_bfloat16_with_a_gradient_become_float32():
    torch = pytest.importorskip("torch")
    narrow = {name: torch.tensor(v).bfloat16().requires_grad_() for name, v in vector("timm_token").items()}
    ours = interop.from_timm(narrow, interop.config_from_timm(arguments("timm_token")))
    assert {value.dtype for value in flatten(ours).values()} == {np.dtype(np.float32)}
    np.testing.assert_array_equal(ours["norm"]["scale"], narrow["norm.weight"].detach().float())
