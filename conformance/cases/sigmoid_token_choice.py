"""Cases of the router `sigmoid_token_choice`, the softplus affinity, and the scale of the gates."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from moespec.backends.blocks import Array
from moespec.conformance.author.definition import Definition, single, tensor
from moespec.conformance.author.inputs import grid, logits, of_experts, scores
from moespec.conformance.author.routers import FRACTIONS, LAYER, SCOPED, dropless, output_gradient, replay, router_case
from moespec.conformance.author.variant import Route, Spec, Variant, fixed, reweighted, variant, with_loss
from moespec.conformance.format import Tensor
from moespec.spec.routing import RouterOutput

SOFTPLUS, SCALED, NAME = "sqrt_softplus_affinity", "scaled_gates", "sigmoid_token_choice"
BIAS, GROUPS, DIVIDED = "selection_bias", "expert_groups", "renormalised"


def cases() -> Iterator[Definition]:
    yield from _functions()
    yield from _router()


def _functions() -> Iterator[Definition]:
    def softplus(name: str, kind: str, purpose: str, array: Tensor, *flags: str) -> Definition:
        return single(NAME, SOFTPLUS, name, kind, purpose, *flags, logits=array)

    yield softplus("softplus", "value", "Logits on both sides of 0.", logits("sg/a"), "sigmoid_gate")
    purpose = "Logits whose exponential overflows float32, and some whose softplus is nearly 0."
    yield softplus("softplus_large", "value", purpose, logits("sg/b", reach=80.0, step=4.0), "large_logits")
    yield softplus("gradient_softplus", "gradient", "By the logits.", logits("sg/c"), "sigmoid_gate")
    case = partial(single, NAME, SCALED)
    yield case("scaled", "value", "Gates times 2.5.", DIVIDED, gates=scores("sg/d"), scale=2.5)
    yield case("gradient_scaled", "gradient", "By the gates.", DIVIDED, gates=scores("sg/e"), scale=2.5)


def _router() -> Iterator[Definition]:
    def case(name: str, kind: str, purpose: str, *flags: str, sizes: tuple[int, int, int] = (6, 4, 3),
             balanced: bool = False, reach: float = 0.5, **more: Any) -> Definition:  # fmt: skip
        bias = grid(f"{NAME}/{name}/bias", (sizes[1],), reach=reach, step=reach / 16)
        kept = {"bias": tensor(0 * bias if balanced else bias, "experts")}
        return router_case(NAME, name, kind, purpose, *flags, state=kept, sizes=sizes, **more)

    purpose = "Two of four experts by score and bias, combined with scores that are divided by their sum."
    yield case("values", "value", purpose, BIAS, DIVIDED, "generated_code", train=True)
    purpose = "One choice of three, whose gate is its score times a scale; a bias that moves faster, recentred."
    one: dict[str, Any] = {"choices": 1, "normalize_selected": False, "scale": 2.5, "bias_update_rate": 0.25}
    yield case("one_choice", "value", purpose, BIAS, sizes=(6, 3, 4), train=True, recentre_bias=True, **one)
    purpose = "The gate of one choice, divided by itself, is the scale."
    yield case("one_divided", "degenerate", purpose, DIVIDED, choices=1, scale=0.5)
    purpose = "An epsilon of a quarter, and all losses; the balance loss counts first choices."
    losses: dict[str, Any] = {"importance_weight": 0.5, "balance_weight": 0.125, "z_weight": 0.0625}
    few: dict[str, Any] = {"epsilon": 0.25, "scale": 1.5, "balance_counts": "first"}
    yield case("losses", "value", purpose, BIAS, DIVIDED, groups=1, train=True, **losses, **few)
    purpose = "The square root of the softplus, with a capacity that is a multiple of 3, best tokens first."
    tight: dict[str, Any] = {"capacity_factor": 0.5, "multiple_of": 3, "batch_priority": "max"}
    flags = ("overflow_drop", "capacity_rounding", "priority_order")
    yield case("sqrt_softplus", "overflow", purpose, *flags, affinity="sqrt_softplus", **tight)
    purpose = "The softmax, by the sum of both choices, with three slots."
    yield case("softmax", "overflow", purpose, *flags, affinity="softmax", batch_priority="sum", slots_per_expert=3)
    purpose = "The factor of evaluation, rounded to the nearest, leaves less room."
    room: dict[str, Any] = {"eval_capacity_factor": 0.75, "rounding": "round"}
    yield case("evaluation_factor", "overflow", purpose, "evaluation_capacity", train=False, **room)
    yield from _of_groups(partial(case, sizes=(6, 8, 4)))
    recorded: dict[str, Any] = {"recorded": 3, "choices": 3, "train": True, "slots_per_expert": None, "scale": 1.5}
    yield replay(case, BIAS, DIVIDED, **recorded)
    yield replay(
        case, BIAS, "stop_gradient", name="replay_gradient", kind="gradient", by=LAYER, losses=False, **recorded
    )
    other: dict[str, Any] = {"sizes": (6, 4, 4), "expert_groups": 2, "chosen_groups": 1, "outside": "zero"}
    yield replay(case, BIAS, "expert_groups", name="replay_groups", recorded=2, choices=2, train=True, **other)
    bias = of_experts([2.0, 0.25, -0.125, 0.0, 0.125, -0.25, 0.5, -2.0])
    groups: dict[str, Any] = {"scale": 2.0, "expert_groups": 4, "chosen_groups": 2}
    biased = partial(router_case, NAME, state={"bias": bias}, sizes=(7, 8, 3), **groups)
    yield from dropless(biased, partial(case, balanced=True))
    purpose = "Quantiles of what the tokens require are the next bias."
    yield case("quantile", "value", purpose, BIAS, "quantile_bias", train=True, bias_update="quantile", bias_bins=9)
    purpose = "Every score is equal: the first experts."
    yield case("zero_kernel", "tie", purpose, "tie_order", zero=True, balanced=True, train=True)
    yield case("gradient", "gradient", "By tokens, kernel and experts; not through the choice.", "stop_gradient")
    yield case("gradient_losses", "gradient", "Of all losses, too.", "stop_gradient", losses=True, groups=1, **losses)
    yield output_gradient(case, scale=2.5)
    purpose = "Scores that are equal, and biases that differ by 2^-12: equal in bfloat16, in order in float32."
    near = {"bias": tensor(0.25 + 2.0**-12 * np.array([2, 1, 3, 0]), "experts")}
    yield router_case(NAME, "near_bias", "near_tie", purpose, "low_precision", state=near, sizes=(6, 4, 3), zero=True)
    purpose = "All scores of a token are 0, also in float64, so that there is nothing to divide."
    far = grid(f"{NAME}/far", (1, 3, 3))
    far[0, 1] = (-800.0, 0.0, 0.0)
    kernel = np.concatenate([np.ones((1, 4)), grid(f"{NAME}/far/kernel", (2, 4), reach=1.0)])
    given: dict[str, Any] = {"inputs": {"tokens": tensor(far, "groups tokens width")}, "balanced": True}
    given["params"] = {"kernel": tensor(kernel, "width experts")}
    yield case("far_below", "gradient", purpose, DIVIDED, "large_logits", sizes=(3, 4, 3), exact_ties=True, **given)
    purpose = "Both choices of all groups count in the balance loss, by the scores; by those with the bias in the load."
    yield case("balance_scope", "value", purpose, FRACTIONS, BIAS, train=True, **{**SCOPED, "balance_scope": "global"})


def _of_groups(case: Any) -> Iterator[Definition]:
    four: dict[str, Any] = {"expert_groups": 4, "chosen_groups": 2}
    yield case("groups", "value", "Two groups of four, by the sum of two.", GROUPS, BIAS, choices=3, train=True, **four)
    purpose = "The best of a group, without the bias; experts outside have the score 0."
    loose: dict[str, Any] = {"group_score": "max", "group_bias": False, "outside": "zero", "choices": 3, "reach": 2.0}
    yield case("groups_loose", "value", purpose, GROUPS, BIAS, **loose, **four)
    purpose = "Two groups of four experts, one of which is chosen, by the sum of its K / M = 3 best."
    share: dict[str, Any] = {"group_score": "top_k_over_m", "choices": 3, "expert_groups": 2}
    yield case("groups_share", "value", purpose, GROUPS, BIAS, **share)


def _scores(B: Spec, params: Any, tokens: Array, options: Any) -> Any:
    logits = B.router_logits(tokens, params["kernel"])
    return getattr(B, f"{options.affinity}_affinity")(logits)


def _weights(B: Spec, options: Any, chosen_by: Any, scores: Array) -> Any:
    if options.normalize_selected:
        scores = B.normalize_selected(chosen_by, scores, choices=options.choices, epsilon=options.epsilon)
    return options.scale * scores


def _selection(B: Spec, options: Any, scores: Array, state: Any) -> Any:
    biased = B.biased_scores(scores, state["bias"])
    if options.expert_groups == 1:
        return biased
    by = None if options.group_bias else scores
    given = {"limit": options.chosen_groups, "best": options.best_of_group, "outside": options.outside}
    return B.group_limited_scores(biased, by, groups=options.expert_groups, **given)


def bias_in_the_gate(B: Spec, route: Route) -> RouterOutput:
    """The gates include the bias that is used to choose experts."""
    output = route.output()
    scores = _scores(B, route.params, route.tokens, route.options)
    selection = _selection(B, route.options, scores, route.more["state"])
    return reweighted(B, output, _weights(B, route.options, selection, scores + route.more["state"]["bias"]))


def divided_if_several(B: Spec, route: Route) -> RouterOutput:
    """The gate of a single choice is not divided by itself."""
    several = route.options.normalize_selected and route.options.choices > 1
    return route.output(options=replace(route.options, normalize_selected=several))


def load_after_drops(B: Spec, route: Route) -> RouterOutput:
    """The load counts only choices with a slot."""
    output = route.output()
    kept = (output.routing.token < route.options.tokens).sum(axis=(0, 2)).astype(float)
    return output._replace(statistics={"load": kept})


def balance_of_biased_softmax(B: Spec, route: Route) -> RouterOutput:
    """The balance loss uses the softmax of the biased scores."""
    biased = _scores(B, route.params, route.tokens, route.options) + route.more["state"]["bias"]
    return _with_balance_of(B, route, B.softmax_affinity(biased))


def balance_of_biased_scores(B: Spec, route: Route) -> RouterOutput:
    """The balance loss uses the biased scores divided by their sum over all experts."""
    biased = _scores(B, route.params, route.tokens, route.options) + route.more["state"]["bias"]
    return _with_balance_of(B, route, biased / biased.sum(axis=2, keepdims=True))


def balance_of_undivided_scores(B: Spec, route: Route) -> RouterOutput:
    """The balance loss uses the raw scores, not divided by their sum over all experts."""
    return _with_balance_of(B, route, _scores(B, route.params, route.tokens, route.options))


def _with_balance_of(B: Spec, route: Route, scores: Array) -> RouterOutput:
    output, options = route.output(), route.options
    if "balance" not in output.losses or options.balance_scope != "group":
        return output
    choices = options.choices if options.balance_counts == "all" else 1
    return with_loss(output, options, "balance", B.balance_loss(scores, choices=choices))


def variants() -> Iterator[Variant]:
    yield variant(bias_in_the_gate, NAME, ledger="LF-5b")
    yield variant(divided_if_several, NAME, ledger="SG-2b", who="NVIDIA/Megatron-LM")
    yield variant(load_after_drops, NAME, ledger="LF-2b", who="NVIDIA/Megatron-LM")
    yield variant(balance_of_biased_softmax, NAME, ledger="SG-3b", who="AI-Hypercomputer/maxtext")
    yield variant(balance_of_biased_scores, NAME, ledger="SG-3")
    yield variant(balance_of_undivided_scores, NAME, ledger="SG-3")
    yield fixed("gates_without_epsilon", "Nothing is added to the sum of the gates.", NAME, "SG-1b", epsilon=0.0)
