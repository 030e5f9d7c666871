"""Identifies the function of an MLP in a third-party model by running the MLP."""

import copy
from collections.abc import Sequence
from itertools import permutations
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import moespec.backends.torch as B
from moespec.backends.layer import GATED
from moespec.spec.errors import ConfigError, ShapeError

ROWS = 5
ALLOWED = 1e-9
"""The largest allowed difference between float64 outputs, which are about 1. The two forms of GELU differ by 1e-4."""

ACTIVATIONS = (
    *(("gelu", "tanh", "gelu"), ("gelu", "erf", "gelu"), ("geglu", "tanh", "gelu"), ("geglu", "erf", "gelu")),
    *(("swiglu", "tanh", "silu"), ("quick_gelu", "tanh", "quick_gelu"), ("relu2", "tanh", "relu2")),
)
"""(`expert_activation`, `gelu`, `activation`): two options of a layer, and the argument `activation` of `moe_mlp` that matches them."""


class Perceptron(NamedTuple):
    """The parameters of an MLP (views, by their names in `expert_mlp`), and the layer options that select the MLP's activation function."""

    weights: dict[str, Tensor]
    expert_activation: str
    gelu: str


def perceptron(name: str, mlp: nn.Module) -> Perceptron:
    """Returns the parameters and the activation of an MLP that computes `fc2(gelu(fc1(x)))` or `fc2(f(fc1(x)) * fc3(x))`.

    Runs a copy of the MLP with random parameters. Accepts an MLP of any class. Raises ConfigError if the MLP computes something else.
    """
    if not isinstance(mlp, nn.Module):
        raise ConfigError(f"{name}: expected a module, got {mlp!r}")
    layers, of = linears(mlp), f"{name}: {type(mlp).__name__}"
    if len(layers) not in (2, 3):
        raise ConfigError(f"{of} has {len(layers)} torch.nn.Linear layers, expected 2, or 3 if gated")
    trial = copy.deepcopy(mlp).to_empty(device="cpu").double().eval()
    draws: Any = {"device": "cpu", "generator": torch.Generator("cpu").manual_seed(0)}
    with torch.no_grad():
        for tensor in (*trial.parameters(), *trial.buffers()):
            if tensor.is_floating_point():
                tensor.copy_(torch.randn(tensor.shape, **draws) / max(tensor.shape[-1:] or (1,)) ** 0.5)
        x = torch.randn(1, ROWS, layers[0].in_features, **draws, dtype=torch.float64)
        try:
            y = trial(x)
        except Exception as error:
            raise ConfigError(f"{of} cannot be run on (1, tokens, width): {error}") from error
        if isinstance(y, Tensor) and y.shape != x.shape:
            raise ConfigError(f"{of} maps width {x.shape[-1]} to {y.shape[-1]}, expected equal widths")
        for weights, tried in zip(_readings(layers), _readings(linears(trial)), strict=True):
            experts = {key: value[None] for key, value in tried.items()}
            for kind, gelu, activation in ACTIVATIONS:
                if (kind in GATED) != ("w3" in tried):
                    continue
                try:
                    expected = B.expert_mlp(x[None], experts, gelu=gelu, activation=activation)[0]
                except ShapeError:
                    break
                if isinstance(y, Tensor) and (y - expected).abs().max() < ALLOWED:
                    return Perceptron(weights, kind, gelu)
    raise ConfigError(
        f"{of} computes neither fc2(f(fc1(x))) with GELU, quick GELU or squared ReLU, nor fc2(f(fc1(x)) * fc3(x)) with GELU or SiLU"
    )


def _readings(layers: Sequence[nn.Linear]) -> list[dict[str, Tensor]]:
    """Lists each way to use two or three linear maps as parameters of `expert_mlp`. The first of two maps may pack fc1 and fc3."""
    maps: list[Any] = [(layer.weight.T, layer.bias) for layer in layers]
    orders: Any = permutations(maps)
    if len(maps) == 2:
        (weight, bias), last = maps
        halves = list(zip(weight.chunk(2, dim=1), (None, None) if bias is None else bias.chunk(2), strict=False))
        orders = [maps, [*halves, last], [*halves[::-1], last]]
    return [
        {
            f"{kind}{number}": value
            for number, pair in zip((1, 2) if len(order) == 2 else (1, 3, 2), order, strict=True)
            for kind, value in zip("wb", pair, strict=True)
            if value is not None
        }
        for order in orders
    ]


def linears(module: nn.Module) -> list[nn.Linear]:
    """The linear maps in a module, in order."""
    return [child for child in module.modules() if isinstance(child, nn.Linear)]
