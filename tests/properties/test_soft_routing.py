"""Section 9: Soft MoE. Dispatch and combine are (groups, tokens, experts, capacity)."""

import numpy as np
from hypothesis import strategies as st
from properties.implementations import holds
from properties.strategies import GROUPS, grid, one_of, orders, seeds, shuffled
from properties.wrong import norms_apart

ABLATIONS = (
    ("soft", "soft"),
    ("soft", "uniform"),
    ("uniform", "soft"),
    ("uniform", "uniform"),
    ("identity", "identity"),
)


def tokens(few):
    """(groups, tokens, width) on a grid, also vectors of norm 0."""
    shapes = st.sampled_from([(6, 4)] if few else [(1, 2), (4, 3), (6, 4)])
    return shapes.flatmap(lambda shape: grid(GROUPS, *shape))


def slots_for(tokens, seed, experts=3, capacity=2):
    """(width, experts, capacity)."""
    return np.random.default_rng(seed).normal(size=(tokens.shape[2], experts, capacity))


SCALES = one_of(-2.0, 0.5, 1.0, 4.0)
FORMS = one_of("paper", "rsqrt")


@holds(wrong="exchanged", tokens=tokens, seed=seeds, forms=one_of(*ABLATIONS))
def test_dispatch_sums_to_one_over_tokens_and_combine_over_slots(B, tokens, seed, forms):
    """In all five ablations; soft weights are positive."""
    dispatch, combine = forms
    capacity = tokens.shape[1] // 2 if tokens.shape[1] > 1 else 1
    slots = slots_for(tokens, seed, tokens.shape[1] // capacity, capacity)
    routing = B.soft_routing(tokens, slots, dispatch=dispatch, combine=combine)
    np.testing.assert_allclose(routing.dispatch.sum(axis=1), 1, rtol=1e-13)
    np.testing.assert_allclose(routing.combine.sum(axis=(2, 3)), 1, rtol=1e-13)
    if dispatch != "identity":
        assert (routing.dispatch > 0).all()
        assert (routing.combine > 0).all()


@holds(wrong="never_normalised", tokens=tokens, seed=seeds, scale=SCALES, form=FORMS)
def test_normalised_logits_are_at_most_the_scale(B, tokens, seed, scale, form):
    """So `1 / (1 + (n - 1) e^2s) <= weight <= 1 / (1 + (n - 1) e^-2s)`, n tokens for dispatch and slots for combine."""
    slots = slots_for(tokens, seed)
    routing = B.soft_routing(tokens, slots, scale=np.array(scale), norm_form=form)
    bound = np.exp(2 * abs(scale))
    for weights, others in ((routing.dispatch, tokens.shape[1] - 1), (routing.combine, 3 * 2 - 1)):
        assert (weights >= 1 / (1 + others * bound) - 1e-12).all()
        assert (weights <= 1 / (1 + others / bound) + 1e-12).all()


@holds(wrong="slots_dealt_round_robin", tokens=tokens, seed=seeds, form=FORMS)
def test_permuting_tokens_experts_and_slots_permutes_the_routing(B, tokens, seed, form):
    slots = slots_for(tokens, seed)
    t, e, c = orders(tokens.shape[1], seed)[..., None], shuffled(3, seed), shuffled(2, seed)
    permuted = B.soft_routing(np.take_along_axis(tokens, t, axis=1), slots[:, e][:, :, c], norm_form=form)
    routing = B.soft_routing(tokens, slots, norm_form=form)
    for got, want in zip(permuted, routing, strict=True):
        moved = np.take_along_axis(want, t[..., None], axis=1)[:, :, e][:, :, :, c]
        np.testing.assert_allclose(got, moved, rtol=1e-12)


@holds(wrong="scale_of_one", tokens=tokens, seed=seeds, form=FORMS)
def test_a_scale_of_zero_is_uniform(B, tokens, seed, form):
    slots = slots_for(tokens, seed)
    routing = B.soft_routing(tokens, slots, scale=np.array(0.0), norm_form=form)
    uniform = B.soft_routing(tokens, slots, dispatch="uniform", combine="uniform")
    for got, want in zip(routing, uniform, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-14)


@holds(wrong="never_normalised", tokens=tokens, seed=seeds, form=FORMS)
def test_the_length_of_tokens_does_not_count(B, tokens, seed, form):
    """A positive factor for each token changes nothing, up to epsilon; a token of norm 0 has no preference."""
    slots = slots_for(tokens, seed)
    lengths = 1 + np.random.default_rng(seed).random((*tokens.shape[:2], 1)) * 9
    routing = B.soft_routing(tokens, slots, norm_form=form)
    scaled = B.soft_routing(lengths * tokens, slots, norm_form=form)
    for got, want in zip(scaled, routing, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4)
    without = ~tokens.any(axis=2)
    np.testing.assert_allclose(routing.combine[without], 1 / 6, rtol=1e-14)


@holds(wrong=norms_apart, tokens=tokens, seed=seeds)
def test_both_norms_agree_for_tokens_that_are_not_short(B, tokens, seed):
    """The weights of the two forms differ by some 4e-7 for norms of order 1."""
    slots = slots_for(tokens, seed)
    tokens = np.where(tokens == 0, 1.0, tokens)
    paper, code = (B.soft_routing(tokens, slots, norm_form=form) for form in ("paper", "rsqrt"))
    for got, want in zip(paper, code, strict=True):
        np.testing.assert_allclose(got, want, atol=2e-5)


@holds(wrong="ablations_ignored", tokens=tokens, seed=seeds)
def test_an_ablation_replaces_one_tensor(B, tokens, seed):
    """What stays soft is as without the ablation; 1 / T and 1 / (E C) elsewhere."""
    slots = slots_for(tokens, seed)
    soft = B.soft_routing(tokens, slots)
    one = B.soft_routing(tokens, slots, dispatch="uniform")
    other = B.soft_routing(tokens, slots, combine="uniform")
    np.testing.assert_allclose(one.dispatch, 1 / tokens.shape[1], rtol=1e-14)
    np.testing.assert_allclose(other.combine, 1 / 6, rtol=1e-14)
    np.testing.assert_array_equal(one.combine, soft.combine)
    np.testing.assert_array_equal(other.dispatch, soft.dispatch)
