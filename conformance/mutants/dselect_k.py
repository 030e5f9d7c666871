"""Other gates of DSelect-k. Codes are (..., choices, bits), selectors (..., choices, experts)."""

from dataclasses import replace
from typing import Any

import numpy as np

from moespec.conformance.mutants.definition import Mutant, every, wrong
from moespec.spec.dselect_k import code_bits

__all__ = ["MUTANTS"]


def _tokens_of(selectors: Any) -> int:
    """Tokens of a group, 1 for a static gate."""
    return selectors.shape[1] if selectors.ndim == 4 else 1


def step_not_clipped(B: Any, z: Any, *, gamma: float = 1.0) -> Any:
    """The cubic of the smooth step goes on outside the step."""
    B.smooth_step(z, gamma=gamma)
    return 0.5 + 1.5 * z / gamma - 2 * (z / gamma) ** 3


def step_is_linear(B: Any, z: Any, *, gamma: float = 1.0) -> Any:
    """The step rises in a straight line from one end to the other."""
    B.smooth_step(z, gamma=gamma)
    t = z / gamma + 0.5
    return np.where(t.real <= 0, 0, np.where(t.real >= 1, 1, t))


def step_is_sigmoid(B: Any, z: Any, *, gamma: float = 1.0) -> Any:
    """The step is a sigmoid, which is 0 or 1 nowhere."""
    B.smooth_step(z, gamma=gamma)
    return 1 / (1 + np.exp(-6 * z / gamma))


def step_of_half_width(B: Any, z: Any, *, gamma: float = 1.0) -> Any:
    """The step goes from -gamma to gamma, not from -gamma / 2 to gamma / 2."""
    return B.smooth_step(z, gamma=2 * gamma)


def step_width_ignored(B: Any, codes: Any, *, experts: int, gamma: float = 1.0) -> Any:
    """The step of the selectors is 1 wide, whatever width is asked for."""
    B.dselect_k_selectors(codes, experts=experts, gamma=gamma)
    return B.dselect_k_selectors(codes, experts=experts)


def least_significant_digit_first(B: Any, codes: Any, **options: Any) -> Any:
    """The first number of a code is the least significant digit of the expert."""
    B.dselect_k_selectors(codes, **options)
    return B.dselect_k_selectors(codes[..., ::-1], **options)


def experts_counted_from_one(B: Any, codes: Any, *, experts: int, gamma: float = 1.0) -> Any:
    """Expert i, counted from 0, has the code of i + 1, the last one that of 0."""
    selectors = B.dselect_k_selectors(codes, experts=experts, gamma=gamma)
    every_code = B.dselect_k_selectors(codes, experts=2 ** code_bits(experts), gamma=gamma)
    return np.roll(every_code, -1, axis=-1)[..., : selectors.shape[-1]]


def selectors_renormalised(B: Any, codes: Any, **options: Any) -> Any:
    """Each selector is divided by its sum over the experts."""
    selectors = B.dselect_k_selectors(codes, **options)
    total = selectors.sum(axis=-1, keepdims=True)
    return selectors / np.where(total.real > 0, total, 1)


def codes_without_gradient(B: Any, codes: Any, **options: Any) -> Any:
    """The selectors carry no gradient to their codes."""
    return B.dselect_k_selectors(np.asarray(codes).real, **options)


def gate_renormalised(B: Any, selectors: Any, logits: Any) -> Any:
    """The gate is divided by its sum, so that no mass is lost on codes without an expert."""
    gate = B.dselect_k_gate(selectors, logits)
    total = gate.sum(axis=-1, keepdims=True)
    return gate / np.where(total.real > 0, total, 1)


def selectors_averaged(B: Any, selectors: Any, logits: Any) -> Any:
    """Every selector has the same weight."""
    return B.dselect_k_gate(selectors, np.zeros_like(logits) + 0 * logits)


def logits_not_normalised(B: Any, selectors: Any, logits: Any) -> Any:
    """The selectors are weighed by the logits, not by their softmax."""
    B.dselect_k_gate(selectors, logits)
    return np.sum(logits[..., None] * selectors, axis=-2)


def mixture_without_gradient(B: Any, selectors: Any, logits: Any) -> Any:
    """The weights of the selectors carry no gradient."""
    return B.dselect_k_gate(selectors, np.asarray(logits).real)


def every_expert_is_used(B: Any, gate: Any) -> Any:
    """A token is in the slots of all experts, also of those with a gate of 0."""
    routing = B.dselect_k_routing(gate)
    own = np.broadcast_to(np.arange(gate.shape[1], dtype=np.int32), routing.token.shape)
    return routing._replace(token=own)


def slots_without_gaps(B: Any, gate: Any) -> Any:
    """The tokens of an expert fill its first slots."""
    routing = B.dselect_k_routing(gate)
    first = np.argsort(routing.token, axis=2, kind="stable")
    token, weight = (np.take_along_axis(array, first, axis=2) for array in (routing.token, routing.weight))
    return routing._replace(token=token, weight=weight, slot=None)


def gate_without_gradient(B: Any, gate: Any) -> Any:
    """The weights of the slots carry no gradient to the gate."""
    return B.dselect_k_routing(np.asarray(gate).real)


def entropy_averaged(B: Any, selectors: Any) -> Any:
    """The entropy of the selectors is averaged over tokens."""
    return B.dselect_k_entropy(selectors) / _tokens_of(selectors)


def entropy_without_epsilon(B: Any, selectors: Any) -> Any:
    """The logarithm of the entropy has nothing added to its argument."""
    groups = len(selectors) if selectors.ndim == 4 else 1
    B.dselect_k_entropy(selectors)
    some = selectors.real > 0
    return -np.sum(np.where(some, selectors * np.log(np.where(some, selectors, 1)), 0)) / groups


def reachability_averaged(B: Any, selectors: Any) -> Any:
    """The reachability is averaged over tokens."""
    return B.dselect_k_reachability(selectors) / _tokens_of(selectors)


def reachability_is_the_lost_mass(B: Any, selectors: Any) -> Any:
    """The reachability is the mass on codes without an expert, not the sum of reciprocals of the rest."""
    groups = len(selectors) if selectors.ndim == 4 else 1
    B.dselect_k_reachability(selectors)
    return np.sum(1 - selectors.sum(axis=-1)) / groups


def losses_without_gradient(B: Any, selectors: Any) -> Any:
    """The entropy of the selectors carries no gradient."""
    return B.dselect_k_entropy(np.asarray(selectors).real)


def reachability_without_gradient(B: Any, selectors: Any) -> Any:
    """The reachability carries no gradient."""
    return B.dselect_k_reachability(np.asarray(selectors).real)


def _bits_major(B: Any, route: Any, params: Any, tokens: Any, config: Any, **options: Any) -> Any:
    route(params, tokens, config, **options)
    bits = code_bits(config.experts)
    columns = np.arange(config.choices * (bits + 1))
    columns[: config.choices * bits] = columns[: config.choices * bits].reshape(bits, config.choices).T.ravel()
    return route({name: array[..., columns] for name, array in params.items()}, tokens, config, **options)


def _without_bias(B: Any, route: Any, params: Any, tokens: Any, config: Any, **options: Any) -> Any:
    output = route(params, tokens, config, **options)
    if config.selector_gate == "static":
        return output
    return route({**params, "bias": np.zeros_like(params["bias"])}, tokens, config, **options)


def _losses(change: Any) -> Any:
    """The router with its losses changed: `change(name, loss, metrics, config)`."""

    def routed(B: Any, route: Any, params: Any, tokens: Any, config: Any, **options: Any) -> Any:
        output = route(params, tokens, config, **options)
        losses = {name: change(name, loss, output.metrics, config) for name, loss in output.losses.items()}
        return output._replace(losses=losses)

    return routed


def _default_weights(B: Any, route: Any, params: Any, tokens: Any, config: Any, **options: Any) -> Any:
    output = route(params, tokens, config, **options)
    if "reachability" in output.losses:
        return output
    more = config.choices * (1 if config.selector_gate == "static" else config.tokens)
    return output._replace(
        losses={**output.losses, "reachability": config.reachability_weight * more},
        metrics={**output.metrics, "reachability_loss": np.float64(more)},
    )


def _counted_by_token(B: Any, route: Any, params: Any, tokens: Any, config: Any, **options: Any) -> Any:
    output = route(params, tokens, config, **options)
    if config.selector_gate != "static":
        return output
    return output._replace(losses={name: config.tokens * loss for name, loss in output.losses.items()})


def _as_if_by_token(B: Any, route: Any, params: Any, tokens: Any, config: Any, **options: Any) -> Any:
    output = route(params, tokens, config, **options)
    if config.selector_gate != "static":
        return output
    kernel = np.ones((config.width, len(params["bias"]))) / 64
    return route({**params, "kernel": kernel}, tokens, replace(config, selector_gate="token"), **options)


ROUTER = ("dselect_k",)

MUTANTS = (
    wrong(step_not_clipped, "smooth_step"),
    wrong(step_is_linear, "smooth_step"),
    wrong(step_is_sigmoid, "smooth_step"),
    wrong(step_of_half_width, "smooth_step"),
    wrong(step_width_ignored, "dselect_k_selectors"),
    wrong(least_significant_digit_first, "dselect_k_selectors", ledger="DK-1"),
    wrong(experts_counted_from_one, "dselect_k_selectors", ledger="DK-1"),
    wrong(selectors_renormalised, "dselect_k_selectors", ledger="DK-2"),
    wrong(codes_without_gradient, "dselect_k_selectors"),
    wrong(gate_renormalised, "dselect_k_gate", ledger="DK-2"),
    wrong(selectors_averaged, "dselect_k_gate"),
    wrong(logits_not_normalised, "dselect_k_gate"),
    wrong(mixture_without_gradient, "dselect_k_gate"),
    wrong(every_expert_is_used, "dselect_k_routing"),
    wrong(slots_without_gaps, "dselect_k_routing"),
    wrong(gate_without_gradient, "dselect_k_routing"),
    wrong(entropy_averaged, "dselect_k_entropy", ledger="DK-3"),
    wrong(entropy_without_epsilon, "dselect_k_entropy"),
    wrong(losses_without_gradient, "dselect_k_entropy"),
    wrong(reachability_averaged, "dselect_k_reachability", ledger="DK-3"),
    wrong(reachability_is_the_lost_mass, "dselect_k_reachability"),
    wrong(reachability_without_gradient, "dselect_k_reachability"),
    Mutant(
        "codes_digit_after_digit",
        "The columns of the kernel hold the first digit of every selector, then the second.",
        every(ROUTER, _bits_major),
    ),
    Mutant(
        "selectors_without_bias", "The codes and logits of a gate by token have no bias.", every(ROUTER, _without_bias)
    ),
    Mutant(
        "selector_losses_not_weighted",
        "The losses of the selectors are not multiplied by their weights.",
        every(ROUTER, _losses(lambda name, loss, metrics, config: metrics[f"{name}_loss"])),
    ),
    Mutant(
        "reachability_of_powers_of_two",
        "The reachability is a loss also where every code has an expert.",
        every(ROUTER, _default_weights),
    ),
    Mutant(
        "static_losses_for_every_token",
        "The losses of a static gate count once for every token.",
        every(ROUTER, _counted_by_token),
        "DK-3",
    ),
    Mutant(
        "static_gate_sees_the_token",
        "A static gate depends on the token a little.",
        every(ROUTER, _as_if_by_token),
    ),
)
"""The mutants of this module."""
