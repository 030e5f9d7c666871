"""Other auxiliary losses. Scores and logits are (groups, tokens, experts); a loss is the mean over groups."""

from typing import Any

import numpy as np

from moespec.conformance.mutants.definition import Mutant, wrong
from moespec.spec.numerics import logsumexp, normal_cdf, stable_order, variance

__all__ = ["MUTANTS"]


def _unbiased(experts: int) -> float:
    """The unbiased variance over that of the population; of one number there is none."""
    return experts / (experts - 1) if experts > 1 else np.nan


def _unbiased_importance(B: Any, scores: Any) -> Any:
    return B.importance_loss(scores) * _unbiased(scores.shape[2])


def _unbiased_load(B: Any, logits: Any, noisy_logits: Any, **options: Any) -> Any:
    return B.load_loss(logits, noisy_logits, **options) * _unbiased(logits.shape[2])


def variation_not_squared(B: Any, scores: Any) -> Any:
    """The importance loss is the coefficient of variation, not its square."""
    B.importance_loss(scores)
    return np.mean([np.sqrt(B.importance_loss(group[None])) for group in scores])


def importance_not_centred(B: Any, scores: Any) -> Any:
    """The importance loss is the mean square over the squared mean: 1, not 0, when the experts are balanced."""
    return B.importance_loss(scores) + 1


def importance_of_all_groups(B: Any, scores: Any) -> Any:
    """The importance is summed over all groups, where each group has a loss of its own."""
    B.importance_loss(scores)
    return B.importance_loss(scores.reshape(1, -1, scores.shape[2]))


def threshold_of_the_others(B: Any, logits: Any, noisy_logits: Any, *, choices: int, noise_std: float) -> Any:
    """The threshold of the load is the K-th largest noisy logit of the other experts, as Shazeer et al. have it."""
    B.load_loss(logits, noisy_logits, choices=choices, noise_std=noise_std)
    losses = []
    for clean, noisy in zip(logits, noisy_logits, strict=True):
        load = np.zeros(clean.shape[1])
        for expert in range(clean.shape[1]):
            others = np.delete(noisy, expert, axis=1)
            ranked = np.take_along_axis(others, stable_order(others), 1)
            threshold = ranked[:, choices - 1] if choices <= ranked.shape[1] else -np.inf
            load[expert] = np.sum(1 - normal_cdf((threshold - clean[:, expert]) / noise_std))
        losses.append(variance(load) / np.mean(load) ** 2)
    return np.mean(losses)


def load_counted(B: Any, logits: Any, noisy_logits: Any, *, choices: int, noise_std: float) -> Any:
    """The load is the number of tokens that chose the expert, not its expectation."""
    B.load_loss(logits, noisy_logits, choices=choices, noise_std=noise_std)
    chosen = stable_order(noisy_logits)[..., :choices]
    loads = [np.bincount(group.ravel(), minlength=logits.shape[2]) for group in chosen]
    return np.mean([variance(load) / np.mean(load) ** 2 for load in loads])


def load_of_all_groups(B: Any, logits: Any, noisy_logits: Any, **options: Any) -> Any:
    """The load is summed over all groups, where each group has a loss of its own."""
    B.load_loss(logits, noisy_logits, **options)
    shape = (1, -1, logits.shape[2])
    return B.load_loss(logits.reshape(shape), noisy_logits.reshape(shape), **options)


def threshold_without_gradient(B: Any, logits: Any, noisy_logits: Any, **options: Any) -> Any:
    """The threshold of the load carries no gradient."""
    return B.load_loss(logits, noisy_logits.real, **options)


def last_maximum(B: Any, scores: Any) -> Any:
    """Of equal scores the last counts as the preferred expert of the balance loss."""
    return B.balance_loss(scores[..., ::-1])


def balance_over_experts(B: Any, scores: Any) -> Any:
    """The balance loss is the sum divided by E, not multiplied by it."""
    return B.balance_loss(scores) / scores.shape[2] ** 2


def preferences_counted(B: Any, scores: Any) -> Any:
    """The balance loss counts the tokens that prefer an expert, and does not divide by how many tokens there are."""
    return B.balance_loss(scores) * scores.shape[1]


def balance_of_all_groups(B: Any, scores: Any) -> Any:
    """Shares and mean scores of the balance loss are those of all groups together."""
    B.balance_loss(scores)
    return B.balance_loss(scores.reshape(1, -1, scores.shape[2]))


def balance_of_squares(B: Any, scores: Any) -> Any:
    """The balance loss is E times the sum of squared mean scores."""
    B.balance_loss(scores)
    return scores.shape[2] * np.mean(np.sum(np.mean(scores, axis=1) ** 2, axis=1))


def square_of_the_mean(B: Any, logits: Any) -> Any:
    """The z-loss is the square of the mean, not the mean of the squares."""
    B.z_loss(logits)
    return np.mean(np.mean(logsumexp(logits, axis=2), axis=1) ** 2)


def z_summed(B: Any, logits: Any) -> Any:
    """The z-loss is summed over tokens, not averaged."""
    return B.z_loss(logits) * logits.shape[1]


def z_of_the_mean_exponential(B: Any, logits: Any) -> Any:
    """The z-loss takes the mean of the exponentials, not their sum."""
    B.z_loss(logits)
    return np.mean((logsumexp(logits, axis=2) - np.log(logits.shape[2])) ** 2)


MUTANTS = (
    Mutant(
        "unbiased_importance",
        "The variance of the importance is the unbiased one, divided by E - 1.",
        {"importance_loss": _unbiased_importance},
        "AL-1",
    ),
    Mutant(
        "unbiased_load",
        "The variance of the load is the unbiased one, divided by E - 1.",
        {"load_loss": _unbiased_load},
        "AL-1",
    ),
    Mutant(
        "unbiased_importance_and_load",
        "The variances of importance and load are the unbiased ones, divided by E - 1.",
        {"importance_loss": _unbiased_importance, "load_loss": _unbiased_load},
        "AL-1",
        "microsoft/Tutel",
    ),
    wrong(variation_not_squared, "importance_loss"),
    wrong(importance_not_centred, "importance_loss"),
    wrong(importance_of_all_groups, "importance_loss"),
    wrong(threshold_of_the_others, "load_loss", ledger="AL-2"),
    wrong(load_counted, "load_loss"),
    wrong(load_of_all_groups, "load_loss"),
    wrong(threshold_without_gradient, "load_loss"),
    wrong(last_maximum, "balance_loss"),
    wrong(balance_over_experts, "balance_loss", ledger="AL-3"),
    wrong(preferences_counted, "balance_loss"),
    wrong(balance_of_all_groups, "balance_loss"),
    wrong(balance_of_squares, "balance_loss"),
    wrong(square_of_the_mean, "z_loss"),
    wrong(z_summed, "z_loss"),
    wrong(z_of_the_mean_exponential, "z_loss"),
)
"""The mutants of this module."""
