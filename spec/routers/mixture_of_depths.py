"""Mixture-of-Depths: a block processes only the tokens with the largest router weights; other tokens bypass the block.

| here | Mixture-of-Depths (arXiv 2404.02258), section 3.4 |
|---|---|
| `kernel` (D, 1) | w_theta |
| logits (T, 1) | r, router weights |
| capacity | C, from a fraction of the tokens |
| expert | the block f |

The paper uses one expert. To reproduce the paper, set `experts=1`, and set `capacity_factor` to the fraction of tokens to
process. Other tokens use only the residual connection. Here, the expert is the MLP of a block. In the paper, the expert includes attention.

Ambiguity ledger

MD-1: By which factor is the output of the block weighted?
    Reading: the output is weighted by the router weight itself, which may be negative.
        By: the paper, section 3.4, eq. (1); astramind-ai/Mixture-of-depths, MoD/MoD.py, MoD.forward;
        Mixture-AI/Mixture-of-Depths, MoD/MoD.py, MoDTransformerBlock.forward.
    Alternative b: the output is weighted by the sigmoid of the router weight (`weights="sigmoid"`).
    Alternative c: the output is weighted by the softmax of the router weights over the chosen tokens.
        By: kyegomez/Mixture-of-Depths, mixture_of_depths/main.py, MoD.forward.
MD-2: How are tokens chosen at evaluation?
    Reading: as in training, by choosing the best tokens of the group, because all tokens of an image are available.
        By: kyegomez/Mixture-of-Depths, mixture_of_depths/main.py, MoD.forward; astramind-ai/Mixture-of-depths,
        MoD/MoD.py, MoD.forward.
    Alternative b: a second router decides for each token independently, as autoregressive sampling requires. A binary
        cross-entropy trains this router to predict whether a token is among the best.
        By: the paper, section 3.5; Mixture-AI/Mixture-of-Depths, MoD/MoD.py, MoDTransformerBlock.forward.
MD-3: Is the C-th best token of a group chosen?
    Reading: yes, exactly C tokens are chosen.
        By: kyegomez/Mixture-of-Depths, mixture_of_depths/main.py, MoD.forward; Mixture-AI/Mixture-of-Depths, MoD/MoD.py,
        MoDTransformerBlock.forward.
    Alternative b: no, only tokens better than the C-th best are chosen, unless C is 1.
        By: astramind-ai/Mixture-of-depths, MoD/MoD.py, MoD.forward.

Often done differently

MD-4: What happens to the input of a chosen token?
    Reading: the input is kept, and the weighted output of the block is added to it.
        By: the paper, eq. (1); kyegomez/Mixture-of-Depths, mixture_of_depths/main.py, MoD.forward.
    Alternative b: the input is replaced by the weighted output, which includes the residual connection inside the block.
        By: astramind-ai/Mixture-of-depths, MoD/MoD.py, MoD.forward; Mixture-AI/Mixture-of-Depths, MoD/MoD.py,
        MoDTransformerBlock.forward.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from moespec.spec.algorithms.expert_choice import expert_choice
from moespec.spec.algorithms.sigmoid_affinity import sigmoid_affinity
from moespec.spec.algorithms.softmax import router_logits
from moespec.spec.option_groups import CapacityOptions
from moespec.spec.ranges import Factor
from moespec.spec.routers.common import check_logits, init_kernel, output
from moespec.spec.routers.record import Router
from moespec.spec.routing import Array, Params, RouterOutput

__all__ = ["ROUTER", "Options", "route"]


@dataclass(frozen=True, kw_only=True)
class Options(CapacityOptions):
    """Options of `mixture_of_depths`."""

    experts_choose: ClassVar[bool] = True
    capacity_factor: Factor = 0.125
    weights: Literal["raw", "sigmoid"] = "raw"
    """weight of the expert's output: the logit, or its sigmoid"""


def route(
    params: Params, tokens: Array, options: Options, *, noise: Array | None = None, train: bool = False
) -> RouterOutput:
    """Expert Choice based on the logits. The combine weights are the logits or their sigmoid. This router uses no noise.

    >>> from moespec.spec import ROUTERS, slot_tokens
    >>> from moespec.spec.examples import LOGITS
    >>> import numpy as np
    >>> router = ROUTERS["mixture_of_depths"]
    >>> options = router.options(width=3, experts=1, tokens=6, capacity_factor=0.5)
    >>> routing = router.route({"kernel": np.array([[1.0], [1.0], [1.0]])}, LOGITS, options).routing
    >>> slot_tokens(routing).tolist(), routing.combine.sum(axis=(1, 2)).tolist()
    ([[4, 1, 3]], [0.0, 2.5, 0.0, 1.0, 4.0, 0.0])
    """

    # Logits.
    logits = router_logits(tokens, params["kernel"])
    check_logits(logits, options)

    # Slots.
    weights = sigmoid_affinity(logits) if options.weights == "sigmoid" else logits
    return output(options, expert_choice(logits, capacity=options.capacity(train=train), combine_scores=weights))


ROUTER = Router(
    __name__,
    "Raposo et al. 2024 (arXiv 2404.02258)",
    Options,
    init_kernel,
    route,
    models=("Mixture-of-Depths",),
    balances="the load of the expert, exactly: it chooses C tokens",
    cost="T D E",
    drops="tokens that no expert chooses, on purpose, to save computation",
    revision=2,
)
