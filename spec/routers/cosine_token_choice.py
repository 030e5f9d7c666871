"""Token Choice by cosine similarity: the router of Swin-MoE (Tutel's `cosine_top`) and of X-MoE.

| here | X-MoE (arXiv 2204.09179), section 3.1 |
|---|---|
| `projection` (D, P), `embeddings` (P, E) | W, e |
| `dimensions` P | d_e, E / 2 |
| `temperature` | tau |

Tutel uses `temperature_form="log_scale"` and a projection bias. X-MoE uses `temperature_form="divide"` and no projection bias.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from moespec.spec.algorithms.batch_priority import batch_priority
from moespec.spec.algorithms.cosine_logits import cosine_logits
from moespec.spec.algorithms.selected_weights import normalize_selected
from moespec.spec.algorithms.sigmoid_affinity import sigmoid_affinity
from moespec.spec.algorithms.softmax import add_gating_noise, softmax_affinity
from moespec.spec.algorithms.token_choice import token_choice
from moespec.spec.checks import check_size
from moespec.spec.initial import lecun_normal
from moespec.spec.option_groups import CapacityOptions, LossOptions, NoiseOptions, OrderOptions
from moespec.spec.ranges import Count, Positive, Weight
from moespec.spec.routers.common import auxiliary_losses, output, replay
from moespec.spec.routers.record import Router
from moespec.spec.routing import Array, Noise, Params, RouterOutput

__all__ = ["ROUTER", "Options", "init", "route"]


@dataclass(frozen=True, kw_only=True)
class Options(NoiseOptions, LossOptions, OrderOptions, CapacityOptions):
    """Options of `cosine_token_choice`."""

    balance_weight: Weight = 0.01
    choices: Count = 1
    dimensions: Count = 256
    """dimensions P of the space in which cosines are computed"""
    projection_bias: bool = True
    """add a bias to the projection"""
    temperature_form: Literal["log_scale", "divide"] = "log_scale"
    """parameter of the temperature: the logarithm of its inverse, at most log(1 / 0.01), or the temperature itself"""
    initial_temperature: Positive = 0.5
    """initial temperature"""
    affinity: Literal["softmax", "sigmoid"] = "softmax"
    """function from logits to gates"""


def init(generator: np.random.Generator, options: Options) -> Params:
    """Returns `projection` (width, dimensions), `embeddings` (dimensions, experts) and the scalar `temperature`. If the option
    `projection_bias` is True, also returns `projection_bias` (dimensions,), all 0. The embeddings are small, as in Tutel."""
    projection = lecun_normal(generator, (options.width, options.dimensions), options.width)
    embeddings = generator.normal(0.0, 0.01, (options.dimensions, options.experts)).astype(np.float32)
    start = options.initial_temperature
    temperature = np.asarray(-math.log(start) if options.temperature_form == "log_scale" else start, np.float32)
    bias = {"projection_bias": np.zeros(options.dimensions, np.float32)} if options.projection_bias else {}
    return {"projection": projection, "embeddings": embeddings, "temperature": temperature, **bias}


def route(
    params: Params,
    tokens: Array,
    options: Options,
    *,
    noise: Array | None = None,
    train: bool = False,
    choices: Array | None = None,
) -> RouterOutput:
    """Token Choice based on the affinity of the noisy cosine logits.

    noise: (tokens, experts), standard normal. The router adds the noise times `noise_multiplier / E` to the logits.
    train: whether to use the training capacity.

    Source: microsoft/Tutel, tutel/gates/cosine_top.py; X-MoE, section 3.1.
    """

    # Logits.
    bias = params["projection_bias"] if options.projection_bias else None
    projection, embeddings, temperature = params["projection"], params["embeddings"], params["temperature"]
    logits = cosine_logits(tokens, projection, embeddings, temperature, bias, form=options.temperature_form)
    check_size("tokens", logits, -2, options.tokens, "options.tokens")
    check_size("embeddings", embeddings, 0, options.dimensions, "options.dimensions")
    check_size("embeddings", logits, -1, options.experts, "options.experts")
    noisy = add_gating_noise(logits, noise, multiplier=options.noise_multiplier)
    scores = sigmoid_affinity(noisy) if options.affinity == "sigmoid" else softmax_affinity(noisy)

    # Order and weights.
    order: Array | None = None
    if options.batch_priority != "none":
        order = batch_priority(scores, by=options.batch_priority, choices=options.choices)
    selection, weights, keep = replay(options, choices, scores)
    if options.normalize_selected:
        weights = normalize_selected(selection, weights, choices=options.choices)

    # Slots.
    capacity = options.capacity(train=train)
    routing = token_choice(
        selection, choices=options.choices, capacity=capacity, combine_scores=weights, order=order, keep=keep
    )

    # Losses.
    losses = auxiliary_losses(options, logits, noisy, noise, choices=options.choices)
    return output(options, routing, losses)


ROUTER = Router(
    __name__,
    "Chi et al. 2022 (arXiv 2204.09179)",
    Options,
    init,
    route,
    lambda options: Noise((options.tokens, options.experts)) if options.noise_multiplier else None,
    decays=(),
    models=("Swin-MoE", "X-MoE"),
    balances="the load of the experts, by the balance loss",
    cost="T P (D + E)",
    drops="tokens beyond the capacity of their chosen experts",
    replays=True,
    revision=3,
)
