"""Section 13: DSelect-k. Codes are (groups, tokens, choices, bits), selectors (groups, tokens, choices, experts)."""

import numpy as np
from hypothesis import strategies as st
from properties.implementations import holds
from properties.strategies import GROUPS, one_of, seeds

EXPERTS = {2: 1, 3: 2, 4: 2, 5: 3, 8: 3}
"""Experts -> bits of their codes."""
TOKENS, CHOICES = 3, 2


def codes(few, *, outside=False):
    """(experts, codes) on a grid of sixteenths; `outside`: none of them inside a step of width 1."""

    def values(experts):
        shape = (GROUPS, TOKENS, CHOICES, EXPERTS[experts])

        def draw(seed):
            grid = np.random.default_rng(seed).integers(-10, 11, shape) / 16
            return experts, np.where(grid < 0, -0.5, 0.5) if outside else grid

        return seeds(few).map(draw)

    return st.sampled_from((4, 5) if few else tuple(EXPERTS)).flatmap(values)


def saturated(few):
    """Codes at or beyond the ends of the step."""
    return codes(few, outside=True)


step_twice_as_wide = {
    "dselect_k_selectors": lambda B, codes, experts: B.dselect_k_selectors(codes, experts=experts, gamma=2.0)
}
later_selectors_favoured = {
    "dselect_k_gate": lambda B, selectors, logits: B.dselect_k_gate(selectors, logits + np.arange(logits.shape[-1]))
}


def mixed(B, problem, seed):
    """The gate of codes with random logits, and these."""
    experts, values = problem
    logits = np.random.default_rng(seed).normal(size=values.shape[:3])
    return B.dselect_k_gate(B.dselect_k_selectors(values, experts=experts), logits), logits


@holds(wrong="step_is_linear", z=lambda few: st.floats(-1, 1), gamma=one_of(0.5, 1.0, 2.0), on=("spec",))
def test_the_step_is_the_cubic_and_odd_around_one_half(B, z, gamma):
    """S(z) = -2 z^3 / gamma^3 + 3 z / (2 gamma) + 1/2 inside; S(z) + S(-z) = 1."""
    value, mirrored = B.smooth_step(np.array([z, -z]), gamma=gamma)
    inside = -2 * (z / gamma) ** 3 + 1.5 * z / gamma + 0.5
    np.testing.assert_allclose(value, 0 if z <= -gamma / 2 else 1 if z >= gamma / 2 else inside, atol=1e-15)
    np.testing.assert_allclose(value + mirrored, 1, rtol=1e-15)


@holds(wrong="selectors_renormalised", problem=codes)
def test_a_selector_sums_to_one_over_all_codes(B, problem):
    """`sum r = 1` over 2^M codes; over the experts alone at most 1, and not negative."""
    experts, values = problem
    every = B.dselect_k_selectors(values, experts=2 ** EXPERTS[experts])
    selectors = B.dselect_k_selectors(values, experts=experts)
    np.testing.assert_allclose(every.sum(axis=-1), 1, rtol=1e-14)
    np.testing.assert_allclose(selectors, every[..., :experts], rtol=1e-14)
    assert (selectors >= 0).all()


@holds(wrong="logits_not_normalised", problem=codes, seed=seeds)
def test_a_gate_is_a_share_of_each_expert(B, problem, seed):
    """q >= 0, with sum 1 if E is a power of two, else at most 1."""
    gate, _ = mixed(B, problem, seed)
    assert (gate >= 0).all()
    assert (gate.sum(axis=-1) <= 1 + 1e-14).all()
    if problem[0] == 2 ** EXPERTS[problem[0]]:
        np.testing.assert_allclose(gate.sum(axis=-1), 1, rtol=1e-14)


@holds(wrong=step_twice_as_wide, problem=saturated, seed=seeds)
def test_codes_outside_the_step_use_at_most_k_experts(B, problem, seed):
    gate, _ = mixed(B, problem, seed)
    assert ((gate > 0).sum(axis=-1) <= CHOICES).all()


@holds(wrong="least_significant_digit_first", problem=saturated)
def test_binary_codes_are_the_numbers_of_the_experts(B, problem):
    """One-hot at the number that the digits spell, most significant first; nothing where no expert has it."""
    experts, values = problem
    number = (values > 0) @ (2 ** np.arange(EXPERTS[experts])[::-1])
    selectors = B.dselect_k_selectors(values, experts=experts)
    np.testing.assert_array_equal(selectors, number[..., None] == np.arange(experts))


@holds(wrong=later_selectors_favoured, problem=codes, seed=seeds)
def test_the_order_of_the_selectors_does_not_matter(B, problem, seed):
    experts, values = problem
    gate, logits = mixed(B, problem, seed)
    permuted = B.dselect_k_gate(
        B.dselect_k_selectors(values[:, :, ::-1].copy(), experts=experts), logits[..., ::-1].copy()
    )
    np.testing.assert_allclose(permuted, gate, rtol=1e-13, atol=1e-16)


@holds(wrong="every_expert_is_used", problem=saturated, seed=seeds)
def test_a_token_has_its_own_slot_in_every_expert_with_a_gate(B, problem, seed):
    """D[t, e, c] = [q > 0] [c = t], C = q D."""
    gate, _ = mixed(B, problem, seed)
    dispatch, combine = B.dselect_k_routing(gate)
    own = np.eye(TOKENS)[:, None]
    np.testing.assert_array_equal(dispatch, (gate > 0)[..., None] * own)
    np.testing.assert_array_equal(combine, gate[..., None] * own)


@holds(wrong="entropy_averaged", problem=codes)
def test_losses_are_sums_over_the_tokens_of_a_group(B, problem):
    """And means over groups: one token after the other gives the same."""
    experts, values = problem
    selectors = B.dselect_k_selectors(values, experts=experts)
    alone = [B.dselect_k_entropy(selectors[g, t]) for g in range(GROUPS) for t in range(TOKENS)]
    np.testing.assert_allclose(B.dselect_k_entropy(selectors), np.sum(alone) / GROUPS, rtol=1e-12, atol=1e-15)


@holds(wrong="reachability_is_the_lost_mass", problem=codes)
def test_reachability_is_the_number_of_selectors_where_all_mass_is_on_experts(B, problem):
    _, values = problem
    every = B.dselect_k_selectors(values, experts=2 ** values.shape[-1])
    np.testing.assert_allclose(B.dselect_k_reachability(every), TOKENS * CHOICES, rtol=1e-13)
