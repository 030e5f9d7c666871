"""Cases of image-level routing and the router `image_choice`."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from moespec.conformance.author.definition import Definition, single, tensor
from moespec.conformance.author.inputs import scores, tokens
from moespec.conformance.author.routers import balance_scope, evaluation, output_gradient, replay, router_case
from moespec.conformance.author.variant import Variant, fixed

NAME, POOLING, POOL, SPREAD = "image_choice", "image_pooling", "pool_images", "spread_images"


def cases() -> Iterator[Definition]:
    yield from _functions()
    case = partial(router_case, NAME)
    purpose = "Three images of two tokens in a group, each with an expert for both."
    yield case("values", "value", purpose, "generated_code", "image_of_tokens", images=3)
    purpose = "All losses, which are of images; two experts for each, weights that sum to 1, places by priority."
    weights: dict[str, Any] = {"importance_weight": 0.5, "balance_weight": 0.125, "z_weight": 0.0625}
    more: dict[str, Any] = {"choices": 2, "normalize_selected": True, "batch_priority": "max", **weights}
    more |= {"capacity_factor": 0.75, "multiple_of": 2}
    yield case("losses", "overflow", purpose, "image_of_tokens", images=3, train=True, exact_ties=True, **more)
    purpose = "One image in a group, of which the router sees the first token, and an expert four."
    yield case("first", "overflow", purpose, "image_of_tokens", pool="first", slots_per_expert=4)
    yield case("zero_kernel", "tie", "A router that starts at 0.", "tie_order", zero=True, images=2)
    yield evaluation(NAME, images=2)
    yield replay(case, "image_of_tokens", images=3, recorded=3, choices=3, normalize_selected=True)
    yield balance_scope(NAME, images=3)
    yield output_gradient(case, "image_of_tokens", images=2, sizes=(4, 3, 3))


def _functions() -> Iterator[Definition]:
    flag = "image_of_tokens"
    pool, spread = (partial(single, POOLING, name) for name in (POOL, SPREAD))
    yield pool("first", "value", "The first of three.", flag, tokens=tokens(f"{POOLING}/b"), images=2, pool="first")
    yield pool("one_image", "degenerate", "All tokens.", flag, tokens=tokens(f"{POOLING}/c"), images=1)
    yield pool("gradient", "gradient", "By the tokens.", flag, tokens=tokens(f"{POOLING}/d", (2, 4, 2)), images=2)
    rows = tensor(scores(f"{POOLING}/e", (2, 2, 3)).array, "groups images experts")
    yield spread("spread", "value", "Three tokens of each image.", flag, scores=rows, tokens=6)
    yield spread("spread_gradient", "gradient", "By the scores.", flag, scores=rows, tokens=4)


def variants() -> Iterator[Variant]:
    computes = "The router sees the first token of an image even if the mean is requested."
    yield fixed("class_token_always", computes, POOL, "IM-1b", pool="first")
