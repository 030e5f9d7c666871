"""The stem of convolutions of a vision transformer."""

from dataclasses import replace

import numpy as np
import pytest

from moespec.models import interop, vit
from moespec.models.layers import layer_norm
from moespec.spec.errors import ConfigError

torch = pytest.importorskip("torch")

STEM = vit.named("vit_tiny", image_size=16, patch_size=8, stem=2, channels=3, depth=1)


def test_features_double_up_to_the_width_of_a_token():
    shapes = vit.parameter_shapes(replace(STEM, stem=3))
    assert [shapes["stem"][i]["kernel"] for i in "012"] == [(3, 3, 3, 16), (3, 3, 16, 32), (3, 3, 32, 64)]
    assert shapes["stem"]["2"]["norm"] == {"scale": (64,), "bias": (64,)}
    assert shapes["embedding"]["kernel"] == (1, 1, 64, 64)


def test_a_deeper_stem_keeps_its_features_within_a_resolution():
    shapes = vit.parameter_shapes(replace(STEM, stem_depth=2))
    assert [shapes["stem"][i]["kernel"] for i in "0123"] == [
        (3, 3, 3, 32),
        (3, 3, 32, 32),
        (3, 3, 32, 64),
        (3, 3, 64, 64),
    ]
    assert shapes["embedding"]["kernel"] == (2, 2, 64, 64)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("gelu", ["tanh", "erf"])
def test_the_stem_is_convolutions_of_torch_with_a_norm_and_a_gelu(gelu, depth):
    """The model without a stem sees the same on what torch's own layers make of the image."""
    from moespec.backends import numpy as B

    config = replace(STEM, gelu=gelu, stem_depth=depth)
    random = np.random.default_rng(0)
    params = B.from_numpy(vit.init(config), "float64")
    for p in params["stem"].values():
        p["bias"], p["norm"]["scale"], p["norm"]["bias"] = random.normal(size=(3, *p["bias"].shape))
    params["head"]["kernel"] = random.normal(size=params["head"]["kernel"].shape)
    images = random.normal(size=(2, 16, 16, 3))
    x = torch.tensor(images).permute(0, 3, 1, 2)
    for i in range(2 * depth):
        p = params["stem"][str(i)]
        kernel = torch.tensor(np.asarray(p["kernel"])).permute(3, 2, 0, 1)
        x = torch.nn.functional.conv2d(x, kernel, torch.tensor(p["bias"]), stride=1 if i % depth else 2, padding=1)
        normed = layer_norm(B, p["norm"], x.permute(0, 2, 3, 1).numpy())
        form = "tanh" if gelu == "tanh" else "none"
        x = torch.nn.functional.gelu(torch.tensor(normed), approximate=form).permute(0, 3, 1, 2)
    after = replace(config, stem=0, stem_depth=1, image_size=4, patch_size=2, channels=64)
    assert "stem" not in vit.parameter_shapes(after)
    expected = vit.forward(B, after, params, x.permute(0, 2, 3, 1).numpy()).logits
    np.testing.assert_allclose(vit.forward(B, config, params, images).logits, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"stem": 4}, r"stem=4: 2\^stem must divide patch_size=8"),
        ({"stem": 0, "stem_depth": 2}, "stem_depth=2 without stem"),
        ({"stem": 1, "patch_size": 1}, r"stem=1: 2\^stem must divide patch_size=1"),
        ({"stem": 3, "width": 18, "heads": 1, "positions": "learned"}, r"stem=3: 2\^\(stem - 1\) must divide width=18"),
    ],
)
def test_a_stem_that_does_not_fit_is_an_error(fields, message):
    with pytest.raises(ConfigError, match=message):
        replace(STEM, **fields)


def test_timm_and_vmoe_have_no_such_stem():
    config = replace(STEM, positions="learned", qk_norm=False)
    for convert in (interop.to_timm, interop.to_vmoe):
        with pytest.raises(ConfigError, match="stem"):
            convert(vit.init(config), config)
