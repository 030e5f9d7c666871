"""Our routers choose the experts of the routers of transformers, with their weights, and the recorder tells which router that is."""

import re
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")
pytest.importorskip("torchvision_operators")  # before transformers imports torchvision

from moespec.backends import torch as B  # noqa: E402
from moespec.conformance.record import explain, read, recording  # noqa: E402
from moespec.spec import ROUTERS  # noqa: E402

T, E, D = 64, 16, 12
GROUPED = {"expert_groups": 4, "chosen_groups": 2, "choices": 4, "scale": 2.5}


def deepseek_v3(options):
    from transformers.models.deepseek_v3 import modeling_deepseek_v3 as module

    config = transformers.DeepseekV3Config(
        hidden_size=D,
        n_routed_experts=E,
        num_experts_per_tok=options["choices"],
        n_group=options.get("expert_groups", 1),
        topk_group=options.get("chosen_groups", 1),
        norm_topk_prob=options.get("normalize_selected", True),
        routed_scaling_factor=options.get("scale", 1.0),
    )
    return module.DeepseekV3TopkRouter(config)


def deepseek_v4(options):
    from transformers.models.deepseek_v4 import modeling_deepseek_v4 as module

    config = transformers.DeepseekV4Config(hidden_size=D, num_local_experts=E, num_experts_per_tok=options["choices"])
    config.routed_scaling_factor = options["scale"]
    return module.DeepseekV4TopKRouter(config)


class Vision(torch.nn.Module):
    """The router of dots3's vision encoder, which is handed its bias."""

    def __init__(self, options):
        super().__init__()
        from transformers.models.dots3_note import modeling_dots3_note as module

        sizes = {"hidden_size": D, "num_local_experts": E, "num_experts_per_tok": options["choices"]}
        self.gate = module.Dots3NoteVisionTopKRouter(SimpleNamespace(**sizes, router_scaling_factor=options["scale"]))
        self.weight, self.e_score_correction_bias = self.gate.weight, torch.nn.Buffer(torch.zeros(E))

    def forward(self, tokens):
        return self.gate(tokens, self.e_score_correction_bias)


@pytest.mark.parametrize(
    ("made", "options"),
    [
        (deepseek_v3, GROUPED),
        (deepseek_v3, {"choices": 6, "normalize_selected": False}),
        (deepseek_v4, {"affinity": "sqrt_softplus", "choices": 3, "scale": 1.5}),
        (Vision, {"choices": 2, "scale": 1.25}),
    ],
)
@pytest.mark.parametrize("seed", range(5))
def test_the_same_experts_and_weights(made, options, seed):
    random = np.random.default_rng(seed)
    tokens, kernel, bias = (random.normal(size=shape).astype(np.float32) for shape in ((T, D), (D, E), E))
    theirs = made(options)
    with torch.no_grad():
        theirs.weight.copy_(torch.from_numpy(kernel.T))
        theirs.e_score_correction_bias.copy_(torch.from_numpy(bias))
        _, weights, experts = theirs(torch.from_numpy(tokens))
    expected = torch.zeros(T, E).scatter(1, experts, weights)
    router = B.ROUTERS["sigmoid_token_choice"]
    state, params = {"bias": torch.from_numpy(bias)}, {"kernel": torch.from_numpy(kernel)}
    config = router.options(width=D, experts=E, tokens=T, **options)
    found = router.route(params, torch.from_numpy(tokens)[None], config, state=state).routing.dense().combine
    torch.testing.assert_close(found.sum(dim=3)[0], expected, rtol=1e-6, atol=1e-6)


MODELS = {
    **{"DeepSeek-V3": "deepseek_v3:DeepseekV3TopkRouter", "Kimi K2": "deepseek_v3:DeepseekV3TopkRouter"},
    **{"DeepSeek-V3.2": "deepseek_v32:DeepseekV32TopkRouter", "DeepSeek-V4": "deepseek_v4:DeepseekV4TopKRouter"},
    **{"Kimi Linear": "kimi_linear:KimiLinearTopkRouter", "GLM-4.5": "glm4_moe:Glm4MoeTopkRouter"},
    **{"GLM-5": "glm_moe_dsa:GlmMoeDsaTopkRouter", "MiniMax-M3": "minimax_m3_vl:MiniMaxM3VLTopKRouter"},
    **{"Nemotron-H": "nemotron_h:NemotronHTopkRouter", "dots.llm1": "dots1:Dots1TopkRouter"},
    **{"EXAONE MoE": "exaone_moe:ExaoneMoeTopkRouter", "Solar Open": "solar_open:SolarOpenTopkRouter"},
    **{"Mistral 4": "mistral4:Mistral4TopkRouter", "ERNIE 4.5": "ernie4_5_moe:Ernie4_5_MoeTopKRouter"},
    **{"Llama 4": "llama4:Llama4Router", "Mixtral": "mixtral:MixtralTopKRouter", "OLMoE": "olmoe:OlmoeTopKRouter"},
    **{"Qwen2-MoE": "qwen2_moe:Qwen2MoeTopKRouter", "Qwen3-MoE": "qwen3_moe:Qwen3MoeTopKRouter"},
    **{"Qwen3-VL-MoE": "qwen3_vl_moe:Qwen3VLMoeTextTopKRouter", "Qwen3-Next": "qwen3_next:Qwen3NextTopKRouter"},
    **{"Qwen3.5-MoE": "qwen3_5_moe:Qwen3_5MoeTopKRouter", "gpt-oss": "gpt_oss:GptOssTopKRouter"},
    **{"Hunyuan V1 MoE": "hunyuan_v1_moe:HunYuanMoEV1Gate"},
}
"""Of `Router.models` those of which transformers has the router. Kimi K2 is a model of DeepSeek-V3's class."""
COUNTS = {"n_routed_experts": E, "num_experts": E, "num_local_experts": E, "moe_num_experts": E, "hidden_size": D}
COUNTS |= dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk"), 4)
FORMS = {"n_group": 4, "num_expert_group": 4, "topk_group": 2, "norm_topk_prob": True, "moe_renormalize": True}
FORMS |= {"routed_scaling_factor": 2.5, "moe_norm_min": 1e-12, "num_hidden_layers": 2, "use_bias": True}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_routes_with_the_router_that_names_it(name, tmp_path):
    folder, kind = MODELS[name].split(":")
    module = import_module(f"transformers.models.{folder}.modeling_{folder}")
    gate = getattr(module, kind)(
        SimpleNamespace(**COUNTS, **FORMS, scoring_func="sigmoid", moe_router_activation_func="sigmoid")
    )
    torch.manual_seed(0)
    for array in (*gate.parameters(), *gate.buffers()):
        torch.nn.init.normal_(array)
    with torch.no_grad(), recording(tmp_path / "gate", torch.nn.Sequential(gate), "0"):
        gate(torch.randn(T, D))
    text, whole = explain(read(tmp_path / "gate"))
    assert whole
    assert name in ROUTERS[re.search(r"router   (\w+)\(", text)[1]].models


def test_no_model_of_these_routers_is_named_without_a_recording():
    named = {name for router in ("sigmoid_token_choice", "softmax_token_choice") for name in ROUTERS[router].models}
    assert named - set(MODELS) == {"V-MoE"}  # which is the paper's own
