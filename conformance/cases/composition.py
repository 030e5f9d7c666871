"""Routers composed differently: the variants that several routers share."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from moespec.backends.routers.composition import logits, noisy_logits, several_choices, token_choice
from moespec.conformance.author.variant import (
    Variant,
    chosen_mask,
    configured,
    every,
    noiseless,
    rerouted,
    reweighted,
    variant,
)
from moespec.spec import CAPACITY_RULES, ConfigError

TOKEN_CHOICE = ("softmax_token_choice", "sinkhorn_token_choice", "sparsity_constrained_token_choice")
SOFTMAX = ("softmax_token_choice", "softmax_expert_choice")
SINKHORN = ("sinkhorn_token_choice", "sinkhorn_expert_choice")
SPARSE_PLAN = ("sparsity_constrained_token_choice", "sparsity_constrained_expert_choice")
PLANS = (*SINKHORN, *SPARSE_PLAN)
SELECTING = (*TOKEN_CHOICE, "softmax_expert_choice", "sinkhorn_expert_choice", "sparsity_constrained_expert_choice")
"""The routers that select by the softmax of logits, or by a plan."""


# Capacities: of the function, and of the routers that select.

Rule = Callable[[int, int, float, int, str, int], int]
"""`(tokens, experts, factor, choices, rounding, multiple_of) -> slots`."""

ROUNDINGS: dict[str, Callable[[float], int]] = {"ceil": math.ceil, "round": round}


def _half_up(quotient: float) -> int:
    return int(quotient + 0.5)


def _up(slots: float, multiple_of: int) -> int:
    return math.ceil(slots / multiple_of) * multiple_of


def _ruled(name: str, computes: str, rule: Rule, ledger: str = "CA-1", who: str = "") -> Variant:
    """The capacity by a rule, wherever it follows from a factor."""

    def slots(tokens: int, experts: int, factor: float, choices: int, rounding: str, multiple_of: int) -> int:
        capacity = rule(tokens, experts, factor, choices, rounding, multiple_of)
        if capacity < 1:
            raise ConfigError(f"factor: {factor} gives no slot")
        return capacity

    def expert_capacity(
        B: Any,
        tokens: int,
        experts: int,
        factor: float,
        *,
        choices: int = 1,
        rounding: str = "ceil",
        multiple_of: int = 1,
    ) -> int:
        return slots(tokens, experts, factor, choices, rounding, multiple_of)

    def change(B: Any, route: Any, params: Any, tokens: Any, options: Any, *, train: bool = False, **more: Any) -> Any:
        if options.slots_per_expert is None:
            at_evaluation = not train and options.eval_capacity_factor is not None
            factor = options.eval_capacity_factor if at_evaluation else options.capacity_factor
            capacity = slots(
                options.tokens, options.experts, factor, options.requests[1], options.rounding, options.multiple_of
            )
            options = replace(options, slots_per_expert=capacity)
        return route(params, tokens, options, train=train, **more)

    return Variant(name, computes, {"expert_capacity": expert_capacity, **every(SELECTING, change)}, ledger, who)


def _implementation(name: str, computes: str, who: str, ledger: str) -> Variant:
    """The capacity as a public implementation computes it, with its own rounding and multiple."""
    rule = CAPACITY_RULES[name]
    return _ruled(f"capacity_of_{name}", computes, lambda t, e, f, k, r, m: rule(t, e, f, k), ledger, who)


CAPACITIES = (
    _ruled(
        "multiple_before_rounding",
        "The quotient itself is rounded to a multiple, without being rounded to an integer first.",
        lambda t, e, f, k, r, m: ROUNDINGS[r](k * t * f / e / m) * m,
    ),
    _ruled(
        "capacity_rounded_down",
        "The capacity is rounded down.",
        lambda t, e, f, k, r, m: _up(int(k * t * f / e), m),
        "CA-1c",
    ),
    _ruled(
        "capacity_rounded_to_the_nearest",
        "The capacity is rounded to the nearest integer, whatever rounding is requested.",
        lambda t, e, f, k, r, m: _up(round(k * t * f / e), m),
        "RT-5b",
    ),
    _ruled(
        "capacity_always_rounded_up",
        "The capacity is rounded up, whatever rounding is requested.",
        lambda t, e, f, k, r, m: _up(math.ceil(k * t * f / e), m),
    ),
    _ruled(
        "halves_rounded_up",
        "A capacity that is rounded to the nearest integer goes up from a half, not to the even neighbour.",
        lambda t, e, f, k, r, m: _up({**ROUNDINGS, "round": _half_up}[r](k * t * f / e), m),
    ),
    _ruled(
        "multiples_ignored",
        "The capacity is not raised to a multiple.",
        lambda t, e, f, k, r, m: ROUNDINGS[r](k * t * f / e),
    ),
    _ruled(
        "at_least_four_slots",
        "Every expert has at least four slots, whatever the factor.",
        lambda t, e, f, k, r, m: max(4, _up(ROUNDINGS[r](k * t * f / e), m)),
        "CA-2b",
    ),
    _ruled(
        "quotient_first",
        "The tokens are divided by the experts before they are multiplied by the factor.",
        lambda t, e, f, k, r, m: _up(ROUNDINGS[r](k * t / e * f), m),
        "CA-3b",
    ),
    _ruled(
        "choices_not_counted",
        "The capacity does not grow with the number of choices.",
        lambda t, e, f, k, r, m: _up(ROUNDINGS[r](t * f / e), m),
        "CA-4b",
    ),
    _ruled(
        "padding_in_the_capacity",
        "The capacity counts the tokens that pad a group to a multiple of 8.",
        lambda t, e, f, k, r, m: _up(ROUNDINGS[r](k * _up(t, 8) * f / e), m),
        who="NVIDIA/Megatron-LM (pull request 5542)",
    ),
    _implementation(
        "vmoe",
        "The capacity is ceil(k T f / E), up to a multiple of 4.",
        "google-research/vmoe (Token Choice)",
        "CA-1d",
    ),
    _implementation(
        "vmoe_expert_choice",
        "The capacity is round(T f / E), without the number of choices.",
        "google-research/vmoe (Expert Choice and Soft MoE)",
        "CA-1b",
    ),
    _implementation("megablocks", "The capacity is int(f (k T / E)).", "databricks/megablocks", "CA-1c"),
    _implementation("tutel", "The capacity is k int(f ceil(T / E)).", "microsoft/Tutel", "CA-1c"),
    _implementation("deepspeed", "The capacity is ceil(T / E (f k)), at least 8.", "deepspeedai/DeepSpeed", "CA-2b"),
    _implementation("megatron", "The capacity is ceil(k T / E f).", "NVIDIA/Megatron-LM", "CA-3b"),
    _implementation(
        "mesh_tensorflow",
        "The capacity is max(4, min(T, int(T f / E))), without the number of choices.",
        "tensorflow/mesh",
        "CA-4b",
    ),
    _implementation(
        "st_moe",
        "The capacity is int(T f / E) without the number of choices, at most T and at least 4.",
        "lucidrains/st-moe-pytorch",
        "CA-4b",
    ),
    _implementation("maxtext", "The capacity is int(ceil(k T / E) f).", "AI-Hypercomputer/maxtext", "CA-1c"),
)


# Compositions. A change is `(B, route, params, tokens, options, noise=None, train=False)`.


def _logits(B: Any, params: Any, tokens: Any, options: Any, noise: Any) -> tuple[Any, Any]:
    """Clean and noisy logits."""
    return noisy_logits(B, params, tokens, options, noise)


def _weighted(weights: Callable[[Any, Any, Any], Any]) -> Callable[..., Any]:
    """The router with its combine weights from `weights(B, clean, noisy)`."""

    def change(B: Any, route: Any, params: Any, tokens: Any, options: Any, **more: Any) -> Any:
        output = route(params, tokens, options, **more)
        return reweighted(B, output, weights(B, *_logits(B, params, tokens, options, more.get("noise"))))

    return change


def noise_after_the_softmax(B: Any, route: Any, params: Any, tokens: Any, options: Any, **more: Any) -> Any:
    """Noise is added to the softmax, not to the logits."""
    output = route(params, tokens, options, **more)
    if options.jitter:
        return output
    scores = B.softmax_affinity(logits(B, params, tokens, options, None))
    noisy = B.add_gating_noise(scores, more.get("noise"), multiplier=options.noise_multiplier)
    train = more.get("train", False)
    if not options.experts_choose:
        several = several_choices(options) if hasattr(options, "slot_order") else {}
        return rerouted(B, output, token_choice(B, options, noisy, train=train, **several))
    return rerouted(B, output, B.expert_choice(noisy, capacity=options.capacity(train=train)))


def _logits_combine(B: Any, route: Any, params: Any, tokens: Any, options: Any, **more: Any) -> Any:
    output, noise = route(params, tokens, options, **more), more.get("noise")
    if hasattr(options, "noise_multiplier"):
        return reweighted(B, output, _logits(B, params, tokens, options, noise)[1])
    return reweighted(B, output, logits(B, params, tokens, options, noise))


def nobody_dropped(B: Any, route: Any, params: Any, tokens: Any, options: Any, **more: Any) -> Any:
    """No token is dropped: every expert has a slot for each."""
    return route(params, tokens, replace(options, slots_per_expert=options.tokens), **more)


def _with_loss(name: str, value: Callable[..., Any]) -> Callable[..., Any]:
    """The router with the loss `name` computed by `value(B, options, clean, noisy, routing)`, where it has that loss."""

    def change(B: Any, route: Any, params: Any, tokens: Any, options: Any, **more: Any) -> Any:
        output = route(params, tokens, options, **more)
        if name not in output.losses:
            return output
        both = _logits(B, params, tokens, options, more.get("noise"))
        loss = value(B, options, *both, output.routing)
        losses = {**output.losses, name: getattr(options, f"{name}_weight") * loss}
        return output._replace(losses=losses, metrics={**output.metrics, f"{name}_loss": loss})

    return change


def _load_of_plan(B: Any, options: Any, clean: Any, noisy: Any, routing: Any) -> Any:
    log = np.log(B.sinkhorn_affinity(noisy, iterations=options.sinkhorn_iterations))
    std = options.noise_multiplier / options.experts
    return B.load_loss(log - (noisy - clean), log, choices=options.choices, noise_std=std)


def _balance_after_drops(B: Any, options: Any, clean: Any, noisy: Any, routing: Any) -> Any:
    fraction = routing.dense().dispatch.sum(axis=(1, 3)) / noisy.shape[1]
    return noisy.shape[2] * np.mean(np.sum(fraction * np.mean(B.softmax_affinity(noisy), axis=1), axis=1))


def _losses(change: Callable[[str, Any, Any], Any]) -> Callable[..., Any]:
    """The router with each weighted loss changed: `change(name, loss, options)`."""

    def changed(B: Any, route: Any, params: Any, tokens: Any, options: Any, **more: Any) -> Any:
        output = route(params, tokens, options, **more)
        return output._replace(losses={name: change(name, loss, options) for name, loss in output.losses.items()})

    return changed


def dropped_choices(B: Any, route: Any, params: Any, tokens: Any, options: Any, **more: Any) -> Any:
    """Dropped is the fraction of the choices of tokens that find no slot."""
    output = route(params, tokens, options, **more)
    filled = output.routing.dense().dispatch.sum() / (len(tokens) * options.tokens * options.choices)
    return output._replace(metrics={**output.metrics, "dropped": 1 - filled})


VARIANTS = (
    *CAPACITIES,
    Variant(
        "noise_for_the_choice_alone",
        "Noise decides the selection, but the combine weights are the softmax of the logits without it.",
        every(SOFTMAX, _weighted(lambda B, clean, noisy: B.softmax_affinity(clean))),
        "SA-1b",
    ),
    variant(noise_after_the_softmax, *SOFTMAX, ledger="SA-1c"),
    Variant(
        "clean_logits_combine",
        "The plan is made of the noisy logits, but the combine softmax is that of the clean ones.",
        every(SINKHORN, configured(combine_from_clean_logits=True)),
        "RT-1b",
        "google-research/vmoe (Token Choice)",
    ),
    Variant(
        "noisy_logits_combine",
        "The combine softmax is that of the noisy logits, also where the clean ones are requested.",
        every(SINKHORN, configured(combine_from_clean_logits=False)),
        "RT-1b",
    ),
    Variant(
        "sinkhorn_without_noise", "The Sinkhorn routers are not noisy in training.", every(SINKHORN, noiseless), "SK-5b"
    ),
    Variant(
        "load_of_the_plan",
        "The load loss of a Sinkhorn router counts the largest entries of the plan.",
        every(("sinkhorn_token_choice",), _with_loss("load", _load_of_plan)),
        "SK-6b",
    ),
    Variant(
        "plan_combines",
        "The routers that select by a plan combine with it, too.",
        every(PLANS, configured(combine_with="plan")),
        "RT-2b",
    ),
    Variant(
        "softmax_combines",
        "The routers that select by a plan combine with the softmax, also where the plan is requested.",
        every(PLANS, configured(combine_with="softmax")),
        "RT-2b",
    ),
    Variant(
        "sigmoid_combines",
        "The routers that select by a Sinkhorn plan combine with the sigmoid of the logits.",
        every(SINKHORN, _weighted(lambda B, clean, noisy: 1 / (1 + np.exp(-noisy)))),
        "RT-2b",
        "NVIDIA/Megatron-LM (one choice)",
    ),
    Variant(
        "importance_of_noisy_gates",
        "The importance loss sees the softmax of the noisy logits.",
        every(
            SELECTING,
            _with_loss("importance", lambda B, o, clean, noisy, r: B.importance_loss(B.softmax_affinity(noisy))),
        ),
        "AL-6b",
    ),
    Variant(
        "importance_of_kept_gates",
        "The importance loss sees the noisy softmax with all but the chosen set to 0.",
        every(
            TOKEN_CHOICE,
            _with_loss(
                "importance",
                lambda B, o, clean, noisy, r: B.importance_loss(
                    B.softmax_affinity(noisy) * chosen_mask(noisy, o.choices)
                ),
            ),
        ),
        "AL-6b",
    ),
    Variant(
        "balance_of_clean_gates",
        "The balance loss sees the softmax of the clean logits.",
        every(
            SELECTING, _with_loss("balance", lambda B, o, clean, noisy, r: B.balance_loss(B.softmax_affinity(clean)))
        ),
        "AL-5b",
    ),
    Variant(
        "balance_after_drops",
        "The fractions of the balance loss are those of the slots that are filled.",
        every(SELECTING, _with_loss("balance", _balance_after_drops)),
        "AL-5c",
        "NVIDIA/Megatron-LM (issue 1513)",
    ),
    Variant(
        "balance_over_choices",
        "The balance loss is divided by the number of choices.",
        every(TOKEN_CHOICE, _losses(lambda name, loss, o: loss / o.choices if name == "balance" else loss)),
        "AL-3c",
    ),
    Variant(
        "z_of_noisy_logits",
        "The z-loss sees the noisy logits.",
        every(SELECTING, _with_loss("z", lambda B, o, clean, noisy, r: B.z_loss(noisy))),
        "AL-7b",
    ),
    Variant(
        "logits_combine",
        "The combine weights are the logits, not their softmax.",
        {"softmax_affinity": lambda B, logits: logits, **every((*SOFTMAX, "switch"), _logits_combine)},
        who="sgl-project/sglang (pull request 35160)",
    ),
    variant(nobody_dropped, *TOKEN_CHOICE, "switch", who="huggingface/transformers (Switch; issue 48293)"),
    variant(dropped_choices, *TOKEN_CHOICE, ledger="ME-1b"),
    Variant(
        "logits_capped",
        "The logits are kept below 8 by a hyperbolic tangent, always.",
        every(SELECTING, configured(logit_cap=8.0)),
        "LC-1b",
        "google/praxis",
    ),
    Variant(
        "chosen_not_normalised",
        "The combine weights of a token are not divided by their sum, also where they should be.",
        every(TOKEN_CHOICE, configured(normalize_selected=False)),
        "SA-3b",
    ),
    Variant(
        "importance_and_load_halved",
        "The loss of a router is the mean of importance and load, not their sum.",
        every(TOKEN_CHOICE, _losses(lambda name, loss, o: loss / 2 if name in ("importance", "load") else loss)),
        who="microsoft/Tutel",
    ),
)
