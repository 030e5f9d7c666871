"""GShard's top-2: a token chooses two experts and keeps the second with a probability that grows with the second gate.

| here | GShard (arXiv 2006.16668), Algorithm 1 |
|---|---|
| scores (T, E) | gates g_{s,E}, the softmax |
| `noise` (T,), uniform on [0, 1) | rnd |
| `balance_weight` | k, the weight of the auxiliary loss |

`moespec.spec.algorithms.gshard` contains the ledger of this router (GS-1 to GS-6).
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from moespec.spec.algorithms.batch_priority import batch_priority
from moespec.spec.algorithms.gshard import gshard_keep, gshard_sample
from moespec.spec.algorithms.logit_cap import cap_logits
from moespec.spec.algorithms.router_jitter import router_jitter
from moespec.spec.algorithms.selected_weights import normalize_selected
from moespec.spec.algorithms.softmax import router_logits, softmax_affinity
from moespec.spec.algorithms.token_choice import token_choice
from moespec.spec.errors import ConfigError
from moespec.spec.option_groups import CapacityOptions, LogitOptions, LossOptions, OrderOptions, SlotOptions
from moespec.spec.ranges import Weight
from moespec.spec.routers.common import auxiliary_losses, check_logits, init_kernel, jitter_noise, output, replay
from moespec.spec.routers.record import Router
from moespec.spec.routing import Array, Noise, Params, RouterOutput

__all__ = ["ROUTER", "Options", "route"]


@dataclass(frozen=True, kw_only=True)
class Options(LossOptions, SlotOptions, OrderOptions, CapacityOptions, LogitOptions):
    """Options of `gshard`. A token chooses two experts."""

    choices: ClassVar[int] = 2
    normalize_selected: bool = True
    balance_weight: Weight = 0.01
    second_expert: Literal["random", "sampled", "all"] = "random"
    """second expert: the second-best, kept at random in training (GShard); sampled in training from the other experts by
    their gates (fairseq); or always the second-best"""
    hold_unkept: bool = True
    """with second_expert="random": a second expert that is not kept leaves its slot empty, as in Algorithm 1; if False, it
    takes no slot (Mesh TensorFlow)"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.jitter and self.second_expert != "all":
            raise ConfigError(
                f"jitter={self.jitter!r}: cannot be combined with second_expert={self.second_expert!r}; "
                f"set jitter=0 or second_expert='all'"
            )


def noise(options: Options) -> Noise | None:
    """Describes the noise by which tokens keep or sample their second expert or, with `second_expert="all"`, the noise for the jitter."""
    if options.second_expert == "sampled":
        return Noise((options.tokens, options.experts), (2.0**-24, 1.0))
    return Noise((options.tokens,), (0.0, 1.0)) if options.second_expert == "random" else jitter_noise(options)


def route(
    params: Params,
    tokens: Array,
    options: Options,
    *,
    noise: Array | None = None,
    train: bool = False,
    choices: Array | None = None,
) -> RouterOutput:
    """Token Choice of two experts based on the softmax. By default, the gates of both experts sum to 1.

    noise: (tokens,), uniform on [0, 1). A token keeps its second expert if 2 g2 exceeds the noise, where g2 is the
    normalised gate of the second expert. If the second expert is sampled, noise is (tokens, experts), uniform on (0, 1). If noise is None
    (evaluation), every token keeps its second-best expert. train: whether to use the training capacity.

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

    # Logits.
    router_input = router_jitter(tokens, noise, epsilon=options.jitter) if options.jitter else tokens
    logits = router_logits(router_input, params["kernel"], params["bias"] if options.bias else None)
    check_logits(logits, options)
    if options.logit_cap:
        logits = cap_logits(logits, cap=options.logit_cap)
    scores = softmax_affinity(logits)

    # In training, the noise decides whether a token keeps its second expert, or which expert it samples. The combine weights use `scores`.
    drawn = None if choices is not None else noise
    selection = scores
    keep: Array | None = None
    if drawn is not None and options.second_expert == "sampled":
        selection = gshard_sample(logits, drawn)
    if drawn is not None and options.second_expert == "random":
        keep = gshard_keep(normalize_selected(scores, choices=options.choices), drawn)

    # Order and weights.
    order: Array | None = None
    weights: Array | None = None if selection is scores else scores
    if options.batch_priority != "none":
        order = batch_priority(scores, by=options.batch_priority, choices=options.choices)
    if choices is not None:
        selection, weights, keep = replay(options, choices, scores)
    if options.normalize_selected and options.normalize_when == "before":
        weights = normalize_selected(selection, weights, choices=options.choices, norm=options.normalize_norm)
    normalize_after = options.normalize_selected and options.normalize_when == "after"

    # Slots.
    routing = token_choice(
        selection,
        choices=options.choices,
        capacity=options.capacity(train=train),
        combine_scores=weights,
        order=order,
        keep=keep,
        hold=drawn is not None and keep is not None and options.hold_unkept,
        slot_order=options.slot_order,
        normalize=options.normalize_norm if normalize_after else None,
    )
    return output(options, routing, auxiliary_losses(options, logits))


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
    drops="tokens beyond the capacity of their chosen experts, and random second choices in training",
    functions=("gshard_keep", "gshard_sample"),
    replays=True,
    revision=5,
)
