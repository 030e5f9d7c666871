"""Token Choice by cosines: the router of Swin-MoE (Tutel's `cosine_top`) and of X-MoE.

| here | X-MoE (arXiv 2204.09179), section 3.1 |
|---|---|
| `projection` (D, P), `embeddings` (P, E) | W, e |
| `dimensions` P | d_e, E / 2 |
| `temperature` | tau |

`temperature_form="log_scale"` with a bias of the projection is Tutel's, "divide" without one X-MoE's.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from moespec.spec.checks import check_size
from moespec.spec.initial import lecun_normal
from moespec.spec.options import NoisyLossOptions, TokenChoiceOptions
from moespec.spec.ranges import Count, Positive, Weight
from moespec.spec.routers.blocks import Array, Blocks
from moespec.spec.routers.composition import noisy_losses, output, token_choice
from moespec.spec.routers.record import Router
from moespec.spec.routing import Noise, Params, RouterOutput

__all__ = ["ROUTER", "Options", "init", "route"]


@dataclass(frozen=True, kw_only=True)
class Options(NoisyLossOptions, TokenChoiceOptions):
    """Options of `cosine_token_choice`."""

    choices: Count = 1
    """experts K that a token chooses"""
    dimensions: Count = 256
    """dimensions P in which the angles are"""
    projection_bias: bool = True
    """whether the projection has a bias"""
    temperature_form: Literal["log_scale", "divide"] = "log_scale"
    """what the parameter is: the logarithm of the inverse temperature, of at most log(1 / 0.01), or the temperature"""
    initial_temperature: Positive = 0.5
    """the temperature at the start"""
    affinity: Literal["softmax", "sigmoid"] = "softmax"
    """what the gates are of logits"""
    balance_weight: Weight = 0.01


def init(generator: np.random.Generator, options: Options) -> Params:
    """`projection` (width, dimensions), `embeddings` (dimensions, experts), small as Tutel's, `temperature`, a scalar, and
    `projection_bias` (dimensions,) of 0 if there is one."""
    projection = lecun_normal(generator, (options.width, options.dimensions), options.width)
    embeddings = generator.normal(0.0, 0.01, (options.dimensions, options.experts)).astype(np.float32)
    start = options.initial_temperature
    temperature = np.asarray(-math.log(start) if options.temperature_form == "log_scale" else start, np.float32)
    bias = {"projection_bias": np.zeros(options.dimensions, np.float32)} if options.projection_bias else {}
    return {"projection": projection, "embeddings": embeddings, "temperature": temperature, **bias}


def route(
    B: Blocks, params: Params, tokens: Array, options: Options, *, noise: Array | None = None, train: bool = False
) -> RouterOutput:
    """Token Choice by the affinity of the noisy cosine logits.

    noise: (tokens, experts), a draw of the standard normal, of which `noise_multiplier / E` is added to the logits.
    train: whether the capacity is that of training.

    Source: microsoft/Tutel, tutel/gates/cosine_top.py; X-MoE, section 3.1.
    """
    bias = {"projection_bias": params["projection_bias"]} if options.projection_bias else {}
    given = {name: params[name] for name in ("projection", "embeddings", "temperature")}
    clean = B.cosine_logits(tokens, **given, **bias, form=options.temperature_form)
    check_size("tokens", clean, -2, options.tokens, "options.tokens")
    check_size("embeddings", params["embeddings"], 0, options.dimensions, "options.dimensions")
    check_size("embeddings", clean, -1, options.experts, "options.experts")
    noisy = B.add_gating_noise(clean, noise, multiplier=options.noise_multiplier)
    scores = B.sigmoid_affinity(noisy) if options.affinity == "sigmoid" else B.softmax_affinity(noisy)
    routing = token_choice(B, options, scores, train=train)
    return output(B, options, routing, noisy_losses(B, options, clean, noisy, noise, choices=options.choices))


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
    drops="tokens beyond the capacity of the experts that they choose",
    revision=2,
)
