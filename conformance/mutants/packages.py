"""What packages of the registry were found to compute when the suite was run on them; see `peers`."""

from collections.abc import Callable
from typing import Any

import numpy as np

from moespec.conformance.mutants.allocations import chosen_weights_renormalised
from moespec.conformance.mutants.definition import Mutant, through, wrong
from moespec.spec.numerics import stable_order

__all__ = ["MUTANTS"]


def exact_gelu_by_default(B: Any, x: Any, **options: Any) -> Any:
    """Where no form is asked for, the GELU is the exact one with erf."""
    return B.gelu(x, **{"form": "erf", **options})


def epsilon_of_torch_by_default(B: Any, x: Any, scale: Any, bias: Any = None, **options: Any) -> Any:
    """Where no epsilon is asked for, the layer norm adds 1e-5 to the variance."""
    return B.layer_norm(x, scale, bias, **{"epsilon": 1e-5, **options})


def _looked_at(first: int, norm: int, threshold: float) -> Callable[..., Any]:
    """Sinkhorn that looks at the `norm` of the error of the columns after `first`, `first` + 10, ... iterations.

    It stops below `threshold` or the tolerance that is given; a number of iterations that is given alone is kept to.
    """

    def sinkhorn_affinity(B: Any, logits: Any, **options: Any) -> Any:
        right = B.sinkhorn_affinity(logits, **options)
        if "iterations" in options and options.get("tolerance") is None:
            return right
        mass = logits.shape[1] / logits.shape[2]
        below = options.get("tolerance") or threshold
        plans = []
        for group in logits:
            for iterations in range(first, 1000, 10):
                plan = B.sinkhorn_affinity(group[None], iterations=iterations)[0]
                if np.linalg.norm(plan.real.sum(axis=0) - mass, norm) < below:
                    break
            plans.append(plan)
        return np.stack(plans)

    return sinkhorn_affinity


def sinkhorn_of_megatron(B: Any, logits: Any, **options: Any) -> Any:
    """Sinkhorn updates rows first, adds 1e-8 to their sums, and stops where the factors of the columns change by 1e-4."""
    right = B.sinkhorn_affinity(logits, **options)
    if options.get("iterations") is not None:
        return right
    _, tokens, experts = logits.shape
    plans = []
    for kernel in np.exp(logits):
        columns, change = np.ones(experts), np.inf
        while change > (options.get("tolerance") or 1e-4):
            rows = 1 / (tokens * ((kernel * columns).sum(axis=1) + 1e-8))
            before, columns = columns, 1 / (experts * ((kernel * rows[:, None]).sum(axis=0) + 1e-8))
            change = np.mean(np.abs((before - columns).real))
        plans.append(tokens * kernel * columns * rows[:, None])
    return np.stack(plans)


def positive_zero_before_negative(B: Any, scores: Any, *, combine_scores: Any = None, **options: Any) -> Any:
    """An expert takes a score of 0.0 before one of -0.0, which equals it."""
    B.expert_choice(scores, combine_scores=combine_scores, **options)
    return B.expert_choice(
        np.where(scores == 0, np.where(np.signbit(scores.real), -1e-300, 0.0), scores),
        combine_scores=scores if combine_scores is None else combine_scores,
        **options,
    )


def positive_zero_kept_before_negative(B: Any, values: Any, **options: Any) -> Any:
    """The sparse projection keeps a value of 0.0 before one of -0.0, which equals it."""
    B.project_sparse_simplex(values, **options)
    return B.project_sparse_simplex(np.where(np.signbit(values.real) & (values == 0), -1e-300, values), **options)


def balance_of_what_is_kept(B: Any, scores: Any) -> Any:
    """The balance loss counts the tokens that find room in an expert of 1.25 T / E slots, but at least 4."""
    B.balance_loss(scores)
    _, tokens, experts = scores.shape
    capacity = max(4, min(tokens, int(1.25 * tokens / experts)))
    preferred = stable_order(scores)[..., 0]
    kept = [np.minimum(np.bincount(row, minlength=experts), capacity) for row in preferred]
    return experts * np.mean(np.sum(np.stack(kept) / tokens * np.mean(scores, axis=1), axis=1))


def shares_in_float32(B: Any, scores: Any) -> Any:
    """The shares of the balance loss are rounded to float32."""
    B.balance_loss(scores)
    _, tokens, experts = scores.shape
    preferred = stable_order(scores)[..., 0]
    shares = np.stack([np.bincount(row, minlength=experts) / tokens for row in preferred]).astype(np.float32)
    return experts * np.mean(np.sum(shares.astype(np.float64) * np.mean(scores, axis=1), axis=1))


def _four_slots_at_least(B: Any, route: Any, params: Any, tokens: Any, config: Any, **options: Any) -> Any:
    right = route(params, tokens, config, **options)
    scores = B.softmax_affinity(
        B.add_gating_noise(
            B.router_logits(tokens, params["kernel"]), options.get("noise"), multiplier=config.noise_multiplier
        )
    )
    slots = int(config.choices * config.capacity_factor * config.tokens / config.experts)
    routing = chosen_weights_renormalised(B, scores, choices=config.choices, capacity=max(4, min(config.tokens, slots)))
    return right._replace(routing=routing, metrics={**right.metrics, **B.routing_metrics(routing)})


MUTANTS = (
    wrong(exact_gelu_by_default, "gelu", ledger="LA-1", who="torch"),
    wrong(epsilon_of_torch_by_default, "layer_norm", ledger="NW-1", who="torch, jax"),
    Mutant(
        "sinkhorn_of_pot",
        "Sinkhorn stops where the l2 norm of the error of the columns, looked at after 1, 11, 21, ... iterations, is below "
        "1e-9 or the tolerance that is given.",
        {"sinkhorn_affinity": _looked_at(1, 2, 1e-9)},
        "SK-2",
        "POT",
    ),
    Mutant(
        "sinkhorn_of_ott",
        "Sinkhorn stops where the l1 norm of the error of the columns, looked at after 10, 20, 30, ... iterations, is below "
        "1e-3 or the tolerance that is given.",
        {"sinkhorn_affinity": _looked_at(10, 1, 1e-3)},
        "SK-2",
        "ott-jax",
    ),
    wrong(sinkhorn_of_megatron, "sinkhorn_affinity", ledger="SK-1", who="megatron-core"),
    wrong(positive_zero_before_negative, "expert_choice", ledger="EC-1", who="jax"),
    wrong(positive_zero_kept_before_negative, "project_sparse_simplex", ledger="SI-1", who="jaxopt"),
    wrong(balance_of_what_is_kept, "balance_loss", ledger="AL-5", who="st-moe-pytorch"),
    wrong(shares_in_float32, "balance_loss", who="transformers"),
    Mutant(
        "four_slots_at_least",
        "Experts have at least 4 slots, and the weights of the chosen experts are divided by their sum.",
        {"softmax_token_choice": through("softmax_token_choice", _four_slots_at_least)},
        "CA-2",
        "st-moe-pytorch",
    ),
)
"""The mutants of this module."""
