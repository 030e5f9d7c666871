"""Our routers choose the experts of the routers of transformers, with their weights."""

import numpy as np
import pytest

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")
pytest.importorskip("torchvision_operators")  # before transformers imports torchvision

from moespec.backends import torch as B  # noqa: E402

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
        from types import SimpleNamespace

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
