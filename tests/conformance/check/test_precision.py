"""The torch backend in a lower precision in one place: the suite sees it in float32 and in bfloat16."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from committed import BY_ID, CASES, results_of, rewired

import moespec.backends.numpy as reference
from moespec.conformance.check.results import FAILED

torch = pytest.importorskip("torch")
right = pytest.importorskip("moespec.backends.torch")

FLAGGED = [case for case in CASES if "low_precision" in case.flags]
module = partial(rewired, right)
DIFFERS = {
    name: [case for case in FLAGGED if case.id.endswith(f"/{name}")] for name in ("near_bfloat16", "near_float32")
}


def low(x):
    """Rounded to bfloat16."""
    return x.bfloat16().to(x.dtype)


def choosing(rounded):
    """Everything that chooses, by rounded scores, with weights that are not rounded."""

    def allocation(name):
        def function(scores, *, combine_scores=None, **options):
            weights = right.cast(scores, "float32") if combine_scores is None else combine_scores
            return getattr(right, name)(rounded(scores), combine_scores=weights, **options)

        return function

    def order(name):
        return lambda scores, **options: getattr(right, name)(rounded(scores), **options)

    def gates(noisy_logits, *, choices):
        kept = right.noisy_top_k_affinity(rounded(noisy_logits), choices=choices) > 0
        return torch.softmax(torch.where(kept, noisy_logits.float(), -torch.inf), dim=2)

    made = {name: allocation(name) for name in ("token_choice", "expert_choice", "importance_score_choice")}
    made |= {name: order(name) for name in ("batch_priority", "importance_score_order", "base_greedy")}
    made["dselect_k_selectors"] = lambda codes, **options: right.dselect_k_selectors(rounded(codes), **options)
    made["sparse_transport_affinity"] = lambda utility, **options: right.sparse_transport_affinity(
        rounded(utility), **options
    )
    made["balance_loss"] = lambda scores, **options: right.balance_loss(rounded(scores), **options)
    made["expert_load"] = lambda scores, **options: right.expert_load(rounded(scores), **options)
    made["group_limited_scores"] = lambda scores, by=None, **options: right.group_limited_scores(
        scores, rounded(scores if by is None else by), **options
    )
    return module(**made, noisy_top_k_affinity=gates)


def multiplying():
    def router_logits(tokens, kernel):
        return (tokens.bfloat16() @ kernel.bfloat16()).float()

    return module(router_logits=router_logits)


def multiplying_and_rounding():
    """The product of exact factors, of which only the result is rounded."""
    return module(router_logits=lambda tokens, kernel: low(right.router_logits(tokens, kernel)))


def summing():
    def moe_layer(tokens, routing, experts):
        dense = routing.dense()
        inputs = torch.einsum("gtec,gtd->gecd", dense.dispatch.to(tokens.dtype), tokens)
        outputs = experts(inputs).bfloat16()
        combine = dense.combine.bfloat16()
        total = torch.zeros(1, dtype=torch.bfloat16)
        for e, c in np.ndindex(tuple(combine.shape[2:])):
            total = total + combine[:, :, e, c, None] * outputs[:, None, e, c]
        return total.to(tokens.dtype)

    return module(moe_layer=moe_layer)


def normalising():
    def normalize_selected(scores, combine_scores=None, *, choices):
        weights = low(right.cast(scores if combine_scores is None else combine_scores, "float32"))
        best = torch.sort(scores, dim=2, descending=True, stable=True).indices[..., :choices]
        total = weights.gather(2, best).bfloat16().sum(dim=2, keepdim=True)
        return (weights.bfloat16() / total).float()

    return module(normalize_selected=normalize_selected)


def weighting():
    def moe_layer(tokens, routing, experts):
        return right.moe_layer(tokens, routing._replace(weight=low(routing.weight)), experts)

    return module(moe_layer=moe_layer)


def chancing():
    return module(gshard_keep=lambda gates, noise: right.gshard_keep(low(gates), noise))


def softmax():
    return module(softmax_affinity=lambda logits: torch.softmax(logits.bfloat16(), dim=2).float())


def casting():
    """The parameters of routers cast to bfloat16, and back."""
    made = module()
    made.ROUTERS = {name: replace(router, route=cast(router.route)) for name, router in made.ROUTERS.items()}
    return made


def cast(route):
    def routed(params, *arguments, **options):
        return route({name: low(array) for name, array in params.items()}, *arguments, **options)

    return routed


# What makes the mistake, and the cases that see it.
MISTAKES = {
    "choices by scores in bfloat16": (lambda: choosing(low), [case.id for case in DIFFERS["near_bfloat16"]]),
    "logits multiplied in bfloat16": (multiplying, ["softmax_token_choice/near_bfloat16", "vit/router_in_float32"]),
    "logits rounded to bfloat16": (
        multiplying_and_rounding,
        ["softmax_affinity/many_bits", "softmax_expert_choice/near_bfloat16", "vit/router_in_float32"],
    ),
    "outputs added in bfloat16": (summing, ["moe_layer/long_sum", "moe_layer/long_sum_slots"]),
    "outputs multiplied in bfloat16": (weighting, ["moe_layer/small_difference", "moe_layer/small_difference_slots"]),
    "chances in bfloat16": (chancing, ["gshard/keep_near_bfloat16"]),
    "weights divided in bfloat16": (
        normalising,
        ["normalize_selected/values", "gshard/training", "softmax_token_choice/normalize_selected"],
    ),
    "softmax in bfloat16": (softmax, ["softmax_affinity/values", "softmax_token_choice/values", "switch/values"]),
    "parameters cast to bfloat16": (casting, ["vit/router_in_float32"]),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_lower_precision_is_seen(mistake, dtype):
    make, ids = MISTAKES[mistake]
    cases = [BY_ID[id] for id in ids]
    assert {result.id: result.state for result in results_of(module(), cases, dtype)} == dict.fromkeys(ids, "pass")
    assert {result.id for result in results_of(make(), cases, dtype) if result.state in FAILED} == set(ids)


def test_choices_by_scores_in_float32_are_seen_in_float64():
    rounded = choosing(lambda scores: scores.float().to(scores.dtype))
    rounded.noisy_top_k_affinity = lambda noisy_logits, *, choices: right.noisy_top_k_affinity(
        noisy_logits.float(), choices=choices
    ).to(noisy_logits.dtype)
    cases = DIFFERS["near_float32"]
    assert {result.state for result in results_of(module(), cases, "float64")} == {"pass"}
    assert {result.state for result in results_of(rounded, cases, "float64")} == {"fail"}


def test_what_no_dtype_below_float64_holds_is_inconclusive_there():
    for dtype in ("float32", "bfloat16"):
        assert {result.state for result in results_of(module(), DIFFERS["near_float32"], dtype)} == {"inconclusive"}


def off(factors, tanh, x):
    """A tanh that is off by 4 roundoffs of a dtype, up or down by turns, and the derivative that is made of it."""
    t = tanh(x.real) * factors[np.arange(x.shape[-1]) % 2]
    return t + 1j * (1 - t * t) * x.imag if isinstance(x, np.ndarray) and x.dtype.kind == "c" else t


CAPPED = [case for case in CASES if case.id.endswith("/logit_options") or case.algorithm == "logit_cap"]
GELUS = [case for case in CASES if case.algorithm in ("moe_layer", "network") and case.gradients is not None]


def test_a_tanh_that_is_off_by_as_much_as_those_of_gpus_passes(monkeypatch):
    """CUDA's by 2 units in the last place besides its rounding, XLA's by 4.6 roundoffs: in a soft cap, and in gradients of GELU."""
    factors = torch.tensor([1 + 2.0**-22, 1 - 2.0**-22], dtype=torch.float32)
    monkeypatch.setattr("moespec.backends.torch.namespace.tanh", partial(off, factors, torch.tanh))
    found = results_of(right, [case for case in CAPPED if case.expect is None], "float32")
    monkeypatch.setattr(np, "tanh", partial(off, 1 + np.array([1, -1]) * 2.0**-51, np.tanh))
    found += results_of(reference, GELUS)
    assert [result.id for result in found if result.state in FAILED] == []
