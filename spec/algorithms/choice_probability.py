"""The probability that a token still chooses an expert when only that expert's noise is drawn again."""

import numpy as np

from moespec.spec.numerics import Array, normal_cdf, softplus, stable_order, z_score


def choice_probability(logits: Array, noise_logits: Array, noisy_logits: Array, *, choices: int) -> Array:
    """Returns the probabilities P of `noisy_top_k_load_loss`, (tokens, experts), by eq. (9) of Shazeer et al. 2017. If K = E, P is 1."""
    if choices == logits.shape[1]:
        return np.ones(logits.shape)
    ranked = np.take_along_axis(noisy_logits, stable_order(noisy_logits), axis=1)
    # For each expert, the K-th best of the other experts has rank K + 1 among all experts if the expert is chosen, else rank K.
    last, next_best = ranked[:, choices - 1 : choices], ranked[:, choices : choices + 1]
    threshold = np.where(is_chosen(noisy_logits, choices), next_best, last)
    return normal_cdf(z_score(logits - threshold, softplus(noise_logits)))


def is_chosen(scores: Array, choices: int) -> Array:
    """Returns (tokens, experts) booleans: whether each expert is among the token's K best."""
    chosen = np.zeros(scores.shape, bool)
    np.put_along_axis(chosen, stable_order(scores)[:, :choices], True, axis=1)
    return chosen
