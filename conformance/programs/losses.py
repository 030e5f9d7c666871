"""Stages of the auxiliary losses.

A variance cancels, so the scale of the squared coefficient of variation is written down: totals v with mean m, which
rounding moves by u * e, give `mean(2 |v - m| (e + mean e)) / m^2`, and twice the result times `mean e / m` for the
division. Equal totals have a scale of 0: their vectors hold exact fractions.
"""

from typing import Any

import numpy as np
from scipy.stats import norm

from moespec.conformance.program import Config, Output, Stage, Values

__all__ = ["STAGES", "variation_scale"]


def variation_scale(totals: Any, errors: Any) -> Any:
    """The scale of `variance(totals) / mean(totals)^2`."""
    mean, error = totals.mean(), errors.mean()
    deviation = np.abs(totals - mean)
    return np.mean(2 * deviation * (errors + error) + 2 * deviation**2 * error / mean) / mean**2


def _importance(config: Config, v: Values) -> Any:
    totals = v["scores"].sum(axis=0)
    return variation_scale(totals, totals)


def _load(config: Config, v: Values) -> Any:
    """`1 - Phi(z)` has an error of 1 from the difference, and that of z times the density."""
    logits, noisy, std = v["logits"], v["noisy_logits"], config["noise_std"]
    threshold = -np.sort(-noisy, axis=1)[:, config["choices"] - 1 : config["choices"]]
    z = (threshold - logits) / std
    errors = 1 + norm.pdf(z) * (np.abs(threshold) + np.abs(logits)) / std
    return variation_scale(norm.sf(z).sum(axis=0), errors.sum(axis=0))


def _load_loss(B: Any, config: Config, v: Values) -> Values:
    return {"loss": B.load_loss(v["logits"], v["noisy_logits"], **config)}


STAGES: dict[str, tuple[Stage, ...]] = {
    "importance_loss": (
        Stage(
            "loss",
            ("importance_loss",),
            ("scores",),
            lambda B, config, v: {"loss": B.importance_loss(v["scores"])},
            {"loss": Output(scale="written", written=_importance)},
        ),
    ),
    "load_loss": (
        Stage("loss", ("load_loss",), ("logits", "noisy_logits"), _load_loss, {"loss": Output(written=_load)}),
    ),
    "balance_loss": (
        Stage(
            "loss",
            ("balance_loss",),
            ("scores",),
            lambda B, config, v: {"loss": B.balance_loss(v["scores"])},
        ),
    ),
    "z_loss": (Stage("loss", ("z_loss",), ("logits",), lambda B, config, v: {"loss": B.z_loss(v["logits"])}),),
}
