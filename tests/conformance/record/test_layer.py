"""Blocks of torch written by hand, and the layers that return their outputs."""

import pytest

from moespec.conformance.record.published import published

MODEL = """
import torch
from moespec.conformance.record import tap
from torch import nn
class Expert(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.w1, self.w2, self.w3 = nn.Linear(width, hidden), nn.Linear(hidden, width), nn.Linear(width, hidden)
    def forward(self, x):
        return self.w2(nn.functional.silu(self.w1(x)) * self.w3(x))
class Listed(nn.Module):  # a list of experts, a linear gate, and a shared expert that a sigmoid weights
    def __init__(self):
        super().__init__()
        self.gate, self.top_k = nn.Linear(16, 6, bias=False), 3
        self.experts = nn.ModuleList(Expert(16, 12) for _ in range(6))
        self.shared, self.shared_gate = Expert(16, 24), nn.Linear(16, 1, bias=False)
    def forward(self, x):
        weights, chosen = self.gate(x).sigmoid().topk(self.top_k)
        y = torch.stack([expert(x) for expert in self.experts], -2).take_along_dim(chosen[..., None], -2)
        return (y * (weights / weights.sum(-1, keepdim=True))[..., None]).sum(-2) + self.shared_gate(x).sigmoid() * self.shared(x)
class Gate(nn.Linear):
    def forward(self, x):
        logits = super().forward(x)
        return logits, *logits.softmax(-1).topk(2)
class Packed(nn.Module):  # interleaved halves in one array, with biases
    def __init__(self, plus=0):
        super().__init__()
        self.router, self.experts, self.plus = Gate(16, 8), nn.Module(), plus
        for name, shape in {"up": (8, 16, 24), "up_bias": (8, 24), "down": (8, 12, 16), "down_bias": (8, 16)}.items():
            setattr(self.experts, name, nn.Parameter(torch.randn(shape) / 3))
    def forward(self, x):
        _, weights, chosen = self.router(x)
        e, y = self.experts, x[:, :, None, None]
        h = y @ e.up + e.up_bias[:, None]
        h = nn.functional.gelu(h[..., ::2]) * (h[..., 1::2] + self.plus)
        y = (h @ e.down + e.down_bias[:, None])[..., 0, :].take_along_dim(chosen[..., None], -2)
        return (y * weights[..., None]).sum(-2), weights
class Model(nn.Module):
    def __init__(self, *blocks): super().__init__(); self.moe = nn.ModuleList(blocks)
    def forward(self, x):
        for block in self.moe: y = block(x)
        return y
def tapped(x): tap("x", logits=x)
def listed(): return Model(Listed(), Listed())
def packed(): return Model(Packed())
def plus(): return Model(Packed(1))
def more(): model = listed(); model.moe[0].scale = nn.Parameter(torch.ones(3, 16)); return model
def data(): torch.manual_seed(1); return torch.randn(2, 20, 16)
"""


@pytest.mark.parametrize(
    ("model", "module", "status", "words"),
    [
        ("listed", "moe.?", 0, ["moe.0, moe.1:", "hidden=12, experts=6", "shared_experts=2, shared_gate=True", "affinity='sigmoid'"]),
        ("packed", "moe.0", 0, ["expert_activation='geglu', gelu='erf', router='softmax_token_choice', choices=2", "bias=True"]),
        ("plus", "moe.0", 1, ["layer    not expressed: the nearest of ", " layers has an error of 0."]),
        ("more", "moe.0", 1, ["layer    not expressed: no layer has the parameters scale (3, 16)"]),
        ("tapped", "x", 2, ["model='own_block:tapped': --layer needs an instance of torch.nn.Module"]),
        ("listed", "moe.0.experts", 2, ["module: moe.0.experts contains no gate or router; with --layer, name the block"]),
    ],
)  # fmt: skip
def test_the_layer_of_a_block(run, target, tmp_path, model, module, status, words):
    pytest.importorskip("torch")
    name, path = target("own_block", MODEL), tmp_path / "a.safetensors"
    arguments = ("--module", module, "--data", f"{name}:data", "--out", path, "--layer")
    found, printed, error = run("record", f"{name}:{model}", *arguments)
    assert found == status
    for each in words:
        assert each in printed + error


def test_models_that_route_alike():
    """Models with as many experts come first. A model without a selection bias, or with another scale, is no match."""
    text = published("softmax_token_choice", {"choices": 2, "normalize_selected": True}, 8, biased=False)
    assert text.startswith("mixtral, ")
    assert "; with another number of experts: " in text
    options = {"choices": 8, "scale": 2.827}
    assert published("sigmoid_token_choice", options, 384, biased=True).startswith("kimi-k2")
    assert "kimi-k2" not in published("sigmoid_token_choice", options, 384, biased=False)
    assert "kimi-k2" not in published("sigmoid_token_choice", {**options, "scale": 2.5}, 384, biased=True)
    assert published("softmax_token_choice", {"choices": 7}, 8, biased=False) == ""
