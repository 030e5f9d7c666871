"""GShard's top-2: two experts with gates that sum to 1, the second kept at random, more often the larger its gate is.

| here | GShard (arXiv 2006.16668), Algorithm 1 |
|---|---|
| `scores` (T, E) | gates g_{s,E}, the softmax |
| `normalize_selected` (T, E) | g1 / (g1 + g2), g2 / (g1 + g2) |
| `noise` (T,), uniform on [0, 1) | rnd |
| `capacity` | C |

Checked: against loops over tokens written apart, with the readings below, on random problems with drops; the share of second
experts that are kept against min(1, 2 g2) by 100 000 draws.

Ambiguity ledger

GS-1: When are the gates of a token divided by their sum?
    Reading: over its chosen experts, before the random choice and before drops.
    Alternatives: over what is left after them (Sparse Upcycling, fairseq); not at all.
GS-2: Is the chance of the second expert that of its gate before the division or after it?
    Reading: after it, twice the gate, so that only equal gates are always kept.
    Alternatives: before it.
GS-3: Does a second expert that is not kept take a slot?
    Reading: no, it makes no request.
    Alternatives: it takes one and has the weight 0, as where the count of an expert is raised in any case.
GS-4: Is the second expert kept at random at evaluation?
    Reading: no, it is always kept.
    Alternatives: as in training.
"""

import numpy as np
from numpy.typing import ArrayLike

from moespec.spec.checks import as_array, check_choices, check_size
from moespec.spec.composition import clean_logits, init_kernel, router_output, token_choice_routing
from moespec.spec.errors import ConfigError
from moespec.spec.numerics import Array, stable_order, stop_gradient
from moespec.spec.routing import Noise, Params, Router, RouterConfig, RouterOutput
from moespec.spec.softmax import softmax_affinity
from moespec.spec.token_choice import normalize_selected

__all__ = ["GSHARD", "gshard_keep"]


def gshard_keep(gates: ArrayLike, noise: ArrayLike) -> Array:
    """Which of its two choices a token asks for: the first always, the second if `2 g2 > noise`.

    That is with the chance min(1, 2 g2), where `g2` is the second largest gate.

    Args:
        gates: (tokens, experts), of at least 2 experts.
        noise: (tokens,), uniform draws from [0, 1).

    Returns:
        (tokens, 2) booleans.

    Raises:
        ConfigError: there is one expert.
        ShapeError, DtypeError, ContractError: of an array.

    Source: GShard, Algorithm 1, lines 11-15. Section 20.

    >>> gshard_keep([[0.75, 0.25], [0.25, 0.75], [0.5, 0.5]], [0.25, 0.625, 0.9]).tolist()
    [[True, True], [True, False], [True, True]]
    """
    gates = stop_gradient(as_array("gates", gates, "tokens experts"))
    noise = stop_gradient(as_array("noise", noise, "tokens"))
    check_choices(2, gates.shape[1])
    check_size("noise", noise, 0, len(gates), "the tokens of gates")
    second = np.take_along_axis(gates, stable_order(gates)[:, 1:2], axis=1)[:, 0]
    return np.stack([np.ones(len(gates), bool), 2 * second > noise], axis=1)


def gshard(
    params: Params, tokens: ArrayLike, config: RouterConfig, *, noise: ArrayLike | None = None, train: bool = False
) -> RouterOutput:
    """Token Choice of two experts by the softmax, with gates that sum to 1 over the two. Section 20.

    `params`: `kernel`, (width, experts). `noise`: (tokens,), uniform draws from [0, 1), by which second experts are kept;
    without it (evaluation) all are.

    >>> import numpy as np
    >>> from moespec.spec import slot_tokens
    >>> from moespec.spec.examples import LOGITS
    >>> config = GSHARD.configure(width=3, experts=3, tokens=6, capacity_factor=0.75)
    >>> for noise in (None, np.full(6, 0.5)):  # 2 g2 is .54, .36, .88, .75, .24 and .54
    ...     routing = gshard({"kernel": np.eye(3)}, LOGITS, config, noise=noise).routing
    ...     print(slot_tokens(routing).tolist(), round(float(routing.combine.sum()), 10))
    [[0, 1, 4], [2, 5, 0], [3, 4, 6]] 4.7332688869
    [[0, 1, 4], [2, 5, 0], [3, 6, 6]] 4.6140659649
    """
    check_two_choices(config)
    logits = clean_logits(params, tokens, config)
    scores = softmax_affinity(logits)
    keep = None
    if noise is not None:
        keep = gshard_keep(normalize_selected(scores, choices=2), noise)
    routing = token_choice_routing(config, scores, None, train=train, keep=keep)
    return router_output(config, logits, logits, None, routing)


def check_two_choices(config: RouterConfig) -> None:
    """`ConfigError` unless a token chooses two experts."""
    if config.choices != 2:
        raise ConfigError(f"choices: a token of this router chooses two experts, expected 2, got {config.choices!r}")


GSHARD = Router(
    "gshard",
    "Lepikhin et al. 2020 (arXiv 2006.16668)",
    init_kernel,
    gshard,
    {"choices": 2, "normalize_selected": True, "balance_weight": 0.01},
    lambda config: Noise((config.tokens,), (0.0, 1.0)),
    balances="the load of the experts, by the balance loss",
    cost="T D E",
    drops="tokens beyond the capacity of the experts that they choose, and in training second choices at random",
)
"""The router `gshard`."""
