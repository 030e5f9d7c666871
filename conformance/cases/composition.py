"""Variants that apply to several routers and change the capacity, the noise, the combine weights, a loss or a metric."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from moespec.backends.blocks import Array
from moespec.backends.routers.composition import logits, several_choices, token_choice
from moespec.conformance.author.variant import (
    Change,
    Route,
    Spec,
    Variant,
    chosen_mask,
    every,
    fixed,
    noiseless,
    rerouted,
    reweighted,
    variant,
    with_loss,
)
from moespec.spec import CAPACITY_RULES, ConfigError
from moespec.spec.routing import RouterOutput

TOKEN_CHOICE = ("softmax_token_choice", "sinkhorn_token_choice", "sparsity_constrained_token_choice")
SOFTMAX = ("softmax_token_choice", "softmax_expert_choice")
SINKHORN = ("sinkhorn_token_choice", "sinkhorn_expert_choice")
SPARSE_PLAN = ("sparsity_constrained_token_choice", "sparsity_constrained_expert_choice")
PLANS = (*SINKHORN, *SPARSE_PLAN)
SELECTING = (*TOKEN_CHOICE, "softmax_expert_choice", "sinkhorn_expert_choice", "sparsity_constrained_expert_choice")
"""The routers that select tokens or experts by a softmax of the logits or by a transport plan."""


# Variants of the function `expert_capacity`, and of the capacity in the routers `SELECTING`.

Rule = Callable[[int, int, float, int, str, int], int]
"""A capacity rule: `(tokens, experts, factor, choices, rounding, multiple_of) -> slots`."""

ROUNDINGS: dict[str, Callable[[float], int]] = {"ceil": math.ceil, "round": round}


def _up(slots: float, multiple_of: int) -> int:
    return math.ceil(slots / multiple_of) * multiple_of


def _ruled(name: str, computes: str, rule: Rule, ledger: str = "CA-1", who: str = "") -> Variant:
    """Returns the variant that uses `rule` to compute every capacity from a factor."""

    def slots(tokens: int, experts: int, factor: float, choices: int, rounding: str, multiple_of: int) -> int:
        capacity = rule(tokens, experts, factor, choices, rounding, multiple_of)
        if capacity < 1:
            raise ConfigError(f"factor: {factor} gives a capacity of 0, expected at least 1")
        return capacity

    def expert_capacity(B: Spec, tokens: int, experts: int, factor: float, *, choices: int = 1, **rounded: Any) -> int:
        how = {"rounding": "ceil", "multiple_of": 1, **rounded}
        return slots(tokens, experts, factor, choices, **how)

    def change(B: Spec, route: Route) -> RouterOutput:
        options = route.options
        at_evaluation = not route.train and options.eval_capacity_factor is not None
        factor = options.eval_capacity_factor if at_evaluation else options.capacity_factor
        if options.slots_per_expert is not None or factor == math.inf:
            return route.output()
        how = options.requests[1], options.rounding, options.multiple_of
        capacity = slots(options.tokens, options.experts, factor, *how)
        return route.output(options=replace(options, slots_per_expert=capacity))

    return Variant(name, computes, {"expert_capacity": expert_capacity, **every(SELECTING, change)}, ledger, who)


IMPLEMENTATIONS = {
    "vmoe": ("CA-1d", "google-research/vmoe (Token Choice)", "ceil(k T f / E), up to a multiple of 4"),
    "vmoe_expert_choice": (
        *("CA-1b", "google-research/vmoe (Expert Choice and Soft MoE)"),
        "round(T f / E), without the number of choices",
    ),
    "megablocks": ("CA-1c", "databricks/megablocks", "int(f (k T / E))"),
    "tutel": ("CA-1c", "microsoft/Tutel", "k int(f ceil(T / E))"),
    "deepspeed": ("CA-2b", "deepspeedai/DeepSpeed", "ceil(T / E (f k)), at least 8"),
    "megatron": ("CA-3b", "NVIDIA/Megatron-LM", "ceil(k T / E f)"),
    "mesh_tensorflow": ("CA-4b", "tensorflow/mesh", "max(4, min(T, int(T f / E))), without the number of choices"),
    "st_moe": (
        *("CA-4b", "lucidrains/st-moe-pytorch"),
        "int(T f / E) without the number of choices, at most T and at least 4",
    ),
    "maxtext": ("CA-1c", "AI-Hypercomputer/maxtext", "int(ceil(k T / E) f)"),
}
"""Maps each named capacity rule to its ledger alternative, its implementation and its formula."""


def _implementation(name: str) -> Variant:
    """Returns the variant that uses a public implementation's capacity rule and ignores `rounding` and `multiple_of`."""
    (ledger, who, capacity), rule = IMPLEMENTATIONS[name], CAPACITY_RULES[name]
    sentence = f"The capacity is {capacity}."
    return _ruled(f"capacity_of_{name}", sentence, lambda t, e, f, k, r, m: rule(t, e, f, k), ledger, who)


def _padded(t: int, e: int, f: float, k: int, r: str, m: int) -> int:
    return _up(ROUNDINGS[r](k * _up(t, 8) * f / e), m)


def _capacities() -> Iterator[Variant]:
    computes = "The quotient itself is rounded to a multiple, without being rounded to an integer first."
    yield _ruled("multiple_before_rounding", computes, lambda t, e, f, k, r, m: ROUNDINGS[r](k * t * f / e / m) * m)
    computes = "The capacity is rounded down."
    yield _ruled("capacity_rounded_down", computes, lambda t, e, f, k, r, m: _up(int(k * t * f / e), m), "CA-1c")
    computes = "The capacity is always rounded to the nearest integer."
    yield _ruled(
        "capacity_rounded_to_the_nearest", computes, lambda t, e, f, k, r, m: _up(round(k * t * f / e), m), "RT-5b"
    )
    computes = "The capacity is always rounded up."
    yield _ruled("capacity_always_rounded_up", computes, lambda t, e, f, k, r, m: _up(math.ceil(k * t * f / e), m))
    computes = "A capacity that is rounded to the nearest integer goes up from a half, not to the even neighbour."
    rules: dict[str, Callable[[float], int]] = {"ceil": math.ceil, "round": lambda quotient: int(quotient + 0.5)}
    yield _ruled("halves_rounded_up", computes, lambda t, e, f, k, r, m: _up(rules[r](k * t * f / e), m))
    computes = "The capacity is not raised to a multiple."
    yield _ruled("multiples_ignored", computes, lambda t, e, f, k, r, m: ROUNDINGS[r](k * t * f / e))
    computes = "Every expert has at least four slots for any factor."
    yield _ruled(
        "at_least_four_slots", computes, lambda t, e, f, k, r, m: max(4, _up(ROUNDINGS[r](k * t * f / e), m)), "CA-2b"
    )
    computes = "The tokens are divided by the experts before they are multiplied by the factor."
    yield _ruled("quotient_first", computes, lambda t, e, f, k, r, m: _up(ROUNDINGS[r](k * t / e * f), m), "CA-3b")
    computes = "The capacity does not grow with the number of choices."
    yield _ruled("choices_not_counted", computes, lambda t, e, f, k, r, m: _up(ROUNDINGS[r](t * f / e), m), "CA-4b")
    computes = "The capacity counts the tokens that pad a group to a multiple of 8."
    who = "NVIDIA/Megatron-LM (pull request 5542)"
    yield _ruled("padding_in_the_capacity", computes, _padded, who=who)
    yield from map(_implementation, IMPLEMENTATIONS)


def _weighted(weights: Callable[[Spec, Array, Array], Array]) -> Change:
    """Returns a change that replaces the combine weights with `weights(B, clean logits, noisy logits)`."""
    return lambda B, route: reweighted(B, route.output(), weights(B, *route.logits(B)))


def noise_after_the_softmax(B: Spec, route: Route) -> RouterOutput:
    """Noise is added to the softmax, not to the logits."""
    output, options = route.output(), route.options
    if options.jitter:
        return output
    scores = B.softmax_affinity(logits(B, route.params, route.tokens, options, None))
    noisy = B.add_gating_noise(scores, route.noise, multiplier=options.noise_multiplier)
    if not options.experts_choose:
        several = several_choices(options) if hasattr(options, "slot_order") else {}
        return rerouted(B, output, token_choice(B, options, noisy, train=route.train, **several))
    return rerouted(B, output, B.expert_choice(noisy, capacity=options.capacity(train=route.train)))


def _logits_combine(B: Spec, route: Route) -> RouterOutput:
    if hasattr(route.options, "noise_multiplier"):
        return reweighted(B, route.output(), route.logits(B)[1])
    return reweighted(B, route.output(), logits(B, route.params, route.tokens, route.options, route.noise))


def nobody_dropped(B: Spec, route: Route) -> RouterOutput:
    """No token is dropped because every expert has a slot for every token."""
    return route.output(options=replace(route.options, slots_per_expert=route.options.tokens))


def _with_loss(value: Callable[..., Array], name: str, *routers: str, ledger: str, who: str = "") -> Variant:
    """Returns the variant that replaces the loss `name` of `routers` with `value(B, options, clean, noisy, routing)`."""

    def change(B: Spec, route: Route) -> RouterOutput:
        output = route.output()
        if name not in output.losses:
            return output
        return with_loss(output, route.options, name, value(B, route.options, *route.logits(B), output.routing))

    return Variant(value.__name__, str(value.__doc__), every(routers, change), ledger, who)


def load_of_the_plan(B: Spec, options: Any, clean: Array, noisy: Array, routing: Any) -> Array:
    """The load loss of a Sinkhorn router uses the logarithm of the plan instead of the logits."""
    log = np.log(B.sinkhorn_affinity(noisy, iterations=options.sinkhorn_iterations))
    std = options.noise_multiplier / options.experts
    return B.load_loss(log - (noisy - clean), log, choices=options.choices, noise_std=std)


def importance_of_noisy_gates(B: Spec, options: Any, clean: Array, noisy: Array, routing: Any) -> Array:
    """The importance loss uses the softmax of the noisy logits."""
    return B.importance_loss(B.softmax_affinity(noisy))


def importance_of_kept_gates(B: Spec, options: Any, clean: Array, noisy: Array, routing: Any) -> Array:
    """The importance loss uses only the softmax scores of chosen experts. All other softmax scores become 0."""
    return B.importance_loss(B.softmax_affinity(noisy) * chosen_mask(noisy, options.choices))


def balance_of_clean_gates(B: Spec, options: Any, clean: Array, noisy: Array, routing: Any) -> Array:
    """The balance loss uses the softmax of the clean logits."""
    return B.balance_loss(B.softmax_affinity(clean))


def balance_after_drops(B: Spec, options: Any, clean: Array, noisy: Array, routing: Any) -> Array:
    """The balance loss computes its fractions from the filled slots."""
    fraction = routing.dense().dispatch.sum(axis=(1, 3)) / noisy.shape[1]
    return noisy.shape[2] * np.mean(np.sum(fraction * np.mean(B.softmax_affinity(noisy), axis=1), axis=1))


def z_of_noisy_logits(B: Spec, options: Any, clean: Array, noisy: Array, routing: Any) -> Array:
    """The z-loss uses the noisy logits."""
    return B.z_loss(noisy)


def _losses(change: Callable[[str, Any, Any], Any]) -> Change:
    """Returns a change that replaces each weighted loss with `change(name, loss, options)`."""

    def changed(B: Spec, route: Route) -> RouterOutput:
        output = route.output()
        return output._replace(losses={name: change(name, loss, route.options) for name, loss in output.losses.items()})

    return changed


def dropped_choices(B: Spec, route: Route) -> RouterOutput:
    """The metric `dropped` is the fraction of choices without a slot."""
    output, choices = route.output(), len(route.tokens) * route.options.tokens * route.options.choices
    return output._replace(metrics={**output.metrics, "dropped": 1 - output.routing.dense().dispatch.sum() / choices})


def variants() -> Iterator[Variant]:
    yield from _capacities()
    computes = "Noise decides the selection, but the combine weights are the softmax of the logits without it."
    clean_weights = every(SOFTMAX, _weighted(lambda B, clean, noisy: B.softmax_affinity(clean)))
    yield Variant("noise_for_the_choice_alone", computes, clean_weights, "SA-1b")
    yield variant(noise_after_the_softmax, *SOFTMAX, ledger="SA-1c")
    computes = "The plan uses the noisy logits, but the combine softmax uses the clean logits."
    vmoe = "google-research/vmoe (Token Choice)"
    yield fixed("clean_logits_combine", computes, SINKHORN, "RT-1b", vmoe, combine_from_clean_logits=True)
    computes = "The combine softmax uses the noisy logits, even if the clean logits are requested."
    yield fixed("noisy_logits_combine", computes, SINKHORN, "RT-1b", combine_from_clean_logits=False)
    computes = "The Sinkhorn routers are not noisy in training."
    yield Variant("sinkhorn_without_noise", computes, every(SINKHORN, noiseless), "SK-5b")
    yield _with_loss(load_of_the_plan, "load", "sinkhorn_token_choice", ledger="SK-6b")
    computes = "The routers that select by a plan also combine with it."
    yield fixed("plan_combines", computes, PLANS, "RT-2b", combine_with="plan")
    computes = "The routers that select by a plan combine with the softmax even if the plan is requested."
    yield fixed("softmax_combines", computes, PLANS, "RT-2b", combine_with="softmax")
    computes = "The routers that select by a Sinkhorn plan combine with the sigmoid of the logits."
    sigmoid = every(SINKHORN, _weighted(lambda B, clean, noisy: 1 / (1 + np.exp(-noisy))))
    yield Variant("sigmoid_combines", computes, sigmoid, "RT-2b", "NVIDIA/Megatron-LM (one choice)")
    yield _with_loss(importance_of_noisy_gates, "importance", *SELECTING, ledger="AL-6b")
    yield _with_loss(importance_of_kept_gates, "importance", *TOKEN_CHOICE, ledger="AL-6b")
    yield _with_loss(balance_of_clean_gates, "balance", *SELECTING, ledger="AL-5b")
    megatron = "NVIDIA/Megatron-LM (issue 1513)"
    yield _with_loss(balance_after_drops, "balance", *SELECTING, ledger="AL-5c", who=megatron)
    computes = "The balance loss is divided by the number of choices."
    divided = _losses(lambda name, loss, options: loss / options.choices if name == "balance" else loss)
    yield Variant("balance_over_choices", computes, every(TOKEN_CHOICE, divided), "AL-3c")
    yield _with_loss(z_of_noisy_logits, "z", *SELECTING, ledger="AL-7b")
    computes = "The combine weights are the logits, not their softmax."
    linear = {"softmax_affinity": lambda B, logits: logits, **every((*SOFTMAX, "switch"), _logits_combine)}
    yield Variant("logits_combine", computes, linear, who="sgl-project/sglang (pull request 35160)")
    yield variant(nobody_dropped, *TOKEN_CHOICE, "switch", who="huggingface/transformers (Switch; issue 48293)")
    yield variant(dropped_choices, *TOKEN_CHOICE, ledger="ME-1b")
    computes = "The logits are kept below 8 by a hyperbolic tangent, always."
    yield fixed("logits_capped", computes, SELECTING, "LC-1b", "google/praxis", logit_cap=8.0)
    computes = "The combine weights of a token are never divided by their sum."
    yield fixed("chosen_not_normalised", computes, TOKEN_CHOICE, "SA-3b", normalize_selected=False)
    computes = "The loss of a router is the mean of importance and load, not their sum."
    halved = _losses(lambda name, loss, options: loss / 2 if name in ("importance", "load") else loss)
    yield Variant("importance_and_load_halved", computes, every(TOKEN_CHOICE, halved), who="microsoft/Tutel")
