"""Auxiliary losses, contrastive losses, and the averages that these losses use.

A variance suffers from cancellation, so an explicit formula gives the scale of the squared coefficient of variation. Let rounding
move the totals v by u * e. With m = mean v, the scale is `mean(2 |v - m| (e + mean e)) / m^2`. Dividing by m^2 adds `2 mean e / m`
times the result. Equal totals have the scale 0, which allows no rounding error, so such cases use numbers whose sums are exact.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, ndtr

from moespec.backends.blocks import Array
from moespec.conformance.functions.affinities import chosen_by_level, levels
from moespec.conformance.functions.describe import Choice, Function, Output
from moespec.conformance.functions.margins import token_choice_margin
from moespec.spec.algorithms.choice_probability import is_chosen
from moespec.spec.numerics import logsumexp, normalize_l2, softplus, z_score

__all__ = ["FUNCTIONS", "cosines", "scaled_cosines"]


def normal_density(z: NDArray[Any]) -> NDArray[Any]:
    """Return the standard normal density. This code avoids an import of `scipy.stats`, which takes a second."""
    density: NDArray[Any] = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    return density


def variation(totals: NDArray[Any], errors: NDArray[Any]) -> Any:
    """Return the scale of `variance(totals) / mean(totals)^2` for totals with the given errors."""
    mean, error = totals.mean(), errors.mean()
    deviation = np.abs(totals - mean)
    return np.mean(2 * deviation * (errors + error) + 2 * deviation**2 * error / mean) / mean**2


def _importance_scale(scores: Array) -> Array:
    totals = scores.sum(axis=0)
    return variation(totals, totals)


def _load_scale(logits: Array, noisy_logits: Array, *, choices: int, noise_std: float) -> Array:
    """Return the scale of the load loss. The error of `1 - Phi(z)` in units of u is 1 + (error of z) * (normal density)."""
    threshold = -np.sort(-noisy_logits, axis=1)[:, choices - 1 : choices]
    z = (threshold - logits) / noise_std
    errors = 1 + normal_density(z) * (np.abs(threshold) + np.abs(logits)) / noise_std
    return variation(ndtr(-z).sum(axis=0), errors.sum(axis=0))


def _z_scale(logits: Array) -> Array:
    """Return the scale of the mean of L^2. Even for a small L, the error of `L = max + log(sum exp(x - max))` can reach `|max| + log E`."""
    totals = np.abs(logsumexp(logits))
    errors = np.abs(logits).max(axis=1) + np.log(logits.shape[1])
    return np.mean(totals * (totals + 2 * errors))


def _preferred(scores: Array, scale: Array, options: Any) -> float:
    """Return the margin by which tokens prefer the experts that the balance loss counts."""
    return token_choice_margin(scores, scale, options.get("choices", 1))


def _entropy_scale(p: Array) -> Array:
    return np.sum(p * (1 + np.abs(np.log(np.where(p > 0, p, 1)))), axis=-1)


def _global_scale(scores: Array, *, threshold: float | None = None) -> Array:
    return (threshold or 0.0) + _entropy_scale(scores.mean(axis=0))


def scaled_cosines(first: Array, second: Array, log_scale: Array, factor: Any = 1) -> Any:
    first, second = (normalize_l2(rows, 1, form="paper", epsilon=1e-8) for rows in (first, second))
    return np.exp(log_scale) * factor * np.einsum("id,jd->ij", first, second)


def _sizes(first: Array, second: Array, log_scale: Array) -> Any:
    return scaled_cosines(np.abs(first), np.abs(second), log_scale, 1 + np.abs(log_scale))


def contrast_scale(sizes: Array) -> Any:
    """Return the scale of the mean cross-entropy over rows of logits. sizes: the error scales of the logits."""
    return np.mean(sizes.max(axis=1) + np.diag(sizes)) + np.log(len(sizes))


def _contrastive_scale(**arguments: Any) -> Array:
    sizes = _sizes(**arguments)
    return (contrast_scale(sizes) + contrast_scale(sizes.T)) / 2


def _sigmoid_loss_scale(*, bias: Array, **arguments: Any) -> Array:
    signs = 2 * np.eye(len(arguments["first"])) - 1
    margins = signs * (scaled_cosines(**arguments) + bias)
    errors = expit(-margins) * (_sizes(**arguments) + np.abs(bias))
    return np.mean(np.sum(softplus(-margins) + errors, axis=1))


def cosines(rows: dict[str, Any], form: str, epsilon: float) -> list[Any]:
    """Return the cosines between each view's queries and the other view's keys."""
    units = {n: normalize_l2(x, 1, form=form, epsilon=epsilon) for n, x in rows.items()}
    return [units[q] @ units[k].T for q, k in (("first_query", "second_key"), ("second_query", "first_key"))]


def _moco_scale(*, temperature: float = 1.0, **rows: Any) -> Array:
    sizes = cosines({n: np.abs(x) for n, x in rows.items()}, "clamped", 1e-12)
    return 2 * temperature * sum(contrast_scale(each / temperature) for each in sizes)


def _batch_norm_scale(x: Array, *, epsilon: float = 1e-5) -> Array:
    """Return the scale of a batch norm, including the error of the mean, which moves an entire column."""
    centred = x - x.mean(axis=0)
    return (np.abs(centred) + np.abs(x).mean(axis=0)) / np.sqrt(np.mean(centred**2, axis=0) + epsilon)


def choice_errors(
    logits: NDArray[Any], noise_logits: NDArray[Any], noisy_logits: NDArray[Any], choices: int
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the probability that noisy top-k chooses each expert, and its error, which a softplus, a quotient and `ndtr` cause."""
    experts = logits.shape[1]
    if choices == experts:  # every token chooses every expert
        return np.ones(logits.shape), np.zeros(logits.shape)
    std = softplus(noise_logits)
    threshold = np.empty(logits.shape)
    for expert in range(experts):
        threshold[:, expert] = -np.sort(-np.delete(noisy_logits, expert, axis=1), axis=1)[:, choices - 1]
    z = z_score(logits - threshold, std)
    relative = 1 + np.abs(noise_logits) * expit(noise_logits) / std
    errors = 1 + normal_density(z) * ((np.abs(threshold) + np.abs(logits)) / std + np.abs(z) * relative)
    return ndtr(z), errors


def _noisy_load_scale(logits: Array, noise_logits: Array, noisy_logits: Array, *, choices: int) -> Array:
    """Return the scale of the load loss, including the error of a softplus."""
    probability, errors = choice_errors(logits, noise_logits, noisy_logits, choices)
    return variation(probability.sum(axis=0), errors.sum(axis=0))


def _hierarchical_load_scale(
    logits: Array, noise_logits: Array, noisy_logits: Array, *, branches: int, choices: int
) -> Any:
    """Return the scale of the hierarchical load loss, from the errors of both levels."""
    upper, lower = zip(*(levels(x, branches) for x in (logits, noise_logits, noisy_logits)), strict=True)
    choices_by_level = chosen_by_level(logits, branches, choices)
    reached = is_chosen(upper[2], choices_by_level[0])
    branch, branch_error = (
        part.sum(axis=0)[:, None] for part in choice_errors(upper[0], upper[1], upper[2], choices_by_level[0])
    )
    within, error = (
        np.where(reached[..., None], part.reshape(*reached.shape, -1), 0.0).sum(axis=0)
        for part in choice_errors(lower[0], lower[1], lower[2], choices_by_level[1])
    )
    count = np.where(reached.any(axis=0), reached.sum(axis=0), 1)[:, None]
    load = branch * within / count
    return variation(load.ravel(), (branch_error * within / count + branch * error / count + 2 * load).ravel())


FUNCTIONS = (
    Function("importance_loss", {"loss": Output(scale="written", written=_importance_scale)}),
    Function("load_loss", {"loss": Output(written=_load_scale)}),
    Function("balance_loss", {"loss": Output()}, Choice("scores", _preferred)),
    Function("z_loss", {"loss": Output(scale="written", written=_z_scale)}),
    Function("noisy_top_k_load_loss", {"loss": Output(written=_noisy_load_scale)}),
    Function("hierarchical_load_loss", {"loss": Output(written=_hierarchical_load_scale)}),
    Function(
        "local_entropy_loss", {"loss": Output(scale="written", written=lambda scores: np.mean(_entropy_scale(scores)))}
    ),
    Function("global_entropy_loss", {"loss": Output(scale="written", written=_global_scale)}),
    Function("contrastive_loss", {"loss": Output(written=_contrastive_scale)}),
    Function("sigmoid_loss", {"loss": Output(written=_sigmoid_loss_scale)}),
    Function("moco_loss", {"loss": Output(written=_moco_scale)}),
    Function("momentum_update", {"average": Output("inputs outputs")}),
    Function(
        "batch_norm", {"normalised": Output("batch width", rounded=True, scale="written", written=_batch_norm_scale)}
    ),
)
