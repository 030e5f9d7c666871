"""The router `switch`."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from moespec.backends.routers.composition import logits
from moespec.conformance.author.definition import Definition, Noise
from moespec.conformance.author.near_ties import near_router
from moespec.conformance.author.routers import balance_scope, evaluation, kernel_case, logit_options, output_gradient
from moespec.conformance.author.variant import rerouted, reweighted, variant

NAME = "switch"
T, E, D = 5, 3, 3
UNIFORM = Noise("tokens width", reach=1.0, step=0.125)


case = partial(kernel_case, NAME, sizes=(T, E, D))


def cases() -> Iterator[Definition]:
    size = "degenerate_size"
    yield case("values", "value", "Evaluation: the tokens as they are.", "generated_code")
    purpose = "Training, with two slots: router and losses see jittered tokens."
    yield case("jitter", "value", purpose, "jitter_factor", noise=UNIFORM, slots_per_expert=2)
    large: dict[str, Any] = {"jitter": 0.5, "importance_weight": 0.25, "balance_weight": 0.125, "z_weight": 0.5}
    purpose = "A large jitter and all losses, at evaluation."
    large |= {"noise": UNIFORM, "train": False, "multiple_of": 4}
    yield case("large_jitter", "value", purpose, "jitter_factor", **large)
    purpose = "Fewer slots: tokens are dropped, but not the best ones."
    best: dict[str, Any] = {"capacity_factor": 0.5, "batch_priority": "max"}
    yield case("factor_one", "overflow", purpose, "overflow_drop", "priority_order", **best)
    purpose = "Tokens whose expert is full try the next best."
    yield case("tries", "overflow", purpose, "rerouted", capacity_factor=0.75, tries=2)
    yield case("zero_kernel", "tie", "Every score is equal.", "tie_order", zero=True, sizes=(6, 4, D))
    yield case("one_expert", "degenerate", "One expert.", size, sizes=(T, 1, D))
    purpose = "One token, whose gate divided by its sum is 1."
    yield case("one_token", "degenerate", purpose, size, "renormalised", sizes=(1, E, D), normalize_selected=True)
    purpose = "By tokens, kernel, noise and experts."
    yield case("gradient_losses", "gradient", purpose, "stop_gradient", noise=UNIFORM, jitter=0.25, z_weight=0.0625)
    yield output_gradient(case, sizes=(4, E, D))
    yield near_router(NAME)
    yield evaluation(NAME)
    yield logit_options(NAME)
    yield balance_scope(NAME, sizes=(6, 4, D))


# Variants. A change is `(B, route, params, tokens, options, noise=None, train=False)`.


def _logits(B: Any, params: Any, tokens: Any, options: Any, noise: Any) -> Any:
    return logits(B, params, tokens, options, noise)


def switch_gate_of_clean_tokens(
    B: Any, route: Any, params: Any, tokens: Any, options: Any, *, noise: Any = None, train: bool = False
) -> Any:
    """The gate of Switch is computed from the tokens without jitter."""
    output = route(params, tokens, options, noise=noise, train=train)
    return reweighted(B, output, B.softmax_affinity(_logits(B, params, tokens, options, None)))


def jitter_of_logits(
    B: Any, route: Any, params: Any, tokens: Any, options: Any, *, noise: Any = None, train: bool = False
) -> Any:
    """Switch adds its noise to the logits."""
    output = route(params, tokens, options, noise=noise, train=train)
    if noise is None:
        return output
    seen = _logits(B, params, tokens, options, None) + options.jitter * noise.sum(axis=2, keepdims=True) * (
        1.0 + np.arange(options.experts)
    )
    scores = B.softmax_affinity(seen)
    return rerouted(B, output, B.token_choice(scores, choices=1, capacity=options.capacity(train=train)))


def switch_evaluates_with_two(B: Any, route: Any, params: Any, tokens: Any, options: Any, **more: Any) -> Any:
    """The capacity factor of Switch at evaluation is 2, unless another is given."""
    if options.eval_capacity_factor is None:
        options = replace(options, eval_capacity_factor=2.0)
    return route(params, tokens, options, **more)


VARIANTS = (
    variant(jitter_of_logits, NAME, ledger="SW-1b"),
    variant(switch_gate_of_clean_tokens, NAME, ledger="SW-2b"),
    variant(switch_evaluates_with_two, NAME, ledger="SW-5b"),
)
