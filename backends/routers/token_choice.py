"""Routers in which tokens choose experts by scores computed from the logits."""

from typing import Any

from moespec.backends.blocks import Array, Blocks
from moespec.backends.routers.composition import (
    Losses,
    balance,
    clean_losses,
    kernel_logits,
    logits,
    noisy_logits,
    noisy_losses,
    output,
    replay,
    several_choices,
    token_choice,
)
from moespec.spec.checks import check_size
from moespec.spec.routers.cosine_token_choice import Options as Cosine
from moespec.spec.routers.gshard import Options as GShard
from moespec.spec.routers.hierarchical_top_k import Options as Hierarchical
from moespec.spec.routers.image_choice import Options as Image
from moespec.spec.routers.importance_score import Options as Importance
from moespec.spec.routers.noisy_top_k import Options as NoisyTopK
from moespec.spec.routers.sigmoid_token_choice import Options as Sigmoid
from moespec.spec.routers.softmax_token_choice import Options as Softmax
from moespec.spec.routers.switch import Options as Switch
from moespec.spec.routing import Params, RouterOutput, State

__all__ = [
    *("cosine_token_choice", "gshard", "hierarchical_top_k", "image_choice", "importance_score", "noisy_top_k"),
    *("sigmoid_token_choice", "sigmoid_token_choice_update", "softmax_token_choice", "switch"),
]


def softmax_token_choice(
    B: Blocks,
    params: Params,
    tokens: Array,
    options: Softmax,
    *,
    noise: Array | None = None,
    train: bool = False,
    choices: Array | None = None,
) -> RouterOutput:
    """Token Choice on the noisy softmax."""
    clean, noisy = noisy_logits(B, params, tokens, options, noise)
    scores, several = B.softmax_affinity(noisy), several_choices(options)
    several |= {"tries": options.tries if choices is None else None, "priority": scores}
    selection, combine, keep = replay(B, options, choices, scores)
    routing = token_choice(B, options, selection, combine, train=train, keep=keep, **several)
    counted = options.choices if options.balance_counts == "all" else None
    losses = noisy_losses(B, options, clean, noisy, noise, choices=options.choices, counted=counted)
    return output(B, options, routing, losses)


def switch(
    B: Blocks,
    params: Params,
    tokens: Array,
    options: Switch,
    *,
    noise: Array | None = None,
    train: bool = False,
    choices: Array | None = None,
) -> RouterOutput:
    """Token Choice with one expert per token, on the softmax of logits computed from jittered tokens."""
    seen = logits(B, params, tokens, options, noise)
    scores, tries = B.softmax_affinity(seen), options.tries if choices is None else None
    selection, combine, keep = replay(B, options, choices, scores)
    routing = token_choice(B, options, selection, combine, train=train, priority=scores, keep=keep, tries=tries)
    return output(B, options, routing, clean_losses(B, options, seen))


def gshard(
    B: Blocks,
    params: Params,
    tokens: Array,
    options: GShard,
    *,
    noise: Array | None = None,
    train: bool = False,
    choices: Array | None = None,
) -> RouterOutput:
    """Token Choice with two experts per token, on the softmax. In training, options may sample the second expert or drop it at random."""
    clean = logits(B, params, tokens, options, noise)
    scores = B.softmax_affinity(clean)
    selection, combine, plan = scores, None, several_choices(options)
    if choices is not None:
        selection, combine, plan["keep"] = replay(B, options, choices, scores)
    elif noise is not None and options.second_expert == "sampled":
        selection, combine = B.gshard_sample(clean, noise), scores
    elif noise is not None and options.second_expert == "random":
        keep = B.gshard_keep(B.normalize_selected(scores, choices=options.choices), noise)
        plan |= {"keep": keep, "hold": options.hold_unkept}
    routing = token_choice(B, options, selection, combine, train=train, priority=scores, **plan)
    return output(B, options, routing, clean_losses(B, options, clean))


def cosine_token_choice(
    B: Blocks,
    params: Params,
    tokens: Array,
    options: Cosine,
    *,
    noise: Array | None = None,
    train: bool = False,
    choices: Array | None = None,
) -> RouterOutput:
    """Token Choice on the affinity of the noisy cosine logits."""
    bias = {"projection_bias": params["projection_bias"]} if options.projection_bias else {}
    given = {name: params[name] for name in ("projection", "embeddings", "temperature")}
    clean = B.cosine_logits(tokens, **given, **bias, form=options.temperature_form)
    check_size("tokens", clean, -2, options.tokens, "options.tokens")
    check_size("embeddings", params["embeddings"], 0, options.dimensions, "options.dimensions")
    check_size("embeddings", clean, -1, options.experts, "options.experts")
    noisy = B.add_gating_noise(clean, noise, multiplier=options.noise_multiplier)
    scores = B.sigmoid_affinity(noisy) if options.affinity == "sigmoid" else B.softmax_affinity(noisy)
    selection, combine, keep = replay(B, options, choices, scores)
    routing = token_choice(B, options, selection, combine, train=train, priority=scores, keep=keep)
    return output(B, options, routing, noisy_losses(B, options, clean, noisy, noise, choices=options.choices))


def sigmoid_token_choice(
    B: Blocks,
    params: Params,
    tokens: Array,
    options: Sigmoid,
    *,
    state: State,
    noise: Array | None = None,
    train: bool = False,
    choices: Array | None = None,
) -> RouterOutput:
    """Token Choice on the scores plus the bias, among the experts of the best groups. The combine weights exclude the bias."""
    clean = kernel_logits(B, params, tokens, options)
    scores = getattr(B, f"{options.affinity}_affinity")(clean)
    selection = B.biased_scores(scores, state["bias"])
    if options.expert_groups > 1:
        by, outside = None if options.group_bias else scores, options.outside
        groups, limit, best = options.expert_groups, options.chosen_groups, options.best_of_group
        selection = B.group_limited_scores(selection, by, groups=groups, limit=limit, best=best, outside=outside)
    made, combine, keep = replay(B, options, choices, selection, scores)
    divisor: dict[str, Any] = {"epsilon": options.epsilon, "scale": options.scale}
    routing = token_choice(B, options, made, combine, train=train, priority=selection, keep=keep, **divisor)
    if options.bias_update == "sign":
        sums = {"load": B.expert_load(made, keep, choices=options.choices)}
    else:
        sums = {"required": B.required_biases(scores, state["bias"], choices=options.choices, bins=options.bias_bins)}

    def shares() -> Array:
        """The scores of each token, normalised to a sum of 1."""
        plain = options.affinity == "softmax"
        return scores if plain else B.normalize_selected(scores, choices=options.experts, epsilon=options.epsilon)

    counted = options.choices if options.balance_counts == "all" else 1
    losses: Losses = {
        "importance": lambda: B.importance_loss(shares()),
        "balance": lambda: balance(B, shares(), options.balance_scope, counted),
        "z": lambda: B.z_loss(clean),
    }
    return output(B, options, routing, losses)._replace(statistics=sums)


def sigmoid_token_choice_update(B: Blocks, options: Sigmoid, state: State, statistics: State) -> State:
    """Returns the bias after a training step."""
    if options.bias_update == "quantile":
        return {"bias": B.quantile_bias(state["bias"], statistics["required"], choices=options.choices)}
    rate, recentre = options.bias_update_rate, options.recentre_bias
    return {"bias": B.balance_bias(state["bias"], statistics["load"], rate=rate, recentre=recentre)}


def image_choice(
    B: Blocks,
    params: Params,
    tokens: Array,
    options: Image,
    *,
    noise: Array | None = None,
    train: bool = False,
    choices: Array | None = None,
) -> RouterOutput:
    """Token Choice on the softmax of one logit vector per image, which all tokens of the image share."""
    check_size("tokens", tokens, -2, options.tokens, "options.tokens")
    clean = B.router_logits(B.pool_images(tokens, images=options.images, pool=options.pool), params["kernel"])
    check_size("kernel", clean, -1, options.experts, "options.experts")
    scores = B.spread_images(B.softmax_affinity(clean), tokens=options.tokens)
    selection, combine, keep = replay(B, options, choices, scores)
    routing = token_choice(B, options, selection, combine, train=train, priority=scores, keep=keep)
    return output(B, options, routing, clean_losses(B, options, clean))


def importance_score(
    B: Blocks, params: Params, tokens: Array, options: Importance, *, noise: Array | None = None, train: bool = False
) -> RouterOutput:
    """Token Choice on the noisy softmax, restricted to the most important tokens."""
    clean, noisy = noisy_logits(B, params, tokens, options, noise)
    capacity, choices = options.capacity(train=train), options.choices
    routing = B.importance_score_choice(
        B.softmax_affinity(noisy), choices=choices, capacity=capacity, drop=options.drop
    )
    return output(B, options, routing, noisy_losses(B, options, clean, noisy, noise, choices=choices))


def noisy_top_k(
    B: Blocks, params: Params, tokens: Array, options: NoisyTopK, *, noise: Array | None = None, train: bool = False
) -> RouterOutput:
    """Token Choice on the noisy logits H. The combine weights are the gates G."""
    clean = kernel_logits(B, params, tokens, options)
    scales = B.router_logits(tokens, params["noise_kernel"])
    noisy = B.noisy_top_k_logits(clean, scales, noise)
    gates = B.noisy_top_k_affinity(noisy, choices=options.choices)
    routing = token_choice(B, options, B.stop_gradient(noisy), gates, train=train)
    load = {"load": lambda: B.noisy_top_k_load_loss(clean, scales, noisy, choices=options.choices)}
    losses: Losses = {
        "importance": lambda: B.importance_loss(gates),
        **({} if noise is None else load),
        "balance": lambda: balance(B, B.softmax_affinity(noisy), options.balance_scope),
        "z": lambda: B.z_loss(clean),
    }
    return output(B, options, routing, losses)


def hierarchical_top_k(
    B: Blocks, params: Params, tokens: Array, options: Hierarchical, *, noise: Array | None = None, train: bool = False
) -> RouterOutput:
    """Token Choice on the gates, which are also the combine weights. Each gate is the product of the gates of both levels."""
    branches, choices = options.levels[0], options.choices_per_level
    clean = B.router_logits(tokens, params["kernel"])
    check_size("tokens", clean, -2, options.tokens, "options.tokens")
    check_size("kernel", clean, -1, options.columns, "options.branches and options.experts")
    scales = B.router_logits(tokens, params["noise_kernel"])
    noisy = B.noisy_top_k_logits(clean, scales, noise)
    gates = B.hierarchical_affinity(noisy, branches=branches, choices=choices)
    routing = B.token_choice(gates, choices=options.requests[1], capacity=options.capacity(train=train))
    load = {"load": lambda: B.hierarchical_load_loss(clean, scales, noisy, branches=branches, choices=choices)}
    losses: Losses = {"importance": lambda: B.importance_loss(gates), **({} if noise is None else load)}
    return output(B, options, routing, losses)
