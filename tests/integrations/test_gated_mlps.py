"""Gated MLPs and MoE blocks of timm and transformers as layers of ours, and back."""

import importlib

import pytest

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")
pytest.importorskip("torchvision_operators")  # before transformers imports torchvision

from moespec.backends.torch.nn import MoE, from_transformers, to_transformers  # noqa: E402
from moespec.spec import ConfigError  # noqa: E402

TOKENS, WIDTH, E = 10, 16, 8
ROUTED = {"router": "sigmoid_token_choice", "choices": 1}  # each token to one expert, with the weight 1


def modeling(name):
    return importlib.import_module(f"transformers.models.{name}.modeling_{name}")


def of_timm(name, **options):
    return getattr(pytest.importorskip("timm.layers"), name)(WIDTH, 24, **options)


def dots3(**options):
    sizes = {"hidden_size": WIDTH, "adapter_in_dim": WIDTH, "intermediate_size": 24, "moe_intermediate_size": 24}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 2, "num_local_experts": E}
    options |= {"mlp_layer_types": ["dense", "sparse"]}
    return modeling("dots3_note").Dots3NoteVisionConfig(**sizes, **options)


def vision_block():
    return modeling("dots3_note").Dots3NoteVisionMoE(dots3(router_scaling_factor=1.25), 1)


def deepseek_block():
    sizes = {"hidden_size": WIDTH, "moe_intermediate_size": 12, "n_routed_experts": E, "num_experts_per_tok": 3}
    config = transformers.DeepseekV3Config(**sizes, n_group=4, topk_group=2, n_shared_experts=2)
    return modeling("deepseek_v3").DeepseekV3MoE(config)


def filled(block):
    with torch.no_grad():
        for value in block.state_dict().values():
            value.normal_(std=0.5)
    return block


@pytest.mark.parametrize(
    "make",
    [
        lambda: of_timm("SwiGLU"),
        lambda: of_timm("SwiGLUPacked"),
        lambda: of_timm("GluMlp", act_layer=torch.nn.GELU, bias=False),
        lambda: modeling("dinov2").Dinov2SwiGLUFFN(transformers.Dinov2Config(hidden_size=WIDTH)),
        lambda: modeling("dots3_note").Dots3NoteVisionMLP(dots3()),
    ],
)
def test_a_gated_mlp_is_copied(make):
    mlp, x = make().eval(), torch.randn(2, TOKENS, WIDTH)
    torch.testing.assert_close(MoE.from_mlp(mlp, 4, tokens=TOKENS, **ROUTED)(x), mlp(x))


@pytest.mark.parametrize("make", [vision_block, deepseek_block])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_block_goes_there_and_back(make, dtype):
    block, x = filled(make()).to(dtype), torch.randn(3, TOKENS, WIDTH, dtype=dtype)
    layer, other = from_transformers(block, tokens=TOKENS, bias_update_rate=0.1), make().to(dtype)
    tolerance = 1e-5 if dtype is torch.float32 else 0.02
    torch.testing.assert_close(layer(x), block(x), rtol=tolerance, atol=tolerance * block(x).abs().max().item())
    to_transformers(layer, other)
    for name, value in other.state_dict().items():
        assert torch.equal(value, block.state_dict()[name]), name


def test_blocks_that_do_not_fit():
    block = filled(vision_block())
    with pytest.raises(ConfigError, match=r"^choices=1: the block determines this option; remove it"):
        from_transformers(block, tokens=TOKENS, choices=1)
    with pytest.raises(ConfigError, match=r"^moe: Linear is not a gated block with a routing bias .*experts"):
        from_transformers(torch.nn.Linear(2, 2), tokens=TOKENS)
    before = {name: value.clone() for name, value in block.state_dict().items()}
    with pytest.raises(ConfigError, match=r"^layer: scale=2.5, but the block has 1.25"):
        to_transformers(from_transformers(filled(deepseek_block()), tokens=TOKENS), block)
    assert all(torch.equal(before[name], value) for name, value in block.state_dict().items())
    block.gate.norm_topk_prob = False  # which its class does not read
    with pytest.raises(ConfigError, match=r"^moe: Dots3NoteVisionMoE does not compute what a layer"):
        from_transformers(block, tokens=TOKENS)
