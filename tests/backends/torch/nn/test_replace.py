"""`MoE` in place of the MLPs of models as others write them, with their weights; devices, shapes and weight decay."""

import importlib
import math
import subprocess
import sys

import numpy as np
import pytest

from moespec.spec import ConfigError, ShapeError

torch = pytest.importorskip("torch")
modules = importlib.import_module("moespec.backends.torch.nn")

from torch import nn  # noqa: E402

WIDTH, HIDDEN, TOKENS = 8, 16, 5


class Mlp(nn.Module):
    """As timm writes it."""

    def __init__(self, act=None, bias=True):
        super().__init__()
        self.fc1, self.act = nn.Linear(WIDTH, HIDDEN, bias=bias), act or nn.GELU()
        self.drop1, self.norm, self.fc2 = nn.Dropout(0.5), nn.Identity(), nn.Linear(HIDDEN, WIDTH, bias=bias)

    def forward(self, x):
        return self.fc2(self.norm(self.drop1(self.act(self.fc1(x)))))


class QuickGELU(nn.Module):
    """As transformers writes it for CLIP."""

    def forward(self, x):
        return x * torch.sigmoid(1.702 * x)


class Gated(Mlp):
    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)) * self.fc1(x))


class Intermediate(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense, self.intermediate_act_fn = nn.Linear(WIDTH, HIDDEN), nn.GELU(approximate="tanh")

    def forward(self, x):
        return self.intermediate_act_fn(self.dense(x))


class Output(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense, self.dropout = nn.Linear(HIDDEN, WIDTH), nn.Dropout(0.1)

    def forward(self, hidden, x):
        return self.dropout(self.dense(hidden)) + x


class Pair(nn.Module):
    """As transformers 4 writes it: the second half adds the residual."""

    def __init__(self):
        super().__init__()
        self.intermediate, self.output = Intermediate(), Output()

    def forward(self, x):
        return self.output(self.intermediate(x), x)


class Block(nn.Module):
    def __init__(self, mlp=None):
        super().__init__()
        self.mlp = mlp or Mlp()

    def forward(self, x):
        return x + self.mlp(x)


@pytest.fixture
def x():
    return torch.randn(4, TOKENS, WIDTH, generator=torch.Generator().manual_seed(0))


PRESERVING = [
    ("gshard", {"capacity_factor": float("inf")}),
    ("softmax_expert_choice", {"capacity_factor": 4.0}),
    ("softmax_token_choice", {"choices": 2, "normalize_selected": True, "capacity_factor": float("inf")}),
    ("hash", {}),
]


@pytest.mark.parametrize(("router", "options"), PRESERVING)
def test_a_copied_mlp_computes_the_same(x, router, options):
    mlp = Mlp().eval()
    layer = modules.MoE.from_mlp(mlp, 4, tokens=TOKENS, router=router, **options)
    assert not layer.training
    torch.testing.assert_close(layer(x), mlp(x))


@pytest.mark.parametrize(
    ("act", "form"), [(nn.GELU(), "erf"), (nn.GELU(approximate="tanh"), "tanh"), (QuickGELU(), "tanh")]
)
def test_the_form_of_gelu_is_tried(act, form):
    mlp = nn.Sequential(nn.Linear(WIDTH, HIDDEN, bias=False), act, nn.Linear(HIDDEN, WIDTH))
    layer = modules.MoE.from_mlp(mlp, 2, tokens=TOKENS)
    assert layer.experts.gelu == form
    assert layer.experts.activation == ("quick_gelu" if isinstance(act, QuickGELU) else "gelu")
    assert not layer.experts.fc1.bias.any()
    x = torch.randn(3, TOKENS, WIDTH)
    torch.testing.assert_close(layer(x), mlp(x))  # by the default router
    assert torch.equal(layer.experts.fc2.weight[1], mlp[2].weight.T)


@pytest.mark.parametrize(
    ("mlp", "message"),
    [
        (nn.Linear(WIDTH, WIDTH), r"^mlp: Linear has 1 torch.nn.Linear layers, expected 2"),
        (Mlp(nn.SiLU()), r"^mlp: Mlp computes neither fc2\(f\("),
        (Gated(), r"^mlp: Gated computes neither fc2\(f\("),
        ("mlp", r"^mlp: expected a module, got 'mlp'"),
        (nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, 3)), r"^mlp: .* maps width 8 to 3, expected equal widths"),
        (nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN + 1, WIDTH)), r"^mlp: Sequential cannot be run"),
    ],
)  # fmt: skip
def test_what_is_no_perceptron(mlp, message):
    with pytest.raises(ConfigError, match=message):
        modules.MoE.from_mlp(mlp, 2, tokens=TOKENS)


def test_noise_makes_experts_differ():
    mlp = Mlp()
    one, other, noisier = (modules.MoE.from_mlp(mlp, 4, tokens=TOKENS, noise=noise) for noise in (0.01, 0.01, 0.1))
    assert torch.equal(one.experts.fc1.weight, other.experts.fc1.weight)
    for layer, noise in ((one, 0.01), (noisier, 0.1)):
        added = layer.experts.fc1.weight - mlp.fc1.weight.T
        assert added.std().item() == pytest.approx(noise * mlp.fc1.weight.std().item(), rel=0.1)
        assert not torch.equal(added[0], added[1])
        assert torch.equal(layer.experts.fc1.bias, mlp.fc1.bias.expand(4, -1))
    with pytest.raises(ConfigError, match=r"^noise: expected a finite number of at least 0, got -1"):
        modules.MoE.from_mlp(mlp, 4, tokens=TOKENS, noise=-1)


def test_what_is_that_of_the_mlp():
    with pytest.raises(ConfigError, match=r"^gelu='tanh': the MLP determines this option; remove it"):
        modules.MoE.from_mlp(Mlp(), 2, tokens=TOKENS, gelu="tanh")


def test_ids_are_those_of_the_tokens(x):
    with pytest.raises(ShapeError, match=r"^ids: expected the shape \(4, 5\) of the tokens, got \(4, 3\)"):
        modules.MoE(WIDTH, HIDDEN, 2, tokens=TOKENS, router="hash")(x, torch.zeros(4, 3))


def test_device_and_dtype_are_those_of_the_mlp():
    layer = modules.MoE.from_mlp(Mlp().to(torch.bfloat16), 2, tokens=TOKENS)
    assert {parameter.dtype for parameter in layer.parameters()} == {torch.bfloat16}
    with torch.device("meta"):
        layer = modules.MoE.from_mlp(Mlp(), 2, tokens=TOKENS)
    assert all(parameter.is_meta for parameter in layer.parameters())


def test_blocks_of_a_model_are_replaced(x):
    """The second half of them by default; names and differences come back."""
    model = nn.Sequential(*(Block() for _ in range(4))).eval()
    before = model(x)
    options = {"router": "gshard", "capacity_factor": 4.0}
    changed = modules.replace_mlps(model, 4, tokens=TOKENS, **options)
    assert list(changed) == ["2.mlp", "3.mlp"]
    assert all(0 < value < 1e-6 for value in changed.values())
    assert isinstance(model[1].mlp, Mlp)
    torch.testing.assert_close(model(x), before)
    assert not model[2].mlp.losses or model[2].mlp.losses.keys() == {"balance"}
    (value,) = modules.replace_mlps(model, 4, tokens=TOKENS, blocks=[0], router="soft_moe").values()
    assert value > 0.1
    assert not model.training


def test_a_pair_with_a_residual_is_replaced(x):
    model = nn.ModuleDict({"layer": nn.ModuleList([Pair(), Pair()])}).eval()
    before = model["layer"][1](x)
    changed = modules.replace_mlps(model, 2, tokens=TOKENS, router="gshard", capacity_factor=2.0)
    assert list(changed) == ["layer.1.intermediate"]
    assert model["layer"][1].intermediate.experts.gelu == "tanh"
    torch.testing.assert_close(model["layer"][1](x), before)


def test_a_model_that_cannot_be_changed_stays_as_it_is():
    with pytest.raises(ConfigError, match=r"^model: Sequential has no block whose `mlp`"):
        modules.replace_mlps(nn.Sequential(nn.Linear(2, 2)), 2, tokens=TOKENS)
    model = nn.Sequential(Block(), Block(Gated()))
    with pytest.raises(ConfigError, match=r"^blocks=\[2\]: there is no block 2; the model has 2 blocks"):
        modules.replace_mlps(model, 2, tokens=TOKENS, blocks=[2])
    with pytest.raises(ConfigError, match=r"^mlp: Gated computes"):
        modules.replace_mlps(model, 2, tokens=TOKENS, blocks=[0, 1])
    assert isinstance(model[0].mlp, Mlp)


@pytest.mark.parametrize("router", ["softmax_token_choice", "soft_moe", "hash"])
def test_axes_between_the_first_and_the_last_are_tokens(router):
    layer = modules.MoE(WIDTH, HIDDEN, 2, tokens=6, router=router).eval()
    x = torch.randn(3, 2, 3, WIDTH)
    assert torch.equal(layer(x), layer(x.reshape(3, 6, WIDTH)).reshape(x.shape))
    with pytest.raises(ShapeError, match=r"^x: "):
        layer(x[0, 0])


def test_meta_device_and_dtype():
    """Nothing is drawn until there is memory, and then the same."""
    arguments = {"tokens": TOKENS, "router": "hash"}
    want = modules.MoE(WIDTH, HIDDEN, 2, **arguments)
    with torch.device("meta"):
        late = modules.MoE(WIDTH, HIDDEN, 2, **arguments)
    assert all(tensor.is_meta for tensor in late.state_dict().values())
    late.to_empty(device="cpu").reset_parameters()
    skipped = nn.utils.skip_init(modules.MoE, WIDTH, HIDDEN, 2, **arguments)
    skipped.reset_parameters()
    for layer in (late, skipped):
        for a, b in zip(layer.state_dict().values(), want.state_dict().values(), strict=True):
            assert torch.equal(a, b)
    wide = modules.MoE(WIDTH, HIDDEN, 2, **arguments, dtype=torch.float64)
    assert wide.experts.fc1.weight.dtype == torch.float64
    assert wide.router.tables.dtype == torch.int32


def decayed(groups, model):
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [{names[id(parameter)] for parameter in group["params"]} for group in groups]


def test_weight_decay_of_a_model():
    """Kernels and the scale; neither biases, norms nor slots, whatever their axes."""
    model = nn.Sequential(Block(), nn.LayerNorm(WIDTH), modules.MoE(WIDTH, HIDDEN, 2, tokens=TOKENS))
    model.register_parameter("pos_embed", nn.Parameter(torch.zeros(1, TOKENS, WIDTH)))
    model.no_weight_decay = lambda: {"pos_embed"}
    model[0].mlp.fc1.weight.requires_grad_(False)
    groups = modules.parameter_groups(model, 0.1)
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    with_decay, without = decayed(groups, model)
    assert with_decay == {*("0.mlp.fc2.weight", "2.router.scale", "2.experts.fc1.weight", "2.experts.fc2.weight")}
    assert without >= {"pos_embed", "2.router.slots", "2.experts.fc1.bias", "1.weight", "0.mlp.fc1.bias"}


def test_weight_decay_by_the_rules_of_others():
    """timm goes by axes and the suffix .bias, transformers by the word bias: neither decays a bias of an expert."""
    layer = modules.MoE(WIDTH, HIDDEN, 2, tokens=TOKENS, router="switch", expert_activation="geglu", shared_experts=1)
    maps = [f"{part}.fc{number}" for part in ("experts", "shared") for number in (1, 2, 3)]
    timm = {name for name, p in layer.named_parameters() if p.ndim > 1 and not name.endswith(".bias")}
    transformers = {name for name, _ in layer.named_parameters() if "bias" not in name}
    assert timm == transformers == {"router.kernel", *(f"{name}.weight" for name in maps)}
    assert layer.no_weight_decay() == {f"{name}.bias" for name in maps}


def test_a_saved_layer_comes_back(tmp_path):
    """By the mixin of the hub where that is installed, with the arguments of the layer and of the router, in NumPy's numbers too."""
    pytest.importorskip("huggingface_hub", reason="the hub's package is an extra")
    options = {"choices": np.int64(2), "capacity_factor": math.inf, "group_images": 2}
    layer = again = modules.MoE.from_mlp(Mlp(), 2, tokens=TOKENS, router="softmax_token_choice", noise=0.1, **options)
    for folder in ("once", "twice"):
        again.save_pretrained(tmp_path / folder)
        again = modules.MoE.from_pretrained(tmp_path / folder)
    assert type(again) is modules.MoE
    assert again._layer == layer._layer
    assert again.options == layer.options
    assert again.experts.gelu == "erf"
    for a, b in zip(again.state_dict().values(), layer.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_the_library_of_the_hub_is_imported_on_use():
    program = "import sys, moespec.backends.torch.nn; sys.exit('huggingface_hub' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_base_names_the_way_out_of_an_odd_number_of_tokens():
    """17 tokens with the class token among 4 experts: groups of 4 images."""
    with pytest.raises(ConfigError, match=r"experts=4 does not divide the 17 tokens .*; set group_images=4"):
        modules.MoE(WIDTH, HIDDEN, 4, tokens=17, router="base")(torch.randn(4, 17, WIDTH))
    layer = modules.MoE(WIDTH, HIDDEN, 4, tokens=17, router="base", group_images=4)
    assert layer(torch.randn(4, 17, WIDTH)).shape == (4, 17, WIDTH)
    assert modules.MoE(WIDTH, HIDDEN, 4, tokens=17, router="base").eval()(torch.randn(1, 17, WIDTH)).shape[1] == 17
