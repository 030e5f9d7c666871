"""Noisy top-k gating: logits whose noise has a learned scale, gates that sum to 1 over the choices, and the load loss.

All is computed in float32, or in float64 if an input is float64.
"""

import math

import torch
from torch import Tensor

from moespec.backends.torch.allocations import is_chosen
from moespec.backends.torch.arrays import wide, widen
from moespec.backends.torch.losses import squared_variation
from moespec.backends.torch.selection import top_indices
from moespec.spec.checks import check_choices, check_same_shape, check_scores
from moespec.spec.numerics import FAR, SMALLEST_SCALE

__all__ = ["noisy_top_k_affinity", "noisy_top_k_load_loss", "noisy_top_k_logits"]

AXES = "groups tokens experts"
ROOT_2 = math.sqrt(2.0)


def noisy_top_k_logits(logits: Tensor, noise_logits: Tensor, noise: Tensor | None) -> Tensor:
    """logits, noise_logits and noise (G, T, E) -> (G, T, E)."""
    logits, noise_logits = _together(logits=logits, noise_logits=noise_logits)
    if noise is None:
        return logits
    logits, noise = _together(logits=logits, noise=noise)
    return logits + noise * _softplus(noise_logits)


def noisy_top_k_affinity(noisy_logits: Tensor, *, choices: int) -> Tensor:
    """noisy_logits (G, T, E) -> (G, T, E)."""
    check_scores("noisy_logits", noisy_logits, AXES)
    logits = widen(noisy_logits)
    chosen = is_chosen(logits, check_choices(choices, logits.shape[2]))
    return torch.softmax(torch.where(chosen, logits, -math.inf), dim=2)


def noisy_top_k_load_loss(logits: Tensor, noise_logits: Tensor, noisy_logits: Tensor, *, choices: int) -> Tensor:
    """The mean over the groups: logits, noise_logits and noisy_logits (G, T, E) -> a scalar."""
    logits, noise_logits = _together(logits=logits, noise_logits=noise_logits)
    logits, noisy_logits = _together(logits=logits, noisy_logits=noisy_logits)
    choices = check_choices(choices, logits.shape[2])
    if choices == logits.shape[2]:
        return 0.0 * logits.mean()  # every expert is chosen by every token
    return squared_variation(choice_probability(logits, noise_logits, noisy_logits, choices=choices).sum(dim=1))


def choice_probability(logits: Tensor, noise_logits: Tensor, noisy_logits: Tensor, *, choices: int) -> Tensor:
    """P of the load loss: logits, noise_logits and noisy_logits (G, T, E) of one dtype -> (G, T, E)."""
    if choices == logits.shape[2]:
        return torch.ones_like(logits)
    ranked = top_indices(noisy_logits, choices + 1).long()
    last, next_best = (noisy_logits.gather(2, ranked[:, :, choice : choice + 1]) for choice in (choices - 1, choices))
    chosen = torch.zeros_like(noisy_logits, dtype=torch.bool).scatter(2, ranked[:, :, :-1], True)
    threshold = torch.where(chosen, next_best, last)
    return 0.5 * torch.erfc(_argument(threshold - logits, _softplus(noise_logits)))


def _argument(deviation: Tensor, scale: Tensor) -> Tensor:
    """What the error function takes: `z_score` of the specification over the square root of 2."""
    value, fixed = deviation.detach(), scale.detach()
    is_far = value.abs() >= FAR * fixed
    constant = torch.where(is_far, FAR * value.sign(), value / (torch.where(is_far, 1.0, fixed) * ROOT_2))
    is_constant = is_far | (fixed < SMALLEST_SCALE)
    return torch.where(is_constant, constant, deviation / (torch.where(is_constant, 1.0, scale) * ROOT_2))


def _softplus(x: Tensor) -> Tensor:
    """`log(1 + exp(x))`, exact for large x too, where `torch.nn.functional.softplus` is x."""
    return torch.logaddexp(x, torch.zeros_like(x))


def _together(**arrays: Tensor) -> tuple[Tensor, Tensor]:
    """Two arrays (groups, tokens, experts) of one shape in one dtype, after their checks."""
    (first_name, first), (name, array) = arrays.items()
    check_scores(first_name, first, AXES)
    check_scores(name, array, AXES)
    check_same_shape(name, array, first_name, first)
    dtype = wide(first.dtype, array.dtype)
    return first.to(dtype), array.to(dtype)
