"""Auxiliary losses by their definitions, and how low the balance loss can be."""

import numpy as np
import pytest
from properties import holds
from scipy.stats import norm
from strategies import logits, one_of, seeds, spread

from moespec.spec import (
    balance_loss,
)


def variation(totals):
    """The mean over groups of the squared coefficient of variation of (groups, experts)."""
    return np.mean((totals.std(axis=1) / totals.mean(axis=1)) ** 2)


@holds(wrong="unbiased_importance", logits=logits)
def test_importance_is_the_variation_of_the_totals(B, logits):
    """It is E - 1 when one expert has everything."""
    scores, collapsed = B.softmax_affinity(logits), np.zeros(logits.shape)
    collapsed[:, :, -1] = 1
    np.testing.assert_allclose(B.importance_loss(scores), variation(scores.sum(axis=1)), rtol=1e-9, atol=1e-20)
    np.testing.assert_allclose(B.importance_loss(collapsed), logits.shape[2] - 1, rtol=1e-13)


@holds(wrong=("unbiased_load", "threshold_of_the_others"), logits=spread, seed=seeds)
def test_load_is_the_variation_of_the_probability_to_be_chosen(B, logits, seed):
    """Where the noise of an expert is drawn again and its threshold is the K-th largest of the noisy logits."""
    noisy = logits + np.random.default_rng(seed).normal(size=logits.shape) / 4
    for choices in {1, logits.shape[2]}:
        threshold = np.sort(noisy, axis=2)[:, :, -choices, None]
        load = norm.sf(threshold, loc=logits, scale=1 / 4).sum(axis=1)
        loss = B.load_loss(logits, noisy, choices=choices, noise_std=1 / 4)
        np.testing.assert_allclose(loss, variation(load), rtol=1e-9, atol=1e-20)


@holds(wrong=("balance_over_experts", "balance_of_all_groups"), logits=logits, size=one_of(1.0, 0.0))
def test_the_balance_loss_is_a_mean_of_scores(B, logits, size):
    """`E sum_e f[e] P[e]`, f the shares of the first maxima; it is 1 for equal scores, though all are for the first expert."""
    scores, experts = B.softmax_affinity(size * logits), logits.shape[2]
    share = (scores.argmax(axis=2)[..., None] == np.arange(experts)).mean(axis=1)
    expected = experts * np.mean(np.sum(share * scores.mean(axis=1), axis=1))
    np.testing.assert_allclose(B.balance_loss(scores), expected, rtol=1e-12)


@holds(wrong="balance_of_each_group", logits=logits)
def test_the_balance_loss_of_a_load_is_that_of_all_its_tokens_as_one_group(B, logits):
    """Megatron's `aux_loss`."""
    scores, choices = B.softmax_affinity(logits), min(2, logits.shape[2])
    expected = B.balance_loss(scores.reshape(1, -1, logits.shape[2]), choices=choices)
    load = B.expert_load(scores, choices=choices)
    np.testing.assert_allclose(B.balance_loss(scores, load=load, choices=choices), expected, rtol=1e-12)


@pytest.mark.parametrize("name", ["numpy", "jax", "torch"])
def test_the_balance_loss_of_a_batch_in_a_router_is_that_of_one_group(name):
    B = pytest.importorskip(f"moespec.backends.{name}")
    router, tokens = B.ROUTERS["switch"], np.random.default_rng(0).standard_normal((3, 5, 4)).astype(np.float32)
    losses = []
    for groups, scope in ((3, "batch"), (3, "global"), (1, "group"), (3, "group")):
        options = router.options(width=4, experts=4, tokens=15 // groups, balance_weight=1.0, balance_scope=scope)
        arrays = B.from_numpy([np.eye(4, dtype=np.float32), tokens.reshape(groups, -1, 4)])
        losses.append(float(router.route({"kernel": arrays[0]}, arrays[1], options).losses["balance"]))
    assert losses[:2] == pytest.approx([losses[2]] * 2, rel=1e-6)
    assert losses[3] != pytest.approx(losses[2], rel=1e-2)


@pytest.mark.parametrize("experts", [2, 3, 8, 64])
def test_the_balance_loss_can_be_below_1(experts):
    barely = np.full((experts + 1, experts), 1 / experts) + 1e-9 * np.eye(experts)[[0] * (experts + 1)]
    certain = np.eye(experts)[1:]
    expected = 0.75 + 0.25 / experts
    assert balance_loss(np.vstack([barely, certain])) == pytest.approx(expected, abs=1e-6)
    less, more = (np.vstack([barely[:-1], certain]), np.vstack([barely, barely[:1], certain]))
    assert min(balance_loss(less), balance_loss(more)) > expected
