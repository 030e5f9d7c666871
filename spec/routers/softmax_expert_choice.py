"""Expert Choice by the softmax: each expert chooses the tokens of its highest noisy probabilities.

| here | Expert Choice (arXiv 2202.09368) | Routers (arXiv 2401.15969), section 2.3 |
|---|---|---|
| `kernel` (D, E) | W_g | W |
| scores (T, E) | S | softmax affinity |
| capacity | k | c |

Ambiguity ledger

EC-5: Is Softmax Expert Choice noisy in training?
    Reading: yes, the logits get noise of the standard deviation `noise_multiplier / E`.
        By: google-research/vmoe, vmoe/nn/routing.py, NoisyTopItemsPerExpertRouter.
    Alternative b: no (`noise_multiplier=0`).
        By: the paper, section 3.2; tensorflow/lingvo, lingvo/core/gshard_layers.py, TokenShufflingOnlogits.
"""

from dataclasses import dataclass

from moespec.spec.algorithms.capped_affinity import check_cap
from moespec.spec.choice_options import LogitOptions
from moespec.spec.options import ExpertChoiceOptions, NoisyLossOptions
from moespec.spec.ranges import Count, Positive
from moespec.spec.routers.blocks import Array, Blocks
from moespec.spec.routers.composition import gating_noise, init_kernel, noisy_logits, noisy_losses, output
from moespec.spec.routers.record import Router
from moespec.spec.routing import Params, RouterOutput

__all__ = ["ROUTER", "Options", "route"]


@dataclass(frozen=True, kw_only=True)
class Options(NoisyLossOptions, ExpertChoiceOptions, LogitOptions):
    """Options of `softmax_expert_choice`."""

    cap: Count | None = None
    """the most experts that should choose one token, by a linear program; None for no limit"""
    cap_regularization: Positive = 0.01
    """strength lambda of the entropy in that program"""

    def capacity(self, *, train: bool = True) -> int:
        """Slots C of an expert. Also raises ConfigError if tokens with this cap cannot fill them."""
        slots = super().capacity(train=train)
        if self.cap is not None:
            check_cap(slots, self.cap, self.tokens, self.experts)
        return slots


def route(
    B: Blocks, params: Params, tokens: Array, options: Options, *, noise: Array | None = None, train: bool = False
) -> RouterOutput:
    """Expert Choice by the noisy softmax, or with a cap by the capped affinity of it; the noisy softmax combines.

    With the cap, fewer tokens are chosen by more experts than it says, but some still are: here token 3.

    >>> from moespec.spec import ROUTERS, slot_tokens
    >>> from moespec.spec.examples import LOGITS
    >>> import numpy as np
    >>> router = ROUTERS["softmax_expert_choice"]
    >>> for cap in (None, 2):
    ...     options = router.options(width=3, experts=3, tokens=6, capacity_factor=2.0, cap=cap)
    ...     print(slot_tokens(router.route({"kernel": np.eye(3)}, LOGITS, options).routing).tolist())
    [[4, 1, 0, 3], [5, 2, 0, 1], [3, 2, 4, 1]]
    [[0, 1, 4, 3], [2, 5, 3, 0], [2, 3, 4, 1]]
    """
    clean, noisy = noisy_logits(B, params, tokens, options, noise)
    scores, capacity = B.softmax_affinity(noisy), options.capacity(train=train)
    if options.cap is None:
        routing = B.expert_choice(scores, capacity=capacity)
    else:
        selected = B.stop_gradient(scores)
        capped = B.capped_affinity(
            selected, capacity=capacity, cap=options.cap, regularization=options.cap_regularization
        )
        routing = B.expert_choice(capped, capacity=capacity, combine_scores=scores)
    return output(B, options, routing, noisy_losses(B, options, clean, noisy, noise))


ROUTER = Router(
    __name__,
    "Zhou et al. 2022 (arXiv 2202.09368); Liu et al. 2024 (arXiv 2401.15969), section 2.3",
    Options,
    init_kernel,
    route,
    gating_noise,
    balances="the load of the experts, exactly: each chooses C tokens",
    cost="T D E, and with a cap 3 T E for each of 100 iterations",
    drops="tokens that no expert chooses",
    revision=3,
)
