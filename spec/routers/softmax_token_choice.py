"""Token Choice by the softmax: each token chooses the experts with its highest noisy probabilities (V-MoE).

| here | V-MoE (arXiv 2106.05974) |
|---|---|
| `kernel` (D, E) | W |
| noise of standard deviation `noise_multiplier / E` | epsilon, sigma = 1 / E |
| `choices` | k |
| `importance_weight`, `load_weight` | weights of the auxiliary losses |

Ambiguity ledger

RT-5: Which capacity factor and which rounding does the paper Routers (arXiv 2401.15969) use?
    Reading: the paper uses the capacity factor of the router and rounds the capacity up.
    Alternative b: the rounding is unknown, because the paper states only the factor.
"""

from dataclasses import dataclass

from moespec.spec.algorithms.batch_priority import batch_priority
from moespec.spec.algorithms.selected_weights import normalize_selected
from moespec.spec.algorithms.softmax import softmax_affinity
from moespec.spec.algorithms.token_choice import check_slot_order, token_choice
from moespec.spec.checks import check_tries
from moespec.spec.option_groups import TokenChoiceOptions
from moespec.spec.ranges import Count, Weight
from moespec.spec.routers.common import auxiliary_losses, gating_noise, init_kernel, noisy_logits, output, replay
from moespec.spec.routers.record import Router
from moespec.spec.routing import Array, Params, RouterOutput

__all__ = ["ROUTER", "Options", "route"]


@dataclass(frozen=True, kw_only=True)
class Options(TokenChoiceOptions):
    """Options of `softmax_token_choice`."""

    importance_weight: Weight = 0.005
    load_weight: Weight = 0.005
    choices: Count = 1
    tries: Count | None = None
    """number of best experts that a token tries in turn when some are full (default: only its choices)"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_slot_order(self.slot_order, check_tries(self.tries, self.choices, self.experts), self.choices)


def route(
    params: Params,
    tokens: Array,
    options: Options,
    *,
    noise: Array | None = None,
    train: bool = False,
    choices: Array | None = None,
) -> RouterOutput:
    """Token Choice based on the noisy softmax.

    noise: (tokens, experts), standard normal. The router adds the noise times `noise_multiplier / E` to the logits. With
    `jitter`, noise is (tokens, width), uniform on [-1, 1], and is applied to the tokens, not to the logits.
    train: whether to use the training capacity.
    """

    # Logits.
    logits, noisy = noisy_logits(params, tokens, options, noise)
    scores = softmax_affinity(noisy)

    # Order and weights.
    order: Array | None = None
    if options.batch_priority != "none":
        order = batch_priority(scores, by=options.batch_priority, choices=options.choices)
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
        tries=options.tries if choices is None else None,
        slot_order=options.slot_order,
        normalize=options.normalize_norm if normalize_after else None,
    )

    # Losses.
    counted = options.choices if options.balance_counts == "all" else None
    losses = auxiliary_losses(options, logits, noisy, noise, choices=options.choices, counted=counted)
    return output(options, routing, losses)


ROUTER = Router(
    __name__,
    "Riquelme et al. 2021 (arXiv 2106.05974)",
    Options,
    init_kernel,
    route,
    gating_noise,
    models=(
        *("V-MoE", "Mixtral", "OLMoE", "Qwen2-MoE", "Qwen3-MoE", "Qwen3-VL-MoE", "Qwen3-Next", "Qwen3.5-MoE"),
        *("gpt-oss", "Hunyuan V1 MoE"),
    ),
    balances="the load of the experts, by the importance and load losses",
    cost="T D E",
    drops="tokens beyond the capacity of the experts that they choose (with `tries`, that they try)",
    replays=True,
    revision=6,
)
