"""Expert Choice by the softmax: each expert chooses the tokens with its highest noisy probabilities.

| here | Expert Choice (arXiv 2202.09368) | Routers (arXiv 2401.15969), section 2.3 |
|---|---|---|
| `kernel` (D, E) | W_g | W |
| scores (T, E) | S | softmax affinity |
| capacity | k | c |

Ambiguity ledger

EC-5: Does Softmax Expert Choice add noise to the logits in training?
    Reading: yes, noise with standard deviation `noise_multiplier / E` is added to the logits.
        By: google-research/vmoe, vmoe/nn/routing.py, NoisyTopItemsPerExpertRouter.
    Alternative b: no, the logits have no noise (`noise_multiplier=0`).
        By: the paper, section 3.2; tensorflow/lingvo, lingvo/core/gshard_layers.py, TokenShufflingOnlogits.
"""

from dataclasses import dataclass
from typing import ClassVar

from moespec.spec.algorithms.capped_affinity import capped_affinity, check_cap
from moespec.spec.algorithms.expert_choice import expert_choice
from moespec.spec.algorithms.softmax import softmax_affinity
from moespec.spec.numerics import stop_gradient
from moespec.spec.option_groups import NoisyOptions
from moespec.spec.ranges import Count, Positive
from moespec.spec.routers.common import auxiliary_losses, gating_noise, init_kernel, noisy_logits, output
from moespec.spec.routers.record import Router
from moespec.spec.routing import Array, Params, RouterOutput

__all__ = ["ROUTER", "Options", "route"]


@dataclass(frozen=True, kw_only=True)
class Options(NoisyOptions):
    """Options of `softmax_expert_choice`."""

    experts_choose: ClassVar[bool] = True
    cap: Count | None = None
    """largest number of experts per token, enforced approximately by a linear program; None for no limit"""
    cap_regularization: Positive = 0.01
    """weight lambda of the entropy in the linear program"""

    def capacity(self, *, train: bool = True) -> int:
        """Returns the number of slots C of an expert. Raises ConfigError if the cap leaves too few tokens to fill the slots."""
        slots = super().capacity(train=train)
        if self.cap is not None:
            check_cap(slots, self.cap, self.tokens, self.experts)
        return slots


def route(
    params: Params, tokens: Array, options: Options, *, noise: Array | None = None, train: bool = False
) -> RouterOutput:
    """Experts choose tokens by the noisy softmax or, with a `cap`, by the capped affinity. The softmax provides the combine weights.

    noise, train: see `softmax_token_choice`. With `jitter`, the noise is applied to the tokens instead of the logits.

    The cap is not a strict limit: in the example, token 3 has three experts although the cap is 2.

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

    # Logits.
    logits, noisy = noisy_logits(params, tokens, options, noise)
    scores, capacity = softmax_affinity(noisy), options.capacity(train=train)

    # Slots.
    if options.cap is None:
        routing = expert_choice(scores, capacity=capacity)
    else:
        regularization = options.cap_regularization
        capped = capped_affinity(
            stop_gradient(scores), capacity=capacity, cap=options.cap, regularization=regularization
        )
        routing = expert_choice(capped, capacity=capacity, combine_scores=scores)

    # Losses.
    losses = auxiliary_losses(options, logits, noisy, noise)
    return output(options, routing, losses)


ROUTER = Router(
    __name__,
    "Zhou et al. 2022 (arXiv 2202.09368); Liu et al. 2024 (arXiv 2401.15969), section 2.3",
    Options,
    init_kernel,
    route,
    gating_noise,
    balances="the load of the experts, exactly: each chooses C tokens",
    cost="T D E; with a cap, plus 3 T E for each of 100 iterations",
    drops="tokens that no expert chooses",
    revision=4,
)
