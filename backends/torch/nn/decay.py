"""Groups the parameters of a model with MoE layers by weight decay, for a torch optimiser."""

from typing import Any

from torch import nn

from moespec.backends.torch.nn.reporting import Reporting

__all__ = ["parameter_groups"]


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Returns the trained parameters of a model in two groups for a torch optimiser: with weight decay, and without.

        torch.optim.AdamW(parameter_groups(model, 0.05), lr=1e-3)

    In `MoE` and `Model`, the parameters that `no_weight_decay()` lists do not decay (such as slots and the biases of experts). In other
    modules, parameters with at most one axis, parameters called `bias`, and parameters in a timm model's `no_weight_decay()` do not decay.
    """
    of_model: Any = getattr(model, "no_weight_decay", set)
    without: set[str] = set(of_model())
    ours: set[str] = set()
    for prefix, module in model.named_modules():
        if isinstance(module, Reporting):
            dot = f"{prefix}." if prefix else ""
            ours |= {dot + name for name, _ in module.named_parameters()}
            without |= {dot + name for name in module.no_weight_decay()}
    groups: list[dict[str, Any]] = [{"params": [], "weight_decay": weight_decay}, {"params": [], "weight_decay": 0.0}]
    for name, parameter in model.named_parameters():
        plain = name not in ours and (parameter.ndim <= 1 or name.endswith("bias"))
        if parameter.requires_grad:
            groups[name in without or plain]["params"].append(parameter)
    return [group for group in groups if group["params"]]
