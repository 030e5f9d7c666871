"""Options of routers as the code bases that have them compute, from their lines: slots by cumulative sums, sampled experts, norms."""

import numpy as np
from properties import holds
from strategies import logits, one_of, seeds, slots

from moespec.spec import ROUTERS


def one_hot(index, experts):
    return (index[..., None] == np.arange(experts)).astype(int)


@holds(wrong=("divided_before_drops", "kept_sum_clamped"), problem=slots, by_token=one_of(True, False))
def test_slots_are_those_of_cumulative_sums(B, problem, by_token):
    """maxtext has one over the tokens and their choices, fairseq one for each choice; both weigh what got a slot."""
    scores = np.exp2(problem.scores - 30)  # sums far below the smallest that a clamp would leave
    chosen = np.argsort(-scores, axis=2, kind="stable")[..., : problem.choices]
    mask = one_hot(chosen, problem.experts)
    queue = mask if by_token else mask.swapaxes(1, 2)
    count = queue.reshape(len(mask), -1, problem.experts).cumsum(axis=1).reshape(queue.shape)
    kept = mask * ((count if by_token else count.swapaxes(1, 2)) <= problem.capacity)
    weights = scores * kept.sum(axis=2)
    total = weights.sum(axis=2, keepdims=True)
    options = {"slot_order": "token"} if by_token else {}
    routing = B.token_choice(scores, choices=problem.choices, capacity=problem.capacity, normalize="sum", **options)
    expected = weights / np.where(total > 0, total, 1)
    np.testing.assert_allclose(routing.combine.sum(axis=3), expected, rtol=1e-13)


@holds(wrong="selected_not_normalised", problem=slots)
def test_weights_by_their_norm(B, problem):
    """megablocks, `torch.norm(p=2)` of the chosen; without drops it is the same after them."""
    scores = B.softmax_affinity(problem.scores)
    best = np.sort(scores, axis=2)[..., -problem.choices :]
    expected = scores / np.linalg.norm(best, axis=2, keepdims=True)
    divided = B.normalize_selected(scores, choices=problem.choices, norm="euclidean")
    np.testing.assert_allclose(divided, expected, rtol=1e-13)
    routing = B.token_choice(scores, choices=problem.choices, capacity=problem.tokens, normalize="euclidean")
    np.testing.assert_allclose((routing.combine**2).sum(axis=(2, 3)), 1, rtol=1e-13)


@holds(wrong="balance_counts_the_first", problem=slots)
def test_the_balance_loss_of_all_choices(B, problem):
    """flaxformer, maxtext and transformers' Mixtral: the mean of the masks of all choices."""
    scores = B.softmax_affinity(problem.scores)
    chosen = np.argsort(-scores, axis=2, kind="stable")[..., : problem.choices]
    density = one_hot(chosen, problem.experts).sum(axis=2).mean(axis=1)
    expected = np.mean(density * scores.mean(axis=1)) * problem.experts**2
    np.testing.assert_allclose(B.balance_loss(scores, choices=problem.choices), expected, rtol=1e-12)


@holds(wrong="both_experts_sampled", logits=logits, seed=seeds)
def test_the_second_expert_is_the_best_of_noisy_logits_without_the_first(B, logits, seed):
    """fairseq's and praxis' `second_expert_policy="sampling"`."""
    draws = np.random.default_rng(seed).uniform(size=logits.shape)
    first = logits.argmax(axis=2)
    noisy = np.where(one_hot(first, logits.shape[2]), -np.inf, logits - np.log(-np.log(draws)))
    ranked = np.argsort(-B.gshard_sample(logits, draws), axis=2, kind="stable")
    np.testing.assert_array_equal(ranked[..., 0], first)
    if logits.shape[2] > 1:
        np.testing.assert_array_equal(ranked[..., 1], noisy.argmax(axis=2))


def test_draws_of_a_sampled_expert_are_never_0_or_1():
    router = ROUTERS["gshard"]
    record = router.noise(router.options(width=3, experts=4, tokens=6, second_expert="sampled"))
    low, high = map(np.float32, record.interval)
    for draw in (np.float32(0), np.float32(1 - 2**-24)):
        assert 0 < low + (high - low) * draw < 1
    assert record.shape == (6, 4)
