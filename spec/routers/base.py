"""BASE layers: an optimal balanced assignment in training, and the best expert of each token at evaluation.

| here | BASE (arXiv 2103.16716) |
|---|---|
| `kernel` (D, E) | expert embeddings w_e |
| scores (T, E) | h_t . w_e |
| group | all tokens of a batch |
| `shards` | the workers, each of which assigns the tokens that it receives |
"""

from dataclasses import dataclass

import numpy as np

from moespec.spec.algorithms.balanced_assignment import base_assignment, even_slots
from moespec.spec.algorithms.base_layers import base_greedy, base_routing
from moespec.spec.algorithms.softmax import router_logits
from moespec.spec.checks import plural
from moespec.spec.errors import ConfigError
from moespec.spec.initial import orthogonal
from moespec.spec.options import RouterOptions
from moespec.spec.ranges import Count
from moespec.spec.routers.common import check_logits, output
from moespec.spec.routers.record import Router
from moespec.spec.routing import Array, Noise, Params, RouterOutput

__all__ = ["ROUTER", "Options", "init", "route"]


@dataclass(frozen=True, kw_only=True)
class Options(RouterOptions):
    """Options of `base`."""

    shards: Count = 1
    """number of random parts into which training splits a group; each part is balanced separately"""

    def check_training(self) -> None:
        """Raises ConfigError unless `experts` divides the number of tokens in each shard, as exact balance requires."""
        if self.tokens % (self.experts * self.shards):
            tokens = f"{plural(self.tokens, 'tokens')} of a group"
            if self.tokens % self.shards:
                raise ConfigError(f"shards={self.shards!r} does not divide the {tokens}")
            shards = f" in {self.shards} shards" if self.shards > 1 else ""
            raise ConfigError(f"experts={self.experts!r} does not divide the {tokens}{shards}")


def init(generator: np.random.Generator, options: Options) -> Params:
    """`kernel` (width, experts). The columns of `kernel` are the expert embeddings, which are orthogonal and have norm 0.1."""
    return {"kernel": orthogonal(generator, (options.width, options.experts), 0.1)}


def route(
    params: Params, tokens: Array, options: Options, *, noise: Array | None = None, train: bool = False
) -> RouterOutput:
    """Assigns each token to one expert: by an optimal balanced assignment in training, greedily at evaluation.

    params: `kernel` (width, experts). noise: (tokens,), uniform, or None. Tokens are sorted into shards by descending noise or, without
    noise, by index. A group should be the entire batch. In training, the metrics include the optimality `gap`. The router has no losses.

    >>> from moespec.spec import ROUTERS, slot_tokens
    >>> from moespec.spec.examples import LOGITS
    >>> router = ROUTERS["base"]
    >>> for train in (True, False):
    ...     options = router.options(width=3, experts=3, tokens=6)
    ...     routing = router.route({"kernel": np.eye(3)}, LOGITS, options, train=train).routing
    ...     print(slot_tokens(routing).tolist(), round(float(routing.combine.sum()), 10))
    [[1, 4], [0, 5], [2, 3]] 4.4452268614
    [[0, 1, 4, 6, 6, 6], [2, 5, 6, 6, 6, 6], [3, 6, 6, 6, 6, 6]] 4.7987447712
    """

    # Scores.
    scores = router_logits(tokens, params["kernel"])
    check_logits(scores, options)
    if not train:
        return output(options, base_routing(scores, base_greedy(scores), capacity=options.tokens))

    # Assignment.
    shards = options.shards
    assignment = base_assignment(scores) if shards == 1 else base_assignment(scores, noise, shards=shards)
    balanced = output(options, base_routing(scores, assignment.expert, capacity=even_slots(scores)))
    return balanced._replace(metrics={**balanced.metrics, "gap": assignment.gap})


ROUTER = Router(
    __name__,
    "Lewis et al. 2021 (arXiv 2103.16716)",
    Options,
    init,
    route,
    lambda options: Noise((options.tokens,), (0.0, 1.0)) if options.shards > 1 else None,
    balances="the load of the experts: exactly in training, by an optimal balanced assignment; nothing at evaluation",
    cost="T D E, plus the search for the best assignment in training",
    drops="none",
    revision=2,
)
