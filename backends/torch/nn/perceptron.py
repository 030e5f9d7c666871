"""What an MLP of somebody's model computes, found out by trying it."""

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from moespec.spec.errors import ConfigError

ROWS = 5
ALLOWED = 1e-9
"""Difference in float64 of outputs of about 1; the two forms of GELU differ by 1e-4."""


class Perceptron(NamedTuple):
    """The two linear maps of an MLP, and the form of GELU between them."""

    fc1: nn.Linear
    fc2: nn.Linear
    gelu: str


def perceptron(name: str, mlp: nn.Module) -> Perceptron:
    """The parts of an MLP that computes `fc2(gelu(fc1(x)))`, whatever its class.

    A copy with other numbers is run. Raises ConfigError, with `name`, for one that computes something else.
    """
    if not isinstance(mlp, nn.Module):
        raise ConfigError(f"{name}: expected a module, got {mlp!r}")
    layers = linears(mlp)
    if len(layers) != 2:
        raise ConfigError(f"{name}: {type(mlp).__name__} has {len(layers)} torch.nn.Linear, expected 2")
    if layers[1].out_features != layers[0].in_features:
        widths = f"{layers[0].in_features} to {layers[1].out_features}"
        raise ConfigError(f"{name}: {type(mlp).__name__} goes from width {widths}, expected the same")
    trial = copy.deepcopy(mlp).to_empty(device="cpu").double().eval()
    draws: Any = {"device": "cpu", "generator": torch.Generator("cpu").manual_seed(0)}
    with torch.no_grad():
        for tensor in (*trial.parameters(), *trial.buffers()):
            if tensor.is_floating_point():
                tensor.copy_(torch.randn(tensor.shape, **draws) / max(tensor.shape[-1:] or (1,)) ** 0.5)
        fc1, fc2 = linears(trial)
        x = torch.randn(1, ROWS, fc1.in_features, **draws, dtype=torch.float64)
        try:
            y = trial(x)
        except Exception as error:
            raise ConfigError(f"{name}: {type(mlp).__name__} cannot be run on (1, tokens, width): {error}") from error
        for form, approximate in (("tanh", "tanh"), ("erf", "none")):
            expected = fc2(F.gelu(fc1(x), approximate=approximate)) if fc1.out_features == fc2.in_features else y + 1
            if isinstance(y, Tensor) and y.shape == expected.shape and (y - expected).abs().max() < ALLOWED:
                return Perceptron(layers[0], layers[1], form)
    raise ConfigError(f"{name}: {type(mlp).__name__} computes something else than fc2(gelu(fc1(x)))")


def linears(module: nn.Module) -> list[nn.Linear]:
    """The linear maps in a module, in their order."""
    return [child for child in module.modules() if isinstance(child, nn.Linear)]
