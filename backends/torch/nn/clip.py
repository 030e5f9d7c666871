"""Clips the norm of a gradient whose parts are on different meshes."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from moespec.backends.torch.expert_parallel import is_split

__all__ = ["clip_grad_norm_"]


def clip_grad_norm_(parameters: Iterable[Tensor], max_norm: float) -> Tensor:
    """Clips gradients like `torch.nn.utils.clip_grad_norm_`, and also supports experts that are split over a different mesh than other
    parameters. Multiplies gradients by `max_norm / norm` if this factor is below 1, and returns the norm of the complete gradient.

    All processes must call this function.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    by_mesh: dict[Any, list[Tensor]] = {}
    for gradient in gradients:
        mesh = (gradient.device_mesh, gradient.placements) if is_split(gradient) else None
        by_mesh.setdefault(mesh, []).append(gradient)
    norms = [get_total_norm(part) for part in by_mesh.values()]
    norms = [norm.full_tensor() if is_split(norm) else norm for norm in norms]
    if not norms:
        return torch.zeros(())
    norm: Tensor = torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]))
    # Unlike an `if`, `clamp` does not make the host wait for the norm. torch's function adds the same 1e-6.
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        local = gradient.to_local() if is_split(gradient) else gradient
        local.mul_(scale.to(local.device, local.dtype))
    return norm
