"""Batch-level Expert Choice: an expert takes its best tokens from several images, and a predictor sets the number of tokens at evaluation.

| here | DiffMoE (arXiv 2503.14487), KwaiVGI/DiffMoE |
|---|---|
| `kernel` (D, E) | gate_weight |
| `w1`, `b1`, `w2`, `b2` | capacity_predictor |
| `capacity_factor` | capacity |
| `thresholds`, a state | expert_threshold |
| group | the batch, a global token pool |

Ambiguity ledger

BE-1: Among which tokens does an expert choose in training?
    Reading: an expert chooses among the tokens of several images, ideally of the entire batch.
        By: the paper, caption of Figure 2; KwaiVGI/DiffMoE, models/models_DiffMoE.py, SparseMoEBlock.forward_train;
        theAdamColton/diffmoe, diffmoe/diffmoe.py, DiffMoeMLP.forward_training.
    Alternative b: an expert chooses among the tokens of one image, also at evaluation (`softmax_expert_choice`).
        By: EC-DiT (arXiv 2410.02098), Algorithm 1; KwaiVGI/DiffMoE, models/models_ECDiT.py, SparseMoEBlock.forward.
BE-2: Which tokens does an expert take at evaluation?
    Reading: if n tokens have a predicted probability above an expert's threshold, the expert takes the n tokens with the largest scores.
        By: KwaiVGI/DiffMoE, models/models_DiffMoE.py, SparseMoEBlock.forward_eval.
    Alternative b: an expert takes every token with a predicted probability above its threshold (`eval_take="above"`).
        By: theAdamColton/diffmoe, diffmoe/diffmoe.py, DiffMoeMLP.forward_eval.
    Alternative c: without a predictor, an expert takes every token with a score above its threshold (`predictor=False`).
BE-3: How are the scores computed from the logits?
    Reading: the scores are the softmax of the logits over the experts.
        By: KwaiVGI/DiffMoE, models/models_DiffMoE.py, SparseMoEBlock.forward_train.
    Alternative b: the score of logit l is (1 + tanh(l)) / 2.
        By: theAdamColton/diffmoe, diffmoe/diffmoe.py, DiffMoeMLP.forward_gate.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np

from moespec.spec.algorithms.capacity_predictor import (
    capacity_logits,
    capacity_loss,
    capacity_thresholds,
    moved_thresholds,
    scores_above,
)
from moespec.spec.algorithms.expert_choice import expert_choice
from moespec.spec.algorithms.sigmoid_affinity import sigmoid_affinity
from moespec.spec.algorithms.softmax import router_logits, softmax_affinity
from moespec.spec.algorithms.strictly_balanced import batchwise_mask
from moespec.spec.initial import lecun_normal
from moespec.spec.option_groups import CapacityOptions
from moespec.spec.ranges import Factor, Range, Weight
from moespec.spec.routers.common import check_logits, init_kernel, output
from moespec.spec.routers.record import Router
from moespec.spec.routing import Array, Params, RouterOutput, State, StateSpec

__all__ = ["ROUTER", "Options", "init", "route", "state", "update"]


@dataclass(frozen=True, kw_only=True)
class Options(CapacityOptions):
    """Options of `batch_expert_choice`."""

    experts_choose: ClassVar[bool] = True
    eval_capacity_factor: Factor | None = None
    """capacity factor at evaluation; None for no limit, so that all tokens above a threshold have a slot"""
    eval_take: Literal["largest", "above"] = "largest"
    """tokens taken at evaluation if n are above an expert's threshold: the n with the largest scores, or the n above it"""
    predictor: bool = True
    """use a learned predictor for the choice at evaluation instead of the scores"""
    predictor_weight: Weight = 1.0
    """weight of the predictor's loss, in training only"""
    threshold_decay: Annotated[float, Range(0, 1)] = 0.95
    """decay of the thresholds' moving average per step"""

    def capacity(self, *, train: bool = True) -> int:
        """Returns the number of slots C of an expert. Raises ConfigError if C is below 1 or above the number of tokens."""
        return self.tokens if not train and self.eval_capacity_factor is None else super().capacity(train=train)


def init(generator: np.random.Generator, options: Options) -> Params:
    """Returns `kernel` (width, experts); for a predictor, `w1` (width, width), `b1` (width,), `w2` (width, experts), `b2` (experts,)."""
    params, width = init_kernel(generator, options), options.width
    for name, size in {"1": width, "2": options.experts}.items() if options.predictor else ():
        params[f"w{name}"] = lecun_normal(generator, (width, size), width)
        params[f"b{name}"] = np.zeros(size, np.float32)
    return params


def state(options: Options) -> dict[str, StateSpec]:
    """`thresholds` (experts,), initially 0."""
    return {"thresholds": StateSpec((options.experts,))}


def route(
    params: Params, tokens: Array, options: Options, *, state: State, noise: Array | None = None, train: bool = False
) -> RouterOutput:
    """Expert Choice based on the softmax, which also provides the combine weights. This router uses no noise.

    At evaluation, the threshold of an expert determines which tokens the expert takes (see `scores_above`).

    state: `thresholds` (experts,). `statistics["reached"]`: the result of `capacity_thresholds`.

    >>> from moespec.spec import ROUTERS, slot_tokens
    >>> from moespec.spec.examples import LOGITS
    >>> router = ROUTERS["batch_expert_choice"]
    >>> options = router.options(width=3, experts=3, tokens=6, predictor=False, threshold_decay=0.0)
    >>> params, state = {"kernel": np.eye(3)}, router.initial_state(options)
    >>> found = router.route(params, LOGITS, options, state=state, train=True)
    >>> slot_tokens(found.routing).tolist()
    [[4, 1], [5, 2], [3, 2]]
    >>> state = router.update(options, state, found.statistics)
    >>> slot_tokens(router.route(params, LOGITS, options, state=state).routing)[:, :2].tolist()
    [[4, 6], [5, 6], [3, 6]]
    """

    # Logits.
    logits = router_logits(tokens, params["kernel"])
    check_logits(logits, options)
    scores = softmax_affinity(logits)

    # At evaluation, the thresholds apply to the predicted probabilities or, without a predictor, to the scores.
    by = scores
    if options.predictor:
        predicted = capacity_logits(tokens, params["w1"], params["b1"], params["w2"], params["b2"])
        by = sigmoid_affinity(predicted)
    reached = capacity_thresholds(by, capacity=options.capacity())

    # Slots and losses.
    capacity = options.capacity(train=train)
    losses: dict[str, Array] = {}
    if not train:
        taken = scores_above(scores, by, state["thresholds"], largest=options.eval_take == "largest")
        routing = expert_choice(taken, capacity=capacity, drop_zero=True)
    else:
        routing = expert_choice(scores, capacity=capacity)
        if options.predictor:
            chosen = batchwise_mask(scores, capacity=capacity)
            if options.predictor_weight:
                losses["predictor"] = capacity_loss(predicted, chosen)
    return output(options, routing, losses)._replace(statistics={"reached": reached})


def update(options: Options, state: State, statistics: State) -> State:
    """Returns the state after a step, from the `reached` statistics of all groups (see `moved_thresholds`)."""
    thresholds = moved_thresholds(state["thresholds"], statistics["reached"], decay=options.threshold_decay)
    return {"thresholds": thresholds}


ROUTER = Router(
    __name__,
    "Shi et al. 2025 (arXiv 2503.14487)",
    Options,
    init,
    route,
    state=state,
    update=update,
    decays=("kernel", "w1", "w2"),
    models=("DiffMoE",),
    balances="the load: exactly in training, where an expert chooses C tokens; as well as it is predicted at evaluation",
    cost="T D E, plus T D (D + E) for the predictor; at evaluation an expert may get every token",
    drops="tokens that no expert chooses",
    revision=3,
)
