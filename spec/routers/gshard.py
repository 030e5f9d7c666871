"""GShard's top-2: two experts with gates that sum to 1, the second kept at random, more often the larger its gate is.

| here | GShard (arXiv 2006.16668), Algorithm 1 |
|---|---|
| scores (T, E) | gates g_{s,E}, the softmax |
| `noise` (T,), uniform on [0, 1) | rnd |
| `balance_weight` | k, the weight of the auxiliary loss |

The ledger of `moespec.spec.algorithms.gshard` (GS-1 to GS-6) is that of this router.
"""

from dataclasses import dataclass
from typing import Any, Literal

from moespec.spec.choice_options import LogitOptions, SeveralChoicesOptions
from moespec.spec.errors import ConfigError
from moespec.spec.options import BalanceLossOptions
from moespec.spec.ranges import Weight
from moespec.spec.routers.blocks import Array, Blocks
from moespec.spec.routers.composition import clean_losses, init_kernel, jitter_noise, logits, output, token_choice
from moespec.spec.routers.record import Router
from moespec.spec.routing import Noise, Params, RouterOutput

__all__ = ["ROUTER", "Options", "route"]


@dataclass(frozen=True, kw_only=True)
class Options(BalanceLossOptions, SeveralChoicesOptions, LogitOptions):
    """Options of `gshard`; a token chooses two experts."""

    normalize_selected: bool = True
    second_expert: Literal["random", "sampled", "all"] = "random"
    """the second-best, which is kept at random in training (GShard); one of the others, sampled by their gates in training
    (fairseq); or the second-best, always"""
    hold_unkept: bool = True
    """a second expert that is not kept uses up its place, as in Algorithm 1; if false it requests none (Mesh TensorFlow)"""
    balance_weight: Weight = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.jitter and self.second_expert != "all":
            raise ConfigError(
                f"jitter={self.jitter!r}: a router has one kind of noise, and second_expert is {self.second_expert!r}; "
                "it must be 'all'"
            )

    @property
    def choices(self) -> int:
        return 2


def noise(options: Options) -> Noise | None:
    """Draws that keep a second expert or not, or that sample it; else the jitter, if there is any."""
    if options.second_expert == "sampled":
        return Noise((options.tokens, options.experts), (2.0**-24, 1.0))
    return Noise((options.tokens,), (0.0, 1.0)) if options.second_expert == "random" else jitter_noise(options)


def route(
    B: Blocks, params: Params, tokens: Array, options: Options, *, noise: Array | None = None, train: bool = False
) -> RouterOutput:
    """Token Choice of two experts by the softmax, with gates that sum to 1 over the two.

    noise: (tokens,), uniform draws from [0, 1): a token keeps its second expert if twice its gate is greater; for a sampled
    second expert (tokens, experts), uniform draws from (0, 1); None (evaluation): the second-best, which every token keeps.
    train: whether the capacity is that of training.

    Source: GShard, Algorithm 1. A sampled second expert: facebookresearch/fairseq, fairseq/modules/moe/top2gate.py,
    top2gating.

    >>> import numpy as np
    >>> from moespec.spec import ROUTERS, slot_tokens
    >>> from moespec.spec.examples import LOGITS
    >>> router = ROUTERS["gshard"]
    >>> options = router.options(width=3, experts=3, tokens=6, capacity_factor=0.75)
    >>> for noise in (None, np.full(6, 0.5)):  # 2 g2 is .54, .36, .88, .75, .24 and .54
    ...     routing = router.route({"kernel": np.eye(3)}, LOGITS, options, noise=noise).routing
    ...     print(slot_tokens(routing).tolist(), round(float(routing.combine.sum()), 10))
    [[0, 1, 4], [2, 5, 0], [3, 4, 6]] 4.7332688869
    [[0, 1, 4], [2, 5, 0], [3, 6, 6]] 4.6140659649
    """
    clean = logits(B, params, tokens, options, noise)
    scores = B.softmax_affinity(clean)
    if noise is not None and options.second_expert == "sampled":
        routing = token_choice(B, options, B.gshard_sample(clean, noise), scores, train=train, priority=scores)
        return output(B, options, routing, clean_losses(B, options, clean))
    second: dict[str, Any] = {}
    if noise is not None and options.second_expert == "random":
        gates = B.normalize_selected(scores, choices=options.choices)
        second = {"keep": B.gshard_keep(gates, noise), "hold": options.hold_unkept}
    routing = token_choice(B, options, scores, train=train, **second)
    return output(B, options, routing, clean_losses(B, options, clean))


ROUTER = Router(
    __name__,
    "Lepikhin et al. 2020 (arXiv 2006.16668), Algorithm 1",
    Options,
    init_kernel,
    route,
    noise,
    models=("NLLB-MoE",),
    balances="the load of the experts, by the balance loss",
    cost="T D E",
    drops="tokens beyond the capacity of the experts that they choose, and in training second choices at random",
    functions=("gshard_keep", "gshard_sample"),
    revision=4,
)
