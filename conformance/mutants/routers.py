"""Routers composed otherwise. A change is `(B, route, params, tokens, config, noise=None, train=False)`."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from moespec.conformance.mutants.capacity import SELECTING
from moespec.conformance.mutants.definition import Mutant, every
from moespec.spec.numerics import stable_order

__all__ = ["MUTANTS", "configured", "routed", "weighted", "with_loss"]

TOKEN_CHOICE = ("softmax_token_choice", "sinkhorn_token_choice")
SINKHORN = ("sinkhorn_token_choice", "sinkhorn_expert_choice")
SPARSE = ("sparsity_constrained_expert_choice",)


def configured(**fields: Any) -> Callable[..., Any]:
    """The router with some fields of its configuration as they are here."""

    def change(B: Any, route: Any, params: Any, tokens: Any, config: Any, **options: Any) -> Any:
        route(params, tokens, config, **options)
        return route(params, tokens, replace(config, **fields), **options)

    return change


def _logits(B: Any, params: Any, tokens: Any, config: Any, noise: Any) -> tuple[Any, Any]:
    """Clean and noisy logits."""
    clean = B.router_logits(tokens, params["kernel"])
    return clean, B.add_gating_noise(clean, noise, multiplier=config.noise_multiplier)


def routed(B: Any, output: Any, routing: Any) -> Any:
    """The output of a router with another routing, and the metrics of that."""
    return output._replace(routing=routing, metrics={**output.metrics, **B.routing_metrics(routing)})


def weighted(B: Any, output: Any, scores: Any) -> Any:
    """The output of a router with the combine weights taken from `scores` (groups, tokens, experts)."""
    token = output.routing.token  # (groups, experts, slots)
    of_none = np.concatenate([scores, np.zeros_like(scores[:, :1])], axis=1)
    weight = np.take_along_axis(of_none, token.swapaxes(1, 2), axis=1).swapaxes(1, 2)
    return routed(B, output, output.routing._replace(weight=weight))


def _allocated(B: Any, name: str, config: Any, output: Any, selection: Any, combine: Any) -> Any:
    """The output of a router with the allocation of other scores."""
    if name.endswith("expert_choice"):
        options = {"capacity": config.capacity(), "drop_zero": config.drop_zero_plan}
        return routed(B, output, B.expert_choice(selection, combine_scores=combine, **options))
    order = None
    if config.batch_priority != "none":
        order = B.batch_priority(selection, by=config.batch_priority, choices=config.choices)
    options = {"choices": config.choices, "capacity": config.capacity(choices=config.choices), "order": order}
    return routed(B, output, B.token_choice(selection, combine_scores=combine, **options))


def _clean_weights(
    B: Any, route: Any, params: Any, tokens: Any, config: Any, *, noise: Any = None, train: bool = False
) -> Any:
    output = route(params, tokens, config, noise=noise, train=train)
    return weighted(B, output, B.softmax_affinity(_logits(B, params, tokens, config, noise)[0]))


def _sigmoid_weights(
    B: Any, route: Any, params: Any, tokens: Any, config: Any, *, noise: Any = None, train: bool = False
) -> Any:
    output = route(params, tokens, config, noise=noise, train=train)
    return weighted(B, output, 1 / (1 + np.exp(-_logits(B, params, tokens, config, noise)[1])))


def _noise_after_softmax(name: str) -> Callable[..., Any]:
    def change(
        B: Any, route: Any, params: Any, tokens: Any, config: Any, *, noise: Any = None, train: bool = False
    ) -> Any:
        output = route(params, tokens, config, noise=noise, train=train)
        scores = B.softmax_affinity(_logits(B, params, tokens, config, None)[0])
        noisy = B.add_gating_noise(scores, noise, multiplier=config.noise_multiplier)
        return _allocated(B, name, config, output, noisy, noisy)

    return change


def _without_noise(
    B: Any, route: Any, params: Any, tokens: Any, config: Any, *, noise: Any = None, train: bool = False
) -> Any:
    route(params, tokens, config, noise=noise, train=train)
    return route(params, tokens, config, train=train)


def _raw_utility(
    B: Any, route: Any, params: Any, tokens: Any, config: Any, *, noise: Any = None, train: bool = False
) -> Any:
    output = route(params, tokens, config, noise=noise, train=train)
    _, noisy = _logits(B, params, tokens, config, noise)
    plan = B.sparse_transport_affinity(noisy.real, capacity=config.capacity(), steps=config.transport_steps)
    return _allocated(B, SPARSE[0], config, output, plan, B.softmax_affinity(noisy))


def with_loss(name: str, value: Callable[..., Any]) -> Callable[..., Any]:
    """The router with the loss `name` computed by `value(B, config, clean, noisy, routing)`, where it has that loss."""

    def change(
        B: Any, route: Any, params: Any, tokens: Any, config: Any, *, noise: Any = None, train: bool = False
    ) -> Any:
        output = route(params, tokens, config, noise=noise, train=train)
        if name not in output.losses:
            return output
        found = value(B, config, *_logits(B, params, tokens, config, noise), output.routing)
        weighted = getattr(config, f"{name}_weight") * found
        return output._replace(
            losses={**output.losses, name: weighted}, metrics={**output.metrics, f"{name}_loss": found}
        )

    return change


def _kept_gates(B: Any, config: Any, clean: Any, noisy: Any, routing: Any) -> Any:
    gates = B.softmax_affinity(noisy)
    chosen = np.zeros(gates.shape)
    np.put_along_axis(chosen, stable_order(noisy)[..., : config.choices], 1.0, axis=2)
    return B.importance_loss(gates * chosen)


def _balance_after_drops(B: Any, config: Any, clean: Any, noisy: Any, routing: Any) -> Any:
    share = routing.dense().dispatch.sum(axis=(1, 3)) / noisy.shape[1]
    return noisy.shape[2] * np.mean(np.sum(share * np.mean(B.softmax_affinity(noisy), axis=1), axis=1))


def _losses(change: Callable[[str, Any, Any], Any]) -> Callable[..., Any]:
    """The router with each weighted loss changed: `change(name, loss, config)`."""

    def changed(B: Any, route: Any, params: Any, tokens: Any, config: Any, **options: Any) -> Any:
        output = route(params, tokens, config, **options)
        return output._replace(losses={name: change(name, loss, config) for name, loss in output.losses.items()})

    return changed


def _evaluated(
    B: Any, route: Any, params: Any, tokens: Any, config: Any, *, noise: Any = None, train: bool = False
) -> Any:
    route(params, tokens, config, noise=noise, train=train)
    return route(params, tokens, config, noise=noise, train=False)


MUTANTS = (
    Mutant(
        "noise_for_the_choice_alone",
        "Noise decides who is chosen, but the combine weights are the softmax of the logits without it.",
        every(("softmax_token_choice", "softmax_expert_choice"), _clean_weights),
        "SA-1",
    ),
    Mutant(
        "noise_after_the_softmax",
        "Noise is added to the softmax, not to the logits.",
        {
            name: change
            for router in ("softmax_token_choice", "softmax_expert_choice")
            for name, change in every((router,), _noise_after_softmax(router)).items()
        },
        "SA-1",
    ),
    Mutant(
        "priority_left_out",
        "Tokens are served by index, whatever batch priority is asked for.",
        every(TOKEN_CHOICE, configured(batch_priority="none")),
    ),
    Mutant(
        "clean_logits_combine",
        "The plan is made of the noisy logits, but the combine softmax is that of the clean ones.",
        every(SINKHORN, configured(combine_from_clean_logits=True)),
        "RT-1",
        "google-research/vmoe (Token Choice)",
    ),
    Mutant(
        "noisy_logits_combine",
        "The combine softmax is that of the noisy logits, also where the clean ones are asked for.",
        every(SINKHORN, configured(combine_from_clean_logits=False)),
        "RT-1",
    ),
    Mutant(
        "plan_combines",
        "The routers that select by a Sinkhorn plan combine with it, too.",
        every(SINKHORN, configured(combine_with="plan")),
        "RT-2",
    ),
    Mutant(
        "softmax_combines",
        "The Sinkhorn routers combine with the softmax, also where the plan is asked for.",
        every(SINKHORN, configured(combine_with="softmax")),
        "RT-2",
    ),
    Mutant(
        "sigmoid_combines",
        "The routers that select by a Sinkhorn plan combine with the sigmoid of the logits.",
        every(SINKHORN, _sigmoid_weights),
        "RT-2",
        "NVIDIA/Megatron-LM (one choice)",
    ),
    Mutant(
        "never_noisy",
        "The sparsity-constrained router is not noisy in training.",
        every(SPARSE, _without_noise),
        "RT-4",
    ),
    Mutant(
        "raw_utility",
        "The utility of the sparsity-constrained plan is the raw logits, not their softmax.",
        every(SPARSE, _raw_utility),
        "ST-2",
    ),
    Mutant(
        "importance_of_noisy_gates",
        "The importance loss sees the softmax of the noisy logits.",
        every(
            SELECTING,
            with_loss("importance", lambda B, c, clean, noisy, r: B.importance_loss(B.softmax_affinity(noisy))),
        ),
        "AL-6",
    ),
    Mutant(
        "importance_of_kept_gates",
        "The importance loss sees the noisy softmax with all but the chosen set to 0.",
        every(TOKEN_CHOICE, with_loss("importance", _kept_gates)),
        "AL-6",
    ),
    Mutant(
        "balance_of_clean_gates",
        "The balance loss sees the softmax of the clean logits.",
        every(SELECTING, with_loss("balance", lambda B, c, clean, noisy, r: B.balance_loss(B.softmax_affinity(clean)))),
        "AL-5",
    ),
    Mutant(
        "balance_after_drops",
        "The shares of the balance loss are those of the slots that are filled.",
        every(SELECTING, with_loss("balance", _balance_after_drops)),
        "AL-5",
    ),
    Mutant(
        "balance_over_choices",
        "The balance loss is divided by the number of choices.",
        every(
            TOKEN_CHOICE,
            with_loss("balance", lambda B, c, clean, noisy, r: B.balance_loss(B.softmax_affinity(noisy)) / c.choices),
        ),
        "AL-3",
    ),
    Mutant(
        "z_of_noisy_logits",
        "The z-loss sees the noisy logits.",
        every(SELECTING, with_loss("z", lambda B, c, clean, noisy, r: B.z_loss(noisy))),
    ),
    Mutant(
        "losses_not_weighted",
        "The losses of a router are not multiplied by their weights.",
        every(SELECTING, _losses(lambda name, loss, config: loss / getattr(config, f"{name}_weight"))),
    ),
    Mutant(
        "slots_by_number_ignored",
        "The capacity follows from the factor, whatever number of slots is asked for.",
        every(SELECTING, configured(slots_per_expert=None)),
    ),
    Mutant(
        "evaluation_factor_ignored",
        "The capacity at evaluation is that of training.",
        every(SELECTING, configured(eval_capacity_factor=None)),
    ),
    Mutant(
        "evaluation_factor_in_training",
        "The capacity of training is that of evaluation.",
        every(SELECTING, _evaluated),
    ),
    Mutant(
        "chosen_not_normalised",
        "The combine weights of a token are not divided by their sum, also where they should be.",
        every(TOKEN_CHOICE, configured(normalize_selected=False)),
        "SA-3",
    ),
    Mutant(
        "importance_and_load_halved",
        "The loss of a router is the mean of importance and load, not their sum.",
        every(TOKEN_CHOICE, _losses(lambda name, loss, config: loss / 2 if name in ("importance", "load") else loss)),
        who="microsoft/Tutel",
    ),
)
"""The mutants of this module."""
