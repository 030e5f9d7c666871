"""Logits of a cosine router: cosines between projected tokens and expert embeddings, divided by a learned temperature.

| here | X-MoE (arXiv 2204.09179), section 3.1 | Swin-MoE, by microsoft/Tutel |
|---|---|---|
| `projection` (D, P), `projection_bias` (P,) | W, none | cosine_projector |
| `embeddings` (P, E) | e | sim_matrix |
| `temperature` | tau | temperature, the logarithm of 1 / tau |
| `cosine_logits` (T, E) | s / tau | logits |

Ambiguity ledger

CR-1: How is the temperature learned?
    Reading: the logarithm of the inverse temperature is learned (`form="log_scale"`), and is at most log(1 / 0.01).
        By: microsoft/Tutel, tutel/gates/cosine_top.py, CosineTopKGate.
    Alternative b: the temperature itself is a parameter (`form="divide"`), without a bound.
        By: the paper, eq. (7).
    Alternative c: the temperature is not learned. Instead, the embeddings have norm 1.5.
        By: microsoft/torchscale, torchscale/component/xmoe/routing.py, Top1Gate.forward.
CR-2: Does the projection have a bias?
    Reading: no, unless a bias is passed.
        By: the paper, section 3.1; microsoft/torchscale, torchscale/component/xmoe/routing.py, Top1Gate.
    Alternative b: yes, the projection has a bias.
        By: microsoft/Tutel, tutel/gates/cosine_top.py, CosineTopKGate.
CR-3: Which temperature does the balance loss use?
    Reading: the balance loss uses the same temperature as the gates.
        By: microsoft/Tutel, tutel/impls/moe_layer.py, MOELayer.
    Alternative b: the balance loss uses a constant temperature.
        By: the paper, eq. (8).

Often done differently

CR-4: Are the projected tokens normalised?
    Reading: yes, the projected tokens are normalised, like the embeddings.
        By: the paper, eq. (6); microsoft/Tutel, tutel/gates/cosine_top.py, CosineTopKGate.forward.
    Alternative b: no, the projected tokens are not normalised.
        By: microsoft/torchscale, torchscale/component/xmoe/routing.py, Top1Gate._cosine.
"""

import math

import numpy as np

from moespec.spec.algorithm import Algorithm
from moespec.spec.array_like import ArrayLike
from moespec.spec.checks import check_option, check_size
from moespec.spec.errors import ContractError
from moespec.spec.numerics import Array, Shared, normalize_l2
from moespec.spec.values import as_array, as_scalar

__all__ = ["cosine_logits"]

ALGORITHMS = (Algorithm("cosine_logits", "Chi et al. 2022 (arXiv 2204.09179), eq. (6)", 1, ("cosine_logits",)),)

FORMS = ("log_scale", "divide")
LARGEST_LOG_SCALE = math.log(1 / 0.01)
EPSILON = 1e-12
"""Lower bound on the norms in the denominators."""


def cosine_logits(
    tokens: ArrayLike,
    projection: Shared,
    embeddings: Shared,
    temperature: Shared,
    projection_bias: Shared | None = None,
    *,
    form: str = "log_scale",
) -> Array:
    """Computes the cosine between each projected token and each expert's embedding, multiplied by the inverse temperature:

        cos(x[t] W + c, v[:, e]) exp(min(temperature, log(1 / 0.01)))       form="log_scale"
        cos(x[t] W + c, v[:, e]) / temperature                              form="divide"

    Norms below 1e-12 are replaced with 1e-12.

    Args:
        tokens: x, (tokens, width).
        projection: W, (width, dimensions).
        embeddings: v, (dimensions, experts).
        temperature: a scalar: the logarithm of the inverse temperature with "log_scale", or a temperature above 0 with "divide".
        projection_bias: c, (dimensions,); None for no bias.
        form: "log_scale" or "divide".

    Returns:
        (tokens, experts), logits.

    Raises:
        ContractError: with "divide", `temperature` is not greater than 0.

    Source: X-MoE, eqs. (6) and (7); microsoft/Tutel, tutel/gates/cosine_top.py, CosineTopKGate.

    >>> tokens, projection, embeddings = [[3.0, 4.0]], np.eye(2), [[0.0, 1.0, 2.0], [0.5, 0.0, 0.0]]
    >>> cosine_logits(tokens, projection, embeddings, 0.0).round(10).tolist()
    [[0.8, 0.6, 0.6]]
    >>> cosine_logits(tokens, projection, embeddings, 0.5, form="divide").round(10).tolist()
    [[1.6, 1.2, 1.2]]
    >>> cosine_logits(tokens, projection, embeddings, 9.0).round(10).tolist()  # at most 100 times the cosine
    [[80.0, 60.0, 60.0]]
    """
    tokens, projection = (
        as_array("tokens", tokens, "tokens width"),
        as_array("projection", projection, "width dimensions"),
    )
    embeddings, temperature = (
        as_array("embeddings", embeddings, "dimensions experts"),
        as_scalar("temperature", temperature),
    )
    check_size("projection", projection, 0, tokens.shape[1], "the width of tokens")
    check_size("embeddings", embeddings, 0, projection.shape[1], "the dimensions of projection")
    check_option("form", form, FORMS)
    projected = np.einsum("td,dp->tp", tokens, projection)
    if projection_bias is not None:
        offset = as_array("projection_bias", projection_bias, "dimensions")
        check_size("projection_bias", offset, 0, projection.shape[1], "the dimensions of projection")
        projected = projected + offset
    rows, columns = (
        normalize_l2(x, axis, form="clamped", epsilon=EPSILON) for x, axis in ((projected, 1), (embeddings, 0))
    )
    cosines = np.einsum("tp,pe->te", rows, columns)
    if form == "divide":
        if temperature.real <= 0:
            raise ContractError(f"temperature: expected a number greater than 0, got {temperature.real:g}")
        return cosines / temperature
    return cosines * np.exp(np.where(temperature.real < LARGEST_LOG_SCALE, temperature, LARGEST_LOG_SCALE))
