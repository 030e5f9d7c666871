"""The recorder tells which router a model of transformers has, and ours then chooses the same experts with the same weights."""

import re
from importlib import import_module
from inspect import signature
from math import inf
from types import SimpleNamespace

import numpy as np
import pytest

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")
pytest.importorskip("torchvision_operators")  # before transformers imports torchvision

from moespec.conformance.record import explain, read, recording  # noqa: E402
from moespec.spec import ROUTERS  # noqa: E402

T, E, D = 64, 16, 12
MODELS = {
    **{"DeepSeek-V3": "deepseek_v3:DeepseekV3TopkRouter", "Kimi K2": "deepseek_v3:DeepseekV3TopkRouter"},
    **{"DeepSeek-V3.2": "deepseek_v32:DeepseekV32TopkRouter", "DeepSeek-V4": "deepseek_v4:DeepseekV4TopKRouter"},
    **{"Kimi Linear": "kimi_linear:KimiLinearTopkRouter", "GLM-4.5": "glm4_moe:Glm4MoeTopkRouter"},
    **{"GLM-5": "glm_moe_dsa:GlmMoeDsaTopkRouter", "MiniMax-M2": "minimax_m2:MiniMaxM2TopKRouter"},
    **{"MiniMax-M3": "minimax_m3_vl:MiniMaxM3VLTopKRouter", "dots3": "dots3_note:Dots3NoteVisionTopKRouter"},
    **{"Nemotron-H": "nemotron_h:NemotronHTopkRouter", "Mistral 4": "mistral4:Mistral4TopkRouter"},
    **{"ERNIE 4.5": "ernie4_5_moe:Ernie4_5_MoeTopKRouter", "Llama 4": "llama4:Llama4Router"},
    **{"Mixtral": "mixtral:MixtralTopKRouter", "OLMoE": "olmoe:OlmoeTopKRouter", "gpt-oss": "gpt_oss:GptOssTopKRouter"},
    **{"Qwen2-MoE": "qwen2_moe:Qwen2MoeTopKRouter", "Qwen3-MoE": "qwen3_moe:Qwen3MoeTopKRouter"},
    **{"Qwen3-VL-MoE": "qwen3_vl_moe:Qwen3VLMoeTextTopKRouter", "Qwen3-Next": "qwen3_next:Qwen3NextTopKRouter"},
    **{"Qwen3.5-MoE": "qwen3_5_moe:Qwen3_5MoeTopKRouter", "Hunyuan V1 MoE": "hunyuan_v1_moe:HunYuanMoEV1Gate"},
}
"""The routers of the models that `Router.models` names. Kimi K2 is a model of DeepSeek-V3's class."""
SIZES = dict.fromkeys(("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts"), E)
SIZES |= {"hidden_size": D, "num_hidden_layers": 2, "use_bias": True, "moe_norm_min": 1e-12}
SIZES |= dict.fromkeys(("scoring_func", "moe_router_activation_func"), "sigmoid")
NAMES = {  # what the projects call an option
    "choices": ("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk"),
    "groups": ("n_group", "num_expert_group"),
    "chosen": ("topk_group",),
    "normalize": ("norm_topk_prob", "moe_renormalize"),
    "scale": ("routed_scaling_factor", "router_scaling_factor"),
}


class Handed(torch.nn.Module):
    """A gate that is handed its bias."""

    def __init__(self, gate):
        super().__init__()
        self.gate, self.e_score_correction_bias = gate, torch.nn.Buffer(torch.zeros(E))

    def forward(self, tokens):
        return self.gate(tokens, self.e_score_correction_bias)


@pytest.mark.parametrize("options", [(4, 4, 2, True, 2.5), (3, 1, 1, True, 1.5), (6, 1, 1, False, 2.0)])
@pytest.mark.parametrize("name", MODELS)
def test_the_same_experts_and_weights(name, options, tmp_path):
    folder, kind = MODELS[name].split(":")
    fields = {field: value for of, value in zip(NAMES.values(), options, strict=True) for field in of}
    module = import_module(f"transformers.models.{folder}.modeling_{folder}")
    gate = getattr(module, kind)(SimpleNamespace(**SIZES, **fields))
    gate = Handed(gate) if len(signature(gate.forward).parameters) > 1 else gate
    torch.manual_seed(0)
    for array in (*gate.parameters(), *gate.buffers()):
        torch.nn.init.normal_(array)
    with torch.no_grad(), recording(tmp_path / "gate", torch.nn.Sequential(gate), "0"):
        gate(torch.randn(T, D))
    (recorded,) = read(tmp_path / "gate")
    router, words = re.search(r"router   (\w+)\((.*)\)", explain([recorded])[0]).groups()
    assert name in ROUTERS[router].models
    config = ROUTERS[router].options(width=E, experts=E, tokens=T, capacity_factor=inf, **eval(f"dict({words})"))
    state = ROUTERS[router].initial_state(config)
    state |= {"bias": recorded.bias} if state and recorded.bias is not None else {}
    found = ROUTERS[router].route({"kernel": np.eye(E)}, recorded.logits, config, state=state).routing.combine
    expected = np.zeros((T, E))
    np.put_along_axis(expected, recorded.choices, recorded.weights, axis=1)
    np.testing.assert_allclose(found.sum(axis=2), expected, rtol=1e-6, atol=1e-6)


def test_no_model_is_named_without_this_test():
    named = {name for router in ("sigmoid_token_choice", "softmax_token_choice") for name in ROUTERS[router].models}
    assert named - {"V-MoE"} == set(MODELS)
