"""ReLU routing: a token goes to all experts with logits above 0, and these logits are the combine weights.

| here | ReMoE (arXiv 2412.14711), section 3 |
|---|---|
| `kernel` (D, E) | W |
| `choices` | k |
| `penalty`, a state | lambda, from `initial_penalty` |
| `penalty_multiplier` | alpha |

The paper sets no capacity, so `capacity_factor` is infinite by default. With a capacity, an expert keeps the tokens with the largest gates.

Ambiguity ledger

RE-4: Do the layers of a model share one penalty?
    Reading: no, each layer has a separate penalty, which is updated from the sparsity of the layer.
    Alternative b: yes, one penalty is updated from the mean sparsity of all layers.
        By: the paper, eqs. (6)-(8); thu-ml/ReMoE, megatron/training/training.py, train.

Often done differently

RE-5: How many experts does a token choose?
    Reading: a token chooses all experts with a gate above 0, possibly none.
        By: the paper, section 3.2; thu-ml/ReMoE, megatron/core/transformer/moe/router.py,
        ReLURouter.l1_reg_load_balancing.
    Alternative b: a token chooses the K best experts among those with a gate above 0.
"""

import math
from dataclasses import dataclass

from moespec.spec.algorithms.expert_choice import expert_choice
from moespec.spec.algorithms.metrics import routing_metrics
from moespec.spec.algorithms.relu_routing import excess_gates, relu_affinity, relu_loss, renewed_penalty
from moespec.spec.algorithms.softmax import router_logits
from moespec.spec.option_groups import CapacityOptions
from moespec.spec.ranges import Count, Factor, Positive
from moespec.spec.routers.common import check_logits, init_kernel
from moespec.spec.routers.record import Router
from moespec.spec.routing import Array, Params, RouterOutput, State, StateSpec

__all__ = ["ROUTER", "Options", "route", "state", "update"]


@dataclass(frozen=True, kw_only=True)
class Options(CapacityOptions):
    """Options of `relu`. By default, the capacity is unlimited."""

    capacity_factor: Factor = math.inf
    choices: Count = 1
    """experts K per token, averaged over all tokens; the penalty aims for this mean"""
    initial_penalty: Positive = 1e-8
    """initial weight of the loss that drives gates to 0"""
    penalty_multiplier: Positive = 1.2
    """multiplies the penalty after a step with too many gates above 0, and divides it after a step with too few"""

    def capacity(self, *, train: bool = True) -> int:
        """Returns the number of slots C of an expert, which is at most the number of tokens."""
        return min(super().capacity(train=train), self.tokens)


def state(options: Options) -> dict[str, StateSpec]:
    """`penalty`, a scalar."""
    return {"penalty": StateSpec((), options.initial_penalty)}


def route(
    params: Params, tokens: Array, options: Options, *, state: State, noise: Array | None = None, train: bool = False
) -> RouterOutput:
    """An expert takes all tokens with a gate above 0. The combine weights are the gates. This router uses no noise.

    state: `penalty`, a scalar factor of the loss. `statistics["excess"]`: the result of `excess_gates`.

    Source: ReMoE, section 3.

    >>> from moespec.spec import ROUTERS, slot_tokens
    >>> from moespec.spec.examples import LOGITS
    >>> import numpy as np
    >>> router = ROUTERS["relu"]
    >>> options = router.options(width=3, experts=3, tokens=6, initial_penalty=0.5, penalty_multiplier=2.0)
    >>> state = router.initial_state(options)
    >>> found = router.route({"kernel": np.eye(3)}, LOGITS, options, state=state, train=True)
    >>> slot_tokens(found.routing).tolist()
    [[4, 1, 0, 5, 3, 2], [5, 1, 2, 6, 6, 6], [3, 4, 6, 6, 6, 6]]
    >>> float(found.statistics["excess"]), float(router.update(options, state, found.statistics)["penalty"])
    (5.0, 1.0)
    """

    # Logits.
    logits = router_logits(tokens, params["kernel"])
    check_logits(logits, options)
    gates = relu_affinity(logits)

    # Slots: an expert takes the tokens whose gates are above 0.
    routing = expert_choice(gates, capacity=options.capacity(train=train), drop_zero=True)

    # Loss.
    loss = relu_loss(gates, state["penalty"], choices=options.choices)
    excess = excess_gates(gates, choices=options.choices)
    metrics = {**routing_metrics(routing), "relu_loss": loss}
    return RouterOutput(routing, {"relu": loss}, metrics, {"excess": excess})


def update(options: Options, state: State, statistics: State) -> State:
    """Returns the state after a step, from the sum of `excess` over all tokens of the step (see `renewed_penalty`)."""
    multiplier = options.penalty_multiplier
    return {"penalty": renewed_penalty(state["penalty"], statistics["excess"], multiplier=multiplier)}


ROUTER = Router(
    __name__,
    "Wang et al. 2024 (arXiv 2412.14711), section 3",
    Options,
    init_kernel,
    route,
    state=state,
    update=update,
    models=("ReMoE",),
    balances="the load of the experts, by a loss whose weight controls the mean number of experts per token",
    cost="T D E; an expert may get every token",
    drops="tokens without a positive gate; with a capacity, also tokens beyond it",
    revision=2,
)
