"""What a module says of its last forward pass besides the output."""

import re
from typing import Any

import torch
from torch import Tensor, nn

from moespec.backends.optimizer import DECAYED

KERNELS = re.compile(rf"{DECAYED}|(^|/)(experts|shared)/fc[123]/weight$")


class Reporting(nn.Module):
    """A module with `losses` and `metrics` of its last forward pass, which hold a graph and so are never copied."""

    losses: dict[str, Tensor]
    metrics: Any

    def forget(self) -> None:
        """Leaves what the last forward pass said."""
        self.losses, self.metrics = {}, None

    def no_weight_decay(self) -> set[str]:
        """Names of the parameters that weight decay does not apply to, as timm's optimisers ask for them: all but kernels, and the
        scale of Soft MoE's router."""
        return {name for name, _ in self.named_parameters() if not KERNELS.search(name.replace(".", "/"))}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "losses": {}, "metrics": None}


def auxiliary_loss(module: nn.Module) -> Tensor:
    """The sum of the auxiliary losses of all `MoE` and `Model` modules in `module`, of their last forward pass.

    They are weighted already. A scalar, 0 when there are none.
    """
    values = [value for child in module.modules() if isinstance(child, Reporting) for value in child.losses.values()]
    return torch.stack(values).sum() if values else torch.zeros(())
