"""Modules: `MoE`, which takes the place of the MLP of a transformer block, and `Model`, which holds a whole model.

    block.mlp = MoE(384, 1536, experts=16, tokens=196, router="soft_moe")
    ...
    loss = criterion(model(images), targets) + auxiliary_loss(model)

`MoE.from_mlp` copies the weights of a trained MLP into every expert, and `replace_mlps` does that in a whole model of timm or
Hugging Face transformers, which `from_pretrained` reads once it is saved; `from_transformers` and `to_transformers` convert a MoE
block of theirs. `parameter_groups` has the weight decay for an optimiser; `ExpertParallel` splits experts over processes, and
`clip_grad_norm_` is torch's for such a model. `update_states(model)` once a step, after the optimiser's, moves what routers keep
besides parameters, such as the bias of `sigmoid_token_choice`.

What the last forward pass found out besides its output stays on the module: `losses` (the weighted auxiliary losses by name,
with gradient) and `metrics` (for logs). Copies and pickles leave them out. Activation checkpointing inside a compiled
function needs `torch._dynamo.config.skip_fwd_side_effects_in_bwd_under_checkpoint = True`, as the modules keep these in `forward`.
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
        """`ExpertParallel` is imported when it is first used: `torch.distributed.tensor` takes half a second, by sympy."""
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
