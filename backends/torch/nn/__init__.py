"""Modules: `MoE`, which replaces the MLP of a transformer block, and `Model`, which holds a complete model.

    block.mlp = MoE(384, 1536, experts=16, tokens=196, router="soft_moe")
    ...
    loss = criterion(model(images), targets) + auxiliary_loss(model)

`MoE.from_mlp` copies the weights of a trained MLP into every expert. `replace_mlps` replaces the MLPs of a timm or Hugging Face
transformers model; `from_pretrained` loads a transformers model whose MLPs were replaced. `from_transformers` and `to_transformers` convert
MoE blocks of transformers from and to `MoE`. `parameter_groups` returns parameter groups with and without weight decay. `ExpertParallel`
splits experts over processes, and `clip_grad_norm_` replaces torch's function for models with split experts. Call `update_states(model)`
once per step, after the optimiser, to update router states such as the bias of `sigmoid_token_choice`.

After a forward pass, a module has `losses` (the weighted auxiliary losses by name, with gradient) and `metrics` (for
logging). Copies and pickles of the module omit `losses` and `metrics`. Activation checkpointing inside a compiled function
needs `torch._dynamo.config.skip_fwd_side_effects_in_bwd_under_checkpoint = True`, because `forward` stores losses.
"""

from typing import TYPE_CHECKING, Any

from moespec.backends.torch.nn.clip import clip_grad_norm_
from moespec.backends.torch.nn.decay import parameter_groups
from moespec.backends.torch.nn.layer import MoE
from moespec.backends.torch.nn.model import Model
from moespec.backends.torch.nn.pretrained import from_pretrained
from moespec.backends.torch.nn.replace import replace_mlps
from moespec.backends.torch.nn.reporting import auxiliary_loss
from moespec.backends.torch.nn.sparse_block import from_transformers, to_transformers
from moespec.backends.torch.nn.state import update_states
from moespec.backends.torch.nn.tree import ParameterTree

if TYPE_CHECKING:
    from moespec.backends.torch.nn.parallel import ExpertParallel
else:

    def __getattr__(name: str) -> Any:
        """Imports `ExpertParallel` on first use: `torch.distributed.tensor` imports sympy, which takes half a second."""
        if name == "ExpertParallel":
            from moespec.backends.torch.nn.parallel import ExpertParallel

            return ExpertParallel
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "ExpertParallel",
    "MoE",
    "Model",
    "ParameterTree",
    "auxiliary_loss",
    "clip_grad_norm_",
    "from_pretrained",
    "from_transformers",
    "parameter_groups",
    "replace_mlps",
    "to_transformers",
    "update_states",
]
