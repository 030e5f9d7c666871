"""Programs of anybody's module with our layers."""

import importlib
import importlib.util
import io

import pytest

import moespec.spec as spec

torch = pytest.importorskip("torch")
B = importlib.import_module("moespec.backends.torch")
modules = importlib.import_module("moespec.backends.torch.nn")

ROUTERS = ("gshard", "softmax_token_choice", "softmax_expert_choice")
WIDTH = 8


class Vit(torch.nn.Module):
    """Patches of 2 x 2 pixels of images (N, 1, 6, 6), a class token, blocks of three routers, and a factor for each image."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.patches, self.head = torch.nn.Conv2d(1, WIDTH, 2, 2), torch.nn.Linear(WIDTH, 5)
        self.token = torch.nn.Parameter(torch.randn(1, 1, WIDTH))
        each = {"tokens": 10, "capacity_factor": 1.0, "group_images": 2}
        self.blocks = torch.nn.ModuleList(modules.MoE(WIDTH, 16, 4, router=router, **each) for router in ROUTERS)

    def forward(self, images, factor):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1)
        for block in self.blocks:
            x = x + 5 * block(x)
        return self.head(x[:, 0]) * factor[:, None]


@pytest.fixture
def vit():
    return Vit().eval()


EXAMPLE = torch.zeros(1, 1, 6, 6), torch.ones(1)
INPUTS = torch.randn(8, 1, 6, 6, generator=torch.Generator().manual_seed(1)), torch.arange(1.0, 9.0)


def test_onnx_of_a_module_with_three_sparse_routers(vit):
    """An example of one image; groups of two, as the layers say."""
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    session = onnxruntime.InferenceSession(B.export_onnx(vit, EXAMPLE, metadata={"by": "me"}))
    assert session.get_modelmeta().custom_metadata_map["by"] == "me"
    assert [(each.name, each.shape[1:]) for each in session.get_inputs()] == [("images", [1, 6, 6]), ("factor", [])]
    for count in (2, 8):
        images, factor = (array[:count] for array in INPUTS)
        (logits,) = session.run(["logits"], {"images": images.numpy(), "factor": factor.numpy()})
        torch.testing.assert_close(torch.from_numpy(logits), vit(images, factor))


def test_pt2_of_a_module(vit):
    """And what the layers keep of a pass is that of no trace."""
    content = B.export_pt2(vit, EXAMPLE, metadata={"by": "me"})
    assert all(block.losses == {} and block.metrics is None for block in vit.blocks)
    files = {"by": ""}
    program = torch.export.load(io.BytesIO(content), extra_files=files).module()
    assert files == {"by": "me"}
    torch.testing.assert_close(program(*INPUTS), vit(*INPUTS))


@pytest.mark.parametrize(
    ("example", "options", "message"),
    [
        ([1, 6, 6], {}, r"example: expected a tensor \(images, ...\) or a tuple of such tensors, got \['list'\]"),
        ((EXAMPLE[0][:0], EXAMPLE[1]), {}, "example: expected a tensor"),
        (EXAMPLE[0], {}, r"example: Vit cannot be run on \(6, 1, 6, 6\) float32: .* 'factor'"),
        (EXAMPLE, {"multiple": 0}, "multiple=0: expected an integer >= 1"),
    ],
)
def test_an_example_that_is_none(vit, example, options, message):
    with pytest.raises(spec.ConfigError, match=f"^{message}"):
        B.export_pt2(vit, example, **options)


def test_modules_that_cannot_be_exported(vit, monkeypatch):
    for module, message in (("x", "expected a torch.nn.Module, got 'x'"), (Vit(), "is in training mode")):
        with pytest.raises(spec.ConfigError, match=f"^module: {message}"):
            B.export_onnx(module, EXAMPLE)
    with pytest.raises(spec.ConfigError, match=r"^module: has bfloat16 parameters.*module\.float\(\)"):
        B.export_onnx(Vit().eval().bfloat16(), EXAMPLE)
    monkeypatch.setattr("moespec.backends.torch.export.LARGEST", 1000)
    with pytest.raises(spec.ConfigError, match=r"^module: [\d,]+ bytes of parameters exceed the 2 GB limit of ONNX"):
        B.export_onnx(vit, EXAMPLE)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(spec.ConfigError, match=r"^export_onnx: onnx is not installed.*moespec\[export,torch\]"):
        B.export_onnx(vit, EXAMPLE)


@pytest.mark.parametrize(
    "options",
    [
        {"latent_width": 4, "latent_norm": True},
        *(pytest.param(kind, marks=pytest.mark.full) for kind in ({}, {"copy_experts": 1}, {"weights_on": "input"})),
    ],
)
def test_pt2_of_experts_without_biases(options):
    """Most slots are empty, so the rows of each expert are multiplied apart."""
    start = {"router": "sigmoid_token_choice", "expert_activation": "swiglu", "expert_bias": False, **options}
    layer = modules.MoE(WIDTH, 16, 8, tokens=6, choices=2, **start).eval()
    x = torch.randn(3, 6, WIDTH, generator=torch.Generator().manual_seed(2))
    program = torch.export.load(io.BytesIO(B.export_pt2(layer, (x[:1],))))
    torch.testing.assert_close(program.module()(x), layer(x))
