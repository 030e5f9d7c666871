"""Converts between moespec layers and Hugging Face MoE blocks that choose experts by sigmoid scores and a bias."""

from typing import Any

import torch
from torch import Tensor, nn

from moespec.backends.layer import GATED
from moespec.backends.torch.network import activate
from moespec.backends.torch.nn.layer import MoE
from moespec.backends.torch.nn.perceptron import ACTIVATIONS, ROWS
from moespec.spec.errors import ConfigError

__all__ = ["from_transformers", "to_transformers"]

ROUTER = "sigmoid_token_choice"
BIAS = "e_score_correction_bias"
COMPUTED = {
    **{"affinity": "sigmoid", "normalize_selected": True, "epsilon": 1e-20, "scale": 1.0, "expert_groups": 1},
    **{"chosen_groups": 1, "group_score": "top_2", "group_bias": True, "outside": "excluded"},
}
"""The router options that reproduce the block's computation. Attributes of the block's gate override these values (see `SAID`)."""
SAID = {
    **{"router_scaling_factor": "scale", "routed_scaling_factor": "scale"},
    **{"norm_topk_prob": "normalize_selected", "num_group": "expert_groups", "topk_group": "chosen_groups"},
}


def from_transformers(moe: nn.Module, *, tokens: int, **options: Any) -> MoE:
    """Returns a layer that has the exact parameters of a transformers MoE block and computes the same function.

    moe: a block with `gate` (with `weight` and `top_k`), `e_score_correction_bias` (in the gate or the block), `experts` (with
        `gate_up_proj` and `down_proj`) and optionally `shared_experts` (with `gate_proj`, `up_proj` and `down_proj`). Examples are the
        blocks of dots3's vision encoder, which choose among all experts, and of DeepSeek-V3, which first choose groups of experts.
    tokens: number of tokens per image. options: arguments of `MoE`, such as `group_images`, `balance_weight` and `bias_update_rate`.

    Raises ConfigError for a block without these attributes, or if the outputs of the layer and the block differ at evaluation.

    Source: huggingface/transformers, src/transformers/models/dots3_note/modeling_dots3_note.py, Dots3NoteVisionMoE and Dots3NoteTextMoE.
    """
    found, of_block = _read(moe)
    weight, shared = found["experts.fc1.weight"], found.get("shared.fc1.weight")
    experts, width, hidden = weight.shape
    shared_hidden = 0 if shared is None else shared.shape[1]
    if shared_hidden % hidden:
        raise ConfigError(f"moe: its shared expert has width {shared_hidden}, expected a multiple of {hidden}")
    of_block |= {"expert_bias": False, "shared_experts": shared_hidden // hidden}
    of_block |= {"router": ROUTER, "dtype": weight.dtype, "device": "meta"}  # "meta", because values are copied below
    if fixed := sorted(of_block.keys() & options.keys()):
        raise ConfigError(f"{fixed[0]}={options[fixed[0]]!r}: the block determines this option; remove it")
    layer = MoE(width, hidden, experts, tokens=tokens, **of_block, **options)
    layer.router.to(found["router.kernel"].dtype)
    if weight.is_meta:
        return layer
    layer.to_empty(device=weight.device).train(moe.training)
    with torch.no_grad():
        for name, value in layer.state_dict().items():
            value.copy_(found[name])
    _check_same(layer, moe)
    return layer


def to_transformers(layer: MoE, moe: nn.Module) -> None:
    """Copies the parameters and the state of a layer into a transformers block, as the inverse of `from_transformers`.

    Raises ConfigError, before copying, if the layer's options or shapes differ from the block's.
    """
    found, of_block = _read(moe)
    whole, ours = layer._layer, layer.state_dict()
    has = {**vars(whole), **vars(layer.options)}
    for name, value in {"router": ROUTER, **of_block}.items():
        if has[name] != value:
            raise ConfigError(f"layer: {name}={has[name]!r}, but the block has {value!r}")
    for name in sorted(ours.keys() | found.keys()):
        shape, expected = (tuple(each[name].shape) if name in each else None for each in (ours, found))
        if shape != expected:
            raise ConfigError(f"layer: {name} has shape {shape}, but the block has {expected}")
    with torch.no_grad():
        for name, value in found.items():
            value.copy_(ours[name])


def _read(block: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Returns views of a block's parameters, with the names and axes that the layer uses, and the options of the layer."""
    x = torch.linspace(-3, 3, 13)
    try:
        gate, up = block.experts.gate_up_proj.transpose(1, 2).chunk(2, dim=2)
        found = {"router.kernel": block.gate.weight.T, "experts.fc1.weight": gate, "experts.fc3.weight": up}
        found["router.state.bias"] = getattr(block if hasattr(block, BIAS) else block.gate, BIAS)
        found["experts.fc2.weight"] = block.experts.down_proj.transpose(1, 2)
        if (shared := getattr(block, "shared_experts", None)) is not None:
            for number, name in ((1, "gate_proj"), (3, "up_proj"), (2, "down_proj")):
                found[f"shared.fc{number}.weight"] = getattr(shared, name).weight.T
        y, of_block = block.experts.act_fn(x), {**COMPUTED, "choices": block.gate.top_k}
    except AttributeError as error:
        advice = "only such blocks convert; for another, create MoE(...) and copy the weights"
        raise ConfigError(
            f"moe: {type(block).__name__} is not a gated block with a routing bias ({advice}): {error}"
        ) from None
    forms = [
        {"expert_activation": kind, "gelu": gelu}
        for kind, gelu, activation in ACTIVATIONS
        if kind in GATED and torch.allclose(y, activate(gelu, activation)(x), atol=1e-6)
    ]
    if not forms:
        raise ConfigError(f"moe: its experts use {block.experts.act_fn}, expected GELU or SiLU")
    of_block |= {ours: getattr(block.gate, theirs) for theirs, ours in SAID.items() if hasattr(block.gate, theirs)}
    return {name: value.detach() for name, value in found.items()}, of_block | forms[0]


def _check_same(layer: MoE, moe: nn.Module) -> None:
    """Raises ConfigError unless the layer and the block have equal outputs at evaluation, up to rounding."""
    weight, training = layer.experts.fc1.weight, layer.training
    x = torch.randn(layer.group_images, ROWS, weight.shape[1], generator=torch.Generator().manual_seed(0)).to(weight)
    with torch.no_grad():
        ours, theirs = layer.eval()(x), moe.eval()(x)
    moe.train(training)
    layer.train(training).forget()
    allowed = max(torch.finfo(x.dtype).eps, 1e-7) ** 0.75  # at least 1e-7, as transformers' routers are in float32
    if not (ours - theirs).abs().max() <= allowed * theirs.abs().max():
        raise ConfigError(f"moe: {type(moe).__name__} does not compute what a layer with router {ROUTER} computes")
