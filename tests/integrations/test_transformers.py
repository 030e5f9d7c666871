"""A model of transformers with our layers is saved, and comes back to the bit."""

import json

import pytest

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")
pytest.importorskip("torchvision_operators")  # before transformers imports torchvision

from moespec.backends.torch.nn import from_pretrained, replace_mlps  # noqa: E402
from moespec.spec import ConfigError  # noqa: E402

Model = transformers.ViTForImageClassification
SIZES = {
    "image_size": 16,
    "patch_size": 4,
    "num_channels": 1,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_labels": 4,
}


@pytest.fixture
def made():
    """Two calls, the second of a router with a table and a capacity that JSON has no number for."""
    model = Model(transformers.ViTConfig(**SIZES, num_hidden_layers=3, num_attention_heads=2)).eval()
    replace_mlps(model, experts=4, tokens=17, blocks=[-1], router="softmax_token_choice", choices=2, group_images=2)
    replace_mlps(model, experts=3, tokens=17, blocks=[0], router="hash", capacity_factor=float("inf"))
    return model


@pytest.fixture
def saved(made, tmp_path):
    made.save_pretrained(tmp_path)
    return tmp_path


def test_a_saved_model_comes_back_with_its_layers(made, saved):
    again = from_pretrained(Model, saved)
    assert type(again) is Model
    assert not again.training
    images = torch.randn(2, 1, 16, 16)
    assert torch.equal(again(images).logits, made(images).logits)
    assert again.config.moespec == made.config.moespec
    again.save_pretrained(saved / "again")
    assert torch.equal(from_pretrained(Model, saved / "again")(images).logits, made(images).logits)
    half = from_pretrained(Model, saved, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in half.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("cls", "change", "message"),
    [
        (transformers.AutoModelForImageClassification, {}, r"^cls: expected a model class of transformers \(not an Auto"),
        (Model, {"moespec": None}, "its configuration has no MoE layers"),
        (Model, {"moespec": {"replaced": [{"experts": 4, "tokens": 17, "blocks": [7]}]}}, r"blocks=\[7\]: there is no block 7"),
        (Model, {"moespec": {"replaced": [{"experts": 4, "tokens": 17, "router": "gshard"}]}}, "no vit.*experts.fc1.bias of"),
    ],
)  # fmt: skip
def test_a_folder_that_does_not_fit(saved, cls, change, message):
    path = saved / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ConfigError, match=message):
        from_pretrained(cls, saved)
