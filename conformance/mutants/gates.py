"""Other noisy top-k gates, load losses and routers that choose by gates of their own. Arrays are (groups, tokens, experts)."""

from collections.abc import Callable
from typing import Any

import numpy as np

from moespec.conformance.mutants.definition import Mutant, every, wrong
from moespec.conformance.mutants.routers import configured, routed, weighted, with_loss
from moespec.spec.numerics import normal_cdf, softmax, softplus, stable_order, variance

__all__ = ["MUTANTS"]

OVERFLOW = 88.7
"""Float32 overflows in the exponential of larger numbers."""


def _scaled(B: Any, logits: Any, noise_logits: Any, noise: Any, scale: Callable[[Any], Any]) -> Any:
    """The noisy logits with another scale of the noise."""
    B.noisy_top_k_logits(logits, noise_logits, noise)
    return logits if noise is None else logits + noise * scale(noise_logits)


def _floor(noise_logits: Any) -> Any:
    return softplus(noise_logits) + 0.01


def _noise_with_a_floor(B: Any, logits: Any, noise_logits: Any, noise: Any) -> Any:
    return _scaled(B, logits, noise_logits, noise, _floor)


def noise_scale_not_positive(B: Any, logits: Any, noise_logits: Any, noise: Any) -> Any:
    """The noise logit itself is the scale of the noise, without a softplus."""
    return _scaled(B, logits, noise_logits, noise, lambda n: n)


def noise_scale_exponential(B: Any, logits: Any, noise_logits: Any, noise: Any) -> Any:
    """The scale of the noise is the exponential of the noise logit, not the softplus."""
    return _scaled(B, logits, noise_logits, noise, np.exp)


def noise_scale_not_learned(B: Any, logits: Any, noise_logits: Any, noise: Any) -> Any:
    """The scale of the noise is one over the number of experts."""
    return _scaled(B, logits, noise_logits, noise, lambda n: 1 / n.shape[2])


def noise_scale_without_gradient(B: Any, logits: Any, noise_logits: Any, noise: Any) -> Any:
    """The scale of the noise carries no gradient."""
    return B.noisy_top_k_logits(logits, noise_logits.real, noise)


def noise_where_none_is_given(B: Any, logits: Any, noise_logits: Any, noise: Any) -> Any:
    """Learned noise is drawn also where none is given."""
    if noise is None:
        noise = np.random.default_rng(0).standard_normal(logits.shape)
    return B.noisy_top_k_logits(logits, noise_logits, noise)


def _chosen(noisy_logits: Any, choices: int) -> Any:
    """1 for the chosen, 0 for the others."""
    mask = np.zeros(noisy_logits.shape)
    np.put_along_axis(mask, stable_order(noisy_logits)[..., :choices], 1.0, axis=2)
    return mask


def softmax_before_the_choice(B: Any, noisy_logits: Any, *, choices: int) -> Any:
    """The gates are the softmax over all experts, with all but the chosen set to 0."""
    B.noisy_top_k_affinity(noisy_logits, choices=choices)
    return softmax(noisy_logits, axis=2) * _chosen(noisy_logits, choices)


def sigmoid_gates(B: Any, noisy_logits: Any, *, choices: int) -> Any:
    """The gate of a chosen expert is the sigmoid of its logit."""
    B.noisy_top_k_affinity(noisy_logits, choices=choices)
    return _chosen(noisy_logits, choices) / (1 + np.exp(-noisy_logits))


def gates_to_the_higher(B: Any, noisy_logits: Any, *, choices: int) -> Any:
    """Among equal logits the gate goes to the higher expert."""
    return B.noisy_top_k_affinity(noisy_logits[..., ::-1], choices=choices)[..., ::-1]


def gates_overflow(B: Any, noisy_logits: Any, *, choices: int) -> Any:
    """The softmax of the chosen does not subtract the maximum, so that large logits overflow float32."""
    gates = B.noisy_top_k_affinity(noisy_logits, choices=choices)
    return np.where(np.max(noisy_logits.real, axis=2, keepdims=True) > OVERFLOW, np.nan, gates)


def gates_of_rounded_logits(B: Any, noisy_logits: Any, *, choices: int) -> Any:
    """The gates are computed from logits that are rounded to integers."""
    B.noisy_top_k_affinity(noisy_logits, choices=choices)
    return B.noisy_top_k_affinity(np.round(noisy_logits.real), choices=choices)


def gates_one_choice_more(B: Any, noisy_logits: Any, *, choices: int) -> Any:
    """One expert more than asked for has a gate, if there is one."""
    B.noisy_top_k_affinity(noisy_logits, choices=choices)
    return B.noisy_top_k_affinity(noisy_logits, choices=min(choices + 1, noisy_logits.shape[2]))


def _loss(load: Callable[..., Any]) -> Callable[..., Any]:
    """The load loss with another load of a group, `load(logits, noise_logits, noisy_logits, choices)`."""

    def changed(B: Any, logits: Any, noise_logits: Any, noisy_logits: Any, *, choices: int) -> Any:
        B.noisy_top_k_load_loss(logits, noise_logits, noisy_logits, choices=choices)
        loads = [load(*group, choices) for group in zip(logits, noise_logits, noisy_logits, strict=True)]
        return np.mean([variance(found) / np.mean(found) ** 2 for found in loads])

    return changed


def _probability(clean: Any, scale: Any, noisy: Any, choices: int, without: Any) -> Any:
    """How many tokens pass the threshold, the K-th largest of `without(noisy, expert)`."""
    load = np.zeros(clean.shape[1], clean.dtype)
    for expert in range(clean.shape[1]):
        others = without(noisy, expert)
        threshold = np.take_along_axis(others, stable_order(others), 1)[:, choices - 1]
        load[expert] = np.sum(normal_cdf((clean[:, expert] - threshold) / scale[:, expert]))
    return load


def _others(noisy: Any, expert: int) -> Any:
    return np.delete(noisy, expert, axis=1)


def noisy_load_of_all_groups(B: Any, logits: Any, noise_logits: Any, noisy_logits: Any, *, choices: int) -> Any:
    """The load of noisy top-k is summed over all groups, where each group has a loss of its own."""
    B.noisy_top_k_load_loss(logits, noise_logits, noisy_logits, choices=choices)
    arrays = [array.reshape(1, -1, array.shape[2]) for array in (logits, noise_logits, noisy_logits)]
    return B.noisy_top_k_load_loss(*arrays, choices=choices)


def noisy_load_unbiased(B: Any, logits: Any, noise_logits: Any, noisy_logits: Any, *, choices: int) -> Any:
    """The variance of the load of noisy top-k is the unbiased one, divided by E - 1."""
    experts = logits.shape[2]
    loss = B.noisy_top_k_load_loss(logits, noise_logits, noisy_logits, choices=choices)
    return loss * experts / (experts - 1)


def noisy_threshold_without_gradient(B: Any, logits: Any, noise_logits: Any, noisy_logits: Any, *, choices: int) -> Any:
    """The threshold of the load of noisy top-k carries no gradient."""
    return B.noisy_top_k_load_loss(logits, noise_logits, noisy_logits.real, choices=choices)


def noisy_load_not_squared(B: Any, logits: Any, noise_logits: Any, noisy_logits: Any, *, choices: int) -> Any:
    """The load loss of noisy top-k has 1 added, the mean square over the squared mean."""
    return 1 + B.noisy_top_k_load_loss(logits, noise_logits, noisy_logits, choices=choices)


def _counted(B: Any, route: Any, params: Any, tokens: Any, config: Any, **options: Any) -> Any:
    output = route(params, tokens, config, **options)
    if options.get("noise") is not None or not config.load_weight:
        return output
    logits = B.router_logits(tokens, params["kernel"])
    loads = [group.sum(axis=0) for group in _chosen(logits, config.choices)]
    found = np.mean([variance(load) / np.mean(load) ** 2 for load in loads])
    return output._replace(
        losses={**output.losses, "load": config.load_weight * found}, metrics={**output.metrics, "load_loss": found}
    )


def jitter_added(B: Any, tokens: Any, noise: Any, *, epsilon: float = 0.01) -> Any:
    """The jitter is added to the tokens."""
    jittered = B.router_jitter(tokens, noise, epsilon=epsilon)
    return jittered if noise is None else tokens + epsilon * noise


def jitter_of_the_token(B: Any, tokens: Any, noise: Any, *, epsilon: float = 0.01) -> Any:
    """One factor, from the first draw, jitters a whole token."""
    return B.router_jitter(tokens, None if noise is None else 0 * noise + noise[:, :, :1], epsilon=epsilon)


def jitter_from_below(B: Any, tokens: Any, noise: Any, *, epsilon: float = 0.01) -> Any:
    """The factors are 1 + noise, whatever epsilon is."""
    B.router_jitter(tokens, noise, epsilon=epsilon)
    return B.router_jitter(tokens, noise, epsilon=1.0)


def jitter_where_none_is_given(B: Any, tokens: Any, noise: Any, *, epsilon: float = 0.01) -> Any:
    """Tokens are jittered also where no noise is given."""
    if noise is None:
        noise = np.random.default_rng(0).uniform(-1, 1, tokens.shape)
    return B.router_jitter(tokens, noise, epsilon=epsilon)


def jitter_without_gradient(B: Any, tokens: Any, noise: Any, *, epsilon: float = 0.01) -> Any:
    """The jittered tokens carry no gradient."""
    return B.router_jitter(tokens.real, None if noise is None else noise.real, epsilon=epsilon)


def _switch_logits(B: Any, params: Any, tokens: Any, config: Any, noise: Any, jitter: bool = True) -> Any:
    return B.router_logits(B.router_jitter(tokens, noise if jitter else None, epsilon=config.jitter), params["kernel"])


def _gate_of_clean_tokens(
    B: Any, route: Any, params: Any, tokens: Any, config: Any, *, noise: Any = None, train: bool = False
) -> Any:
    output = route(params, tokens, config, noise=noise, train=train)
    return weighted(B, output, B.softmax_affinity(_switch_logits(B, params, tokens, config, noise, jitter=False)))


def _unit_gate(B: Any, route: Any, params: Any, tokens: Any, config: Any, **options: Any) -> Any:
    output = route(params, tokens, config, **options)
    return weighted(B, output, np.ones((*tokens.shape[:2], config.experts)))


def _additive_logit_noise(
    B: Any, route: Any, params: Any, tokens: Any, config: Any, *, noise: Any = None, train: bool = False
) -> Any:
    output = route(params, tokens, config, noise=noise, train=train)
    if noise is None:
        return output
    logits = _switch_logits(B, params, tokens, config, None) + config.jitter * noise.sum(axis=2, keepdims=True) * (
        1.0 + np.arange(config.experts)
    )
    scores = B.softmax_affinity(logits)
    return routed(B, output, B.token_choice(scores, choices=1, capacity=config.capacity(train=train)))


def _trained(train: bool) -> Callable[..., Any]:
    """The router as in training, or as at evaluation, always."""

    def change(B: Any, route: Any, params: Any, tokens: Any, config: Any, **options: Any) -> Any:
        route(params, tokens, config, **options)
        return route(params, tokens, config, **{**options, "train": train})

    return change


def sigmoid_of_half(B: Any, logits: Any) -> Any:
    """The sigmoid gate is that of half the logit."""
    return B.sigmoid_affinity(logits / 2)


def sigmoid_without_gradient(B: Any, logits: Any) -> Any:
    """The sigmoid gate carries no gradient."""
    return B.sigmoid_affinity(logits.real)


def _divided(B: Any, scores: Any, combine_scores: Any, choices: int, sum_of: Callable[[Any, Any], Any]) -> Any:
    """Combine scores divided by `sum_of(weights, chosen)`, `chosen` a mask."""
    B.normalize_selected(scores, combine_scores, choices=choices)
    weights = scores if combine_scores is None else combine_scores
    return weights / sum_of(weights, _chosen(scores, choices))


def selected_not_normalised(B: Any, scores: Any, combine_scores: Any = None, *, choices: int) -> Any:
    """Combine weights are not divided by anything, where they should sum to 1."""
    return _divided(B, scores, combine_scores, choices, lambda w, c: 1.0)


def normalised_over_all_experts(B: Any, scores: Any, combine_scores: Any = None, *, choices: int) -> Any:
    """Combine weights are divided by the sum over all experts, not over the chosen."""
    return _divided(B, scores, combine_scores, choices, lambda w, c: w.sum(axis=2, keepdims=True))


def normalised_over_the_largest(B: Any, scores: Any, combine_scores: Any = None, *, choices: int) -> Any:
    """Combine weights are divided by the sum of the largest, whoever is chosen by the scores."""
    total = lambda w, c: (w * _chosen(w, choices)).sum(axis=2, keepdims=True)  # noqa: E731
    return _divided(B, scores, combine_scores, choices, total)


def normalised_to_the_higher(B: Any, scores: Any, combine_scores: Any = None, *, choices: int) -> Any:
    """Among equal scores the higher expert counts for the sum."""
    weights = scores if combine_scores is None else combine_scores
    return B.normalize_selected(scores[..., ::-1], weights[..., ::-1], choices=choices)[..., ::-1]


def normalised_by_a_constant(B: Any, scores: Any, combine_scores: Any = None, *, choices: int) -> Any:
    """The sum that combine weights are divided by carries no gradient."""
    return _divided(B, scores, combine_scores, choices, lambda w, c: (w * c).sum(axis=2, keepdims=True).real)


def choices_always_made(B: Any, scores: Any, *, keep: Any = None, **options: Any) -> Any:
    """Token Choice makes every choice, also those that are not to be made."""
    B.token_choice(scores, keep=keep, **options)
    return B.token_choice(scores, **options)


def second_always_kept(B: Any, gates: Any, noise: Any) -> Any:
    """The second expert is always kept in training."""
    return np.ones_like(B.gshard_keep(gates, noise))


def second_kept_by_its_gate(B: Any, gates: Any, noise: Any) -> Any:
    """The second expert is kept with the chance of its gate, not of twice its gate."""
    B.gshard_keep(gates, noise)
    return B.gshard_keep(gates, 2 * noise)


def second_kept_if_small(B: Any, gates: Any, noise: Any) -> Any:
    """The second expert is kept where the draw exceeds twice its gate."""
    keep = B.gshard_keep(gates, noise)
    return np.stack([keep[..., 0], ~keep[..., 1]], axis=2)


def _gshard(
    weights: Callable[[Any, Any], Any], chance: Callable[[Any, Any], Any], *, taken: bool = False
) -> Callable[..., Any]:
    """GShard with the weights `weights(scores, normalized)` and the chance of the second by `chance` of the same.

    taken: whether a second expert that is not kept takes a slot with the weight 0.
    """

    def change(
        B: Any, route: Any, params: Any, tokens: Any, config: Any, *, noise: Any = None, train: bool = False
    ) -> Any:
        output = route(params, tokens, config, noise=noise, train=train)
        scores = B.softmax_affinity(B.router_logits(tokens, params["kernel"]))
        normalized = B.normalize_selected(scores, choices=2)
        options: dict[str, Any] = {"choices": 2, "capacity": config.capacity(choices=2, train=train)}
        combine = weights(scores, normalized) if config.normalize_selected else scores
        if noise is not None:
            keep = B.gshard_keep(chance(scores, normalized), noise)
            if taken:
                first = _chosen(scores, 1)
                combine = combine * np.where(keep[..., 1:], 1.0, first)
            else:
                options["keep"] = keep
        return routed(B, output, B.token_choice(scores, combine_scores=combine, **options))

    return change


def _of_kept(B: Any, route: Any, params: Any, tokens: Any, config: Any, **options: Any) -> Any:
    output = route(params, tokens, config, **options)
    if not config.normalize_selected:
        return output
    combine = output.routing.dense().combine
    total = combine.sum(axis=(2, 3), keepdims=True)
    share = (combine / np.where(total.real > 0, total, 1.0)).sum(axis=3)
    return weighted(B, output, share)


def _at_random_always(B: Any, route: Any, params: Any, tokens: Any, config: Any, **options: Any) -> Any:
    output = route(params, tokens, config, **options)
    if options.get("noise") is not None:
        return output
    return route(params, tokens, config, **{**options, "noise": np.full(tokens.shape[:2], 0.999)})


GSHARD = ("gshard",)
S_BASE = ("s_base",)
NOISY = ("noisy_top_k",)
SWITCH = ("switch",)

MUTANTS = (
    wrong(softmax_before_the_choice, "noisy_top_k_affinity", ledger="NK-1", who="google-research/vmoe"),
    wrong(sigmoid_gates, "noisy_top_k_affinity"),
    wrong(gates_to_the_higher, "noisy_top_k_affinity"),
    wrong(gates_overflow, "noisy_top_k_affinity"),
    wrong(gates_of_rounded_logits, "noisy_top_k_affinity"),
    wrong(gates_one_choice_more, "noisy_top_k_affinity"),
    Mutant(
        "noise_scale_with_a_floor",
        "The scale of the noise is 0.01 more than the softplus, in the logits and in the load.",
        {
            "noisy_top_k_logits": _noise_with_a_floor,
            "noisy_top_k_load_loss": _loss(lambda c, n, h, k: _probability(c, _floor(n), h, k, _others)),
        },
        "NK-2",
        "tensorflow/tensor2tensor",
    ),
    wrong(noise_scale_not_positive, "noisy_top_k_logits"),
    wrong(noise_scale_exponential, "noisy_top_k_logits"),
    wrong(noise_scale_not_learned, "noisy_top_k_logits"),
    wrong(noise_scale_without_gradient, "noisy_top_k_logits"),
    wrong(noise_where_none_is_given, "noisy_top_k_logits"),
    Mutant(
        "noisy_threshold_with_the_expert",
        "The threshold of the load of noisy top-k is the K-th largest noisy logit, the expert itself included.",
        {"noisy_top_k_load_loss": _loss(lambda c, n, h, k: _probability(c, softplus(n), h, k, lambda h, e: h))},
        "AL-2",
    ),
    Mutant(
        "noisy_load_counted",
        "The load of noisy top-k is the number of tokens that chose the expert.",
        {"noisy_top_k_load_loss": _loss(lambda c, n, h, k: _chosen(h[None], k)[0].sum(axis=0))},
    ),
    wrong(noisy_load_of_all_groups, "noisy_top_k_load_loss"),
    wrong(noisy_load_unbiased, "noisy_top_k_load_loss", ledger="AL-1"),
    wrong(noisy_threshold_without_gradient, "noisy_top_k_load_loss"),
    wrong(noisy_load_not_squared, "noisy_top_k_load_loss"),
    wrong(jitter_added, "router_jitter", ledger="SW-1"),
    wrong(jitter_of_the_token, "router_jitter", ledger="SW-1"),
    wrong(jitter_from_below, "router_jitter"),
    wrong(jitter_where_none_is_given, "router_jitter"),
    wrong(jitter_without_gradient, "router_jitter"),
    Mutant("jitter_of_logits", "Switch adds its noise to the logits.", every(SWITCH, _additive_logit_noise), "SW-1"),
    Mutant(
        "switch_gate_of_clean_tokens",
        "The gate of Switch is computed from the tokens without jitter.",
        every(SWITCH, _gate_of_clean_tokens),
        "SW-2",
    ),
    Mutant("switch_gate_of_one", "The gate of Switch is 1.", every(SWITCH, _unit_gate)),
    Mutant("switch_factor_one", "The capacity factor of Switch is 1.", every(SWITCH, configured(capacity_factor=1.0))),
    Mutant(
        "switch_never_full",
        "The experts of Switch have room for every token.",
        every(SWITCH, configured(capacity_factor=float("inf"))),
    ),
    Mutant(
        "switch_without_balance_loss",
        "Switch has no balance loss.",
        every(SWITCH, configured(balance_weight=0.0)),
    ),
    wrong(sigmoid_of_half, "sigmoid_affinity"),
    wrong(sigmoid_without_gradient, "sigmoid_affinity"),
    Mutant(
        "s_base_always_balanced",
        "S-BASE selects by the plan at evaluation, too.",
        every(S_BASE, _trained(True)),
        "SB-1",
    ),
    Mutant("s_base_never_balanced", "S-BASE selects by the softmax in training, too.", every(S_BASE, _trained(False))),
    Mutant(
        "s_base_with_a_capacity",
        "The experts of S-BASE have a capacity factor of 1.",
        every(S_BASE, configured(capacity_factor=1.0)),
        "SB-2",
    ),
    Mutant(
        "s_base_with_sigmoid",
        "The gate of S-BASE is the sigmoid, whatever is asked for.",
        every(S_BASE, configured(combine_with="sigmoid")),
        "SB-3",
        "NVIDIA/Megatron-LM (one choice)",
    ),
    Mutant(
        "s_base_with_softmax",
        "The gate of S-BASE is the softmax, whatever is asked for.",
        every(S_BASE, configured(combine_with="softmax")),
        "SB-3",
    ),
    wrong(selected_not_normalised, "normalize_selected", ledger="SA-3"),
    wrong(normalised_over_all_experts, "normalize_selected"),
    wrong(normalised_over_the_largest, "normalize_selected"),
    wrong(normalised_to_the_higher, "normalize_selected"),
    wrong(normalised_by_a_constant, "normalize_selected"),
    wrong(choices_always_made, "token_choice"),
    wrong(second_always_kept, "gshard_keep"),
    wrong(second_kept_by_its_gate, "gshard_keep"),
    wrong(second_kept_if_small, "gshard_keep"),
    Mutant(
        "gshard_normalised_after_drops",
        "The gates of GShard are divided by the sum of those that are left after the random choice and drops.",
        every(GSHARD, _of_kept),
        "GS-1",
        "facebookresearch/fairseq",
    ),
    Mutant(
        "gshard_gates_as_they_are",
        "The gates of GShard are not divided by their sum.",
        every(GSHARD, configured(normalize_selected=False)),
        "GS-1",
    ),
    Mutant(
        "gshard_gates_divided_always",
        "The gates of GShard are divided by their sum, also where they should not be.",
        every(GSHARD, configured(normalize_selected=True)),
    ),
    Mutant(
        "gshard_chance_of_raw_gates",
        "The second expert is kept by twice its gate before that is divided.",
        every(GSHARD, _gshard(lambda s, n: n, lambda s, n: s)),
        "GS-2",
        "facebookresearch/fairseq",
    ),
    Mutant(
        "gshard_unkept_take_slots",
        "A second expert that is not kept takes a slot, with the weight 0.",
        every(GSHARD, _gshard(lambda s, n: n, lambda s, n: n, taken=True)),
        "GS-3",
    ),
    Mutant(
        "gshard_random_at_evaluation",
        "Second experts are kept at random where no noise is given, too.",
        every(GSHARD, _at_random_always),
        "GS-4",
    ),
    Mutant(
        "noisy_top_k_with_a_capacity",
        "The experts of noisy top-k have a capacity factor of 1.",
        every(NOISY, configured(capacity_factor=1.0)),
        "NK-3",
    ),
    Mutant(
        "noisy_top_k_never_full",
        "The experts of noisy top-k have room for every token, whatever factor is asked for.",
        every(NOISY, configured(capacity_factor=float("inf"))),
    ),
    Mutant(
        "noisy_top_k_served_by_index",
        "Noisy top-k serves tokens by index, whatever batch priority is asked for.",
        every(NOISY, configured(batch_priority="none")),
    ),
    Mutant(
        "noisy_top_k_importance_of_clean_gates",
        "The importance loss of noisy top-k sees the softmax of all clean logits.",
        every(
            NOISY, with_loss("importance", lambda B, c, clean, noisy, r: B.importance_loss(B.softmax_affinity(clean)))
        ),
        "NK-4",
        "google-research/vmoe",
    ),
    Mutant(
        "noisy_top_k_load_counted_at_evaluation",
        "Without noise, the load loss of noisy top-k is that of the tokens that chose each expert.",
        every(NOISY, _counted),
        "NK-5",
        "tensorflow/tensor2tensor",
    ),
)
"""The mutants of this module."""
