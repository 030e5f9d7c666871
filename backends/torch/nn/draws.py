"""Draws the random numbers of a training forward pass from torch's generator."""

import torch
from torch import Tensor

from moespec.spec.routing import Noise


def draw(noise: Noise, device: torch.device) -> Tensor:
    """Draws normal or uniform noise as `noise` specifies."""
    if noise.interval is None:
        return torch.randn(noise.shape, device=device)
    low, high = noise.interval
    return low + (high - low) * torch.rand(noise.shape, device=device)


def integers(inputs: Tensor) -> Tensor:
    """Returns the seeds of dropout, `(images, 4)`: three words from torch's generator, and the index of the image."""
    images = torch.arange(inputs.shape[0], dtype=torch.int32, device=inputs.device)
    words = torch.randint(-(2**31), 2**31, (3,), device=inputs.device).to(torch.int32)
    return torch.cat([words.expand(len(images), 3), images[:, None]], dim=1)
