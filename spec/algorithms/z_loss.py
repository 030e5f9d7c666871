"""The router z-loss, which keeps logits small.

Ambiguity ledger

AL-7: Which logits does the z-loss of a noisy router use?
    Reading: the z-loss uses the clean logits, although the balance loss uses the noisy logits.
        By: lucidrains/st-moe-pytorch, st_moe_pytorch/st_moe_pytorch.py, TopNGating.
    Alternative b: the z-loss uses the noisy logits (`z_logits="noisy"`).
        By: tensorflow/mesh, mesh_tensorflow/transformer/moe.py, _switch_gating (of the jittered tokens);
        google/flaxformer, flaxformer/architectures/moe/routing.py, _router_z_loss (of the jittered tokens);
        databricks/megablocks, megablocks/layers/router.py, LearnedRouter.forward (of the jittered tokens).
"""

import numpy as np

from moespec.spec.algorithm import Algorithm
from moespec.spec.array_like import ArrayLike
from moespec.spec.numerics import Array, logsumexp
from moespec.spec.values import as_array

__all__ = ["z_loss"]

ALGORITHMS = (Algorithm("z_loss", "Zoph et al. 2022 (arXiv 2202.08906), eq. (5)", 2, ("z_loss",)),)


def z_loss(logits: ArrayLike) -> Array:
    """Computes `1 / T sum_t (log sum_e exp(L[t, e]))^2`. The loss keeps the logits small.

    Args:
        logits: L, (tokens, experts).

    Returns:
        A scalar, at least 0.

    Source: ST-MoE (arXiv 2202.08906), eq. (5).

    >>> from moespec.spec.examples import LOGITS
    >>> round(float(z_loss(LOGITS)), 12)
    4.534961753715
    """
    totals = logsumexp(as_array("logits", logits, "tokens experts"), axis=1)
    return np.mean(totals * totals)
